//! Copies of one message in several processes (cases C03 and C04 across processes).

#![allow(clippy::unwrap_used, clippy::expect_used)] // What goes wrong here has to fail the test.

use inbox_guarantees::child::{Consumer, Orders, number};
use inbox_guarantees::rabbitmq::TestQueue;
use inbox_guarantees::{Sandbox, TestDatabase, environment, on_each_database, order, unique};
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

fn count(said: &[String], line: &str) -> usize {
    said.iter().filter(|said| *said == line).count()
}

/// Starts two processes on one queue, gives them eight copies of m-1, lets both enter at once, and returns what
/// they said when all is acked.
async fn two_processes_with_eight_copies(orders: &Orders, queue: &TestQueue) -> Vec<String> {
    let waiting = Orders {
        wait_at: Some(number(Step::BeforeClaim)),
        ..orders.clone()
    };
    let mut one = Consumer::start(PROGRAM, &waiting);
    let mut two = Consumer::start(PROGRAM, &waiting);
    queue.until_consumed_by(2).await;
    for _ in 0..8 {
        queue.publish(order("m-1")).await;
    }
    // Both stand before the claim: neither has written anything.
    one.until("step 1 m-1").await;
    two.until("step 1 m-1").await;
    one.go().await;
    two.go().await;
    let mut said = Vec::new();
    for consumer in [&mut one, &mut two] {
        // The broker deals the copies out in turn: four for each process.
        for _ in 0..4 {
            consumer.until("step 6 m-1").await;
        }
    }
    for consumer in [one, two] {
        said.extend(consumer.stop().await);
    }
    assert_eq!(queue.left().await, 0, "all eight must be acked");
    said
}

on_each_database! {
    #[tokio::test(flavor = "multi_thread")]
    async fn of_eight_copies_in_two_processes_one_is_processed_and_all_are_acked() {
        let sandbox = Db::fresh(5).await;
        let queue = TestQueue::new(QueueKind::Quorum).await;
        let said = two_processes_with_eight_copies(&orders(&sandbox, &queue), &queue).await;
        assert_eq!(count(&said, "entered m-1"), 1, "{said:?}");
        assert_eq!(count(&said, "step 5 m-1"), 1, "{said:?}");
        sandbox.assert_stored_once("m-1").await;
        assert_eq!(sandbox.attempts("m-1").await, 0);
        assert_eq!(sandbox.balance("acc-1").await, 100);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn when_the_first_of_eight_copies_in_two_processes_fails_exactly_one_other_is_processed() {
        let sandbox = Db::fresh(5).await;
        let queue = TestQueue::new(QueueKind::Quorum).await;
        let first = std::env::temp_dir().join(unique("first"));
        let failing = Orders { first_fails: Some(first.clone()), ..orders(&sandbox, &queue) };
        let said = two_processes_with_eight_copies(&failing, &queue).await;
        let _ = std::fs::remove_file(first);
        assert_eq!(count(&said, "entered m-1"), 2, "{said:?}");
        assert_eq!(count(&said, "step 5 m-1"), 1, "{said:?}");
        sandbox.assert_stored_once("m-1").await;
        assert_eq!(sandbox.balance("acc-1").await, 100);
        assert!(sandbox.dead_letters().await.is_empty());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn consumers_in_two_processes_each_process_a_message_once() {
        let sandbox = Db::fresh(5).await;
        let billing_queue = TestQueue::new(QueueKind::Quorum).await;
        let notifications_queue = TestQueue::new(QueueKind::Classic).await;
        let mut billing = Consumer::start(PROGRAM, &orders(&sandbox, &billing_queue));
        let notifying = Orders { notifications: true, ..orders(&sandbox, &notifications_queue) };
        let mut notifications = Consumer::start(PROGRAM, &notifying);
        for _ in 0..2 {
            billing_queue.publish(order("m-1")).await;
            notifications_queue.publish(order("m-1")).await;
        }
        for _ in 0..2 {
            billing.until("step 6 m-1").await;
            notifications.until("step 6 m-1").await;
        }
        let (billing, notifications) = (billing.stop().await, notifications.stop().await);
        assert_eq!(count(&billing, "entered m-1"), 1, "{billing:?}");
        assert_eq!(count(&notifications, "entered m-1"), 1, "{notifications:?}");
        assert_eq!(billing_queue.left().await, 0);
        assert_eq!(notifications_queue.left().await, 0);
        assert_eq!(sandbox.claims("m-1").await, 2);
        assert_eq!(sandbox.ledger_rows("m-1").await, 2);
        assert_eq!(sandbox.balance("acc-1").await, 100);
        assert_eq!(sandbox.balance("acc-2").await, 100);
    }
}
