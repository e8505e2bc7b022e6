//! What a worker cannot begin with now is done by one that is idle, and who has to be alone keeps nobody waiting for
//! nothing. SQLite has one worker, so nobody is idle there.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use inbox_guarantees::dispatch::InBatches;
use inbox_guarantees::recorded::{Record, Recorded};
use inbox_guarantees::{
    OrderPlaced, Running, Sandbox, TestDatabase, all_acked, bill, eventually, order,
};
use inbox_runtime::brokers::MemoryBroker;
use inbox_runtime::{
    Envelope, HandlerError, Inbox, InboxBuilder, MessageId, RetryPolicy, State, Tx, inbox_handler,
};
use tokio::sync::Semaphore;

/// What holds slow messages up, until it is opened.
#[derive(Clone)]
struct Valve {
    open: Arc<Semaphore>,
    /// How often a message came to it.
    reached: Arc<AtomicUsize>,
}

impl Valve {
    fn closed() -> Self {
        Self {
            open: Arc::new(Semaphore::new(0)),
            reached: Arc::default(),
        }
    }

    async fn pass(&self) {
        self.reached.fetch_add(1, Ordering::SeqCst);
        self.open.acquire().await.unwrap().forget();
    }

    /// For the first that came.
    fn let_one_pass(&self) {
        self.open.add_permits(1);
    }

    fn open(&self) {
        self.open.add_permits(1000);
    }

    async fn is_reached(&self) {
        eventually("somebody waits at the valve", || async {
            self.reached.load(Ordering::SeqCst) > 0
        })
        .await;
    }
}

/// How often the first message of a group was tried.
#[derive(Clone, Default)]
struct Runs(Arc<AtomicUsize>);

fn slow(id: &str) -> Envelope {
    order(id).message_type("Slow")
}

fn quick_ids(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("quick-{number}")).collect()
}

struct Scene<Db: TestDatabase> {
    sandbox: Sandbox<Db>,
    broker: MemoryBroker,
    record: Record,
    valve: Valve,
    running: Running,
}

impl<Db: TestDatabase> Scene<Db> {
    /// Two workers, and what lies before them when they start.
    async fn with(
        messages: impl IntoIterator<Item = Envelope>,
        configure: impl FnOnce(InboxBuilder<Db>) -> InboxBuilder<Db>,
    ) -> Self {
        let sandbox = Db::fresh(8).await;
        let broker = MemoryBroker::new();
        for message in messages {
            broker.publish("orders", message);
        }
        let valve = Valve::closed();
        let (source, record) = Recorded::new(broker.source("orders"));
        let builder = Inbox::builder(sandbox.pool.clone())
            .source("orders", source)
            .state(valve.clone())
            .state(Runs::default())
            .concurrency(2)
            .prefetch(32)
            .claim_wait(Duration::from_millis(500))
            .retry(RetryPolicy::default().first_delay(Duration::from_millis(20)));
        let inbox = configure(builder).build().await.expect("the inbox");
        Self {
            running: Running::start(inbox),
            sandbox,
            broker,
            record,
            valve,
        }
    }

    /// They are done while others wait at the valve.
    async fn are_done(&self, ids: &[String]) {
        self.valve.is_reached().await;
        eventually("everything but the slow one is done", || async {
            let mut done = 0;
            for id in ids {
                done += self.sandbox.ledger_rows(id).await;
            }
            done == ids.len() as i64
        })
        .await;
    }

    async fn end(self) -> Sandbox<Db> {
        self.valve.open();
        all_acked(&self.broker).await;
        self.running.stop().await;
        self.sandbox
    }
}

macro_rules! on_databases_with_many_workers {
    ($($body:tt)*) => {
        mod postgres {
            use super::*;
            type Db = sqlx::Postgres;
            $($body)*
        }
        mod mysql {
            use super::*;
            type Db = sqlx::MySql;
            $($body)*
        }
    };
}

