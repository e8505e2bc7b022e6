//! After an outage of the database or of the broker the work goes on by itself, and meanwhile everybody can see why it does
//! not (case C51).
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::{Duration, Instant};

use inbox_guarantees::dispatch::Serve as _;
use inbox_guarantees::rabbitmq::TestQueue;
use inbox_guarantees::servers::OwnServer;
use inbox_guarantees::{OrderPlaced, Running, Sandbox, bill, eventually, order};
use inbox_runtime::brokers::QueueKind;
use inbox_runtime::{Condition, HandlerError, Inbox, MessageId, Monitor, Tx, inbox_handler};
use sqlx::Postgres;

const OUTAGE: Duration = Duration::from_secs(20);

/// Within this time after its return something has to be processed again.
const RESUMED: Duration = Duration::from_secs(10);

#[inbox_handler(consumer = "billing")]
async fn charge(
    order: OrderPlaced,
    tx: &mut Tx<Postgres>,
    id: MessageId,
) -> Result<(), HandlerError> {
    bill!(Postgres, order, id, tx);
    Ok(())
}

/// Publishes under numbers from `first` on, ten a second, until `until`; the next number.
async fn steady(queue: &TestQueue, first: usize, until: Instant) -> usize {
    let mut number = first;
    while Instant::now() < until {
        queue.publish(order(&format!("m-{number}"))).await;
        number += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    number
}

async fn all_booked(sandbox: &Sandbox<Postgres>, messages: usize) {
    eventually("all is booked", || async {
        sandbox.ledger_total().await >= i64::try_from(messages).unwrap()
    })
    .await;
}

async fn is_healthy(monitor: &Monitor) {
    eventually("all is well", || async { !monitor.health().is_degraded() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_resumes_by_itself_after_the_database_and_after_the_broker_were_away() {
    let database = OwnServer::start("postgres");
    let broker = OwnServer::start("rabbitmq");
    let sandbox = Sandbox::on_server(
        &database.url("POSTGRES_ADMIN_URL"),
        &database.url("POSTGRES_URL"),
        4,
    )
    .await;
    let queue = TestQueue::on(&broker.url("AMQP_URL"), QueueKind::Quorum, &[]).await;
    let pool = sandbox.another_pool(5).await;
    let inbox = Inbox::builder(pool)
        .source("orders", queue.source())
        .serve(charge::handler())
        .concurrency(2)
        .build()
        .await
        .unwrap();
    let monitor = inbox.monitor();
    assert!(monitor.health().is_degraded(), "nothing was reached yet");
    let running = Running::start(inbox);

    let mut next = steady(&queue, 0, Instant::now() + Duration::from_secs(2)).await;
    all_booked(&sandbox, next).await;
    is_healthy(&monitor).await;

    tokio::task::block_in_place(|| database.stop());
    let end = Instant::now() + OUTAGE;
    next = steady(&queue, next, Instant::now() + Duration::from_secs(8)).await;
    let before = monitor.total().processed;
    tokio::time::sleep(end.saturating_duration_since(Instant::now())).await;
    let health = monitor.health();
    assert!(
        matches!(&health.database, Condition::Down { failures, error, .. } if *failures > 1 && !error.is_empty()),
        "{health:?}"
    );
    assert_eq!(health.sources, [("orders".to_owned(), Condition::Up)]);
    assert_eq!(monitor.total().processed, before, "without a database");
    tokio::task::block_in_place(|| database.again());
    let back = Instant::now();
    eventually("work resumes", || async {
        monitor.total().processed > before
    })
    .await;
    assert!(back.elapsed() < RESUMED, "after {:?}", back.elapsed());
    all_booked(&sandbox, next).await;
    is_healthy(&monitor).await;

    tokio::task::block_in_place(|| broker.stop());
    eventually("the loss is noticed", || async {
        matches!(monitor.health().sources[0].1, Condition::Down { .. })
    })
    .await;
    tokio::time::sleep(OUTAGE).await;
    let health = monitor.health();
    assert!(health.is_degraded(), "{health:?}");
    assert_eq!(health.database, Condition::Up);
    tokio::task::block_in_place(|| broker.again());
    let queue = queue.after_restart().await;
    let before = monitor.total().processed;
    queue.publish(order(&format!("m-{next}"))).await;
    let back = Instant::now();
    eventually("work resumes", || async {
        monitor.total().processed > before
    })
    .await;
    assert!(back.elapsed() < RESUMED, "after {:?}", back.elapsed());
    next += 1;
    all_booked(&sandbox, next).await;
    is_healthy(&monitor).await;

    running.stop().await;
    assert_eq!(queue.left().await, 0);
    for number in 0..next {
        sandbox.assert_stored_once(&format!("m-{number}")).await;
    }
    assert_eq!(sandbox.ledger_total().await, i64::try_from(next).unwrap());
    assert_eq!(sandbox.dead_letters().await, [""; 0]);
}
