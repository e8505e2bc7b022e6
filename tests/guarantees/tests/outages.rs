//! While the database is away nothing is acked, nothing is counted, and afterwards everything is processed once
//! (case C19).

#![allow(clippy::unwrap_used, clippy::expect_used)] // What goes wrong here has to fail the test.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use inbox_core::Source;
use inbox_guarantees::dispatch::Serve as _;
use inbox_guarantees::rabbitmq::TestQueue;
use inbox_guarantees::recorded::{Record, Recorded};
use inbox_guarantees::servers::OwnServer;
use inbox_guarantees::{OrderPlaced, Running, Sandbox, bill, eventually, order};
use inbox_runtime::brokers::{MemoryBroker, QueueKind};
use inbox_runtime::testing::Step;
use inbox_runtime::{Attempt, HandlerError, Inbox, MessageId, Tx, inbox_handler};
use sqlx::Postgres;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

const MESSAGES: usize = 10;

#[inbox_handler(consumer = "billing")]
async fn charge(
    order: OrderPlaced,
    tx: &mut Tx<Postgres>,
    id: MessageId,
    Attempt(attempt): Attempt,
) -> Result<(), HandlerError> {
    // A count that the success forgets again would have been one all the same.
    if attempt != 1 {
        return Err(HandlerError::reject("the outage was counted"));
    }
    bill!(Postgres, order, id, tx);
    // Some are in work whenever the outage comes.
    tokio::time::sleep(Duration::from_millis(100)).await;
    Ok(())
}

/// When each message was committed first.
type Commits = Arc<Mutex<HashMap<String, Instant>>>;

/// An inbox on the database of `sandbox`, whose settles and commits are recorded.
async fn inbox(
    sandbox: &Sandbox<Postgres>,
    source: impl Source,
) -> (Inbox<Postgres>, Record, Commits) {
    let (source, record) = Recorded::new(source);
    let commits = Commits::default();
    // A pool of its own: the test's would hide an outage from this one, and the other way round.
    let options: PgConnectOptions = sandbox.url.parse().unwrap();
    let pool = PgPoolOptions::new()
        .max_connections(5)
        .acquire_timeout(Duration::from_secs(1))
        .connect_lazy_with(options);
    let inbox = Inbox::builder(pool)
        .source("orders", source)
        .serve(charge::handler())
        .concurrency(2)
        .prefetch(MESSAGES)
        .on_step({
            let commits = Arc::clone(&commits);
            move |step, id| {
                if step == Step::AfterCommit {
                    let mut commits = commits.lock().unwrap();
                    commits.entry(id.to_owned()).or_insert_with(Instant::now);
                }
            }
        })
        .build()
        .await
        .unwrap();
    (inbox, record, commits)
}

/// All messages are acked, each after its commit, none with a failure or more than one effect.
async fn assert_processed_once(sandbox: &Sandbox<Postgres>, record: &Record, commits: &Commits) {
    eventually("all is acked", || async { record.acks().len() >= MESSAGES }).await;
    let commits = commits.lock().unwrap().clone();
    for (id, acked) in record.acks() {
        // A commit whose answer was lost is not in the list: its ack follows a claim that found it.
        if let Some(committed) = commits.get(&id) {
            assert!(*committed < acked, "{id} was acked before its commit");
        }
    }
    for n in 0..MESSAGES {
        let id = format!("m-{n}");
        sandbox.assert_stored_once(&id).await;
        assert_eq!(sandbox.attempts(&id).await, 0, "{id}");
    }
    assert!(sandbox.dead_letters().await.is_empty());
    assert_eq!(
        sandbox.balance("acc-1").await,
        100 * i64::try_from(MESSAGES).unwrap()
    );
}

/// Waits with the outage going on; nothing may be acked in it.
async fn no_ack_during_the_outage(record: &Record) {
    // An ack whose commit came before the outage may still be on its way.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let acked = record.acks().len();
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(record.acks().len(), acked, "acked without a database");
    assert!(
        acked < MESSAGES,
        "the outage came too late to prove anything"
    );
}

