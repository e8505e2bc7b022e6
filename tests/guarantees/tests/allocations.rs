//! What the framework allocates for a message, besides what the same work takes that is written by hand.
//!
//! Alone in its binary, on one thread: the counts are those of this work and nothing else.
#![allow(clippy::unwrap_used, clippy::expect_used)] // What goes wrong here has to fail the test.

use std::alloc::System;
use std::future::pending;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use inbox_core::{
    Assignment, Capabilities, Claim, ClaimKey, Claimed, Claims, Deliveries, Delivery, Done,
    IdSource, InboxDatabase as _, Isolation, Layout, Requisites, Sealed, Session, Settle,
    SettleError, SettleToken, Source, SourceError, Tables, TransactionOptions, Verdict,
};
use inbox_guarantees::{OrderPlaced, Sandbox, TestDatabase as _, bill, order};
use inbox_runtime::{Envelope, HandlerError, Inbox, MessageId, Tx, inbox_handler};
use sqlx::{Connection as _, PgConnection, PgPool, Postgres};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tokio::sync::{Notify, oneshot};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// What the statements of the framework take more than those that one writes by hand: measured 3.3. They say
/// more, and in one text.
const STATEMENTS: f64 = 4.0;

/// What the runtime takes besides its statements, from the source to the ack: measured 5.0, of which
/// three are this test's source. These bounds may only go down.
const RUNTIME: f64 = 6.0;

const MESSAGES: usize = 400;

fn messages(round: &str, count: usize) -> Vec<Envelope> {
    (0..count).map(|n| order(&format!("{round}-{n}"))).collect()
}

#[inbox_handler(consumer = "billing")]
async fn charge(
    order: OrderPlaced,
    tx: &mut Tx<Postgres>,
    id: MessageId,
) -> Result<(), HandlerError> {
    bill!(Postgres, order, id, tx);
    Ok(())
}

/// Gives deliveries that were made before, and tells when all are acked.
struct Prepared {
    deliveries: Mutex<Vec<Delivery>>,
    acks: Arc<Acks>,
}

struct Acks {
    missing: AtomicUsize,
    all: Notify,
}

impl Prepared {
    fn of(messages: Vec<Envelope>) -> Self {
        let missing = AtomicUsize::new(messages.len());
        let numbered = messages.into_iter().rev().zip(0..);
        Self {
            deliveries: Mutex::new(
                numbered
                    .map(|(message, number)| Delivery::new(message, SettleToken::new(number)))
                    .collect(),
            ),
            acks: Arc::new(Acks {
                missing,
                all: Notify::new(),
            }),
        }
    }
}

#[async_trait]
impl Source for Prepared {
    fn system(&self) -> &'static str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
    }

    fn id_sources(&self) -> Vec<IdSource> {
        vec![IdSource::Property]
    }

    async fn open(&self, _prefetch: NonZeroUsize) -> Result<Assignment, SourceError> {
        Ok(Assignment {
            deliveries: Box::new(InOrder(std::mem::take(
                &mut self.deliveries.lock().unwrap(),
            ))),
            settle: Arc::clone(&self.acks) as Arc<dyn Settle>,
        })
    }
}

struct InOrder(Vec<Delivery>);

#[async_trait]
impl Deliveries for InOrder {
    async fn next(&mut self) -> Result<Option<Delivery>, SourceError> {
        match self.0.pop() {
            Some(delivery) => Ok(Some(delivery)),
            None => pending().await,
        }
    }
}

#[async_trait]
impl Settle for Acks {
    async fn settle(&self, verdicts: Vec<(SettleToken, Verdict)>) -> Vec<Result<(), SettleError>> {
        for (_, verdict) in &verdicts {
            assert_eq!(*verdict, Verdict::Ack);
            if self.missing.fetch_sub(1, Ordering::Relaxed) == 1 {
                self.all.notify_one();
            }
        }
        verdicts.iter().map(|_| Ok(())).collect()
    }
}

/// All of it: source, queue, worker, ack.
async fn framework(pool: &PgPool, messages: Vec<Envelope>) -> usize {
    let source = Prepared::of(messages);
    let acks = Arc::clone(&source.acks);
    let inbox = Inbox::builder(pool.clone())
        .source("orders", source)
        .register(charge::handler())
        .concurrency(1)
        .prefetch(16)
        .messages_per_transaction(1)
        .without_purge();
    let inbox = inbox.build().await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let counting = Region::new(ALLOCATOR);
    let running = tokio::spawn(inbox.run_until(async {
        let _ = stopped.await;
    }));
    acks.all.notified().await;
    drop(stop);
    running.await.unwrap();
    allocations(&counting)
}

/// The loop that one writes oneself, with the same promise: claim, handler, fence, commit on a held connection.
async fn by_hand(pool: &PgPool, messages: Vec<Envelope>) -> usize {
    let counting = Region::new(ALLOCATOR);
    let mut conn = pool.acquire().await.unwrap();
    for message in messages {
        once(&mut conn, &message).await.unwrap();
    }
    drop(conn);
    allocations(&counting)
}

