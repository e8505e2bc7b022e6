//! A message that ends its process is counted and given up; what was in work beside it is not (corner K15).
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use inbox_guarantees::child::{Consumer, Orders};
use inbox_guarantees::rabbitmq::TestQueue;
use inbox_guarantees::{Sandbox, TestDatabase, environment, eventually, on_each_database, order};
use inbox_runtime::brokers::QueueKind;

const PROGRAM: &str = env!("CARGO_BIN_EXE_consumer");

/// Messages beside the one that kills.
const INNOCENTS: usize = 12;

fn orders<Db: TestDatabase>(sandbox: &Sandbox<Db>, queue: &TestQueue) -> Orders {
    Orders {
        database: sandbox.url.clone(),
        amqp: environment("AMQP_URL"),
        queue: queue.name.clone(),
        killer: Some("killer".to_owned()),
        under_load: true,
        ..Orders::default()
    }
}

async fn rows<Db: TestDatabase>(sandbox: &Sandbox<Db>, sql: &str) -> i64 {
    Db::number(&sandbox.pool, sql).await
}

on_each_database! {
    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_that_kills_its_process_becomes_a_dead_letter_and_its_neighbours_do_not() {
        for kind in [QueueKind::Classic, QueueKind::Quorum] {
            let sandbox = Db::fresh(8).await;
            let queue = TestQueue::new(kind).await;
            for number in 0..INNOCENTS {
                if number == INNOCENTS / 2 {
                    queue.publish(order("killer")).await;
                }
                queue.publish(order(&format!("m-{number}"))).await;
            }
            let mut kills = 0;
            while sandbox.dead_letters().await.is_empty() {
                let consumer = Consumer::start(PROGRAM, &orders(&sandbox, &queue));
                if sandbox.until_dead_letter_or_death(consumer).await {
                    break;
                }
                kills += 1;
                assert!(kills < 10, "the message kills for ever");
                queue.until_consumed_by(0).await;
            }
            // The first delivery is not counted; max_attempts is 5.
            assert!((5..=7).contains(&kills), "{kills} kills");
            assert_eq!(sandbox.dead_letters().await, ["attempts_exhausted"]);
            let text = sandbox.dead_letter_texts().await.remove(0);
            assert!(text.contains("5 attempts ended with their process"), "{text}");
            let killer = rows(&sandbox, "SELECT count(*) FROM inbox_dead_letters WHERE message_id = 'killer'").await;
            assert_eq!(killer, 1);
            let consumer = Consumer::start(PROGRAM, &orders(&sandbox, &queue));
            eventually("the others are done", || async {
                sandbox.ledger_total().await == INNOCENTS as i64
            })
            .await;
            consumer.stop().await;
            assert_eq!(queue.left().await, 0);
            for number in 0..INNOCENTS {
                sandbox.assert_stored_once(&format!("m-{number}")).await;
            }
            assert_eq!(sandbox.ledger_total().await, INNOCENTS as i64);
            let counted = rows(&sandbox, "SELECT count(*) FROM inbox_attempts WHERE message_id <> 'killer'").await;
            assert_eq!(counted, 0, "what ended well is not counted");
        }
    }

    /// A deploy that does not kill counts nothing.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_start_that_a_shutdown_cuts_off_is_not_counted() {
        let sandbox = Db::fresh(8).await;
        let queue = TestQueue::new(QueueKind::Quorum).await;
        queue.publish(order("m-1")).await;
        let slow = Orders { killer: None, long_statement: true, under_load: false, ..orders(&sandbox, &queue) };
        for _ in 0..2 {
            let mut consumer = Consumer::start(PROGRAM, &slow);
            consumer.until("in a statement m-1").await;
            consumer.kill().await;
            queue.until_consumed_by(0).await;
        }
        let starts = rows(&sandbox, "SELECT sum(starts) FROM inbox_attempts").await;
        assert_eq!(starts, 1, "the second one was a redelivery");
        for _ in 0..4 {
            let mut consumer = Consumer::start(PROGRAM, &Orders { no_grace: true, ..slow.clone() });
            consumer.until("in a statement m-1").await;
            consumer.stop().await;
            queue.until_consumed_by(0).await;
        }
        assert_eq!(rows(&sandbox, "SELECT sum(starts) FROM inbox_attempts").await, 1);
        let consumer = Consumer::start(PROGRAM, &Orders { long_statement: false, ..slow });
        eventually("the message is done", || async { sandbox.ledger_rows("m-1").await == 1 }).await;
        consumer.stop().await;
        assert_eq!(queue.left().await, 0);
        sandbox.assert_stored_once("m-1").await;
        assert_eq!(rows(&sandbox, "SELECT count(*) FROM inbox_attempts").await, 0);
        assert_eq!(sandbox.dead_letters().await, [""; 0]);
    }
}

trait UntilDeath {
    /// Whether a dead letter came before the consumer died.
    async fn until_dead_letter_or_death(&self, consumer: Consumer) -> bool;
}

impl<Db: TestDatabase> UntilDeath for Sandbox<Db> {
    async fn until_dead_letter_or_death(&self, consumer: Consumer) -> bool {
        let mut consumer = consumer;
        loop {
            if !self.dead_letters().await.is_empty() {
                consumer.stop().await;
                return true;
            }
            if consumer.is_dead() {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
