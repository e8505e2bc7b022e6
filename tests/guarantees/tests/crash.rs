//! A process that is killed at any point of the path leaves the effect stored once (case C08).

#![allow(clippy::unwrap_used, clippy::expect_used)] // What goes wrong here has to fail the test.

use std::time::Duration;

use inbox_guarantees::child::{Consumer, Orders, number};
use inbox_guarantees::rabbitmq::{Seen, TestQueue};
use inbox_guarantees::{Sandbox, TestDatabase, environment, eventually, on_each_database, order};
use inbox_runtime::brokers::QueueKind;
use inbox_runtime::testing::Step;

const PROGRAM: &str = env!("CARGO_BIN_EXE_consumer");

fn orders<Db: TestDatabase>(sandbox: &Sandbox<Db>, queue: &TestQueue) -> Orders {
    Orders {
        database: sandbox.url.clone(),
        amqp: environment("AMQP_URL"),
        queue: queue.name.clone(),
        ..Orders::default()
    }
}

/// A second process gets the redelivery and acks it.
async fn another_process_finishes<Db: TestDatabase>(sandbox: &Sandbox<Db>, queue: &TestQueue) {
    queue.until_consumed_by(0).await;
    let expected = Seen {
        ready: 1,
        consumers: 0,
    };
    assert_eq!(queue.seen().await, expected, "nothing may be acked");
    let mut consumer = Consumer::start(PROGRAM, &orders(sandbox, queue));
    consumer.until("step 6 m-1").await;
    consumer.stop().await;
    assert_eq!(queue.left().await, 0, "the last delivery must be acked");
    sandbox.assert_stored_once("m-1").await;
    assert_eq!(sandbox.ledger_total().await, 1);
    assert_eq!(sandbox.balance("acc-1").await, 100);
    assert_eq!(sandbox.attempts("m-1").await, 0);
    assert!(sandbox.dead_letters().await.is_empty());
}

async fn a_crash_at<Db: TestDatabase>(step: Step) {
    let durable = i64::from(step >= Step::AfterCommit);
    for kind in [QueueKind::Quorum, QueueKind::Classic] {
        let sandbox = Db::fresh(5).await;
        let queue = TestQueue::new(kind).await;
        queue.publish(order("m-1")).await;
        let dying = Orders {
            die_at: Some(number(step)),
            ..orders(&sandbox, &queue)
        };
        Consumer::start(PROGRAM, &dying).until_dead().await;

        // The server needs a moment to notice that a session's client is gone.
        eventually("the killed process's transaction ends", || async {
            sandbox.claims("m-1").await == durable
        })
        .await;
        assert_eq!(sandbox.ledger_rows("m-1").await, durable, "{kind:?}");
        assert_eq!(sandbox.balance("acc-1").await, durable * 100, "{kind:?}");
        another_process_finishes(&sandbox, &queue).await;
    }
}

on_each_database! {
    #[tokio::test(flavor = "multi_thread")]
    async fn a_crash_before_the_claim_leaves_the_effect_stored_once() {
        a_crash_at::<Db>(Step::BeforeClaim).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_crash_after_the_claim_leaves_the_effect_stored_once() {
        a_crash_at::<Db>(Step::AfterClaim).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_crash_after_the_handler_leaves_the_effect_stored_once() {
        a_crash_at::<Db>(Step::AfterHandler).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_crash_before_commit_leaves_the_effect_stored_once() {
        a_crash_at::<Db>(Step::BeforeCommit).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_crash_after_commit_leaves_the_effect_stored_once() {
        a_crash_at::<Db>(Step::AfterCommit).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_crash_before_the_ack_leaves_the_effect_stored_once() {
        a_crash_at::<Db>(Step::BeforeAck).await;
    }

    /// The statement would hold the claim for a minute; the server must end it with its client.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_handler_killed_in_a_statement_leaves_nothing_and_blocks_nobody() {
        let sandbox = Db::fresh(5).await;
        let queue = TestQueue::new(QueueKind::Quorum).await;
        queue.publish(order("m-1")).await;
        let slow = Orders { long_statement: true, ..orders(&sandbox, &queue) };
        let mut consumer = Consumer::start(PROGRAM, &slow);
        consumer.until("in a statement m-1").await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        consumer.kill().await;
        assert_eq!(sandbox.ledger_total().await, 0);
        assert_eq!(sandbox.claims_total().await, 0);
        another_process_finishes(&sandbox, &queue).await;
    }
}