async fn once(conn: &mut PgConnection, message: &Envelope) -> Result<(), HandlerError> {
    let id = MessageId::new(message.id.as_deref().unwrap()).unwrap();
    let mut tx = conn.begin().await?;
    let claimed = sqlx::query(
        "INSERT INTO inbox_processed_messages (message_id, consumer_name, message_type, payload_hash) \
         VALUES ($1, $2, $3, sha256($4)) ON CONFLICT DO NOTHING",
    )
    .bind(id.as_str())
    .bind("by hand")
    .bind(message.message_type.as_deref())
    .bind(&*message.payload)
    .execute(&mut *tx)
    .await?;
    assert_eq!(claimed.rows_affected(), 1);
    let order: OrderPlaced = serde_json::from_slice(&message.payload).unwrap();
    bill!(Postgres, order, id, tx);
    let held = sqlx::query(
        "SELECT 1 FROM inbox_processed_messages WHERE message_id = $1 AND consumer_name = $2 \
         AND xmin = pg_current_xact_id()::xid",
    )
    .bind(id.as_str())
    .bind("by hand")
    .fetch_optional(&mut *tx)
    .await?;
    assert!(held.is_some());
    tx.commit().await?;
    Ok(())
}

/// The framework's own statements in a loop without its runtime.
async fn session(pool: &PgPool, messages: Vec<Envelope>) -> usize {
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
    let mut conn = pool.acquire().await.unwrap();
    let inspection = Postgres::inspect(&mut conn, &Tables::default(), &requisites)
        .await
        .unwrap();
    drop(conn);
    let layout = Arc::new(Layout::<Postgres>::new(inspection.statements));
    let begin = layout.begin_text(&options);
    let counting = Region::new(ALLOCATOR);
    let mut session = Session::open(pool, layout).await.unwrap();
    let n = messages.len();
    let mut claimed = false;
    for at in 0..n {
        let message = &messages[at];
        let id = MessageId::new(message.id.as_deref().unwrap()).unwrap();
        let key = ClaimKey {
            consumer: "session",
            message_id: id.as_str(),
        };
        if !claimed {
            let claims = [Claim::new(key, message)];
            let claims = Claims {
                begin: &begin,
                claims: &claims,
            };
            let claimed = session.claim(&claims).await.unwrap();
            assert!(matches!(claimed[..], [Claimed::Won { .. }]));
        }
        let order: OrderPlaced = serde_json::from_slice(&message.payload).unwrap();
        let tx = session.tx();
        book(order, &id, tx).await.unwrap();
        let done = Done {
            keys: &[key],
            have_failures: false,
            is_durable: true,
        };
        let next = messages.get(at + 1).map(|next| {
            let key = ClaimKey {
                consumer: "session",
                message_id: next.id.as_deref().unwrap(),
            };
            [Claim::new(key, next)]
        });
        let next = next.as_ref().map(|claims| Claims {
            begin: &begin,
            claims,
        });
        let (sealed, won) = session.seal(&done, next.as_ref()).await;
        assert!(matches!(sealed, Sealed::Committed));
        claimed = won.is_some();
    }
    session.release().await;
    allocations(&counting)
}

async fn book(
    order: OrderPlaced,
    id: &MessageId,
    tx: &mut Tx<Postgres>,
) -> Result<(), HandlerError> {
    bill!(Postgres, order, id, tx);
    Ok(())
}

fn allocations(counting: &Region<'_, System>) -> usize {
    let change = counting.change();
    change.allocations + change.reallocations
}

/// By what the count grows with each message: start and end do not count.
async fn for_each<F: Future<Output = usize>>(name: &str, run: impl Fn(Vec<Envelope>) -> F) -> f64 {
    // The driver prepares its statements once.
    run(messages(&format!("{name}-warm"), 16)).await;
    let few = run(messages(&format!("{name}-few"), MESSAGES)).await;
    let many = run(messages(&format!("{name}-many"), 2 * MESSAGES)).await;
    (many as f64 - few as f64) / MESSAGES as f64
}

#[tokio::test]
async fn a_message_takes_no_more_allocations_than_it_took() {
    let sandbox: Sandbox<Postgres> = Postgres::fresh(2).await;
    let pool = &sandbox.pool;
    let by_hand = for_each("by-hand", |messages| by_hand(pool, messages)).await;
    let session = for_each("session", |messages| session(pool, messages)).await;
    let framework = for_each("framework", |messages| framework(pool, messages)).await;
    let all = 3 * (16 + 3 * MESSAGES);
    assert_eq!(sandbox.ledger_total().await, i64::try_from(all).unwrap());
    let (statements, runtime) = (session - by_hand, framework - session);
    let told = format!(
        "allocations for each message: {by_hand:.1} by hand, {statements:.1} more with the framework's statements, \
         {runtime:.1} more with its runtime"
    );
    println!("{told}");
    assert!(statements <= STATEMENTS && runtime <= RUNTIME, "{told}");
}
