//! The inbox on a real NATS JetStream: what the broker is told, and when.

#![allow(clippy::unwrap_used, clippy::expect_used)] // What goes wrong here has to fail the test.

use std::collections::HashMap;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use inbox_core::{Learned, Needs, Publisher as _, Source};
use inbox_guarantees::dispatch::{Serve as _, assert_runs, in_one_transaction, is_shared};
use inbox_guarantees::nats::{CONSUMER, TestStream, nanoseconds};
use inbox_guarantees::proxy::FaultProxy;
use inbox_guarantees::recorded::{Record, Recorded};
use inbox_guarantees::servers::OwnServer;
use inbox_guarantees::{
    OrderPlaced, Running, Sandbox, TestDatabase, bill, environment, eventually, on_each_database,
    order, unique, workers,
};
use inbox_runtime::brokers::{ConsumerDeclaration, JetStreamSource, Nats};
use inbox_runtime::testing::Step;
use inbox_runtime::{
    Attempt, Condition, Envelope, HandlerError, Inbox, InboxBuilder, InboxDatabase, MessageId,
    Monitor, PublishError, RetryPolicy, State, Tx, Verdict, inbox_handler,
};
use serde_json::json;
use sqlx::Postgres;
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
        let entries = self.0.entries.lock().unwrap();
        entries.get(id).cloned().unwrap_or_default()
    }

    /// Lets `n` slow messages pass.
    fn pass(&self, n: usize) {
        self.0.gate.add_permits(n);
    }
}

const SECOND: Duration = Duration::from_secs(1);

/// A consumer that waits for an ack for so long.
fn ack_wait(wait: Duration) -> serde_json::Value {
    json!({ "ack_wait": nanoseconds(wait) })
}

