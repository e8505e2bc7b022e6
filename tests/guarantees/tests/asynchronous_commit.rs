//! A setting under which an ack proves less is told once at start-up. Alone in its process, because it reads
//! all that was logged.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use inbox_guarantees::dispatch::Serve as _;
use inbox_guarantees::{EventLog, OrderPlaced, Running, TestDatabase, all_acked, bill, order};
use inbox_runtime::brokers::MemoryBroker;
use inbox_runtime::{HandlerError, Inbox, MessageId, Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing")]
async fn charge(
    order: OrderPlaced,
    tx: &mut Tx<Postgres>,
    id: MessageId,
) -> Result<(), HandlerError> {
    bill!(Postgres, order, id, tx);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn starting_with_asynchronous_commit_warns_once_and_names_the_setting() {
    let log = EventLog::of_process();
    let told = || {
        let text = log.text();
        let lines = text
            .lines()
            .filter(|line| line.contains("WARN") && line.contains("synchronous_commit"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let mut sandbox = Postgres::fresh(10).await;
    let broker = MemoryBroker::new();
    let build = |pool: &sqlx::PgPool| {
        Inbox::builder(pool.clone())
            .source("orders", broker.source("orders"))
            .serve(charge::handler())
            .build()
    };
    build(&sandbox.pool).await.unwrap();
    assert!(
        told().is_empty(),
        "the server's default is no reason to warn: {:?}",
        told()
    );

    sandbox.set("synchronous_commit", "off").await;
    let inbox = build(&sandbox.pool).await.unwrap();
    let running = Running::start(inbox);
    broker.publish_copies("orders", order("m-1"), 2);
    all_acked(&broker).await;
    running.stop().await;
    sandbox.assert_stored_once("m-1").await;
    let told = told();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("synchronous_commit = off"), "{told:?}");
}
