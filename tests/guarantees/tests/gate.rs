//! Many copies of few messages at once: one is processed, and nothing waits for itself.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use inbox_guarantees::dispatch::Serve as _;
use inbox_guarantees::{
    OrderPlaced, Running, TestDatabase, all_acked, bill, on_each_database, order,
    with_placeholders, workers,
};
use inbox_runtime::brokers::MemoryBroker;
use inbox_runtime::{
    HandlerError, Inbox, MessageId, RetryPolicy, State, Tx, Verdict, inbox_handler,
};

#[derive(Clone, Default)]
struct Entered(Arc<AtomicU32>);

fn retry() -> RetryPolicy {
    RetryPolicy::default().first_delay(Duration::from_millis(50))
}

on_each_database! {
    /// The first one to enter fails after 200 ms.
    #[inbox_handler(consumer = "billing")]
    async fn fail_first(
        order: OrderPlaced,
        tx: &mut Tx<Db>,
        id: MessageId,
        State(entered): State<Entered>,
    ) -> Result<(), HandlerError> {
        let first = entered.0.fetch_add(1, Ordering::SeqCst) == 0;
        bill!(Db, order, id, tx);
        if first {
            tokio::time::sleep(Duration::from_millis(200)).await;
            return Err("the first one fails".into());
        }
        Ok(())
    }

    #[inbox_handler(consumer = "billing")]
    async fn charge(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        Ok(())
    }

    /// A second consumer of the same messages: it adds nothing to acc-1.
    #[inbox_handler(consumer = "notifications")]
    async fn notify(_order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId) -> Result<(), HandlerError> {
        sqlx::query::<Db>(with_placeholders::<Db>("INSERT INTO ledger (account, amount, msg_id) VALUES ('acc-2', 0, $1)"))
            .bind(id.as_str())
            .execute(&mut *tx)
            .await?;
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn when_the_first_copy_fails_it_is_handed_back_and_exactly_one_other_is_processed() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let entered = Entered::default();
        let inbox = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .serve(fail_first::handler())
            .state(entered.clone())
            .retry(retry())
            .concurrency(workers::<Db>(8))
            .prefetch(16)
            .build()
            .await
            .unwrap();
        broker.publish_copies("orders", order("m-1"), 8);
        let running = Running::start(inbox);
        all_acked(&broker).await;
        running.stop().await;

        sandbox.assert_stored_once("m-1").await;
        assert_eq!(entered.0.load(Ordering::SeqCst), 2, "the failed one and one other");
        let settled = broker.settled();
        let handed_back: Vec<_> = settled.iter().filter(|s| s.verdict != Verdict::Ack).collect();
        assert_eq!(handed_back.len(), 1, "{settled:?}");
        assert!(
            matches!(handed_back[0].verdict, Verdict::HandBack { delay: Some(_) }),
            "{handed_back:?}"
        );
        assert_eq!(settled.len(), 9, "eight copies, one of them twice: {settled:?}");
        assert_eq!(sandbox.attempts("m-1").await, 0, "success forgets the failure");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn crossed_copies_for_two_consumers_never_wait_for_each_other() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let inbox = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .source("again", broker.source("again"))
            .shared_id_space(["orders", "again"])
            .serve(charge::handler())
            .serve(notify::handler())
            .concurrency(workers::<Db>(2))
            .prefetch(64)
            .build()
            .await
            .unwrap();
        for _ in 0..50 {
            for (queue, id) in [("orders", "a"), ("again", "b"), ("orders", "b"), ("again", "a")] {
                broker.publish(queue, order(id));
            }
        }
        let running = Running::start(inbox);
        all_acked(&broker).await;
        running.stop().await;
        for id in ["a", "b"] {
            assert_eq!(sandbox.ledger_rows(id).await, 2, "one per consumer");
            assert_eq!(sandbox.claims(id).await, 2);
        }
        assert_eq!(sandbox.balance("acc-1").await, 200);
        assert_eq!(broker.settled().len(), 200);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn hundreds_of_copies_of_a_few_messages_are_all_settled_once() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let inbox = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .serve(charge::handler())
            .concurrency(workers::<Db>(4))
            .prefetch(500)
            .build()
            .await
            .unwrap();
        for id in ["m-1", "m-2", "m-3"] {
            broker.publish_copies("orders", order(id), 150);
        }
        broker.shuffle("orders", 7);
        let running = Running::start(inbox);
        all_acked(&broker).await;
        running.stop().await;
        for id in ["m-1", "m-2", "m-3"] {
            sandbox.assert_stored_once(id).await;
        }
        let settled = broker.settled();
        assert_eq!(settled.len(), 450);
        assert!(settled.iter().all(|s| s.verdict == Verdict::Ack && s.delivery == 1));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn copies_in_the_hands_of_two_inboxes_are_processed_once() {
        // Two inboxes share no gate, like two processes: only the claim decides.
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        for number in 0..30 {
            broker.publish_copies("orders", order(&format!("m-{number}")), 4);
        }
        let mut running = Vec::new();
        for _ in 0..2 {
            let inbox = Inbox::builder(sandbox.pool.clone())
                .source("orders", broker.source("orders"))
                .serve(charge::handler())
                .concurrency(workers::<Db>(4))
                .build()
                .await
                .unwrap();
            running.push(Running::start(inbox));
        }
        all_acked(&broker).await;
        for inbox in running {
            inbox.stop().await;
        }
        for number in 0..30 {
            sandbox.assert_stored_once(&format!("m-{number}")).await;
        }
        assert_eq!(sandbox.balance("acc-1").await, 3000);
        assert!(sandbox.dead_letters().await.is_empty());
    }
}

mod isolation {
    use super::*;

    macro_rules! stored_once_at {
        ($name:ident, $Db:ident, $ask:ident, $level:literal, $told:literal) => {
            mod $name {
                use super::*;
                use sqlx::$Db;

                #[inbox_handler(consumer = "billing", isolation = $level)]
                async fn charge(
                    order: OrderPlaced,
                    tx: &mut Tx<$Db>,
                    id: MessageId,
                    State(levels): State<Levels>,
                ) -> Result<(), HandlerError> {
                    let level = sqlx::query_scalar($ask).fetch_one(&mut *tx).await?;
                    levels.0.lock().unwrap().insert(level);
                    bill!($Db, order, id, tx);
                    // Long enough for another inbox's copy to wait at the claim.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    Ok(())
                }

                #[tokio::test(flavor = "multi_thread")]
                async fn concurrent_copies_are_stored_once() {
                    let sandbox = $Db::fresh(12).await;
                    let broker = MemoryBroker::new();
                    let levels = Levels::default();
                    for number in 0..20 {
                        broker.publish_copies("orders", order(&format!("m-{number}")), 4);
                    }
                    let mut running = Vec::new();
                    for _ in 0..2 {
                        let inbox = Inbox::builder(sandbox.pool.clone())
                            .source("orders", broker.source("orders"))
                            .serve(charge::handler())
                            .state(levels.clone())
                            .retry(retry().transient_runs(200))
                            .build()
                            .await
                            .unwrap();
                        running.push(Running::start(inbox));
                    }
                    all_acked(&broker).await;
                    for inbox in running {
                        inbox.stop().await;
                    }
                    for number in 0..20 {
                        sandbox.assert_stored_once(&format!("m-{number}")).await;
                    }
                    assert_eq!(sandbox.balance("acc-1").await, 2000);
                    assert!(sandbox.dead_letters().await.is_empty());
                    let counted = $Db::number(&sandbox.pool, "SELECT count(*) FROM inbox_attempts");
                    assert_eq!(counted.await, 0, "a conflict counts nothing");
                    let levels = levels.0.lock().unwrap().clone();
                    assert_eq!(levels, BTreeSet::from([$told.to_owned()]));
                }
            }
        };
    }

    use std::collections::BTreeSet;
    use std::sync::Mutex;

    #[derive(Clone, Default)]
    struct Levels(Arc<Mutex<BTreeSet<String>>>);

    const ON_POSTGRES: &str = "SHOW transaction_isolation";
    const ON_MYSQL: &str = "SELECT @@tx_isolation";

    mod postgres {
        use super::*;
        stored_once_at!(
            read_committed,
            Postgres,
            ON_POSTGRES,
            "read committed",
            "read committed"
        );
        stored_once_at!(
            repeatable_read,
            Postgres,
            ON_POSTGRES,
            "repeatable read",
            "repeatable read"
        );
        stored_once_at!(
            serializable,
            Postgres,
            ON_POSTGRES,
            "serializable",
            "serializable"
        );
    }

    mod mysql {
        use super::*;
        stored_once_at!(
            read_committed,
            MySql,
            ON_MYSQL,
            "read committed",
            "READ-COMMITTED"
        );
        stored_once_at!(
            repeatable_read,
            MySql,
            ON_MYSQL,
            "repeatable read",
            "REPEATABLE-READ"
        );
        stored_once_at!(
            serializable,
            MySql,
            ON_MYSQL,
            "serializable",
            "SERIALIZABLE"
        );
    }
}