async fn own_database() -> (OwnServer, Sandbox<Postgres>) {
    let server = OwnServer::start("postgres");
    let (admin, app) = (server.url("POSTGRES_ADMIN_URL"), server.url("POSTGRES_URL"));
    let sandbox = Sandbox::on_server(&admin, &app, 3).await;
    (server, sandbox)
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_database_refuses_connections_nothing_is_acked_or_counted() {
    let (server, sandbox) = own_database().await;
    for kind in [None, Some(QueueKind::Quorum)] {
        let memory = MemoryBroker::new();
        let queue = match kind {
            None => None,
            Some(kind) => Some(TestQueue::new(kind).await),
        };
        let (inbox, record, commits) = match &queue {
            None => inbox(&sandbox, memory.source("orders")).await,
            Some(queue) => inbox(&sandbox, queue.source()).await,
        };
        tokio::task::block_in_place(|| server.stop());
        for n in 0..MESSAGES {
            match &queue {
                None => memory.publish("orders", order(&format!("m-{n}"))),
                Some(queue) => queue.publish(order(&format!("m-{n}"))).await,
            }
        }
        let running = Running::start(inbox);
        eventually("all are taken", || async { record.deliveries("m-9") == 1 }).await;
        no_ack_during_the_outage(&record).await;
        assert!(record.acks().is_empty());
        assert_eq!(
            record.hand_backs(),
            0,
            "nothing is handed back for an outage"
        );

        tokio::task::block_in_place(|| server.again());
        assert_processed_once(&sandbox, &record, &commits).await;
        assert_eq!(commits.lock().unwrap().len(), MESSAGES);
        running.stop().await;
        if let Some(queue) = &queue {
            assert_eq!(queue.left().await, 0);
        }
        empty(&sandbox).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_crashes_in_the_middle_of_the_work_costs_no_message_and_no_attempt() {
    let (server, sandbox) = own_database().await;
    let queue = TestQueue::new(QueueKind::Quorum).await;
    let (inbox, record, commits) = inbox(&sandbox, queue.source()).await;
    for n in 0..MESSAGES {
        queue.publish(order(&format!("m-{n}"))).await;
    }
    let running = Running::start(inbox);
    eventually("some are acked", || async { record.acks().len() >= 2 }).await;
    tokio::task::block_in_place(|| server.crash());
    no_ack_during_the_outage(&record).await;
    tokio::task::block_in_place(|| server.again());
    assert_processed_once(&sandbox, &record, &commits).await;
    running.stop().await;
    assert_eq!(queue.left().await, 0);
    assert_eq!(record.hand_backs(), 0, "held, not handed back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_hangs_gets_no_ack_and_the_work_goes_on_after_it() {
    let (server, sandbox) = own_database().await;
    let queue = TestQueue::new(QueueKind::Quorum).await;
    let (inbox, record, commits) = inbox(&sandbox, queue.source()).await;
    for n in 0..MESSAGES {
        queue.publish(order(&format!("m-{n}"))).await;
    }
    let running = Running::start(inbox);
    eventually("some are acked", || async { record.acks().len() >= 2 }).await;
    tokio::task::block_in_place(|| server.pause());
    no_ack_during_the_outage(&record).await;
    tokio::task::block_in_place(|| server.resume());
    assert_processed_once(&sandbox, &record, &commits).await;
    running.stop().await;
    assert_eq!(queue.left().await, 0);
    assert_eq!(record.hand_backs(), 0, "held, not handed back");
}

/// Takes away what one round has left, for the next one.
async fn empty(sandbox: &Sandbox<Postgres>) {
    use inbox_guarantees::TestDatabase as _;
    let sql = "TRUNCATE ledger, inbox_processed_messages; UPDATE accounts SET balance = 0";
    Postgres::run(&sandbox.pool, sql).await;
}