on_each_database! {
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
            thrice if thrice.starts_with("fails-thrice") && attempt <= 3 => Err("not yet".into()),
            later if later.starts_with("later") && attempt == 1 => {
                Err(HandlerError::retry_after(Duration::from_secs(60 * 60), "not today"))
            }
            _ => Ok(()),
        }
    }

    /// Takes most of an ack wait of two seconds.
    #[inbox_handler(consumer = "billing", on = "OrderPlaced", timeout = "2s")]
    async fn charge_slowly(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId, State(scene): State<Scene>)
        -> Result<(), HandlerError>
    {
        scene.enter(id.as_str());
        bill!(Db, order, id, tx);
        tokio::time::sleep(SECOND).await;
        Ok(())
    }

    fn inbox(sandbox: &Sandbox<Db>, scene: &Scene, source: JetStreamSource) -> (InboxBuilder<Db>, Record) {
        recorded(Inbox::builder(sandbox.pool.clone()).serve(charge::handler()), scene, source)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_is_acked_when_its_change_is_durable_and_not_before() {
        let sandbox = Db::fresh(5).await;
        let stream = Arc::new(TestStream::new(json!({})).await);
        let scene = Scene::new();
        let (inbox, record) = inbox(&sandbox, &scene, stream.source());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let inbox = inbox.on_step({
            let (seen, pool, stream) = (Arc::clone(&seen), sandbox.pool.clone(), Arc::clone(&stream));
            move |step, _| {
                if matches!(step, Step::BeforeCommit | Step::BeforeAck) {
                    let look = async {
                        let rows = <Db as TestDatabase>::number(&pool, "SELECT count(*) FROM ledger").await;
                        (step == Step::BeforeAck, rows, stream.seen().await.unacked)
                    };
                    let looked = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(look));
                    seen.lock().unwrap().push(looked);
                }
            }
        });
        let running = Running::start(inbox.build().await.unwrap());
        stream.publish(order("m-1")).await;
        eventually("it is acked", || async { record.acks().len() == 1 }).await;
        running.stop().await;
        let seen = seen.lock().unwrap().clone();
        let before_acks: Vec<_> = seen.iter().filter(|(is_ack, ..)| *is_ack).collect();
        assert_eq!(before_acks, [&(true, 1, 1)], "durable, and not acked yet: {seen:?}");
        let early = seen.iter().filter(|(is_ack, rows, unacked)| !is_ack && (*rows, *unacked) != (0, 1));
        assert_eq!(early.count(), 0, "neither durable nor acked: {seen:?}");
        sandbox.assert_stored_once("m-1").await;
        stream.until_all_acked().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_whose_ack_was_lost_comes_again_and_is_a_duplicate() {
        let sandbox = Db::fresh(5).await;
        let stream = TestStream::new(ack_wait(SECOND)).await;
        let proxy = Arc::new(FaultProxy::to(stream.server()).await);
        let scene = Scene::new();
        let (inbox, record) = inbox(&sandbox, &scene, stream.source_through(proxy.address()));
        let cuts = Arc::new(Mutex::new(1));
        let inbox = inbox.on_step({
            let (cuts, proxy) = (Arc::clone(&cuts), Arc::clone(&proxy));
            move |step, _| {
                let mut cuts = cuts.lock().unwrap();
                if step == Step::AfterCommit && *cuts > 0 {
                    *cuts -= 1;
                    proxy.cut();
                }
            }
        });
        let running = Running::start(inbox.build().await.unwrap());
        stream.publish(order("m-1")).await;
        stream.until_all_acked().await;
        running.stop().await;
        assert!(record.deliveries("m-1") >= 2, "{:?}", record.events());
        assert_eq!(scene.entries("m-1").len(), 1);
        sandbox.assert_stored_once("m-1").await;
        assert_eq!(sandbox.attempts("m-1").await, 0);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn deliveries_of_a_cut_connection_are_dropped_and_come_again() {
        let sandbox = Db::fresh(5).await;
        let stream = TestStream::new(ack_wait(2 * SECOND)).await;
        let proxy = FaultProxy::to(stream.server()).await;
        let scene = Scene::new();
        let ids = ["slow-1", "m-2", "m-3", "m-4"];
        for id in ids {
            stream.publish(order(id)).await;
        }
        let (inbox, record) = inbox(&sandbox, &scene, stream.source_through(proxy.address()));
        let running = Running::start(inbox.concurrency(1).prefetch(4).build().await.unwrap());
        eventually("all four are here, the first in work", || async {
            record.deliveries("m-4") == 1 && scene.entries("slow-1").len() == 1
        })
        .await;

        proxy.cut();
        eventually("the source is open again", || async { record.opened().1 == 2 }).await;
        scene.pass(2);
        eventually("all four are acked", || async { record.acks().len() == 4 }).await;
        let void = record.void_settles();
        assert!(in_one_transaction().contains(&void.len()), "{void:?}");
        assert_eq!(void, ids[..void.len()], "only what was in work may try to settle");
        for id in ids {
            assert!(record.deliveries(id) >= 2, "{id}");
            assert_eq!(scene.entries(id).len(), 1, "{id}");
            sandbox.assert_stored_once(id).await;
            assert_eq!(sandbox.attempts(id).await, 0, "{id}");
        }
        assert_eq!(record.opened().1, 2);
        running.stop().await;
        stream.until_all_acked().await;
        assert_eq!(record.hand_backs(), 0);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_in_work_or_waits_for_a_worker_is_extended_and_comes_once() {
        let sandbox = Db::fresh(5).await;
        let stream = TestStream::new(ack_wait(SECOND)).await;
        let scene = Scene::new();
        let ids: Vec<_> = (0..8).map(|n| format!("slow-{n}")).collect();
        for id in &ids {
            stream.publish(order(id)).await;
        }
        let (inbox, record) = inbox(&sandbox, &scene, stream.source());
        let workers = workers::<Db>(4);
        let running = Running::start(inbox.concurrency(workers).prefetch(8).build().await.unwrap());
        eventually("all are here", || async { record.deliveries("slow-7") == 1 }).await;
        // Several times the wait, with a worker or without one.
        tokio::time::sleep(4 * SECOND).await;
        scene.pass(8);
        eventually("all are acked", || async { record.acks().len() == 8 }).await;
        running.stop().await;
        for id in &ids {
            assert_eq!(record.deliveries(id), 1, "{id}");
            assert_eq!(scene.entries(id).len(), 1, "{id}");
            sandbox.assert_stored_once(id).await;
        }
        assert_eq!(stream.consumer().await["num_redelivered"], 0);
        stream.until_all_acked().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_not_extended_comes_again_and_is_processed_once() {
        let sandbox = Db::fresh(5).await;
        let stream = TestStream::new(ack_wait(2 * SECOND)).await;
        let scene = Scene::new();
        for n in 0..5 {
            stream.publish(order(&format!("m-{n}"))).await;
        }
        let builder = Inbox::builder(sandbox.pool.clone()).serve(charge_slowly::handler());
        let (inbox, record) = recorded(builder, &scene, stream.source().without_extension());
        let running = Running::start(inbox.concurrency(1).prefetch(8).build().await.unwrap());
        // One after another they take five seconds.
        eventually("all are processed", || async { sandbox.ledger_total().await == 5 }).await;
        stream.until_all_acked().await;
        running.stop().await;
        assert!(record.redelivered() > 0, "the last ones waited for too long");
        for n in 0..5 {
            sandbox.assert_stored_once(&format!("m-{n}")).await;
        }
        assert_eq!(sandbox.ledger_total().await, 5);
        assert_eq!(sandbox.dead_letters().await, [""; 0]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn failures_go_back_with_growing_delays_while_others_go_on() {
        let sandbox = Db::fresh(5).await;
        let stream = TestStream::new(ack_wait(SECOND)).await;
        let scene = Scene::new();
        stream.publish(order("fails-thrice-1")).await;
        for n in 0..20 {
            stream.publish(order(&format!("m-{n}"))).await;
        }
        let (inbox, record) = inbox(&sandbox, &scene, stream.source());
        // The last delay outlasts the ack wait.
        let first = Duration::from_millis(500);
        let inbox = inbox.concurrency(1).prefetch(4).retry(RetryPolicy::default().first_delay(first));
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
        assert_eq!(record.acks().last().unwrap().0, "fails-thrice-1", "the others go on");
        assert_eq!(record.hand_backs(), 3);
        assert_eq!(record.deliveries("fails-thrice-1"), 4);
        sandbox.assert_stored_once("fails-thrice-1").await;
        assert_eq!(sandbox.ledger_total().await, 21);
        assert_eq!(sandbox.attempts("fails-thrice-1").await, 0, "forgotten with the success");
        stream.until_all_acked().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_long_delay_is_parked_and_leaves_nothing_unacked() {
        let sandbox = Db::fresh(5).await;
        let stream = TestStream::new(json!({})).await;
        let scene = Scene::new();
        stream.publish(order("later-1")).await;
        let (inbox, record) = inbox(&sandbox, &scene, stream.source());
        let running = Running::start(inbox.build().await.unwrap());
        eventually("it is acked", || async { record.acks().len() == 1 }).await;
        stream.until_all_acked().await;
        running.stop().await;
        let parked = "SELECT count(*) FROM inbox_messages WHERE status = 'pending'";
        assert_eq!(Db::number(&sandbox.pool, parked).await, 1);
        assert_eq!(sandbox.attempts("later-1").await, 1);
        assert_eq!(sandbox.ledger_total().await, 0);
        assert_eq!(record.hand_backs(), 0);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_that_used_up_its_attempts_is_a_dead_letter_before_it_is_acked() {
        let sandbox = Db::fresh(5).await;
        let stream = TestStream::new(json!({})).await;
        let scene = Scene::new();
        stream.publish(order("poison-1")).await;
        for n in 2..6 {
            stream.publish(order(&format!("m-{n}"))).await;
        }
        let (inbox, record) = inbox(&sandbox, &scene, stream.source());
        let letters_at_ack = Arc::new(Mutex::new(None));
        let inbox = inbox
            .retry(RetryPolicy::default().first_delay(Duration::from_millis(20)))
            .on_step({
                let (letters, pool) = (Arc::clone(&letters_at_ack), sandbox.pool.clone());
                move |step, id| {
                    if step == Step::BeforeAck && id == "poison-1" {
                        let count = <Db as TestDatabase>::number(&pool, "SELECT count(*) FROM inbox_dead_letters");
                        *letters.lock().unwrap() = Some(tokio::task::block_in_place(|| {
                            tokio::runtime::Handle::current().block_on(count)
                        }));
                    }
                }
            });
        let running = Running::start(inbox.build().await.unwrap());
        eventually("all are acked", || async { record.acks().len() == 5 }).await;
        running.stop().await;
        assert_eq!(*letters_at_ack.lock().unwrap(), Some(1), "dead letter first, ack second");
        assert_runs(scene.entries("poison-1").len(), 4, "max_attempts is 4");
        assert_eq!(sandbox.dead_letters().await, ["attempts_exhausted"]);
        assert_eq!(sandbox.claims("poison-1").await, 0);
        assert_eq!(sandbox.ledger_rows("poison-1").await, 0);
        for n in 2..6 {
            sandbox.assert_stored_once(&format!("m-{n}")).await;
        }
        stream.until_all_acked().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn no_more_than_the_prefetch_is_ever_unacked() {
        let sandbox = Db::fresh(6).await;
        let stream = TestStream::new(json!({})).await;
        let scene = Scene::new();
        for n in 0..40 {
            stream.publish(order(&format!("slow-{n}"))).await;
        }
        let (inbox, record) = inbox(&sandbox, &scene, stream.source());
        let workers = workers::<Db>(4);
        let running = Running::start(inbox.concurrency(workers).prefetch(6).build().await.unwrap());
        eventually("six are taken", || async { record.deliveries("slow-5") == 1 }).await;
        let seen = stream.seen().await;
        assert_eq!((seen.unacked, seen.pending), (6, 34), "the others stay with the broker");
        let mut most = 0;
        while record.acks().len() < 40 {
            scene.pass(1);
            most = most.max(stream.seen().await.unacked);
        }
        assert_eq!(most, 6, "by the server's own count");
        assert_eq!(record.most_outstanding(), 6);
        running.stop().await;
        stream.until_all_acked().await;
        assert_eq!(sandbox.ledger_total().await, 40);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_shutdown_finishes_what_runs_and_hands_the_rest_back() {
        let sandbox = Db::fresh(5).await;
        // Whatever is not handed back stays away for longer than the test.
        let stream = TestStream::new(ack_wait(Duration::from_secs(600))).await;
        let scene = Scene::new();
        let workers = workers::<Db>(3);
        let all = 20 + workers;
        let ids: Vec<_> = (0..all).map(|n| format!("slow-{n}")).collect();
        for id in &ids {
            stream.publish(order(id)).await;
        }
        let (inbox, record) = inbox(&sandbox, &scene, stream.source());
        // Some of what it may have is still on its way when it stops.
        let running = Running::start(inbox.concurrency(workers).prefetch(all + 10).build().await.unwrap());
        eventually("all are taken, each worker runs one", || async {
            let taken = record.deliveries(&ids[all - 1]) == 1;
            taken && ids.iter().filter(|id| scene.entries(id).len() == 1).count() == workers
        })
        .await;
        let stopping = tokio::spawn(running.stop());
        let most = all.min(workers * in_one_transaction().end());
        // They are back before the running ones end: somebody else can have them, and gives them back too.
        let mut other = stream.source().open(NonZeroUsize::new(all).unwrap()).await.unwrap();
        let mut tokens = Vec::new();
        while tokens.len() < all - most {
            let next = tokio::time::timeout(60 * SECOND, other.deliveries.next()).await;
            tokens.push(next.expect("not handed back").unwrap().unwrap().token);
        }
        other.deliveries.stop().await;
        let back = tokens.into_iter().map(|token| (token, Verdict::HandBack { delay: None }));
        let answers = other.settle.settle(back.collect()).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        drop(other);
        scene.pass(most);
        let stopped = stopping.await.unwrap();
        let finished = record.acks().len();
        assert!((workers..=most).contains(&finished), "{finished}");
        assert_eq!((stopped.handed_back, stopped.cut_off), (all - finished, 0));
        assert_eq!(sandbox.ledger_total().await, i64::try_from(finished).unwrap());
        assert_eq!(sandbox.claims_total().await, i64::try_from(finished).unwrap());

        scene.pass(all);
        let (inbox, record) = self::inbox(&sandbox, &scene, stream.source());
        let running = Running::start(inbox.concurrency(workers).build().await.unwrap());
        eventually("another one has the rest", || async { record.acks().len() == all - finished }).await;
        running.stop().await;
        assert_eq!(sandbox.ledger_total().await, i64::try_from(all).unwrap());
        stream.until_all_acked().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_cannot_be_handled_is_kept_with_its_bytes_and_does_not_come_again() {
        let sandbox = Db::fresh(5).await;
        let stream = TestStream::new(json!({})).await;
        let scene = Scene::new();
        let id = "Nats-Msg-Id";
        let typed = ("type", "OrderPlaced");
        let body = br#"{"account":"acc-1","amount":1}"#;
        stream.publish_raw(&[(id, "undecodable-1"), typed], b"\xff\xfe\x00 no JSON").await;
        stream.publish_raw(&[(id, "incomplete-1"), typed], br#"{"account":"acc-1"}"#).await;
        stream.publish_raw(&[typed], body).await;
        let ambiguous = br#"{"account":"acc-1","amount":2}"#;
        stream.publish_raw(&[(id, "one"), (id, "two"), typed, ("ce-id", "three")], ambiguous).await;
        stream.publish_raw(&[(id, "unknown-1"), ("type", "OrderPlaced.v2")], b"v2").await;
        stream.publish_raw(&[(id, "untyped-1")], b"").await;
        stream.publish_raw(&[("ce-id", "event-1"), ("ce-type", "OrderPlaced")], body).await;
        stream.publish_raw(&[(id, "same"), (id, "same"), typed], body).await;
        stream.publish(order("m-2")).await;
        let (inbox, record) = inbox(&sandbox, &scene, stream.source());
        let running = Running::start(inbox.concurrency(1).build().await.unwrap());
        eventually("all nine are acked", || async { record.acks().len() == 9 }).await;
        running.stop().await;

        stream.until_all_acked().await;
        let mut reasons = sandbox.dead_letters().await;
        reasons.sort();
        assert_eq!(
            reasons,
            ["invalid_id", "invalid_id", "undecodable", "undecodable", "unknown_type", "unknown_type"]
        );
        let texts = sandbox.dead_letter_texts().await.join("\n");
        for says in ["`Nats-Msg-Id` has several different values", "missing", "\"OrderPlaced.v2\"", ".placed\""] {
            assert!(texts.contains(says), "{says}: {texts}");
        }
        let kept = Db::bytes(&sandbox.pool, "SELECT payload FROM inbox_dead_letters").await;
        for body in [&b"\xff\xfe\x00 no JSON"[..], br#"{"account":"acc-1"}"#, body, ambiguous, b"v2", b""] {
            assert!(kept.iter().any(|payload| payload == body), "{body:?} is not kept");
        }
        for id in ["event-1", "same", "m-2"] {
            sandbox.assert_stored_once(id).await;
        }
        assert_eq!(sandbox.claims_total().await, 3);
        assert_eq!(sandbox.ledger_total().await, 3);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn where_deliveries_are_limited_none_is_spent_on_a_retry() {
        let sandbox = Db::fresh(5).await;
        let stream = TestStream::new(json!({ "max_deliver": 5, "ack_wait": nanoseconds(SECOND) })).await;
        let scene = Scene::new();
        stream.publish(order("fails-thrice-1")).await;
        let (inbox, record) = inbox(&sandbox, &scene, stream.source());
        let retry = RetryPolicy::default().first_delay(Duration::from_millis(400));
        let inbox = inbox.retry(retry).longest_hold(60 * SECOND);
        let running = Running::start(inbox.build().await.unwrap());
        eventually("it is acked", || async { record.acks().len() == 1 }).await;
        running.stop().await;
        assert_eq!((record.deliveries("fails-thrice-1"), record.hand_backs()), (1, 0), "it is held");
        sandbox.assert_stored_once("fails-thrice-1").await;
        stream.until_all_acked().await;
    }
}

fn recorded<Db: InboxDatabase>(
    builder: InboxBuilder<Db>,
    scene: &Scene,
    source: JetStreamSource,
) -> (InboxBuilder<Db>, Record) {
    let (source, record) = Recorded::new(source);
    let builder = builder.source("orders", source).state(scene.clone());
    (builder, record)
}

fn of(sandbox: &Sandbox<Postgres>, scene: &Scene) -> InboxBuilder<Postgres> {
    Inbox::builder(sandbox.pool.clone())
        .serve(postgres::charge::handler())
        .state(scene.clone())
}

/// Waits until the monitor tells why the source is down, in these words.
async fn until_told(monitor: &Monitor, words: &[&str]) {
    let mut told = String::new();
    for _ in 0..3000 {
        if let Condition::Down { error, .. } = &monitor.health().sources[0].1 {
            told.clone_from(error);
            if words.iter().all(|word| told.contains(word)) {
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("not told within a minute: {words:?}, but {told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_broker_is_not_set_up_for_is_refused_by_the_name_of_the_setting() {
    let sandbox = Postgres::fresh(6).await;
    let url = environment("NATS_URL");
    let forever = json!({ "max_age": 0 });
    let usual = json!({});
    for (stream, consumer, words) in [
        (
            &usual,
            json!({ "max_deliver": 4 }),
            ["`max_deliver`", "4 times", "`max_attempts`"],
        ),
        (
            &usual,
            json!({ "ack_policy": "all" }),
            ["`ack_policy`", "all", "`explicit`"],
        ),
        (
            &usual,
            json!({ "ack_policy": "none" }),
            ["`ack_policy`", "none", "`explicit`"],
        ),
        (
            &usual,
            json!({ "max_ack_pending": 5 }),
            ["`max_ack_pending`", "at most 5", "prefetch of 8"],
        ),
        (
            &usual,
            json!({ "deliver_subject": "elsewhere" }),
            ["push consumer", "`deliver_subject`", "pull"],
        ),
        (
            &usual,
            json!({ "durable_name": null, "name": CONSUMER }),
            ["not durable", "forgets", "`durable_name`"],
        ),
        (
            &usual,
            json!({ "headers_only": true }),
            ["`headers_only`", "no payloads", "without"],
        ),
        (&forever, json!({}), ["for ever", "`max_age`", "14 days"]),
    ] {
        let stream = TestStream::on(&url, stream.clone(), consumer).await;
        let builder = of(&sandbox, &Scene::new()).source("orders", stream.source());
        let refused = builder
            .concurrency(4)
            .prefetch(8)
            .build()
            .await
            .unwrap_err();
        assert_eq!(refused.problems().len(), 1, "{words:?}: {refused}");
        for word in words.iter().chain(&["`orders`"]) {
            assert!(refused.problems()[0].contains(word), "{word}: {refused}");
        }
    }

    let stream = TestStream::new(ack_wait(2 * SECOND)).await;
    let source = stream.source().without_extension();
    let builder = of(&sandbox, &Scene::new()).source("orders", source);
    let refused = builder.build().await.unwrap_err();
    assert_eq!(refused.problems().len(), 1, "{refused}");
    for word in ["2 seconds (`ack_wait`)", "charge", "3 minutes", "`timeout`"] {
        assert!(refused.problems()[0].contains(word), "{word}: {refused}");
    }

    // What was said about the replay, or what is deleted with its ack, is no such problem.
    let stream = TestStream::on(&url, forever, json!({})).await;
    let source = stream.source().replay_window(60 * SECOND);
    let builder = of(&sandbox, &Scene::new()).source("orders", source);
    builder.build().await.unwrap();
    let stream = json!({ "max_age": 0, "retention": "workqueue" });
    let stream = TestStream::on(&url, stream, json!({})).await;
    let builder = of(&sandbox, &Scene::new()).source("orders", stream.source());
    builder.build().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_told_by_the_monitor_until_it_is_there() {
    let sandbox = Postgres::fresh(6).await;
    let url = environment("NATS_URL");
    let (_, server) = url.rsplit_once('@').unwrap();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let named = unique("S");
    let stream = TestStream::without_consumer(&url, json!({})).await;
    for (source, words) in [
        (
            Nats::new(format!("nats://{nobody}")).consumer(&named, CONSUMER),
            vec![nobody.to_string(), "server runs".to_owned()],
        ),
        (
            Nats::new(format!("nats://inbox:wrong-one@{server}")).consumer(&stream.name, CONSUMER),
            vec![
                "inbox:***".to_owned(),
                "user and password".to_owned(),
                "authorization violation".to_owned(),
            ],
        ),
        (
            Nats::new(&url).consumer(&named, CONSUMER),
            vec![format!("no stream `{named}`"), "create it".to_owned()],
        ),
        (
            Nats::new(&url)
                .domain("elsewhere")
                .consumer(&named, CONSUMER),
            vec!["JetStream does not answer".to_owned(), "domain".to_owned()],
        ),
    ] {
        let inbox = of(&sandbox, &Scene::new())
            .source("orders", source)
            .build()
            .await
            .unwrap();
        let monitor = inbox.monitor();
        let running = Running::start(inbox);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        until_told(&monitor, &words).await;
        running.stop().await;
        let told = format!("{:?}", monitor.health());
        assert!(!told.contains("wrong-one"), "{told}");
    }

    let scene = Scene::new();
    let inbox = of(&sandbox, &scene)
        .source("orders", stream.source())
        .build()
        .await
        .unwrap();
    let monitor = inbox.monitor();
    let running = Running::start(inbox);
    until_told(
        &monitor,
        &["no consumer `billing`", &stream.name, ".declare("],
    )
    .await;
    stream.publish(order("m-1")).await;
    // Found to be unsafe when it comes, and not only at the start.
    stream.make_consumer(json!({ "max_deliver": 2 })).await;
    until_told(&monitor, &["`max_deliver`", "2 times"]).await;
    assert_eq!(sandbox.ledger_total().await, 0);
    stream.delete_consumer().await;
    stream.make_consumer(json!({})).await;
    stream.until_all_acked().await;
    running.stop().await;
    sandbox.assert_stored_once("m-1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_is_made_as_declared_and_never_changed() {
    let sandbox = Postgres::fresh(6).await;
    let stream = TestStream::without_consumer(&environment("NATS_URL"), json!({})).await;
    let scene = Scene::new();
    stream.publish(order("m-1")).await;
    let declared = ConsumerDeclaration::new()
        .filter(stream.subject())
        .ack_wait(20 * SECOND)
        .max_ack_pending(500)
        .max_deliver(NonZeroU32::new(100).unwrap());
    for _ in 0..2 {
        let (builder, record) = recorded(
            Inbox::builder(sandbox.pool.clone()).serve(postgres::charge::handler()),
            &scene,
            stream.source().declare(declared.clone()),
        );
        let running = Running::start(builder.build().await.unwrap());
        eventually("it is open", || async { record.opened().1 == 1 }).await;
        stream.until_all_acked().await;
        running.stop().await;
        sandbox.assert_stored_once("m-1").await;
    }
    let config = stream.consumer().await["config"].clone();
    assert_eq!(config["ack_wait"], 20_000_000_000_u64, "in nanoseconds");
    assert_eq!(config["max_ack_pending"], 500);
    assert_eq!(config["max_deliver"], 100);
    assert_eq!(config["filter_subject"], stream.subject());

    let other = stream.source().declare(declared.ack_wait(21 * SECOND));
    let refused = of(&sandbox, &scene)
        .source("orders", other)
        .build()
        .await
        .unwrap_err();
    assert_eq!(refused.problems().len(), 1, "{refused}");
    for word in [
        "`ack_wait` is 20000000000 and not 21000000000",
        "`billing`",
        "declaration",
    ] {
        assert!(refused.problems()[0].contains(word), "{word}: {refused}");
    }
    assert_eq!(stream.consumer().await["config"], config);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_is_deleted_is_missed_at_once() {
    let sandbox = Postgres::fresh(6).await;
    let stream = TestStream::new(json!({})).await;
    let scene = Scene::new();
    let inbox = of(&sandbox, &scene)
        .source("orders", stream.source())
        .build()
        .await
        .unwrap();
    let monitor = inbox.monitor();
    let running = Running::start(inbox);
    stream.publish(order("m-1")).await;
    stream.until_all_acked().await;
    stream.delete_consumer().await;
    until_told(&monitor, &["no consumer `billing`"]).await;
    // It begins with the first message again, which is a duplicate.
    stream.make_consumer(json!({})).await;
    stream.publish(order("m-2")).await;
    stream.until_all_acked().await;
    running.stop().await;
    assert_eq!(monitor.total().duplicates, 1);
    for id in ["m-1", "m-2"] {
        sandbox.assert_stored_once(id).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permission_that_is_missing_is_told() {
    let sandbox = Postgres::fresh(6).await;
    let stream = TestStream::new(json!({})).await;
    let url = environment("NATS_URL").replace("inbox:inbox@", "stranger:stranger@");
    let source = Nats::new(url).consumer(&stream.name, CONSUMER);
    let inbox = of(&sandbox, &Scene::new())
        .source("orders", source)
        .build()
        .await
        .unwrap();
    let monitor = inbox.monitor();
    let running = Running::start(inbox);
    until_told(
        &monitor,
        &["silent for 15s", "Permissions Violation", "MSG.NEXT"],
    )
    .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_inboxes_share_one_consumer_and_what_one_leaves_another_takes() {
    let sandbox = Postgres::fresh(20).await;
    let stream = TestStream::new(ack_wait(2 * SECOND)).await;
    let scene = Scene::new();
    let proxy = FaultProxy::to(stream.server()).await;
    for n in 0..100 {
        stream.publish(order(&format!("m-{n}"))).await;
        if n % 3 == 0 {
            // Another id than the stream's own window of copies would know, and the same message for the inbox.
            stream
                .publish_raw(
                    &[("ce-id", &format!("m-{n}")), ("type", "OrderPlaced")],
                    br#"{"account":"acc-1","amount":100}"#,
                )
                .await;
        }
    }
    let mut running = Vec::new();
    for source in [
        stream.source(),
        stream.source(),
        stream.source_through(proxy.address()),
    ] {
        let inbox = of(&sandbox, &scene)
            .source("orders", source)
            .concurrency(2)
            .prefetch(8);
        running.push(Running::start(inbox.build().await.unwrap()));
    }
    eventually("some are processed", || async {
        sandbox.ledger_total().await > 20
    })
    .await;
    proxy.refuse();
    eventually("all are processed", || async {
        sandbox.ledger_total().await == 100
    })
    .await;
    stream.until_all_acked().await;
    proxy.accept();
    for running in running {
        running.stop().await;
    }
    assert_eq!(sandbox.ledger_total().await, 100);
    assert_eq!(sandbox.claims_total().await, 100);
    assert_eq!(sandbox.balance("acc-1").await, 100 * 100);
    assert_eq!(sandbox.dead_letters().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_crash_of_the_broker_the_inbox_goes_on_by_itself() {
    for is_crash in [true, false] {
        let server = OwnServer::start("nats");
        let url = server.url("NATS_URL");
        let sandbox = Postgres::fresh(5).await;
        let stream = TestStream::on(&url, json!({}), ack_wait(2 * SECOND)).await;
        let scene = Scene::new();
        let builder = Inbox::builder(sandbox.pool.clone()).serve(postgres::charge::handler());
        let (builder, record) = recorded(builder, &scene, stream.source());
        let inbox = builder.concurrency(2).prefetch(4).build().await.unwrap();
        let monitor = inbox.monitor();
        let running = Running::start(inbox);
        stream.publish(order("m-1")).await;
        // All bill one account: behind a slow one it would wait for the row.
        eventually("the first is billed", || async {
            sandbox.ledger_total().await == 1
        })
        .await;
        for id in ["slow-2", "slow-3", "m-4"] {
            stream.publish(order(id)).await;
        }
        let at_once = if is_shared() { 1 } else { 2 };
        eventually("the slow ones run", || async {
            let slow = ["slow-2", "slow-3"];
            slow.iter()
                .filter(|id| scene.entries(id).len() == 1)
                .count()
                >= at_once
        })
        .await;
        tokio::task::block_in_place(|| {
            if is_crash {
                server.crash()
            } else {
                server.stop()
            }
        });
        scene.pass(2);
        // What was not begun by then is left to the redelivery.
        let done = 1 + i64::try_from(at_once).unwrap();
        eventually("the work goes on without the broker", || async {
            sandbox.ledger_total().await >= done
        })
        .await;
        until_told(&monitor, &["cannot be connected to"]).await;
        let before = record.opened();
        tokio::task::block_in_place(|| server.again());

        eventually("the source is open again", || async {
            record.opened().1 == before.1 + 1
        })
        .await;
        let stream = stream.after_restart().await;
        stream.publish(order("m-5")).await;
        stream.until_all_acked().await;
        running.stop().await;
        for id in ["m-1", "slow-2", "slow-3", "m-4", "m-5"] {
            sandbox.assert_stored_once(id).await;
            assert_eq!(sandbox.attempts(id).await, 0, "{id}");
        }
        assert_eq!(scene.entries("slow-2").len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_is_noticed() {
    let server = OwnServer::start("nats");
    let url = server.url("NATS_URL");
    let sandbox = Postgres::fresh(5).await;
    let stream = TestStream::on(&url, json!({}), ack_wait(2 * SECOND)).await;
    let scene = Scene::new();
    let inbox = of(&sandbox, &scene)
        .source("orders", stream.source())
        .build()
        .await
        .unwrap();
    let monitor = inbox.monitor();
    let running = Running::start(inbox);
    stream.publish(order("m-1")).await;
    stream.until_all_acked().await;
    tokio::task::block_in_place(|| server.pause());
    until_told(&monitor, &["silent for 15s"]).await;
    tokio::task::block_in_place(|| server.resume());
    stream.publish(order("m-2")).await;
    stream.until_all_acked().await;
    running.stop().await;
    for id in ["m-1", "m-2"] {
        sandbox.assert_stored_once(id).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_broker_tells_how_long_and_how_large_its_messages_are() {
    let url = environment("NATS_URL");
    let day = Duration::from_secs(24 * 60 * 60);
    let stream = json!({ "max_age": nanoseconds(3 * day), "max_msg_size": 2000 });
    let stream = TestStream::on(&url, stream, ack_wait(7 * SECOND)).await;
    let needs = Needs::new(NonZeroUsize::new(8).unwrap(), SECOND, 5);
    let Learned {
        capabilities,
        problems,
        ..
    } = stream
        .source()
        .without_extension()
        .learn(&needs)
        .await
        .unwrap();
    assert_eq!(problems, [""; 0]);
    assert_eq!(capabilities.redelivery_window, Some(3 * day));
    assert_eq!(capabilities.settle_window, Some(7 * SECOND));
    assert_eq!(capabilities.largest_payload, Some(2000));
    assert_eq!(
        stream
            .source()
            .learn(&needs)
            .await
            .unwrap()
            .capabilities
            .settle_window,
        None
    );
    let stream = TestStream::new(json!({})).await;
    let learned = stream.source().learn(&needs).await.unwrap();
    assert_eq!(
        learned.capabilities.largest_payload,
        Some(1024 * 1024),
        "the server's own limit"
    );
    assert_eq!(stream.seen().await.waiting, 0, "nothing was consumed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_waits_until_the_message_is_stored() {
    let url = environment("NATS_URL");
    let stream = TestStream::new(json!({})).await;
    let publisher = Nats::new(&url).publisher();
    let message = order("m-1").correlation_id("c-1").header("x", "1");
    // The second copy is known to the server itself.
    for _ in 0..2 {
        publisher
            .publish(&stream.subject(), &message)
            .await
            .unwrap();
    }
    assert_eq!(stream.seen().await.pending, 1);
    let nowhere = publisher.publish(&unique("nowhere"), &message).await;
    assert!(
        matches!(nowhere, Err(PublishError::Unroutable { .. })),
        "{nowhere:?}"
    );
    for (destination, message, says) in [
        (format!("{}.*", stream.name), order("m-2"), "wildcards"),
        (
            stream.subject(),
            order("m-2").header("x", &b"\xff"[..]),
            "UTF-8",
        ),
        (
            stream.subject(),
            Envelope::new(vec![0; 2 * 1024 * 1024]).id("m-2"),
            "payload",
        ),
        (String::new(), order("m-2"), "subject"),
    ] {
        let Err(PublishError::Failed { source, .. }) =
            publisher.publish(&destination, &message).await
        else {
            panic!("{says}: published");
        };
        assert!(source.to_string().contains(says), "{says}: {source}");
    }
    let wrong = Nats::new("nats://127.0.0.1:1")
        .publisher()
        .publish("x", &message)
        .await;
    assert!(
        matches!(wrong, Err(PublishError::Failed { .. })),
        "{wrong:?}"
    );
    assert_eq!(stream.seen().await.pending, 1);

    let scene = Scene::new();
    let sandbox = Postgres::fresh(5).await;
    let inbox = of(&sandbox, &scene)
        .source("orders", stream.source())
        .build()
        .await
        .unwrap();
    let running = Running::start(inbox);
    stream.until_all_acked().await;
    running.stop().await;
    sandbox.assert_stored_once("m-1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_connects_again_after_its_server_came_back() {
    let server = OwnServer::start("nats");
    let url = server.url("NATS_URL");
    let stream = TestStream::on(&url, json!({}), json!({})).await;
    let publisher = Nats::new(&url).publisher();
    publisher
        .publish(&stream.subject(), &order("m-1"))
        .await
        .unwrap();
    tokio::task::block_in_place(|| server.crash());
    publisher
        .publish(&stream.subject(), &order("m-2"))
        .await
        .unwrap_err();
    tokio::task::block_in_place(|| server.again());
    let stream = stream.after_restart().await;
    eventually("it is published", || async {
        publisher
            .publish(&stream.subject(), &order("m-2"))
            .await
            .is_ok()
    })
    .await;
    assert_eq!(stream.seen().await.pending, 2);
}
