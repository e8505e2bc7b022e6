//! While the database is away nothing is acked, nothing is counted, and afterwards everything is processed once
//! (case C19).

#![allow(clippy::unwrap_used, clippy::expect_used)] // What goes wrong here has to fail the test.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use inbox_core::Source;
use inbox_guarantees::child::{Consumer, Orders};
use inbox_guarantees::dispatch::Serve as _;
use inbox_guarantees::outage::OwnDatabase;
use inbox_guarantees::rabbitmq::TestQueue;
use inbox_guarantees::recorded::{Record, Recorded};
use inbox_guarantees::{
    OrderPlaced, Running, Sandbox, TestDatabase, bill, environment, eventually, on_each_database,
    order, workers,
};
use inbox_runtime::brokers::{MemoryBroker, QueueKind};
use inbox_runtime::testing::Step;
use inbox_runtime::{Attempt, Handler, HandlerError, Inbox, MessageId, Tx, inbox_handler};
use sqlx::Sqlite;

const MESSAGES: usize = 10;

/// When each message was committed first.
type Commits = Arc<Mutex<HashMap<String, Instant>>>;

/// An inbox whose settles and commits are recorded.
async fn inbox<H: Handler>(
    database: &OwnDatabase<H::Db>,
    source: impl Source,
    handler: H,
) -> (Inbox<H::Db>, Record, Commits)
where
    H::Db: TestDatabase,
{
    let (source, record) = Recorded::new(source);
    let commits = Commits::default();
    let inbox = Inbox::builder(database.pool(5))
        .source("orders", source)
        .serve(handler)
        .concurrency(workers::<H::Db>(2))
        .prefetch(MESSAGES)
        // Shorter than the outage: SQLite's lock is not only waited for.
        .claim_wait(Duration::from_secs(1))
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

async fn all_are_acked(record: &Record) {
    eventually("all is acked", || async { record.acks().len() >= MESSAGES }).await;
}

/// All messages are acked, each after its commit, none with a failure or more than one effect.
async fn assert_processed_once<Db: TestDatabase>(
    sandbox: &Sandbox<Db>,
    prefix: &str,
    record: &Record,
    commits: &Commits,
) {
    all_are_acked(record).await;
    let commits = commits.lock().unwrap().clone();
    for (id, acked) in record.acks() {
        // A commit whose answer was lost is not in the list: its ack follows a claim that found it.
        if let Some(committed) = commits.get(&id) {
            assert!(*committed < acked, "{id} was acked before its commit");
        }
    }
    for n in 0..MESSAGES {
        let id = format!("{prefix}-{n}");
        sandbox.assert_stored_once(&id).await;
        assert_eq!(sandbox.attempts(&id).await, 0, "{id}");
    }
    assert!(sandbox.dead_letters().await.is_empty());
}

/// Waits with the outage going on; nothing may be acked in it.
async fn no_ack_during_the_outage(records: &[&Record]) {
    // An ack whose commit came before the outage may still be on its way.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let acked = |record: &&Record| record.acks().len();
    let before: Vec<_> = records.iter().map(acked).collect();
    tokio::time::sleep(Duration::from_secs(4)).await;
    let after: Vec<_> = records.iter().map(acked).collect();
    assert_eq!(after, before, "acked without a database");
    assert!(
        before.iter().all(|acked| *acked < MESSAGES),
        "the outage came too late to prove anything"
    );
}

/// Publishes one half of the messages.
async fn publish(queue: &TestQueue, half: usize) {
    for n in half * MESSAGES / 2..(half + 1) * MESSAGES / 2 {
        queue.publish(order(&format!("m-{n}"))).await;
    }
}

on_each_database! {
    #[inbox_handler(consumer = "billing")]
    pub(super) async fn charge(
        order: OrderPlaced,
        tx: &mut Tx<Db>,
        id: MessageId,
        Attempt(attempt): Attempt,
    ) -> Result<(), HandlerError> {
        // A count that the success forgets again would have been one all the same.
        if attempt != 1 {
            return Err(HandlerError::reject("the outage was counted"));
        }
        bill!(Db, order, id, tx);
        // Some are in work whenever the outage comes.
        tokio::time::sleep(Duration::from_millis(100)).await;
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn while_the_database_refuses_connections_nothing_is_acked_or_counted() {
        let database = OwnDatabase::<Db>::start(3).await;
        let (memory, queue) = (MemoryBroker::new(), TestQueue::new(QueueKind::Quorum).await);
        let one = inbox(&database, memory.source("orders"), charge::handler()).await;
        let other = inbox(&database, queue.source(), charge::handler()).await;
        database.stop().await;
        for n in 0..MESSAGES {
            memory.publish("orders", order(&format!("n-{n}")));
            queue.publish(order(&format!("m-{n}"))).await;
        }
        let running = [Running::start(one.0), Running::start(other.0)];
        let mut recorded = Vec::new();
        for (prefix, record, commits) in [("n", one.1, one.2), ("m", other.1, other.2)] {
            eventually("all are taken", || async {
                record.deliveries(&format!("{prefix}-9")) == 1
            })
            .await;
            recorded.push((prefix, record, commits));
        }
        no_ack_during_the_outage(&[&recorded[0].1, &recorded[1].1]).await;
        for (_, record, _) in &recorded {
            assert!(record.acks().is_empty());
            assert_eq!(record.hand_backs(), 0, "nothing is handed back for an outage");
        }

        database.again();
        for (_, record, _) in &recorded {
            all_are_acked(record).await;
        }
        for (prefix, record, commits) in &recorded {
            assert_processed_once(&database.sandbox, prefix, record, commits).await;
            assert_eq!(commits.lock().unwrap().len(), MESSAGES);
        }
        for running in running {
            running.stop().await;
        }
        assert_eq!(queue.left().await, 0);
        assert_eq!(database.sandbox.balance("acc-1").await, 200 * i64::try_from(MESSAGES).unwrap());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_database_that_hangs_gets_no_ack_and_the_work_goes_on_after_it() {
        let database = OwnDatabase::<Db>::start(3).await;
        let queue = TestQueue::new(QueueKind::Quorum).await;
        let (inbox, record, commits) = inbox(&database, queue.source(), charge::handler()).await;
        publish(&queue, 0).await;
        let running = Running::start(inbox);
        eventually("some are acked", || async { record.acks().len() >= 2 }).await;
        database.pause().await;
        publish(&queue, 1).await;
        no_ack_during_the_outage(&[&record]).await;
        database.resume().await;
        assert_processed_once(&database.sandbox, "m", &record, &commits).await;
        running.stop().await;
        assert_eq!(queue.left().await, 0);
        assert_eq!(record.hand_backs(), 0, "held, not handed back");
    }
}

async fn crashes<H: Handler>(handler: H)
where
    H::Db: TestDatabase,
{
    let database = OwnDatabase::<H::Db>::start(3).await;
    let queue = TestQueue::new(QueueKind::Quorum).await;
    let (inbox, record, commits) = inbox(&database, queue.source(), handler).await;
    for half in 0..2 {
        publish(&queue, half).await;
    }
    let running = Running::start(inbox);
    eventually("some are acked", || async { record.acks().len() >= 2 }).await;
    database.crash();
    no_ack_during_the_outage(&[&record]).await;
    database.again();
    assert_processed_once(&database.sandbox, "m", &record, &commits).await;
    running.stop().await;
    assert_eq!(queue.left().await, 0);
    assert_eq!(record.hand_backs(), 0, "held, not handed back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_crashes_in_the_middle_of_the_work_costs_no_message_and_no_attempt_on_postgres()
 {
    crashes(postgres::charge::handler()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_crashes_in_the_middle_of_the_work_costs_no_message_and_no_attempt_on_mysql()
{
    crashes(mysql::charge::handler()).await;
}

/// SQLite has no server that could crash under its sessions; what fails in the middle of the work is its disk.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_takes_no_more_in_the_middle_of_the_work_costs_no_message_and_no_attempt() {
    let sandbox = Sqlite::fresh(3).await;
    let counts = "CREATE TABLE counts (message_id TEXT); CREATE TRIGGER counts AFTER INSERT ON inbox_attempts \
                  BEGIN INSERT INTO counts VALUES (NEW.message_id); END";
    Sqlite::run(&sandbox.pool, counts).await;
    let queue = TestQueue::new(QueueKind::Quorum).await;
    let mut consumer = Consumer::start(
        env!("CARGO_BIN_EXE_consumer"),
        &Orders {
            database: sandbox.url.clone(),
            amqp: environment("AMQP_URL"),
            queue: queue.name.clone(),
            ..Orders::default()
        },
    );
    for half in 0..2 {
        publish(&queue, half).await;
    }
    consumer.until_many("step 6 ", 2).await;
    consumer.let_files_grow(false);
    // An ack whose commit came before may still be on its way.
    consumer.says_within(Duration::from_millis(500)).await;
    let said = consumer.says_within(Duration::from_secs(4)).await;
    let went_on = said.iter().any(|line| line.starts_with("entered "));
    assert!(went_on, "nothing was tried: {said:?}");
    let ends = |line: &&String| line.starts_with("step 5 ") || line.starts_with("step 6 ");
    assert_eq!(said.iter().find(ends), None, "committed or acked: {said:?}");

    consumer.let_files_grow(true);
    let all = i64::try_from(MESSAGES).unwrap();
    eventually("all is stored", || async {
        sandbox.ledger_total().await == all
    })
    .await;
    consumer.stop().await;
    assert_eq!(queue.left().await, 0);
    for n in 0..MESSAGES {
        sandbox.assert_stored_once(&format!("m-{n}")).await;
    }
    assert_eq!(sandbox.dead_letters().await, [""; 0]);
    let counted = Sqlite::texts(&sandbox.pool, "SELECT message_id FROM counts").await;
    assert_eq!(counted, [""; 0], "the outage was counted");
}
