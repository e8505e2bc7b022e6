//! Processes that are killed again and again while they have many messages in their hands, several of them in one
//! transaction where the way of dispatch has that: each message has its effect once.

#![allow(clippy::unwrap_used, clippy::expect_used)] // What goes wrong here has to fail the test.

use std::time::Duration;

use futures_util::future::join_all;
use inbox_guarantees::child::{Consumer, Orders};
use inbox_guarantees::rabbitmq::TestQueue;
use inbox_guarantees::{Sandbox, TestDatabase, dispatch, environment, on_each_database, order};
use inbox_runtime::brokers::QueueKind;
use sqlx::{MySql, Postgres, Sqlite};

const PROGRAM: &str = env!("CARGO_BIN_EXE_consumer");

/// How often two processes are started and killed.
const ROUNDS: usize = 10;

/// Messages published before each round; every fourth comes twice.
const MESSAGES: usize = 30;

/// A process that has committed so many is killed at the latest. One of the two gets there: they have 30 or more.
const COMMITS: usize = 12;

/// What both processes said in all rounds, as far as it was read.
type Said = Vec<Vec<String>>;

async fn killed_at_random_moments<Db: TestDatabase>() -> (Sandbox<Db>, Said) {
    let sandbox = Db::fresh(5).await;
    let queue = TestQueue::new(QueueKind::Quorum).await;
    let orders = Orders {
        database: sandbox.url.clone(),
        amqp: environment("AMQP_URL"),
        queue: queue.name.clone(),
        under_load: true,
        ..Orders::default()
    };
    let mut random = fastrand::Rng::with_seed(42);
    let mut all_said = Said::new();
    for round in 0..ROUNDS {
        // Nobody consumes now: they wait together.
        join_all((0..MESSAGES + MESSAGES.div_ceil(4)).map(|number| {
            let original = if number < MESSAGES {
                number
            } else {
                (number - MESSAGES) * 4
            };
            queue.publish(order(&format!("m-{round}-{original}")))
        }))
        .await;
        let mut one = Consumer::start(PROGRAM, &orders);
        let mut two = Consumer::start(PROGRAM, &orders);
        let commits = random.usize(1..=COMMITS);
        tokio::select! {
            () = one.until_many("step 5 ", commits) => {}
            () = two.until_many("step 5 ", commits) => {}
        }
        for consumer in [one, two] {
            tokio::time::sleep(Duration::from_micros(random.u64(..5_000))).await;
            all_said.push(consumer.kill().await);
        }
    }

    let messages = i64::try_from(ROUNDS * MESSAGES).unwrap();
    let left = usize::try_from(queue.left().await).unwrap();
    let mut last = Consumer::start(PROGRAM, &orders);
    last.until_many("step 6 ", left).await;
    last.stop().await;
    assert_eq!(queue.left().await, 0, "every delivery is acked");

    // Whoever is in work time and again when its process is killed cannot be told from one that kills it.
    let suspects = sandbox.dead_letter_texts().await;
    assert!(
        suspects.len() < 5
            && suspects
                .iter()
                .all(|text| text.contains("ended with their process")),
        "{suspects:?}"
    );
    let messages = messages - i64::try_from(suspects.len()).unwrap();
    assert_eq!(sandbox.ledger_total().await, messages);
    let ids = "SELECT count(DISTINCT msg_id) FROM ledger";
    assert_eq!(Db::number(&sandbox.pool, ids).await, messages);
    assert_eq!(sandbox.claims_total().await, messages);
    assert_eq!(sandbox.balance("acc-1").await, 100 * messages);
    let counted = "SELECT count(*) FROM inbox_attempts WHERE message_id NOT IN \
        (SELECT message_id FROM inbox_dead_letters)";
    assert_eq!(Db::number(&sandbox.pool, counted).await, 0);
    (sandbox, all_said)
}

/// How many transactions committed several messages, as the database or what the processes said tells.
trait Shared: TestDatabase {
    async fn shared(sandbox: &Sandbox<Self>, said: &Said) -> i64;

    /// So many prove something.
    const ENOUGH: i64 = 10;
}

impl Shared for Postgres {
    async fn shared(sandbox: &Sandbox<Self>, _said: &Said) -> i64 {
        let shared = "SELECT count(*) FROM (SELECT xmin::text FROM ledger GROUP BY 1 HAVING count(*) > 1) AS shared";
        Self::number(&sandbox.pool, shared).await
    }
}

impl Shared for MySql {
    async fn shared(sandbox: &Sandbox<Self>, _said: &Said) -> i64 {
        let shared = "SELECT count(*) FROM (SELECT claim_nonce FROM inbox_processed_messages \
                      GROUP BY claim_nonce HAVING count(*) > 1) AS shared";
        Self::number(&sandbox.pool, shared).await
    }
}

impl Shared for Sqlite {
    // What was delivered before goes alone, so the last rounds share little.
    const ENOUGH: i64 = 1;

    async fn shared(_sandbox: &Sandbox<Self>, said: &Said) -> i64 {
        // With one worker, what comes before a commit twice in a row has that commit in common.
        let is_before_commit = |line: &String| line.starts_with("step 4 ");
        let together =
            |said: &&Vec<String>| said.windows(2).any(|two| two.iter().all(is_before_commit));
        let processes = said.iter().filter(together).count();
        i64::try_from(processes).unwrap()
    }
}

on_each_database! {
    #[tokio::test(flavor = "multi_thread")]
    async fn many_messages_in_processes_killed_at_random_moments_are_stored_once() {
        let (sandbox, said) = killed_at_random_moments::<Db>().await;
        let shared = Db::shared(&sandbox, &said).await;
        assert!(
            shared >= Db::ENOUGH || !dispatch::is_shared(),
            "{shared} transactions with several messages prove little"
        );
    }
}
