//! The inbox on a real Kafka: what is committed, and when (cases C19 to C22 and C32).

#![allow(clippy::unwrap_used, clippy::expect_used)] // What goes wrong here has to fail the test.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use inbox_core::{Publisher as _, Source as _};
use inbox_guarantees::child::{Consumer, Orders};
use inbox_guarantees::dispatch::Serve as _;
use inbox_guarantees::kafka::TestTopic;
use inbox_guarantees::recorded::{Record, Recorded};
use inbox_guarantees::servers::OwnServer;
use inbox_guarantees::{
    OrderPlaced, Running, Sandbox, TestDatabase, bill, environment, eventually, on_each_database,
    order, unique,
};
use inbox_runtime::brokers::{Kafka, KafkaSource};
use inbox_runtime::{
    Envelope, HandlerError, Inbox, InboxBuilder, MessageId, Needs, PublishError, State, Tx,
    Verdict, inbox_handler,
};
use rdkafka::mocking::MockCluster;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use sqlx::Postgres;
use tokio::sync::Semaphore;

const PROGRAM: &str = env!("CARGO_BIN_EXE_consumer");

/// Which messages entered the handler, in order; `slow-..` ones pass when the test says so.
#[derive(Clone)]
struct Scene(Arc<(Mutex<Vec<String>>, Semaphore)>);

impl Scene {
    fn new() -> Self {
        Self(Arc::new((Mutex::default(), Semaphore::new(0))))
    }

    fn entered(&self) -> Vec<String> {
        self.0.0.lock().unwrap().clone()
    }

    fn entries(&self, id: &str) -> usize {
        self.entered()
            .iter()
            .filter(|entered| *entered == id)
            .count()
    }

    fn pass(&self, n: usize) {
        self.0.1.add_permits(n);
    }
}

/// Longer than any delay here, so that nothing is parked.
const HOLD: Duration = Duration::from_secs(5 * 60);

