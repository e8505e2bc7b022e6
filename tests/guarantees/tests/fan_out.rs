//! One delivery for several consumers, and which consumer gets which message.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use inbox_guarantees::dispatch::Serve as _;
use inbox_guarantees::{
    OrderPlaced, Running, TestDatabase, all_acked, bill, eventually, on_each_database, order,
};
use inbox_runtime::brokers::MemoryBroker;
use inbox_runtime::testing::Step as PathStep;
use inbox_runtime::{
    Envelope, HandlerError, Inbox, MessageId, RetryPolicy, State, Tx, Verdict, inbox_handler,
};

/// Which handler got which message, in order.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<(&'static str, String)>>>);

impl Seen {
    fn note(&self, handler: &'static str, id: &MessageId) {
        self.0.lock().unwrap().push((handler, id.to_string()));
    }

    fn by(&self, handler: &str) -> Vec<String> {
        let seen = self.0.lock().unwrap();
        seen.iter()
            .filter(|(by, _)| *by == handler)
            .map(|(_, id)| id.clone())
            .collect()
    }
}

/// Whether the healing handler works again.
#[derive(Clone, Default)]
struct Healed(Arc<AtomicBool>);

#[derive(Clone, Default)]
struct Rejections(Arc<AtomicU32>);

fn retry() -> RetryPolicy {
    RetryPolicy::default()
        .first_delay(Duration::from_millis(20))
        .longest_delay(Duration::from_millis(40))
}

