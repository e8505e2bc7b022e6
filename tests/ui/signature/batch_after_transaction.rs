use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Batch, Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing", batch(max = 100))]
async fn post(_tx: &mut Tx<Postgres>, _orders: Batch<OrderPlaced>) -> Outcome {
    Ok(())
}

fn main() {}
