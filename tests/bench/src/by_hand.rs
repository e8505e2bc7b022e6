//! The consumers that one writes without a framework, and the framework's own statements without its runtime.

use std::sync::Arc;
use std::time::Duration;

use inbox_core::{
    Claim, ClaimKey, Claimed, Claims, Done, InboxDatabase as _, Isolation, Layout, Requisites,
    Sealed, Session, Tables, TransactionOptions,
};
use sqlx::{Connection as _, PgConnection, PgPool, Postgres};
use tokio::task::JoinSet;

use crate::Result;
use crate::stopwatch::{Stopwatch, Taken};
use crate::variant::Setting;
use crate::workload::{CONSUMER, OrderPlaced, Work, book, book_together, read};

/// How many messages a set-based transaction takes.
pub(crate) const TOGETHER: usize = 100;

/// Runs as many workers as the setting says.
async fn workers<F>(setting: &Setting, worker: impl Fn(PgPool, Arc<Work>) -> F) -> Result<Taken>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let stopwatch = Stopwatch::start(Some(setting.server))?;
    let mut tasks = JoinSet::new();
    for _ in 0..setting.concurrency {
        tasks.spawn(worker(setting.pool.clone(), Arc::clone(&setting.work)));
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    stopwatch.stop(setting.work.count())
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

/// One message in a transaction of the pool: begin, claim, two statements, commit.
pub(crate) async fn process(pool: &PgPool, id: &str, order: &OrderPlaced) -> Result<()> {
    let mut tx = pool.begin().await?;
    if claim(&mut tx, id).await? {
        book!(order, id, tx);
        tx.commit().await?;
    } else {
        tx.rollback().await?;
    }
    Ok(())
}

/// A transaction from the pool for each message.
pub(crate) async fn pooled(setting: &Setting) -> Result<Taken> {
    workers(setting, |pool, work| async move {
        while let Some(message) = work.take() {
            let (id, order) = read(message)?;
            process(&pool, id, &order).await?;
        }
        Ok(())
    })
    .await
}

/// A connection for each worker; with a fence before the commit, as the framework has it, or without.
pub(crate) async fn held(setting: &Setting, fenced: bool) -> Result<Taken> {
    workers(setting, move |pool, work| async move {
        let mut conn = pool.acquire().await?;
        while let Some(message) = work.take() {
            let (id, order) = read(message)?;
            let mut tx = conn.begin().await?;
            if !claim(&mut tx, id).await? {
                tx.rollback().await?;
                continue;
            }
            book!(order, id, tx);
            if fenced {
                fence(&mut tx, id).await?;
            }
            tx.commit().await?;
        }
        Ok(())
    })
    .await
}

async fn fence(conn: &mut PgConnection, id: &str) -> Result<()> {
    let holds = sqlx::query(
        "SELECT 1 FROM inbox_processed_messages WHERE message_id = $1 AND consumer_name = $2 \
         AND xmin = pg_current_xact_id()::xid",
    )
    .bind(id)
    .bind(CONSUMER)
    .fetch_optional(conn)
    .await?;
    holds
        .map(drop)
        .ok_or_else(|| "the fence did not hold".into())
}

/// Many messages in each transaction, and no statement for one of them alone.
pub(crate) async fn set_based(setting: &Setting) -> Result<Taken> {
    workers(setting, |pool, work| async move {
        while let batch @ [_, ..] = work.take_together(TOGETHER) {
            let orders = batch.iter().map(read).collect::<Result<Vec<_>>>()?;
            let mut ids: Vec<&str> = orders.iter().map(|(id, _)| *id).collect();
            ids.sort_unstable();
            let mut tx = pool.begin().await?;
            let new: Vec<String> = sqlx::query_scalar(
                "INSERT INTO inbox_processed_messages (message_id, consumer_name) \
                 SELECT id, $2 FROM unnest($1::text[]) AS id ON CONFLICT DO NOTHING RETURNING message_id",
            )
            .bind(&ids)
            .bind(CONSUMER)
            .fetch_all(&mut *tx)
            .await?;
            let new: std::collections::HashSet<String> = new.into_iter().collect();
            let orders: Vec<_> = orders
                .iter()
                .filter(|(id, _)| new.contains(*id))
                .map(|(id, order)| (*id, order))
                .collect();
            book_together(&orders, &mut tx).await?;
            tx.commit().await?;
        }
        Ok(())
    })
    .await
}

/// The framework's sessions, and so exactly its statements, in a loop of our own: what is missing to the framework
/// is its runtime.
pub(crate) async fn session(setting: &Setting) -> Result<Taken> {
    let options = TransactionOptions {
        isolation: Isolation::ReadCommitted,
        claim_wait: Duration::from_secs(5),
        idle_limit: Duration::from_secs(60),
    };
    let requisites = Requisites {
        claim_wait: options.claim_wait,
        longest_handler: Duration::from_secs(30),
        behind_pooler: false,
    };
    let mut conn = setting.pool.acquire().await?;
    let inspection = Postgres::inspect(&mut conn, &Tables::default(), &requisites).await?;
    drop(conn);
    let layout = Arc::new(Layout::<Postgres>::new(inspection.statements));
    let begin = layout.begin_text(&options);
    workers(setting, |pool, work| {
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
                        is_durable: true,
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
