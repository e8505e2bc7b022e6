//! A handler is still a function: a unit test calls it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use inbox_guarantees::dispatch::Serve as _;
use inbox_guarantees::{
    OrderPlaced, Running, TestDatabase, all_acked, bill, on_each_database, order,
};
use inbox_runtime::brokers::MemoryBroker;
use inbox_runtime::{
    Attempt, ConsumerName, Envelope, FromDelivery, HandlerError, Headers, IdempotencyKey, Inbox,
    Incoming, MessageId, RetryPolicy, State, StateMap, Tx, inbox_handler,
};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

on_each_database! {
    #[inbox_handler(consumer = "billing")]
    async fn charge(order: OrderPlaced, tx: &mut Tx<Db>) -> Result<(), HandlerError> {
        if order.amount < 0 {
            return Err(HandlerError::reject("a negative amount"));
        }
        bill!(Db, order, "by-hand".to_owned(), tx);
        Ok(())
    }

    /// Everything that a handler can be given.
    #[inbox_handler(consumer = "all-of-it", max_attempts = 3)]
    #[allow(clippy::too_many_arguments)]
    async fn take_everything(
        order: OrderPlaced,
        tx: &mut Tx<Db>,
        State(log): State<Log>,
        id: MessageId,
        headers: Headers,
        Attempt(attempt): Attempt,
        key: IdempotencyKey,
        envelope: Envelope,
    ) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        log.0.lock().unwrap().push(format!(
            "{attempt} {id} {} {} {} {}",
            headers.get_str("tenant").unwrap_or("none"),
            envelope.message_type.as_deref().unwrap_or("none"),
            envelope.payload.len(),
            key.step("charge") == IdempotencyKey::new("all-of-it", id.as_str()).step("charge"),
        ));
        if attempt < 3 {
            return Err("not yet".into());
        }
        Ok(())
    }

    fn example(amount: i64) -> OrderPlaced {
        OrderPlaced { account: "acc-1".to_owned(), amount }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_handler_called_by_hand_works_in_a_transaction_that_is_rolled_back_on_drop() {
        // One connection: the next transaction gets the same one.
        let sandbox = Db::fresh(1).await;
        for _ in 0..3 {
            let mut tx = Tx::begin(&sandbox.pool).await.unwrap();
            charge(example(100), &mut tx).await.unwrap();
            let inside: i64 = sqlx::query_scalar::<Db, i64>("SELECT balance FROM accounts WHERE id = 'acc-1'")
                .fetch_one(&mut tx)
                .await
                .unwrap();
            assert_eq!(inside, 100, "the test sees what the handler did");
            drop(tx);
            assert_eq!(sandbox.ledger_total().await, 0);
            assert_eq!(sandbox.balance("acc-1").await, 0);
            Db::assert_clean(&sandbox.pool).await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_rejection_and_a_failed_statement_leave_the_connection_clean() {
        let sandbox = Db::fresh(1).await;
        let mut tx = Tx::begin(&sandbox.pool).await.unwrap();
        let refused = charge(example(-1), &mut tx).await.unwrap_err();
        assert!(refused.is_rejected());
        drop(tx);
        let mut tx = Tx::begin(&sandbox.pool).await.unwrap();
        sqlx::query::<Db>("SELECT no_such_column FROM ledger").execute(&mut tx).await.unwrap_err();
        drop(tx);
        // With a savepoint that was never closed.
        let mut tx = Tx::begin(&sandbox.pool).await.unwrap();
        let mut savepoint = tx.savepoint().await.unwrap();
        charge(example(100), &mut savepoint).await.unwrap();
        std::mem::forget(savepoint);
        drop(tx);
        Db::assert_clean(&sandbox.pool).await;
        assert_eq!(sandbox.ledger_total().await, 0);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn every_extractor_gives_a_handler_what_the_message_has() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let log = Log::default();
        let inbox = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .serve(take_everything::handler())
            .state(log.clone())
            .retry(RetryPolicy::default().first_delay(Duration::from_millis(20)))
            .build()
            .await
            .unwrap();
        let running = Running::start(inbox);
        broker.publish("orders", order("m-1").header("tenant", "acme"));
        all_acked(&broker).await;
        running.stop().await;
        let expected: Vec<_> = (1..=3).map(|attempt| format!("{attempt} m-1 acme OrderPlaced 32 true")).collect();
        assert_eq!(*log.0.lock().unwrap(), expected);
        sandbox.assert_stored_once("m-1").await;
    }
}

/// An extractor of one's own, tested without a broker and without a database.
#[test]
fn an_extractor_of_ones_own_is_testable_by_hand() {
    struct Tenant(String);
    impl FromDelivery for Tenant {
        fn from_delivery(incoming: &Incoming<'_>) -> Result<Self, inbox_runtime::ExtractError> {
            let tenant = incoming.envelope().headers.get_str("tenant");
            Ok(Self(tenant.unwrap_or("default").to_owned()))
        }
    }
    let envelope = Envelope::new("{}").header("tenant", "acme");
    let id = MessageId::new("m-1").unwrap();
    let consumer = ConsumerName::new("billing").unwrap();
    let state = StateMap::new();
    let incoming = Incoming::new(&envelope, &id, &consumer, "orders", 1, &state);
    assert_eq!(Tenant::from_delivery(&incoming).unwrap().0, "acme");
}
