use super::{ORDER, deliver};
use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Attempt, Handler as _, StateMap, Tx, inbox_handler};
use sqlx::Sqlite;

macro_rules! handlers {
    ($($name:ident: $message:ty, $transaction:ty, $($extractor:ty),* => $output:ty, $consumer:literal;)*) => {$(
        #[inbox_handler(consumer = $consumer)]
        async fn $name(message: $message, tx: &mut $transaction, $(_: $extractor),*) -> $output {
            let (__message, __tx) = (message, tx);
            drop(__message);
            drop(__tx.savepoint().await);
            Ok(())
        }
    )*};
}

handlers! {
    charge: OrderPlaced, Tx<Sqlite>, => Outcome, "billing";
    ship: OrderPlaced, inbox_core::Tx<Sqlite>, Attempt, inbox_core::MessageId => Result<(), sqlx::Error>, "shipping";
}

macro_rules! with_consumer {
    ($consumer:expr, $on:expr, $item:item) => {
        #[inbox_handler(consumer = $consumer, on = $on)]
        $item
    };
}

with_consumer! {
    "refunds",
    ["Refunded", "Returned"],
    async fn refund(_order: OrderPlaced, _tx: &mut Tx<Sqlite>) -> Outcome {
        Ok(())
    }
}

macro_rules! reference {
    ($reference:ty) => {
        #[inbox_handler(consumer = "reference")]
        async fn reference(_order: OrderPlaced, _tx: $reference) -> Outcome {
            Ok(())
        }
    };
}

reference!(&mut Tx<Sqlite>);

#[tokio::test]
async fn handlers_made_by_macros_run() {
    let state = StateMap::new();
    deliver(charge::handler(), ORDER, &state)
        .await
        .expect("success");
    deliver(ship::handler(), ORDER, &state)
        .await
        .expect("success");
    deliver(refund::handler(), ORDER, &state)
        .await
        .expect("success");
    deliver(reference::handler(), ORDER, &state)
        .await
        .expect("success");
    assert_eq!(
        (ship::SPEC.consumer, refund::SPEC.consumer),
        ("shipping", "refunds")
    );
    assert_eq!(refund::SPEC.on, ["Refunded", "Returned"]);
}