on_each_database! {
    #[inbox_handler(consumer = "billing", on = "OrderPlaced", timeout = "3m")]
    pub(super) async fn charge(
        order: OrderPlaced,
        tx: &mut Tx<Db>,
        id: MessageId,
        State(scene): State<Scene>,
    ) -> Result<(), HandlerError> {
        scene.0.0.lock().unwrap().push(id.to_string());
        // Before the account's row is held, for which the others would wait.
        if id.as_str().starts_with("slow") {
            scene.0.1.acquire().await.map_err(|_| "closed")?.forget();
        }
        if id.as_str().starts_with("tedious") {
            tokio::time::sleep(Duration::from_secs(15)).await;
        }
        bill!(Db, order, id, tx);
        Ok(())
    }

    pub(super) fn inbox(sandbox: &Sandbox<Db>, scene: &Scene, source: KafkaSource)
        -> (InboxBuilder<Db>, Record)
    {
        let (source, record) = Recorded::new(source);
        let inbox = Inbox::builder(sandbox.pool.clone())
            .source("orders", source)
            .serve(charge::handler())
            .state(scene.clone())
            .longest_hold(HOLD);
        (inbox, record)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn null_and_undecodable_records_are_kept_and_nothing_of_them_comes_again() {
        let sandbox = Db::fresh(5).await;
        let topic = TestTopic::new(1).await;
        let good = br#"{"account":"acc-1","amount":100}"#;
        let untyped = Envelope::new("").id("untyped");
        let records: [(&str, Option<&[u8]>); 5] = [
            ("m-0", Some(good)),
            ("null", None),
            ("bytes", Some(&[0xff, 0xfe, 0])),
            ("field", Some(br#"{"account":"acc-1"}"#)),
            ("m-4", Some(good)),
        ];
        for (id, payload) in records {
            topic.publish_to(0, &order(id), payload).await;
        }
        topic.publish_to(0, &untyped, Some(good)).await;

        let (builder, record) = inbox(&sandbox, &Scene::new(), topic.source());
        let running = Running::start(builder.build().await.unwrap());
        eventually("all six are acked", || async { record.acks().len() == 6 }).await;
        running.stop().await;
        assert_eq!(topic.committed().await, [6]);
        sandbox.assert_stored_once("m-0").await;
        sandbox.assert_stored_once("m-4").await;
        assert_eq!(sandbox.ledger_total().await, 2);
        assert_eq!(sandbox.dead_letters().await.len(), 4);
        for (id, payload) in &records[1..4] {
            let kept = format!("SELECT payload FROM inbox_dead_letters WHERE message_id = '{id}'");
            assert_eq!(Db::bytes(&sandbox.pool, &kept).await, [payload.unwrap_or_default()], "{id}");
        }

        // After a restart only what is new is delivered.
        let (builder, record) = inbox(&sandbox, &Scene::new(), topic.source());
        let running = Running::start(builder.build().await.unwrap());
        topic.publish(order("m-6")).await;
        eventually("m-6 is acked", || async { record.acks().len() == 1 }).await;
        running.stop().await;
        assert_eq!(record.acks()[0].0, "m-6");
        assert_eq!(sandbox.ledger_total().await, 3);
        assert_eq!(topic.committed().await, [7]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn of_three_processes_in_a_group_one_is_killed_and_each_message_is_processed_once() {
        const MESSAGES: usize = 120;
        let sandbox = Db::fresh(5).await;
        let topic = TestTopic::new(4).await;
        let orders = Orders {
            database: sandbox.url.clone(),
            kafka: Some(topic.brokers.clone()),
            queue: topic.name.clone(),
            under_load: true,
            ..Orders::default()
        };
        let mut first = Consumer::start(PROGRAM, &orders);
        let mut second = Consumer::start(PROGRAM, &orders);
        topic.until_members(2).await;
        for n in 0..MESSAGES {
            topic.publish_to((n % 4) as i32, &order(&format!("m-{n}")), Some(br#"{"account":"acc-1","amount":100}"#)).await;
        }
        // Both have a share.
        first.until_many("step 5", 3).await;
        second.until_many("step 5", 3).await;
        first.kill().await;
        let third = Consumer::start(PROGRAM, &orders);
        topic.until_committed().await;
        topic.until_members(2).await;
        for n in 0..MESSAGES {
            sandbox.assert_stored_once(&format!("m-{n}")).await;
        }
        assert_eq!(sandbox.ledger_total().await, MESSAGES as i64);
        assert_eq!(sandbox.dead_letters().await.len(), 0);
        second.stop().await;
        third.stop().await;
    }
}

use postgres::inbox;

async fn sandbox() -> Sandbox<Postgres> {
    Postgres::fresh(8).await
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_database_is_away_nothing_is_committed_and_afterwards_all_is_processed_once() {
    let server = OwnServer::start("postgres");
    let (admin, app) = (server.url("POSTGRES_ADMIN_URL"), server.url("POSTGRES_URL"));
    let sandbox = Sandbox::on_server(&admin, &app, 5).await;
    let topic = TestTopic::new(2).await;
    let (builder, record) = inbox(&sandbox, &Scene::new(), topic.source());
    let built = builder.concurrency(2).prefetch(10).build().await.unwrap();
    tokio::task::block_in_place(|| server.stop());
    for n in 0..10 {
        let payload: &[u8] = br#"{"account":"acc-1","amount":100}"#;
        topic
            .publish_to(n % 2, &order(&format!("m-{n}")), Some(payload))
            .await;
    }
    let running = Running::start(built);
    eventually("all are taken", || async {
        (0..10).all(|n| record.deliveries(&format!("m-{n}")) == 1)
    })
    .await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(topic.committed().await, [0, 0]);
    assert!(record.acks().is_empty());
    assert_eq!(record.hand_backs(), 0);

    tokio::task::block_in_place(|| server.again());
    topic.until_committed().await;
    running.stop().await;
    for n in 0..10 {
        let id = format!("m-{n}");
        sandbox.assert_stored_once(&id).await;
        assert_eq!(sandbox.attempts(&id).await, 0, "{id}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_done_behind_a_record_in_work_is_committed_with_it_and_not_before() {
    let sandbox = sandbox().await;
    let topic = TestTopic::new(1).await;
    let scene = Scene::new();
    for id in ["m-0", "slow-1", "m-2", "m-3"] {
        topic.publish(order(id)).await;
    }
    let (builder, record) = inbox(&sandbox, &scene, topic.source());
    let running = Running::start(builder.concurrency(4).build().await.unwrap());
    eventually("the others are acked", || async {
        record.acks().len() == 3
    })
    .await;
    eventually("the first one is committed", || async {
        topic.committed().await == [1]
    })
    .await;
    // A process that died now would get the others again.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(topic.committed().await, [1]);
    assert_eq!(sandbox.claims_total().await, 3);
    scene.pass(1);
    topic.until_committed().await;
    running.stop().await;
    assert_eq!(topic.committed().await, [4]);
    for id in ["m-0", "slow-1", "m-2", "m-3"] {
        sandbox.assert_stored_once(id).await;
        assert_eq!(scene.entries(id), 1, "{id}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_without_grace_commits_what_is_done_and_the_rest_comes_again() {
    let sandbox = sandbox().await;
    let topic = TestTopic::new(1).await;
    let scene = Scene::new();
    for id in ["m-0", "slow-1", "m-2"] {
        topic.publish(order(id)).await;
    }
    let (builder, record) = inbox(&sandbox, &scene, topic.source());
    let builder = builder.concurrency(3).grace(Duration::ZERO);
    let running = Running::start(builder.build().await.unwrap());
    eventually("two are acked, one is in work", || async {
        record.acks().len() == 2 && scene.entries("slow-1") == 1
    })
    .await;
    let stopped = running.stop().await;
    assert_eq!(stopped.cut_off, 1);
    assert_eq!(topic.committed().await, [1]);
    assert_eq!(topic.members().await, Some(0), "the group is left");

    scene.pass(1);
    let (builder, record) = inbox(&sandbox, &scene, topic.source());
    let running = Running::start(builder.build().await.unwrap());
    topic.until_committed().await;
    running.stop().await;
    assert_eq!(record.deliveries("m-0"), 0);
    assert_eq!(record.deliveries("slow-1"), 1);
    assert!(record.redelivered() > 0);
    for id in ["m-0", "slow-1", "m-2"] {
        sandbox.assert_stored_once(id).await;
    }
    assert_eq!(scene.entries("m-2"), 1, "a duplicate does not run");
}

#[tokio::test(flavor = "multi_thread")]
async fn never_more_than_the_prefetch_is_delivered_and_unsettled() {
    let sandbox = sandbox().await;
    let topic = TestTopic::new(3).await;
    let scene = Scene::new();
    for n in 0..30 {
        topic
            .publish(order(&format!("slow-{n}")).key(format!("{n}")))
            .await;
    }
    let (builder, record) = inbox(&sandbox, &scene, topic.source());
    let running = Running::start(builder.concurrency(3).prefetch(5).build().await.unwrap());
    eventually("three are in work", || async { scene.entered().len() == 3 }).await;
    scene.pass(30);
    topic.until_committed().await;
    running.stop().await;
    assert!(
        record.most_outstanding() <= 5,
        "{}",
        record.most_outstanding()
    );
    assert_eq!(sandbox.ledger_total().await, 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_slower_than_the_poll_interval_keeps_its_partition() {
    let sandbox = sandbox().await;
    let topic = TestTopic::new(1).await;
    let scene = Scene::new();
    // There is room for nothing else meanwhile.
    let source = || topic.source().set("max.poll.interval.ms", "6000");
    let (builder, record) = inbox(&sandbox, &scene, source());
    let one = Running::start(builder.concurrency(1).prefetch(1).build().await.unwrap());
    let (builder, other_record) = inbox(&sandbox, &scene, source());
    let other = Running::start(builder.concurrency(1).prefetch(1).build().await.unwrap());
    topic.until_members(2).await;
    topic.publish(order("tedious")).await;
    topic.publish(order("m-1").key("another")).await;
    topic.until_committed().await;
    assert_eq!(topic.members().await, Some(2));
    one.stop().await;
    other.stop().await;
    assert_eq!(scene.entries("tedious"), 1);
    assert_eq!(
        record.deliveries("tedious") + other_record.deliveries("tedious"),
        1
    );
    assert!(record.void_settles().is_empty() && other_record.void_settles().is_empty());
    sandbox.assert_stored_once("tedious").await;
    sandbox.assert_stored_once("m-1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_moves_away_is_committed_first_and_nothing_of_it_comes_again() {
    for strategy in ["cooperative-sticky", "range"] {
        let sandbox = sandbox().await;
        let topic = TestTopic::new(2).await;
        let scene = Scene::new();
        let source = || {
            topic
                .source()
                .set("partition.assignment.strategy", strategy)
        };
        let payload: &[u8] = br#"{"account":"acc-1","amount":100}"#;
        for partition in 0..2 {
            for id in ["slow", "m"] {
                let id = format!("{id}-{partition}");
                topic
                    .publish_to(partition, &order(&id), Some(payload))
                    .await;
            }
        }
        let (builder, record) = inbox(&sandbox, &scene, source());
        let builder = builder.concurrency(4);
        let one = Running::start(builder.build().await.unwrap());
        eventually("all are in work or done", || async {
            scene.entered().len() == 4 && record.acks().len() == 2
        })
        .await;
        assert_eq!(topic.committed().await, [0, 0], "{strategy}");

        let (builder, other_record) = inbox(&sandbox, &scene, source());
        let other = Running::start(builder.build().await.unwrap());
        eventually("the group is changing", || async {
            topic.members().await != Some(1)
        })
        .await;
        // Each heartbeat, twice a second, may bring the news to the first one, which then waits for its handlers.
        tokio::time::sleep(Duration::from_secs(2)).await;
        scene.pass(2);
        topic.until_committed().await;
        topic.until_members(2).await;
        // Both have a partition now.
        for partition in 0..2 {
            let id = format!("after-{partition}");
            topic
                .publish_to(partition, &order(&id), Some(payload))
                .await;
        }
        topic.until_committed().await;
        one.stop().await;
        other.stop().await;
        assert!(record.void_settles().is_empty(), "{strategy}");
        assert_eq!(other_record.acks().len(), 1, "{strategy}");
        for id in ["slow-0", "m-0", "slow-1", "m-1", "after-0", "after-1"] {
            let deliveries = record.deliveries(id) + other_record.deliveries(id);
            assert_eq!(deliveries, 1, "{strategy}: {id}");
            sandbox.assert_stored_once(id).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_outlives_its_partition_commits_no_offset_and_its_message_is_a_duplicate() {
    let sandbox = sandbox().await;
    let topic = TestTopic::new(1).await;
    let scene = Scene::new();
    // The partition goes to the member whose name comes first.
    let source = |name: &str| {
        topic
            .source()
            .set("client.id", name)
            .set("partition.assignment.strategy", "range")
            .revoke_wait(Duration::from_millis(300))
    };
    for id in ["slow-0", "m-1"] {
        topic.publish(order(id)).await;
    }
    let (builder, record) = inbox(&sandbox, &scene, source("z"));
    let one = Running::start(builder.concurrency(2).build().await.unwrap());
    eventually("one is in work, one is done", || async {
        scene.entries("slow-0") == 1 && record.acks().len() == 1
    })
    .await;
    let (builder, other_record) = inbox(&sandbox, &scene, source("a"));
    let other = Running::start(builder.concurrency(2).build().await.unwrap());
    eventually("the other one has it", || async {
        other_record.deliveries("slow-0") == 1
    })
    .await;
    eventually("m-1 is a duplicate there", || async {
        other_record.acks().iter().any(|(id, _)| id == "m-1")
    })
    .await;
    assert_eq!(topic.committed().await, [0]);
    scene.pass(1);
    eventually("the first one may not settle it", || async {
        record.void_settles() == ["slow-0"]
    })
    .await;
    topic.until_committed().await;
    one.stop().await;
    other.stop().await;
    assert_eq!(scene.entries("slow-0"), 1);
    assert_eq!(scene.entries("m-1"), 1);
    sandbox.assert_stored_once("slow-0").await;
    sandbox.assert_stored_once("m-1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_taken_for_dead_commits_nothing_when_it_wakes_up() {
    let sandbox = sandbox().await;
    let topic = TestTopic::new(1).await;
    let orders = Orders {
        database: sandbox.url.clone(),
        kafka: Some(topic.brokers.clone()),
        queue: topic.name.clone(),
        ..Orders::default()
    };
    topic.publish(order("m-0")).await;
    // It is done in the database, and stopped before it can say so.
    let waiting = Orders {
        wait_at: Some(inbox_guarantees::child::number(
            inbox_runtime::testing::Step::BeforeAck,
        )),
        ..orders.clone()
    };
    let mut sleeper = Consumer::start(PROGRAM, &waiting);
    sleeper.until("step 6 m-0").await;
    sleeper.pause();
    let other = Consumer::start(PROGRAM, &orders);
    topic.until_committed().await;
    for n in 1..50 {
        topic.publish(order(&format!("m-{n}"))).await;
    }
    topic.until_committed().await;
    sleeper.resume();
    sleeper.go().await;
    topic.until_members(2).await;
    topic.publish(order("m-50")).await;
    topic.until_committed().await;
    assert_eq!(topic.committed().await, [51]);
    sleeper.stop().await;
    other.stop().await;
    assert_eq!(topic.committed().await, [51], "nothing goes back");
    for n in 0..=50 {
        sandbox.assert_stored_once(&format!("m-{n}")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_crashes_and_comes_back_costs_no_message() {
    let server = OwnServer::start("kafka");
    let sandbox = sandbox().await;
    let topic = TestTopic::on(&server.url("KAFKA_BROKERS"), 2, &[]).await;
    let scene = Scene::new();
    topic.publish(order("slow-0")).await;
    for n in 1..20 {
        topic
            .publish(order(&format!("m-{n}")).key(format!("{n}")))
            .await;
    }
    let (builder, _) = inbox(&sandbox, &scene, topic.source());
    let running = Running::start(builder.concurrency(2).build().await.unwrap());
    eventually("some are done", || async {
        sandbox.ledger_total().await >= 5
    })
    .await;
    tokio::task::block_in_place(|| server.crash());
    scene.pass(2);
    tokio::task::block_in_place(|| server.again());
    for n in 20..30 {
        topic
            .publish(order(&format!("m-{n}")).key(format!("{n}")))
            .await;
    }
    topic.until_committed().await;
    running.stop().await;
    sandbox.assert_stored_once("slow-0").await;
    for n in 1..30 {
        sandbox.assert_stored_once(&format!("m-{n}")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_the_broker_refuses_is_sent_again() {
    let cluster = MockCluster::new(1).unwrap();
    let name = unique("topic");
    cluster.create_topic(&name, 1, 1).unwrap();
    let topic = TestTopic::attach(&cluster.bootstrap_servers(), name, 1);
    cluster.request_errors(
        RDKafkaApiKey::OffsetCommit,
        &[
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS,
        ],
    );
    let sandbox = sandbox().await;
    let scene = Scene::new();
    topic.publish(order("m-0")).await;
    // The broker that is asked for the retention does not know how to answer.
    let source = topic
        .source()
        .replay_window(Duration::from_secs(60))
        .largest_payload(1_000_000)
        .set("partition.assignment.strategy", "range");
    let (builder, record) = inbox(&sandbox, &scene, source);
    let running = Running::start(builder.build().await.unwrap());
    topic.until_committed().await;
    running.stop().await;
    assert_eq!(record.deliveries("m-0"), 1);
    sandbox.assert_stored_once("m-0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn records_with_the_same_key_are_processed_in_their_order_and_others_do_not_wait() {
    let sandbox = sandbox().await;
    let topic = TestTopic::new(2).await;
    let scene = Scene::new();
    topic.publish(order("slow-a").key("a")).await;
    for n in 0..10 {
        topic.publish(order(&format!("a-{n}")).key("a")).await;
        topic.publish(order(&format!("b-{n}")).key("b")).await;
        topic.publish(order(&format!("c-{n}")).key("c")).await;
    }
    let (builder, record) = inbox(&sandbox, &scene, topic.source());
    let running = Running::start(builder.concurrency(4).prefetch(40).build().await.unwrap());
    eventually("b and c are done", || async { record.acks().len() == 20 }).await;
    assert!(!scene.entered().iter().any(|id| id.starts_with("a-")));
    scene.pass(1);
    topic.until_committed().await;
    running.stop().await;
    let entered = scene.entered();
    for key in ["a", "b", "c"] {
        let of_key: Vec<_> = entered
            .iter()
            .filter(|id| id.starts_with(&format!("{key}-")))
            .collect();
        let in_order: Vec<_> = (0..10).map(|n| format!("{key}-{n}")).collect();
        assert_eq!(of_key, in_order.iter().collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_can_keep_the_order_of_all_its_records() {
    let sandbox = sandbox().await;
    let topic = TestTopic::new(2).await;
    let scene = Scene::new();
    let payload: &[u8] = br#"{"account":"acc-1","amount":100}"#;
    for n in 0..20 {
        let id = format!("m-{n}");
        topic
            .publish_to(n % 2, &order(&id).key(id.as_str()), Some(payload))
            .await;
    }
    let (builder, _) = inbox(&sandbox, &scene, topic.source().ordered_by_partition());
    let running = Running::start(builder.concurrency(4).prefetch(40).build().await.unwrap());
    topic.until_committed().await;
    running.stop().await;
    let entered = scene.entered();
    for partition in 0..2 {
        let expected: Vec<_> = (0..20)
            .filter(|n| n % 2 == partition)
            .map(|n| format!("m-{n}"))
            .collect();
        let found: Vec<_> = entered.iter().filter(|id| expected.contains(id)).collect();
        assert_eq!(found, expected.iter().collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_handed_back_is_read_again_before_anything_behind_it_is_committed() {
    let topic = TestTopic::new(1).await;
    for n in 0..3 {
        topic.publish(order(&format!("m-{n}"))).await;
    }
    let prefetch = NonZeroUsize::new(3).unwrap();
    let mut assignment = topic.source().open(prefetch).await.unwrap();
    let mut tokens = Vec::new();
    for _ in 0..3 {
        tokens.push(assignment.deliveries.next().await.unwrap().unwrap().token);
    }
    let hand_back = Verdict::HandBack { delay: None };
    let verdicts = [Verdict::Ack, hand_back, Verdict::Ack];
    let answers = assignment
        .settle
        .settle(tokens.into_iter().zip(verdicts).collect())
        .await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    let again = assignment.deliveries.next().await.unwrap().unwrap();
    assert_eq!(again.envelope.id.as_deref(), Some("m-1"));
    assert!(again.redelivered);
    eventually("the first one is committed", || async {
        topic.committed().await == [1]
    })
    .await;
    topic.publish(order("m-3")).await;
    let new = assignment.deliveries.next().await.unwrap().unwrap();
    assert_eq!(
        new.envelope.id.as_deref(),
        Some("m-3"),
        "nothing else comes again"
    );
    let verdicts = vec![(again.token, Verdict::Ack), (new.token, Verdict::Ack)];
    assignment.settle.settle(verdicts).await;
    assignment.deliveries.stop().await;
    assert_eq!(topic.committed().await, [4]);
    assert!(assignment.settle.is_gone());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retention_shorter_than_the_topics_is_refused_with_both_values() {
    let sandbox = sandbox().await;
    let day = Duration::from_secs(24 * 60 * 60);
    let kept = (30 * day).as_millis().to_string();
    let brokers = environment("KAFKA_BROKERS");
    let topic = TestTopic::on(&brokers, 1, &[("retention.ms", &kept)]).await;
    let (builder, _) = inbox(&sandbox, &Scene::new(), topic.source());
    let error = builder.build().await.unwrap_err().to_string();
    assert!(
        error.contains("retention.ms") && error.contains("30 days"),
        "{error}"
    );
    let (builder, _) = inbox(&sandbox, &Scene::new(), topic.source());
    builder.retention(32 * day).build().await.unwrap();
    let (builder, _) = inbox(
        &sandbox,
        &Scene::new(),
        topic.source().replay_window(7 * day),
    );
    builder.build().await.unwrap();
    let compacted = TestTopic::on(&brokers, 1, &[("cleanup.policy", "compact")]).await;
    let (builder, _) = inbox(&sandbox, &Scene::new(), compacted.source());
    let error = builder.build().await.unwrap_err().to_string();
    assert!(error.contains("for ever"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_opened_is_said_with_its_remedy() {
    let brokers = environment("KAFKA_BROKERS");
    let topic = TestTopic::new(1).await;
    for (source, says) in [
        (
            Kafka::new(&brokers).topic("no-such-topic").group("g"),
            "there is no topic `no-such-topic`",
        ),
        (
            Kafka::new("127.0.0.1:1").topic(&topic.name).group("g"),
            "`127.0.0.1:1` does not answer",
        ),
    ] {
        assert!(source.problems().is_empty());
        let error = source
            .open(NonZeroUsize::MIN)
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(says), "{error}");
    }
    let sandbox = sandbox().await;
    let source = topic.source().set("enable.auto.commit", "true");
    let (builder, _) = inbox(&sandbox, &Scene::new(), source);
    let error = builder.build().await.unwrap_err().to_string();
    assert!(error.contains("enable.auto.commit"), "{error}");
}

/// Brokers that want user and password.
const WITH_PASSWORDS: &str = "\
listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
username=\"broker\" password=\"between-brokers\" user_broker=\"between-brokers\" user_inbox=\"hunter2\";
";

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_said_by_the_names_of_the_settings_and_without_itself() {
    let server = OwnServer::start_with("kafka", "KAFKA_EXTRA_CONF", WITH_PASSWORDS);
    let with = |password: &str| {
        Kafka::new(server.url("KAFKA_BROKERS"))
            .set("security.protocol", "sasl_plaintext")
            .set("sasl.mechanisms", "PLAIN")
            .set("sasl.username", "inbox")
            .set("sasl.password", password)
    };
    // When it is asked about its topics and when it is opened, which the client itself does not tell from a broker that
    // is away.
    let wrong = with("hunter3").topic("orders").group("billing");
    let needs = Needs::new(NonZeroUsize::MIN, Duration::from_secs(30), 5);
    let asked = wrong.learn(&needs).await.unwrap_err();
    let opened = wrong.open(NonZeroUsize::MIN).await.unwrap_err();
    for told in [asked.to_string(), opened.to_string()] {
        for part in [
            "refuses the credentials",
            "`sasl.username`, `sasl.password`",
        ] {
            assert!(told.contains(part), "{told}");
        }
        assert!(!told.contains("hunter"), "{told}");
    }
    // The right one gets as far as the topic.
    let right = with("hunter2").topic("orders").group("billing");
    let told = right.open(NonZeroUsize::MIN).await.unwrap_err().to_string();
    assert!(told.contains("there is no topic `orders`"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_published_arrives_and_what_cannot_be_is_said() {
    let topic = TestTopic::on(
        &environment("KAFKA_BROKERS"),
        1,
        &[("max.message.bytes", "2000")],
    )
    .await;
    let publisher = Kafka::new(&topic.brokers).publisher();
    let sent = order("m-0")
        .key("acc-1")
        .content_type("application/json")
        .correlation_id("c-1")
        .header("traceparent", "00-1");
    publisher.publish(&topic.name, &sent).await.unwrap();
    let event = Envelope::new("{}")
        .header("ce_id", "e-1")
        .header("ce_type", "OrderPlaced");
    publisher.publish(&topic.name, &event).await.unwrap();
    let large = Envelope::new(vec![b'x'; 10_000]);
    let error = publisher.publish(&topic.name, &large).await.unwrap_err();
    assert!(matches!(error, PublishError::Refused { .. }), "{error:?}");
    let error = publisher.publish("no-such-topic", &sent).await.unwrap_err();
    assert!(
        matches!(error, PublishError::Unroutable { .. }),
        "{error:?}"
    );

    let source = topic.source();
    let mut assignment = source.open(NonZeroUsize::MIN).await.unwrap();
    let first = assignment.deliveries.next().await.unwrap().unwrap();
    let got = &first.envelope;
    assert_eq!(got.payload, sent.payload);
    assert_eq!(
        (
            &got.id,
            &got.message_type,
            &got.content_type,
            &got.correlation_id,
            &got.key
        ),
        (
            &sent.id,
            &sent.message_type,
            &sent.content_type,
            &sent.correlation_id,
            &sent.key
        )
    );
    assert_eq!(got.headers.get("traceparent"), Some(&b"00-1"[..]));
    assert!(got.published_at.is_some());
    assignment
        .settle
        .settle(vec![(first.token, Verdict::Ack)])
        .await;
    let event = assignment
        .deliveries
        .next()
        .await
        .unwrap()
        .unwrap()
        .envelope;
    assert_eq!(event.type_name().as_deref(), Some("OrderPlaced"));
    let id = event.identify(inbox_core::DedupKey::MessageId, &source.id_sources(), None);
    assert_eq!(id.unwrap().as_str(), "e-1");
}
