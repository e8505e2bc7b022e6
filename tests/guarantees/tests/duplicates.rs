//! A message that comes any number of times has its effect once.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use inbox_guarantees::dispatch::Serve as _;
use inbox_guarantees::{
    OrderPlaced, Running, TestDatabase, all_acked, bill, on_each_database, order,
};
use inbox_runtime::brokers::MemoryBroker;
use inbox_runtime::{HandlerError, Inbox, MessageId, State, Tx, inbox_handler};

#[derive(Clone, Default)]
struct Entered(Arc<AtomicU32>);

on_each_database! {
    #[inbox_handler(consumer = "billing")]
    async fn charge(
        order: OrderPlaced,
        tx: &mut Tx<Db>,
        id: MessageId,
        State(entered): State<Entered>,
    ) -> Result<(), HandlerError> {
        let first = entered.0.fetch_add(1, Ordering::SeqCst) == 0;
        bill!(Db, order, id, tx);
        if first && id.as_str().starts_with("fails-once") {
            tokio::time::sleep(Duration::from_millis(200)).await;
            return Err("the first one fails".into());
        }
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_sequential_duplicate_is_acked_without_running_the_handler() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let entered = Entered::default();
        let inbox = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .serve(charge::handler())
            .state(entered.clone())
            .build()
            .await
            .unwrap();
        let running = Running::start(inbox);
        for times in 1..=3 {
            broker.publish("orders", order("m-1"));
            all_acked(&broker).await;
            assert_eq!(broker.settled().len(), times);
        }
        sandbox.assert_stored_once("m-1").await;
        assert_eq!(entered.0.load(Ordering::SeqCst), 1);
        running.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn of_eight_concurrent_copies_one_is_processed_and_eight_are_acked() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let entered = Entered::default();
        let workers = if <Db as inbox_core::InboxDatabase>::MAX_CONCURRENCY.is_some() { 1 } else { 8 };
        let inbox = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .serve(charge::handler())
            .state(entered.clone())
            .concurrency(workers)
            .prefetch(16)
            .build()
            .await
            .unwrap();
        broker.publish_copies("orders", order("m-1"), 8);
        let running = Running::start(inbox);
        all_acked(&broker).await;
        sandbox.assert_stored_once("m-1").await;
        assert_eq!(entered.0.load(Ordering::SeqCst), 1);
        assert_eq!(broker.settled().len(), 8);
        running.stop().await;
    }
}
