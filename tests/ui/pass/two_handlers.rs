use super::{ORDER, deliver};
use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Handler as _, StateMap, Tx, inbox_handler};
use sqlx::Sqlite;

#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Sqlite>) -> Outcome {
    shared(&order, tx).await
}

#[inbox_handler(consumer = "shipping")]
async fn ship(order: OrderPlaced, tx: &mut Tx<Sqlite>) -> Outcome {
    shared(&order, tx).await
}

async fn shared(order: &OrderPlaced, tx: &mut Tx<Sqlite>) -> Outcome {
    sqlx::query("SELECT ?")
        .bind(order.amount_cents)
        .execute(&mut *tx)
        .await?;
    Ok(())
}

#[tokio::test]
async fn two_handlers_take_the_same_message() {
    deliver(charge::handler(), ORDER, &StateMap::new())
        .await
        .expect("success");
    deliver(ship::handler(), ORDER, &StateMap::new())
        .await
        .expect("success");
    assert_ne!(charge::SPEC.consumer, ship::SPEC.consumer);
}