on_each_database! {
    #[inbox_handler(consumer = "billing")]
    async fn charge(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId, State(seen): State<Seen>) -> Result<(), HandlerError> {
        seen.note("charge", &id);
        bill!(Db, order, id, tx);
        Ok(())
    }

    #[inbox_handler(consumer = "notifications")]
    pub(super) async fn notify(_order: OrderPlaced, _tx: &mut Tx<Db>, id: MessageId, State(seen): State<Seen>) -> Result<(), HandlerError> {
        seen.note("notify", &id);
        Ok(())
    }

    #[inbox_handler(consumer = "billing", on = "OrderPlaced", from = "eu")]
    async fn charge_eu(_order: OrderPlaced, _tx: &mut Tx<Db>, id: MessageId, State(seen): State<Seen>) -> Result<(), HandlerError> {
        seen.note("charge_eu", &id);
        Ok(())
    }

    #[inbox_handler(consumer = "billing", on = ["OrderPlaced", "OrderChanged"], from = ["us", "asia"])]
    async fn charge_others(_order: OrderPlaced, _tx: &mut Tx<Db>, id: MessageId, State(seen): State<Seen>) -> Result<(), HandlerError> {
        seen.note("charge_others", &id);
        Ok(())
    }

    /// Takes whatever comes, undecoded.
    #[inbox_handler(consumer = "archive")]
    async fn archive(_any: serde_json::Value, _tx: &mut Tx<Db>, id: MessageId, State(seen): State<Seen>) -> Result<(), HandlerError> {
        seen.note("archive", &id);
        Ok(())
    }

    #[inbox_handler(consumer = "strict")]
    async fn reject(_order: OrderPlaced, _tx: &mut Tx<Db>, State(rejections): State<Rejections>) -> Result<(), HandlerError> {
        rejections.0.fetch_add(1, Ordering::SeqCst);
        Err(HandlerError::reject("never"))
    }

    #[inbox_handler(consumer = "healing", max_attempts = 1000)]
    async fn heal(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId, State(healed): State<Healed>) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        if healed.0.load(Ordering::SeqCst) {
            Ok(())
        } else {
            Err("not yet".into())
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn consumers_of_one_message_are_independent() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let seen = Seen::default();
        let build = |queue: &str| {
            Inbox::builder(sandbox.pool.clone())
                .source("orders", broker.source(queue))
                .state(seen.clone())
        };
        // Two applications on one set of tables, each with a queue of its own.
        let billing = build("billing").serve(charge::handler()).build().await.unwrap();
        let notifications = build("notifications").serve(notify::handler()).build().await.unwrap();
        for queue in ["billing", "notifications", "billing", "notifications"] {
            broker.publish(queue, order("m-1"));
        }
        let running = [Running::start(billing), Running::start(notifications)];
        all_acked(&broker).await;
        for inbox in running {
            inbox.stop().await;
        }
        assert_eq!(seen.by("charge"), ["m-1"]);
        assert_eq!(seen.by("notify"), ["m-1"]);
        assert_eq!(sandbox.claims("m-1").await, 2);
        assert_eq!(sandbox.ledger_rows("m-1").await, 1);
        assert_eq!(broker.settled().len(), 4);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn one_delivery_reaches_each_of_its_consumers_once_and_is_acked_once() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let seen = Seen::default();
        let inbox = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .serve(charge::handler())
            .serve(notify::handler())
            .state(seen.clone())
            .build()
            .await
            .unwrap();
        broker.publish_repeated("orders", order("m-1"), 3);
        let running = Running::start(inbox);
        all_acked(&broker).await;
        running.stop().await;
        assert_eq!(seen.by("charge"), ["m-1"]);
        assert_eq!(seen.by("notify"), ["m-1"]);
        assert_eq!(sandbox.claims("m-1").await, 2);
        assert_eq!(broker.settled().len(), 3);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn on_and_from_decide_which_handler_gets_a_message() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let seen = Seen::default();
        let inbox = Inbox::builder(sandbox.pool.clone())
            .source("eu", broker.source("eu"))
            .source("us", broker.source("us"))
            .source("asia", broker.source("asia"))
            .shared_id_space(["eu", "us", "asia"])
            .serve(charge_eu::handler())
            .serve(charge_others::handler())
            .serve(archive::handler())
            .state(seen.clone())
            .build()
            .await
            .unwrap();
        let running = Running::start(inbox);
        let of_type = |id: &str, name: &str| order(id).message_type(name);
        broker.publish("eu", of_type("eu-placed", "OrderPlaced"));
        broker.publish("eu", of_type("eu-changed", "OrderChanged"));
        broker.publish("us", of_type("us-placed", "OrderPlaced"));
        broker.publish("asia", of_type("asia-changed", "OrderChanged"));
        broker.publish("asia", of_type("asia-case", "orderchanged"));
        // The CloudEvents attribute where the broker's own property says nothing.
        let mut event = order("us-event").header("ce-type", "OrderChanged");
        event.message_type = None;
        broker.publish("us", event);
        all_acked(&broker).await;
        running.stop().await;
        let sorted = |mut ids: Vec<String>| {
            ids.sort();
            ids
        };
        assert_eq!(seen.by("charge_eu"), ["eu-placed"]);
        assert_eq!(sorted(seen.by("charge_others")), ["asia-changed", "us-event", "us-placed"]);
        assert_eq!(seen.by("archive").len(), 6);
        assert!(sandbox.dead_letters().await.is_empty());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn ignored_types_are_acked_and_leave_no_rows() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let seen = Seen::default();
        let inbox = Inbox::builder(sandbox.pool.clone())
            .source("eu", broker.source("eu"))
            .serve(charge_eu::handler())
            .ignore(["OrderViewed"])
            .state(seen.clone())
            .build()
            .await
            .unwrap();
        for number in 0..1000 {
            broker.publish("eu", order(&format!("v-{number}")).message_type("OrderViewed"));
        }
        broker.publish("eu", order("m-1"));
        let running = Running::start(inbox);
        all_acked(&broker).await;
        running.stop().await;
        assert_eq!(seen.by("charge_eu"), ["m-1"]);
        assert_eq!(sandbox.claims_total().await, 1);
        assert!(sandbox.dead_letters().await.is_empty());
        let settled = broker.settled();
        assert_eq!(settled.len(), 1001);
        assert!(settled.iter().all(|s| s.verdict == Verdict::Ack));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn beside_a_dead_consumer_the_other_is_retried_without_handing_the_delivery_back() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let (healed, rejections) = (Healed::default(), Rejections::default());
        let inbox = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .serve(reject::handler())
            .serve(heal::handler())
            .state(healed.clone())
            .state(rejections.clone())
            .retry(retry())
            .build()
            .await
            .unwrap();
        broker.publish("orders", order("m-1"));
        let running = Running::start(inbox);
        eventually("three failures", || async { sandbox.attempts("m-1").await >= 3 }).await;
        assert!(broker.settled().is_empty(), "{:?}", broker.settled());
        healed.0.store(true, Ordering::SeqCst);
        all_acked(&broker).await;
        running.stop().await;
        let settled = broker.settled();
        assert_eq!(settled.len(), 1, "{settled:?}");
        assert_eq!(settled[0].verdict, Verdict::Ack);
        assert_eq!(rejections.0.load(Ordering::SeqCst), 1);
        assert_eq!(sandbox.dead_letters().await, ["rejected"]);
        sandbox.assert_stored_once("m-1").await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_redelivery_finds_the_dead_letter_and_does_not_run_its_handler_again() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let (healed, rejections) = (Healed::default(), Rejections::default());
        let inbox = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .serve(reject::handler())
            .serve(heal::handler())
            .state(healed.clone())
            .state(rejections.clone())
            .retry(retry())
            .build()
            .await
            .unwrap();
        broker.publish("orders", order("m-1"));
        let running = Running::start(inbox);
        for _ in 0..3 {
            let failures = sandbox.attempts("m-1").await;
            eventually("another failure", || async { sandbox.attempts("m-1").await > failures }).await;
            // The delivery is void now, and the broker has a new one.
            broker.disconnect("orders");
        }
        healed.0.store(true, Ordering::SeqCst);
        all_acked(&broker).await;
        // And one more, after all is done.
        broker.publish("orders", order("m-1"));
        all_acked(&broker).await;
        running.stop().await;
        assert_eq!(rejections.0.load(Ordering::SeqCst), 1);
        assert_eq!(sandbox.dead_letters().await, ["rejected"]);
        assert_eq!(
            Db::texts(&sandbox.pool, "SELECT consumer_name FROM inbox_processed_messages").await,
            ["healing"],
            "the dead letter has no claim"
        );
        sandbox.assert_stored_once("m-1").await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_without_an_id_is_dead_for_the_consumer_that_needs_one_alone() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let seen = Seen::default();
        let inbox = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .serve(notify::handler())
            .serve(by_payload::handler())
            .state(seen.clone())
            .build()
            .await
            .unwrap();
        broker.publish("orders", Envelope::new(r#"{"account":"acc-1","amount":100,"id":"o-1"}"#));
        let running = Running::start(inbox);
        all_acked(&broker).await;
        running.stop().await;
        assert_eq!(seen.by("by_payload"), ["o-1"]);
        assert!(seen.by("notify").is_empty());
        assert_eq!(sandbox.dead_letters().await, ["invalid_id"]);
        assert_eq!(
            Db::texts(&sandbox.pool, "SELECT consumer_name FROM inbox_dead_letters").await,
            ["notifications"]
        );
    }

    #[inbox_handler(consumer = "by_payload", key = "payload:/id")]
    async fn by_payload(_order: OrderPlaced, _tx: &mut Tx<Db>, id: MessageId, State(seen): State<Seen>) -> Result<(), HandlerError> {
        seen.note("by_payload", &id);
        Ok(())
    }
}

#[inbox_handler(consumer = "changes", on = "OrderChanged")]
async fn change(_order: OrderPlaced, _tx: &mut Tx<sqlx::Postgres>) -> Result<(), HandlerError> {
    Ok(())
}

/// The claims of what comes next must not be made between two consumers: the second one's would need another
/// connection.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_panic_of_the_path_one_connection_is_still_enough() {
    let sandbox = sqlx::Postgres::fresh(2).await;
    let broker = MemoryBroker::new();
    let panics = AtomicBool::new(true);
    let inbox = Inbox::builder(sandbox.pool.clone())
        .source("orders", broker.source("orders"))
        .register(postgres::notify::handler())
        .register(change::handler())
        .state(Seen::default())
        .concurrency(1)
        .on_step(move |step, id| {
            let it_is = step == PathStep::AfterHandler && id == "m-2";
            assert!(!it_is || !panics.swap(false, Ordering::SeqCst), "told to");
        })
        .build()
        .await
        .unwrap();
    let running = Running::start(inbox);
    let another_user = sandbox.pool.acquire().await.unwrap();
    for number in 0..4 {
        broker.publish("orders", order(&format!("m-{number}")));
    }
    all_acked(&broker).await;
    for number in 4..40 {
        let for_two = order(&format!("m-{number}")).message_type("OrderChanged");
        broker.publish("orders", for_two);
    }
    for number in 40..80 {
        broker.publish("orders", order(&format!("m-{number}")));
    }
    all_acked(&broker).await;
    drop(another_user);
    assert_eq!(sandbox.claims_total().await, 80 + 36);
    running.stop().await;
}
