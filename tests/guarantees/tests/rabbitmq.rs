//! The inbox on a real RabbitMQ: what the broker is told, and when.

#![allow(clippy::unwrap_used, clippy::expect_used)] // What goes wrong here has to fail the test.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use inbox_guarantees::dispatch::{Serve as _, assert_runs, in_one_transaction, is_shared};
use inbox_guarantees::proxy::{AtCommit, FaultProxy};
use inbox_guarantees::rabbitmq::{TestQueue, close_connections};
use inbox_guarantees::recorded::{Record, Recorded};
use inbox_guarantees::servers::OwnServer;
use inbox_guarantees::{
    OrderPlaced, Running, Sandbox, TestDatabase, bill, eventually, on_each_database, order, workers,
};
use inbox_runtime::brokers::{QueueKind, RabbitMqSource};
use inbox_runtime::{
    Attempt, Envelope, HandlerError, Inbox, InboxBuilder, InboxDatabase, MessageId, RetryPolicy,
    State, Tx, inbox_handler,
};
use lapin::types::AMQPValue;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{PgPool, Postgres};
use tokio::sync::Semaphore;

/// What the handler saw and how it is to behave, by the message's id.
#[derive(Clone)]
struct Scene(Arc<SceneState>);

struct SceneState {
    entries: Mutex<HashMap<String, Vec<Instant>>>,
    /// `slow-..` messages pass one at a time, as often as the test says.
    gate: Semaphore,
}

impl Scene {
    fn new() -> Self {
        Self(Arc::new(SceneState {
            entries: Mutex::default(),
            gate: Semaphore::new(0),
        }))
    }

    fn enter(&self, id: &str) {
        let mut entries = self.0.entries.lock().unwrap();
        let entries = entries.entry(id.to_owned()).or_default();
        entries.push(Instant::now());
    }

    fn entries(&self, id: &str) -> Vec<Instant> {
        self.0
            .entries
            .lock()
            .unwrap()
            .get(id)
            .cloned()
            .unwrap_or_default()
    }

    /// Lets `n` slow messages pass.
    fn pass(&self, n: usize) {
        self.0.gate.add_permits(n);
    }
}

/// Longer than any delay here, so that nothing is parked.
const HOLD: Duration = Duration::from_secs(5 * 60);

