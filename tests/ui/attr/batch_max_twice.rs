use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Batch, Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing", batch(max = 5, max = 6))]
async fn post(_orders: Batch<OrderPlaced>, _tx: &mut Tx<Postgres>) -> Outcome {
    Ok(())
}

fn main() {}
