//! After an outage of the database or of the broker the work goes on by itself, and meanwhile everybody can see why it does
//! not (case C51).
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::{Duration, Instant};

use inbox_guarantees::dispatch::Serve as _;
use inbox_guarantees::outage::OwnDatabase;
use inbox_guarantees::rabbitmq::TestQueue;
use inbox_guarantees::servers::OwnServer;
use inbox_guarantees::{
    OrderPlaced, Running, Sandbox, TestDatabase, bill, eventually, on_each_database, order, workers,
};
use inbox_runtime::brokers::QueueKind;
use inbox_runtime::{
    Condition, Handler, HandlerError, Inbox, MessageId, Monitor, Tx, inbox_handler,
};
use sqlx::Pool;
use tokio::sync::Barrier;

/// Long enough for the tries at a connection to be as far apart as they get, 5 s.
const OUTAGE: Duration = Duration::from_secs(12);

/// Within this time after its return something has to be processed again.
const RESUMED: Duration = Duration::from_secs(10);

/// An inbox under a steady load.
struct Shop {
    queue: TestQueue,
    monitor: Monitor,
    running: Running,
    /// The number of the next message.
    next: usize,
}

impl Shop {
    async fn open<H: Handler>(pool: Pool<H::Db>, queue: TestQueue, handler: H) -> Self {
        let inbox = Inbox::builder(pool)
            .source("orders", queue.source())
            .serve(handler)
            .concurrency(workers::<H::Db>(2))
            .build()
            .await
            .unwrap();
        let monitor = inbox.monitor();
        assert!(monitor.health().is_degraded(), "nothing was reached yet");
        Self {
            queue,
            monitor,
            running: Running::start(inbox),
            next: 0,
        }
    }

    async fn publish(&mut self) {
        self.queue.publish(order(&format!("m-{}", self.next))).await;
        self.next += 1;
    }

    /// Publishes ten messages a second.
    async fn publish_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.publish().await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Everything is in the ledger, and all is well.
    async fn has_recovered<Db: TestDatabase>(&self, sandbox: &Sandbox<Db>) {
        let all = i64::try_from(self.next).unwrap();
        eventually("all is booked", || async {
            sandbox.ledger_total().await >= all
        })
        .await;
        eventually("all is well", || async {
            !self.monitor.health().is_degraded()
        })
        .await;
    }

    /// Something is processed again, soon.
    async fn resumes(&self, before: u64) {
        let back = Instant::now();
        eventually("work resumes", || async {
            self.monitor.total().processed > before
        })
        .await;
        assert!(back.elapsed() < RESUMED, "after {:?}", back.elapsed());
    }

    async fn close<Db: TestDatabase>(self, sandbox: &Sandbox<Db>) {
        self.running.stop().await;
        assert_eq!(self.queue.left().await, 0);
        for number in 0..self.next {
            sandbox.assert_stored_once(&format!("m-{number}")).await;
        }
        assert_eq!(
            sandbox.ledger_total().await,
            i64::try_from(self.next).unwrap()
        );
        assert_eq!(sandbox.dead_letters().await, [""; 0]);
    }
}

on_each_database! {
    #[inbox_handler(consumer = "billing")]
    pub(super) async fn charge(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn work_resumes_by_itself_after_the_database_was_away() {
        let database = OwnDatabase::<Db>::start(4).await;
        let queue = TestQueue::new(QueueKind::Quorum).await;
        let mut shop = Shop::open(database.pool(5), queue, charge::handler()).await;
        shop.publish_for(Duration::from_secs(2)).await;
        shop.has_recovered(&database.sandbox).await;

        database.stop().await;
        let end = Instant::now() + OUTAGE;
        shop.publish_for(OUTAGE / 2).await;
        let before = shop.monitor.total().processed;
        tokio::time::sleep(end.saturating_duration_since(Instant::now())).await;
        let health = shop.monitor.health();
        assert!(
            matches!(&health.database, Condition::Down { failures, error, .. } if *failures > 1 && !error.is_empty()),
            "{health:?}"
        );
        assert_eq!(health.sources, [("orders".to_owned(), Condition::Up)]);
        assert_eq!(shop.monitor.total().processed, before, "without a database");
        database.again();
        shop.resumes(before).await;
        shop.has_recovered(&database.sandbox).await;
        shop.close(&database.sandbox).await;
    }
}

/// The rest of the story of one shop, whose broker stops and comes back when all others are ready for it too.
async fn without_the_broker<H: Handler>(handler: H, broker: &OwnServer, all: &Barrier)
where
    H::Db: TestDatabase,
{
    let sandbox = H::Db::fresh(4).await;
    let queue = TestQueue::on(&broker.url("AMQP_URL"), QueueKind::Quorum, &[]).await;
    let mut shop = Shop::open(sandbox.another_pool(5).await, queue, handler).await;
    shop.publish_for(Duration::from_secs(2)).await;
    shop.has_recovered(&sandbox).await;
    if all.wait().await.is_leader() {
        tokio::task::block_in_place(|| broker.stop());
    }
    eventually("the loss is noticed", || async {
        matches!(shop.monitor.health().sources[0].1, Condition::Down { .. })
    })
    .await;
    tokio::time::sleep(OUTAGE).await;
    let health = shop.monitor.health();
    assert!(health.is_degraded(), "{health:?}");
    assert_eq!(health.database, Condition::Up);
    if all.wait().await.is_leader() {
        tokio::task::block_in_place(|| broker.again());
    }
    all.wait().await;
    shop.queue = shop.queue.after_restart().await;
    let before = shop.monitor.total().processed;
    shop.publish().await;
    shop.resumes(before).await;
    shop.has_recovered(&sandbox).await;
    shop.close(&sandbox).await;
}

/// One broker, which is slow to start, for the inboxes of all databases.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn work_resumes_by_itself_after_the_broker_was_away() {
    let broker = tokio::task::block_in_place(|| OwnServer::start("rabbitmq"));
    let all = Barrier::new(3);
    tokio::join!(
        without_the_broker(postgres::charge::handler(), &broker, &all),
        without_the_broker(mysql::charge::handler(), &broker, &all),
        without_the_broker(sqlite::charge::handler(), &broker, &all),
    );
}
