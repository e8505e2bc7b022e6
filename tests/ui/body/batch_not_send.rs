use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Batch, Tx, inbox_handler};
use sqlx::Postgres;
use std::rc::Rc;

#[inbox_handler(consumer = "billing", batch(max = 100))]
async fn post(orders: Batch<OrderPlaced>, tx: &mut Tx<Postgres>) -> Outcome {
    let shared = Rc::new(orders);
    tx.savepoint().await?.release().await?;
    drop(shared);
    Ok(())
}

fn main() {}