on_each_database! {
    // A broker can take half a minute to stop, and slow messages outlive that.
    #[inbox_handler(consumer = "billing", on = "OrderPlaced", max_attempts = 4, timeout = "3m")]
    pub(super) async fn charge(
        order: OrderPlaced,
        tx: &mut Tx<Db>,
        id: MessageId,
        Attempt(attempt): Attempt,
        State(scene): State<Scene>,
    ) -> Result<(), HandlerError> {
        scene.enter(id.as_str());
        bill!(Db, order, id, tx);
        match id.as_str() {
            slow if slow.starts_with("slow") => {
                scene.0.gate.acquire().await.map_err(|_| "closed")?.forget();
                Ok(())
            }
            poison if poison.starts_with("poison") => Err("it never works".into()),
            thrice if thrice.starts_with("fails-thrice") && attempt <= 3 => {
                Err("not yet".into())
            }
            later if later.starts_with("later") && attempt == 1 => {
                Err(HandlerError::retry_after(Duration::from_secs(120), "not today"))
            }
            _ => Ok(()),
        }
    }

    fn inbox(sandbox: &Sandbox<Db>, scene: &Scene, source: RabbitMqSource)
        -> (InboxBuilder<Db>, Record)
    {
        recorded(Inbox::builder(sandbox.pool.clone()).serve(charge::handler()), scene, source)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn deliveries_of_a_connection_that_the_server_closed_are_dropped_and_come_again() {
        let sandbox = Db::fresh(5).await;
        let queue = TestQueue::new(QueueKind::Quorum).await;
        let scene = Scene::new();
        for id in ["slow-1", "m-2", "m-3", "m-4"] {
            queue.publish(order(id)).await;
        }
        let (inbox, record) = inbox(&sandbox, &scene, queue.named_source());
        let running = Running::start(inbox.concurrency(1).prefetch(4).build().await.unwrap());
        eventually("all four are here, the first in work", || async {
            record.deliveries("m-4") == 1 && scene.entries("slow-1").len() == 1
        })
        .await;

        close_connections(&queue.name).await;
        eventually("the source is open again", || async { record.opened().1 == 2 }).await;
        scene.pass(2);
        eventually("all four are acked", || async { record.acks().len() == 4 }).await;
        let ids = ["slow-1", "m-2", "m-3", "m-4"];
        let void = record.void_settles();
        assert!(in_one_transaction().contains(&void.len()), "{void:?}");
        assert_eq!(
            void,
            ids[..void.len()],
            "only what was in work may try to settle; the others are not started any more"
        );
        for id in ids {
            assert_eq!(record.deliveries(id), 2, "{id}");
            assert_eq!(scene.entries(id).len(), 1, "{id}");
            sandbox.assert_stored_once(id).await;
            assert_eq!(sandbox.attempts(id).await, 0, "{id}");
        }
        // A settle of an old delivery on the new channel would have closed that one too.
        assert_eq!(record.opened().1, 2);
        running.stop().await;
        assert_eq!(queue.left().await, 0);
        assert_eq!(record.hand_backs(), 0);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn messages_held_for_a_retry_do_not_block_the_next_connection() {
        let sandbox = Db::fresh(5).await;
        let queue = TestQueue::new(QueueKind::Classic).await;
        let scene = Scene::new();
        for n in 0..4 {
            queue.publish(order(&format!("later-{n}"))).await;
        }
        let (inbox, record) = inbox(&sandbox, &scene, queue.named_source());
        let running = Running::start(inbox.concurrency(1).prefetch(4).longest_hold(HOLD).build().await.unwrap());
        eventually("all have failed", || async {
            let failed = "SELECT count(*) FROM inbox_attempts WHERE attempts = 1";
            Db::number(&sandbox.pool, failed).await == 4
        })
        .await;
        queue.publish(order("m-4")).await;
        assert_eq!(record.acks().len(), 0, "all places are taken");

        // Their deliveries are void now, two minutes before they are due.
        close_connections(&queue.name).await;
        eventually("all five are acked", || async { record.acks().len() == 5 }).await;
        for id in ["later-0", "later-1", "later-2", "later-3", "m-4"] {
            sandbox.assert_stored_once(id).await;
        }
        running.stop().await;
        assert_eq!(queue.left().await, 0);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn failures_are_held_unacked_and_tried_again_with_growing_delays_while_others_go_on() {
        for kind in [QueueKind::Quorum, QueueKind::Classic] {
            let sandbox = Db::fresh(5).await;
            let queue = TestQueue::new(kind).await;
            let scene = Scene::new();
            queue.publish(order("fails-thrice-1")).await;
            for n in 0..20 {
                queue.publish(order(&format!("m-{n}"))).await;
            }
            let (inbox, record) = inbox(&sandbox, &scene, queue.source());
            let first = Duration::from_millis(300);
            let inbox = inbox
                .concurrency(1)
                .prefetch(4)
                .longest_hold(HOLD)
                .retry(RetryPolicy::default().first_delay(first));
            let running = Running::start(inbox.build().await.unwrap());
            eventually("all is acked", || async { record.acks().len() == 21 }).await;
            running.stop().await;

            let entries = scene.entries("fails-thrice-1");
            assert_runs(entries.len(), 4, "three failures and the success");
            let alone = &entries[entries.len() - 4..];
            for (n, pair) in alone.windows(2).enumerate() {
                let waited = pair[1] - pair[0];
                let at_least = first * 2_u32.pow(u32::try_from(n).unwrap());
                assert!(waited >= at_least, "wait {n} was {waited:?}, not {at_least:?}");
            }
            let last = record.acks().last().cloned().unwrap();
            assert_eq!(last.0, "fails-thrice-1", "the others go on while it is held");
            assert_eq!(record.hand_backs(), 0, "it is held, not handed back");
            assert_eq!(record.deliveries("fails-thrice-1"), 1);
            sandbox.assert_stored_once("fails-thrice-1").await;
            assert_eq!(sandbox.ledger_total().await, 21);
            assert_eq!(sandbox.attempts("fails-thrice-1").await, 0, "forgotten with the success");
            assert_eq!(queue.left().await, 0);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_that_used_up_its_attempts_is_a_dead_letter_before_it_is_acked() {
        let sandbox = Db::fresh(5).await;
        let queue = TestQueue::new(QueueKind::Quorum).await;
        let scene = Scene::new();
        queue.publish(order("poison-1")).await;
        queue.publish(order("m-2")).await;
        let (inbox, record) = inbox(&sandbox, &scene, queue.source());
        let letters_at_ack = Arc::new(Mutex::new(None));
        let inbox = inbox
            .retry(RetryPolicy::default().first_delay(Duration::from_millis(20)))
            .on_step({
                let (letters, pool) = (Arc::clone(&letters_at_ack), sandbox.pool.clone());
                move |step, id| {
                    if step == inbox_runtime::testing::Step::BeforeAck && id == "poison-1" {
                        let count = <Db as TestDatabase>::number(
                            &pool,
                            "SELECT count(*) FROM inbox_dead_letters",
                        );
                        *letters.lock().unwrap() = Some(tokio::task::block_in_place(|| {
                            tokio::runtime::Handle::current().block_on(count)
                        }));
                    }
                }
            });
        let running = Running::start(inbox.build().await.unwrap());
        eventually("both are acked", || async { record.acks().len() == 2 }).await;
        running.stop().await;
        assert_eq!(*letters_at_ack.lock().unwrap(), Some(1), "dead letter first, ack second");
        assert_runs(scene.entries("poison-1").len(), 4, "max_attempts is 4");
        assert_eq!(sandbox.dead_letters().await, ["attempts_exhausted"]);
        assert_eq!(sandbox.claims("poison-1").await, 0);
        assert_eq!(sandbox.ledger_rows("poison-1").await, 0);
        sandbox.assert_stored_once("m-2").await;
        assert_eq!(queue.left().await, 0);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn no_more_than_the_prefetch_is_ever_unsettled() {
        let sandbox = Db::fresh(5).await;
        let queue = TestQueue::new(QueueKind::Quorum).await;
        let scene = Scene::new();
        for n in 0..10 {
            queue.publish(order(&format!("slow-{n}"))).await;
        }
        let (inbox, record) = inbox(&sandbox, &scene, queue.source());
        let running = Running::start(inbox.concurrency(1).prefetch(4).build().await.unwrap());
        eventually("four are taken", || async { record.deliveries("slow-3") == 1 }).await;
        assert_eq!(queue.seen().await.ready, 6, "the others stay with the broker");
        scene.pass(10);
        eventually("all are acked", || async { record.acks().len() == 10 }).await;
        assert_eq!(record.most_outstanding(), 4);
        running.stop().await;
        assert_eq!(queue.left().await, 0);
        assert_eq!(sandbox.ledger_total().await, 10);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_shutdown_finishes_what_runs_and_hands_the_rest_back() {
        for kind in [QueueKind::Quorum, QueueKind::Classic] {
            let sandbox = Db::fresh(5).await;
            let queue = TestQueue::new(kind).await;
            let scene = Scene::new();
            let workers = workers::<Db>(3);
            let all = 20 + workers;
            let ids: Vec<_> = (0..all).map(|n| format!("slow-{n}")).collect();
            for id in &ids {
                queue.publish(order(id)).await;
            }
            let (inbox, record) = inbox(&sandbox, &scene, queue.source());
            let inbox = inbox.concurrency(workers).prefetch(all);
            let running = Running::start(inbox.build().await.unwrap());
            eventually("all are taken, each worker runs one", || async {
                let taken = record.deliveries(&ids[all - 1]) == 1;
                taken && ids.iter().filter(|id| scene.entries(id).len() == 1).count() == workers
            })
            .await;
            let stopping = tokio::spawn(running.stop());
            let most = all.min(workers * in_one_transaction().end());
            eventually("the others are back before the running ones end", || async {
                let ready = queue.seen().await.ready as usize;
                (all - most..=all - workers).contains(&ready)
            })
            .await;
            scene.pass(most);
            let stopped = stopping.await.unwrap();
            let finished = record.acks().len();
            assert!((workers..=most).contains(&finished), "{finished}");
            assert_eq!((stopped.handed_back, stopped.cut_off), (all - finished, 0));
            assert_eq!(queue.left().await as usize, all - finished);
            assert_eq!(sandbox.ledger_total().await, i64::try_from(finished).unwrap());
            assert_eq!(sandbox.claims_total().await, i64::try_from(finished).unwrap());
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_cannot_be_handled_is_kept_with_its_bytes_and_does_not_come_again() {
        let sandbox = Db::fresh(5).await;
        let queue = TestQueue::new(QueueKind::Quorum).await;
        let scene = Scene::new();
        let typed = |body: &'static [u8]| Envelope::new(body).message_type("OrderPlaced");
        queue.publish(typed(b"\xff\xfe\x00 no JSON").id("undecodable-1")).await;
        queue.publish(typed(br#"{"account":"acc-1"}"#).id("incomplete-1")).await;
        queue.publish(typed(br#"{"account":"acc-1","amount":1}"#)).await;
        queue.publish(typed(br#"{"account":"acc-1","amount":2}"#).id("   ")).await;
        queue.publish(Envelope::new("v2").id("unknown-1").message_type("OrderPlaced.v2")).await;
        queue.publish(order("m-2")).await;
        let (inbox, record) = inbox(&sandbox, &scene, queue.source());
        let running = Running::start(inbox.concurrency(1).build().await.unwrap());
        eventually("all six are acked", || async { record.acks().len() == 6 }).await;
        running.stop().await;

        assert_eq!(queue.left().await, 0, "nothing comes again");
        let mut reasons = sandbox.dead_letters().await;
        reasons.sort();
        assert_eq!(
            reasons,
            ["invalid_id", "invalid_id", "undecodable", "undecodable", "unknown_type"]
        );
        let kept = Db::bytes(&sandbox.pool, "SELECT payload FROM inbox_dead_letters").await;
        for body in [
            &b"\xff\xfe\x00 no JSON"[..],
            br#"{"account":"acc-1"}"#,
            br#"{"account":"acc-1","amount":1}"#,
            br#"{"account":"acc-1","amount":2}"#,
            b"v2",
        ] {
            assert!(kept.iter().any(|payload| payload == body), "{body:?} is not kept");
        }
        sandbox.assert_stored_once("m-2").await;
        assert_eq!(sandbox.claims_total().await, 1);
        assert_eq!(sandbox.ledger_total().await, 1);
    }
}

fn recorded<Db: InboxDatabase>(
    builder: InboxBuilder<Db>,
    scene: &Scene,
    source: RabbitMqSource,
) -> (InboxBuilder<Db>, Record) {
    let (source, record) = Recorded::new(source);
    let builder = builder.source("orders", source).state(scene.clone());
    (builder, record)
}

/// A quorum queue that gives a message to a dead letter queue at its third delivery.
async fn limited_queue() -> (TestQueue, TestQueue) {
    let dead = TestQueue::new(QueueKind::Classic).await;
    let url = inbox_guarantees::environment("AMQP_URL");
    let arguments = [
        ("x-delivery-limit", AMQPValue::LongInt(2)),
        ("x-dead-letter-exchange", AMQPValue::LongString("".into())),
        (
            "x-dead-letter-routing-key",
            AMQPValue::LongString(dead.name.as_str().into()),
        ),
    ];
    let queue = TestQueue::on(&url, QueueKind::Quorum, &arguments).await;
    (queue, dead)
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_commits_and_outages_do_not_spend_the_delivery_limit() {
    let sandbox = Postgres::fresh(5).await;
    let (queue, dead) = limited_queue().await;
    let direct: PgConnectOptions = sandbox.url.parse().unwrap();
    let server: SocketAddr = format!("{}:{}", direct.get_host(), direct.get_port())
        .parse()
        .unwrap();
    let proxy = FaultProxy::to(server).await;
    let pool = PgPoolOptions::new()
        .max_connections(3)
        .acquire_timeout(Duration::from_secs(1))
        .connect_lazy_with(direct.port(proxy.address().port()));
    let scene = Scene::new();
    let builder = Inbox::builder(pool).serve(postgres::charge::handler());
    let (builder, record) = recorded(builder, &scene, queue.source());
    let running = Running::start(builder.concurrency(1).build().await.unwrap());
    proxy.at_commits(&[AtCommit::CutBefore; 4]);
    queue.publish(order("m-1")).await;
    eventually("four commits are lost", || async { proxy.struck() == 4 }).await;
    proxy.refuse();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(record.acks().is_empty());
    proxy.accept();
    eventually("it is acked", || async { record.acks().len() == 1 }).await;
    running.stop().await;
    assert_eq!(record.deliveries("m-1"), 1, "held, not handed back");
    assert_eq!(dead.take().await, None);
    assert_eq!(queue.left().await, 0);
    sandbox.assert_stored_once("m-1").await;
    assert_eq!(sandbox.attempts("m-1").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_in_work_elsewhere_does_not_spend_the_delivery_limit() {
    let sandbox = Postgres::fresh(5).await;
    let (queue, dead) = limited_queue().await;
    let other: PgPool = PgPool::connect(&sandbox.url).await.unwrap();
    let mut elsewhere = other.begin().await.unwrap();
    sqlx::query("INSERT INTO inbox_processed_messages (consumer_name, message_id) VALUES ('billing', 'm-1')")
        .execute(&mut *elsewhere)
        .await
        .unwrap();
    let scene = Scene::new();
    let builder = Inbox::builder(sandbox.pool.clone()).serve(postgres::charge::handler());
    let (builder, record) = recorded(builder, &scene, queue.source());
    let claims = Arc::new(Mutex::new(0));
    let builder = builder
        .concurrency(1)
        .claim_wait(Duration::from_millis(100))
        .on_step({
            let claims = Arc::clone(&claims);
            move |step, _| {
                if step == inbox_runtime::testing::Step::BeforeClaim {
                    *claims.lock().unwrap() += 1;
                }
            }
        });
    let running = Running::start(builder.build().await.unwrap());
    queue.publish(order("m-1")).await;
    eventually("it was tried four times", || async {
        *claims.lock().unwrap() >= 4
    })
    .await;
    assert!(record.acks().is_empty());
    assert!(scene.entries("m-1").is_empty());
    elsewhere.rollback().await.unwrap();
    eventually("it is acked", || async { record.acks().len() == 1 }).await;
    running.stop().await;
    assert_eq!(record.deliveries("m-1"), 1, "held, not handed back");
    assert_eq!(dead.take().await, None);
    assert_eq!(queue.left().await, 0);
    sandbox.assert_stored_once("m-1").await;
    assert_eq!(sandbox.attempts("m-1").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_queue_is_not_set_up_for_is_refused_by_the_name_of_the_setting() {
    let sandbox = Postgres::fresh(5).await;
    let queue = TestQueue::new(QueueKind::Quorum).await;
    let too_few = TestQueue::declaration(QueueKind::Quorum)
        .delivery_limit(1)
        .dead_letter_exchange("amq.fanout");
    let patient = || queue.source().settle_window(None);
    for (source, words) in [
        (
            queue.source().settle_window(Duration::from_secs(20)),
            ["20 seconds (`consumer_timeout`)", "charge", "`timeout`"],
        ),
        (
            patient().delivery_limit(1),
            ["1 redeliveries", "`x-delivery-limit`", "`max_attempts`"],
        ),
        (
            patient().declare(too_few),
            ["1 redeliveries", "`x-delivery-limit`", "`max_attempts`"],
        ),
    ] {
        let builder = Inbox::builder(sandbox.pool.clone()).serve(postgres::charge::handler());
        let (builder, _) = recorded(builder, &Scene::new(), source);
        let refused = builder.build().await.unwrap_err();
        assert_eq!(refused.problems().len(), 1, "{words:?}: {refused}");
        for word in words.iter().chain(&["`orders`"]) {
            assert!(refused.problems()[0].contains(word), "{word}: {refused}");
        }
    }

    let builder = Inbox::builder(sandbox.pool.clone()).serve(postgres::charge::handler());
    let (builder, _) = recorded(builder, &Scene::new(), patient());
    let refused = builder.prefetch(0).build().await.unwrap_err();
    assert!(refused.to_string().contains("prefetch(0)"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_of_the_broker_the_inbox_goes_on_by_itself() {
    let server = OwnServer::start("rabbitmq");
    let url = server.url("AMQP_URL");
    let sandbox = Postgres::fresh(5).await;
    let queue = TestQueue::on(&url, QueueKind::Quorum, &[]).await;
    let scene = Scene::new();
    let builder = Inbox::builder(sandbox.pool.clone()).serve(postgres::charge::handler());
    let (builder, record) = recorded(builder, &scene, queue.source());
    let running = Running::start(builder.concurrency(2).prefetch(4).build().await.unwrap());
    queue.publish(order("m-1")).await;
    // All bill one account: behind a slow one it would wait for the row.
    eventually("the first is billed", || async {
        sandbox.ledger_total().await == 1
    })
    .await;
    for id in ["slow-2", "slow-3", "m-4"] {
        queue.publish(order(id)).await;
    }
    // One after the other where they share a transaction.
    let at_once = if is_shared() { 1 } else { 2 };
    eventually("the slow ones run", || async {
        let slow = ["slow-2", "slow-3"];
        slow.iter()
            .filter(|id| scene.entries(id).len() == 1)
            .count()
            >= at_once
    })
    .await;
    tokio::task::block_in_place(|| server.stop());
    scene.pass(2);
    // What was not begun by then is left to the redelivery.
    let done = 1 + i64::try_from(at_once).unwrap();
    eventually("the work goes on without the broker", || async {
        sandbox.ledger_total().await >= done
    })
    .await;
    let before = record.opened();
    // The runtime goes on trying, less and less often.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let tries = record.opened().0 - before.0;
    assert!(
        (1..=20).contains(&tries),
        "{tries} tries in 5 s are no back-off"
    );
    tokio::task::block_in_place(|| server.again());

    eventually("the source is open again", || async {
        record.opened().1 == 2
    })
    .await;
    let queue = queue.after_restart().await;
    queue.publish(order("m-5")).await;
    eventually("everything is acked", || async {
        queue.seen().await.ready == 0 && sandbox.claims("m-5").await == 1
    })
    .await;
    running.stop().await;
    assert_eq!(queue.left().await, 0);
    for id in ["m-1", "slow-2", "slow-3", "m-4", "m-5"] {
        sandbox.assert_stored_once(id).await;
        assert_eq!(sandbox.attempts(id).await, 0, "{id}");
    }
    assert_eq!(scene.entries("slow-2").len(), 1);
}
