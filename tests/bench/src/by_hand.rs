//! The consumer that one writes without a framework, in two forms, and the framework's own statements without its
//! runtime.

use std::sync::Arc;
use std::time::Duration;

use inbox_core::{
    Claim, ClaimKey, Claimed, Claims, Done, InboxDatabase as _, Isolation, Layout, Requisites,
    Sealed, Session, Tables, TransactionOptions,
};
use sqlx::{Connection as _, PgConnection, PgPool, Postgres};
use tokio::task::JoinSet;

use crate::Result;
use crate::stopwatch::{Pid, Stopwatch, Taken};
use crate::workload::{CONSUMER, Work, book, read};

/// Runs `worker` that often at once.
async fn workers<F>(count: usize, server: Pid, worker: impl Fn() -> F) -> Result<Taken>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let stopwatch = Stopwatch::start(server)?;
    let mut tasks = JoinSet::new();
    for _ in 0..count {
        tasks.spawn(worker());
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    stopwatch.stop()
}

/// Claims; `false`: a duplicate.
async fn claim(conn: &mut PgConnection, id: &str) -> Result<bool> {
    let claimed = sqlx::query(
        "INSERT INTO inbox_processed_messages (message_id, consumer_name) VALUES ($1, $2) \
         ON CONFLICT DO NOTHING",
    )
    .bind(id)
    .bind(CONSUMER)
    .execute(conn)
    .await?;
    Ok(claimed.rows_affected() == 1)
}

/// A transaction from the pool for each message: begin, claim, two statements, commit.
pub(crate) async fn pooled(
    pool: &PgPool,
    work: &Arc<Work>,
    concurrency: usize,
    server: Pid,
) -> Result<Taken> {
    workers(concurrency, server, || {
        let (pool, work) = (pool.clone(), Arc::clone(work));
        async move {
            while let Some(message) = work.take() {
                let (id, order) = read(message)?;
                let mut tx = pool.begin().await?;
                if claim(&mut tx, id).await? {
                    book!(order, id, tx);
                    tx.commit().await?;
                }
            }
            Ok(())
        }
    })
    .await
}

/// A connection for each worker, and a fence before the commit: as many round trips as the framework has.
pub(crate) async fn held(
    pool: &PgPool,
    work: &Arc<Work>,
    concurrency: usize,
    server: Pid,
) -> Result<Taken> {
    workers(concurrency, server, || {
        let (pool, work) = (pool.clone(), Arc::clone(work));
        async move {
            let mut conn = pool.acquire().await?;
            while let Some(message) = work.take() {
                let (id, order) = read(message)?;
                let mut tx = conn.begin().await?;
                if claim(&mut tx, id).await? {
                    book!(order, id, tx);
                    let held = sqlx::query(
                        "SELECT 1 FROM inbox_processed_messages WHERE message_id = $1 AND consumer_name = $2 \
                         AND xmin = pg_current_xact_id()::xid",
                    )
                    .bind(id)
                    .bind(CONSUMER)
                    .fetch_optional(&mut *tx)
                    .await?;
                    if held.is_none() {
                        return Err("the fence did not hold".into());
                    }
                    tx.commit().await?;
                }
            }
            Ok(())
        }
    })
    .await
}

/// The framework's sessions, and so exactly its statements, in a loop of our own: what is missing to the framework
/// is its runtime.
pub(crate) async fn session(
    pool: &PgPool,
    work: &Arc<Work>,
    concurrency: usize,
    server: Pid,
) -> Result<Taken> {
    let options = TransactionOptions {
        isolation: Isolation::ReadCommitted,
        claim_wait: Duration::from_secs(5),
        idle_limit: Duration::from_secs(60),
    };
    let requisites = Requisites {
        claim_wait: options.claim_wait,
        longest_handler: Duration::from_secs(30),
    };
    let inspection =
        Postgres::inspect(&mut *pool.acquire().await?, &Tables::default(), &requisites).await?;
    let layout = Arc::new(Layout::<Postgres>::new(inspection.statements));
    let begin = layout.begin_text(&options);
    workers(concurrency, server, || {
        let (pool, work) = (pool.clone(), Arc::clone(work));
        let (layout, begin) = (Arc::clone(&layout), Arc::clone(&begin));
        async move {
            let mut session = Session::open(&pool, layout).await?;
            while let Some(message) = work.take() {
                let (id, order) = read(message)?;
                let key = ClaimKey {
                    consumer: CONSUMER,
                    message_id: id,
                };
                let claims = [Claim::new(key, message)];
                let claims = Claims {
                    begin: &begin,
                    claims: &claims,
                };
                if let [Claimed::Won { .. }] = session.claim(&claims).await?[..] {
                    let tx = session.tx();
                    book!(order, id, tx);
                    let done = Done {
                        keys: &[key],
                        have_failures: false,
                    };
                    match session.seal(&done, None).await {
                        (Sealed::Committed, _) => {}
                        (other, _) => return Err(format!("not committed: {other:?}").into()),
                    }
                } else {
                    session.roll_back().await?;
                }
            }
            session.release().await;
            Ok(())
        }
    })
    .await
}
