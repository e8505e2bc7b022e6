use super::{ORDER, deliver};
use fixtures::{OrderPlaced, Outcome};
use inbox_core::{HandlerError, StateMap, Tx, inbox_handler};
use sqlx::Sqlite;
use tracing::instrument;

#[instrument(skip_all, fields(account = %order.account), err)]
#[inbox_handler(consumer = "billing")]
async fn above(order: OrderPlaced, tx: &mut Tx<Sqlite>) -> Outcome {
    sqlx::query("SELECT ?")
        .bind(order.amount_cents)
        .execute(&mut *tx)
        .await?;
    Ok(())
}

#[inbox_handler(consumer = "billing")]
#[instrument(skip(tx), ret)]
async fn below(order: OrderPlaced, tx: &mut Tx<Sqlite>) -> Outcome {
    drop(tx.savepoint().await?);
    if order.amount_cents > 0 {
        return Err(HandlerError::new("declined"));
    }
    Ok(())
}

#[tokio::test]
async fn both_run() {
    deliver(above::handler(), ORDER, &StateMap::new())
        .await
        .expect("success");
    deliver(below::handler(), ORDER, &StateMap::new())
        .await
        .expect_err("a failure");
}