on_databases_with_many_workers! {
    /// Holds the claims of these messages until it is rolled back.
    async fn in_work_elsewhere(sandbox: &Sandbox<Db>, ids: &str) -> sqlx::Transaction<'static, Db> {
        let mut elsewhere = sandbox.pool.begin().await.unwrap();
        for id in ids.split(", ") {
            let claim = format!("INSERT INTO inbox_processed_messages (message_id, consumer_name) VALUES ({id}, 'billing')");
            sqlx::query(sqlx::AssertSqlSafe(claim)).execute(&mut *elsewhere).await.unwrap();
        }
        elsewhere
    }

    #[inbox_handler(consumer = "billing", on = "Slow", timeout = "2m")]
    async fn charge_slowly(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId, State(valve): State<Valve>) -> Result<(), HandlerError> {
        valve.pass().await;
        bill!(Db, order, id, tx);
        Ok(())
    }

    #[inbox_handler(consumer = "billing", on = "OrderPlaced", timeout = "2m")]
    async fn charge(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        Ok(())
    }

    /// The first message fails, and waits at the valve when it is tried again.
    #[inbox_handler(consumer = "billing", on = "OrderPlaced", timeout = "2m")]
    async fn fail_first(
        order: OrderPlaced,
        tx: &mut Tx<Db>,
        id: MessageId,
        State(valve): State<Valve>,
        State(runs): State<Runs>,
    ) -> Result<(), HandlerError> {
        if id.as_str() == "first" {
            if runs.0.fetch_add(1, Ordering::SeqCst) == 0 {
                return Err("not beside others".into());
            }
            valve.pass().await;
        }
        bill!(Db, order, id, tx);
        Ok(())
    }

    /// Like it, but its failure is one of the COMMIT, and not before somebody waits behind it.
    #[inbox_handler(consumer = "billing", on = "Entangled", timeout = "2m")]
    async fn forget_a_savepoint(
        order: OrderPlaced,
        tx: &mut Tx<Db>,
        id: MessageId,
        State(valve): State<Valve>,
        State(runs): State<Runs>,
        State(go): State<Go>,
    ) -> Result<(), HandlerError> {
        if id.as_str() == "first" {
            if runs.0.fetch_add(1, Ordering::SeqCst) == 0 {
                std::mem::forget(tx.savepoint().await?);
                let _ = go.0.acquire().await.unwrap();
            } else {
                valve.pass().await;
            }
        }
        bill!(Db, order, id, tx);
        Ok(())
    }

    /// Another handler's message, at which the gathering ends.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_does_not_fit_a_batch_is_done_while_the_batch_runs() {
        let ids = quick_ids(8);
        let messages = std::iter::once(slow("slow")).chain(ids.iter().map(|id| order(id)));
        let scene = Scene::<Db>::with(messages, |builder| {
            builder.register(InBatches(charge_slowly::handler())).register(charge::handler())
        })
        .await;
        scene.are_done(&ids).await;
        let sandbox = scene.end().await;
        sandbox.assert_stored_once("slow").await;
        assert_eq!(sandbox.ledger_total().await, 9);
    }

    /// With it, all that has the same order key would wait.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_lane_whose_first_message_does_not_fit_is_done_in_order_while_the_batch_runs() {
        let ids = quick_ids(12);
        let messages = std::iter::once(slow("slow")).chain(ids.iter().map(|id| order(id).key("lane")));
        let scene = Scene::<Db>::with(messages, |builder| {
            builder.register(InBatches(charge_slowly::handler())).register(charge::handler())
        })
        .await;
        scene.are_done(&ids).await;
        let in_order = Db::texts(&scene.sandbox.pool, "SELECT msg_id FROM ledger ORDER BY id").await;
        assert_eq!(in_order, ids);
        scene.end().await.assert_stored_once("slow").await;
    }

    /// A message of the same handler that cannot be in a batch.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_without_an_id_becomes_a_dead_letter_while_the_batch_runs() {
        let without = |n| Envelope::new(format!(r#"{{"account":"acc-1","amount":{n}}}"#)).message_type("Slow");
        let messages = std::iter::once(slow("slow")).chain((0..3).map(without));
        let scene = Scene::<Db>::with(messages, |builder| {
            builder.register(InBatches(charge_slowly::handler()))
        })
        .await;
        scene.valve.is_reached().await;
        eventually("their dead letters", || async {
            scene.sandbox.dead_letters().await == ["invalid_id"; 3]
        })
        .await;
        let sandbox = scene.end().await;
        sandbox.assert_stored_once("slow").await;
        assert_eq!(sandbox.ledger_total().await, 1);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_shared_a_transaction_with_a_failure_does_not_wait_for_its_next_try() {
        let ids = quick_ids(11);
        let messages = std::iter::once(order("first")).chain(ids.iter().map(|id| order(id)));
        let scene = Scene::<Db>::with(messages, |builder| {
            builder.register(fail_first::handler()).messages_per_transaction(16).share_at_once()
        })
        .await;
        scene.are_done(&ids).await;
        let sandbox = scene.end().await;
        sandbox.assert_stored_once("first").await;
        assert_eq!(sandbox.ledger_total().await, 12);
        assert_eq!(sandbox.dead_letters().await, [""; 0]);
    }

    /// What a worker found ahead, to be claimed with a COMMIT that failed.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_was_found_ahead_of_a_failed_commit_does_not_wait_for_the_next_try() {
        let go = Go(Arc::new(Semaphore::new(0)));
        let entangled = |id: &str| order(id).message_type("Entangled");
        let scene = Scene::<Db>::with([entangled("first"), entangled("second")], |builder| {
            builder
                .register(InBatches(forget_a_savepoint::handler()))
                .register(charge::handler())
                .register(charge_slowly::handler())
                .state(go.clone())
        })
        .await;
        // The other worker has its hands full.
        scene.broker.publish("orders", slow("slow"));
        scene.valve.is_reached().await;
        let ids = quick_ids(1);
        scene.broker.publish("orders", order(&ids[0]));
        eventually("all are delivered", || async { scene.record.deliveries(&ids[0]) == 1 }).await;
        go.0.add_permits(1);
        eventually("the next try waits too", || async {
            scene.valve.reached.load(Ordering::SeqCst) == 2
        })
        .await;
        scene.valve.let_one_pass();
        scene.are_done(&ids).await;
        let sandbox = scene.end().await;
        for id in ["first", "second", "slow", "quick-0"] {
            sandbox.assert_stored_once(id).await;
        }
    }

    /// A redelivery of which a start is counted, that of whoever has it in work, needs nobody to step aside.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_redelivery_of_what_is_in_work_elsewhere_does_not_wait_to_be_alone() {
        let scene = Scene::<Db>::with([slow("slow")], |builder| {
            builder.register(charge_slowly::handler()).register(charge::handler())
        })
        .await;
        scene.valve.is_reached().await;
        let elsewhere = in_work_elsewhere(&scene.sandbox, "'m-1'").await;
        let start = "INSERT INTO inbox_attempts (message_id, consumer_name, attempts, starts, last_failure) \
                     VALUES ('m-1', 'billing', 0, 1, '')";
        Db::run(&scene.sandbox.pool, start).await;
        scene.broker.publish("orders", order("m-1"));
        // Each is a claim that met the other one.
        eventually("some redeliveries", || async { scene.record.deliveries("m-1") >= 4 }).await;
        let ids = quick_ids(4);
        for id in &ids {
            scene.broker.publish("orders", order(id));
        }
        scene.are_done(&ids).await;
        elsewhere.rollback().await.unwrap();
        let sandbox = scene.end().await;
        for id in ["slow", "m-1"] {
            sandbox.assert_stored_once(id).await;
        }
        let counted = Db::number(&sandbox.pool, "SELECT count(*) FROM inbox_attempts").await;
        assert_eq!(counted, 0);
    }

    /// After a mere reconnection nothing is counted, and nobody is alone.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_redelivery_without_an_unfinished_start_does_not_wait_to_be_alone() {
        let scene = Scene::<Db>::with([slow("slow")], |builder| {
            builder.register(charge_slowly::handler()).register(charge::handler())
        })
        .await;
        scene.valve.is_reached().await;
        let elsewhere = in_work_elsewhere(&scene.sandbox, "'quick-0', 'quick-1'").await;
        let ids = quick_ids(2);
        for id in &ids {
            scene.broker.publish("orders", order(id));
        }
        eventually("each comes twice", || async {
            ids.iter().all(|id| scene.record.deliveries(id) >= 2)
        })
        .await;
        elsewhere.rollback().await.unwrap();
        scene.are_done(&ids).await;
        let sandbox = scene.end().await;
        assert_eq!(sandbox.ledger_total().await, 3);
        let counted = Db::number(&sandbox.pool, "SELECT count(*) FROM inbox_attempts").await;
        assert_eq!(counted, 0);
    }

    /// What waits for a message that runs alone goes back when the runtime stops, and not when that one is done.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_shutdown_hands_back_what_waits_for_a_message_that_is_alone() {
        let scene = Scene::<Db>::with([], |builder| {
            builder.register(charge_slowly::handler()).register(charge::handler()).grace(Duration::from_secs(50))
        })
        .await;
        let start = "INSERT INTO inbox_attempts (message_id, consumer_name, attempts, starts, last_failure) \
                     VALUES ('killer', 'billing', 0, 1, '')";
        Db::run(&scene.sandbox.pool, start).await;
        let Scene { sandbox, broker, record, valve, running } = scene;
        let elsewhere = in_work_elsewhere(&sandbox, "'killer'").await;
        broker.publish("orders", slow("killer"));
        eventually("a redelivery", || async { record.deliveries("killer") == 2 }).await;
        elsewhere.rollback().await.unwrap();
        valve.is_reached().await;
        broker.publish("orders", order("m-1"));
        eventually("it is delivered", || async { record.deliveries("m-1") == 1 }).await;
        let stopping = tokio::spawn(running.stop());
        eventually("it is handed back", || async { broker.queue_state("orders").ready == 1 }).await;
        assert_eq!(sandbox.ledger_total().await, 0, "the message that is alone runs on");
        valve.open();
        let stopped = stopping.await.unwrap();
        assert_eq!((stopped.handed_back, stopped.cut_off), (1, 0));
        assert_eq!((sandbox.ledger_rows("killer").await, sandbox.ledger_total().await), (1, 1));
    }
}

/// Lets a handler go on.
#[derive(Clone)]
struct Go(Arc<Semaphore>);
