use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Attempt, Batch, Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing", batch(max = 100))]
async fn post(_orders: Batch<OrderPlaced>, _tx: &mut Tx<Postgres>, _attempt: Attempt) -> Outcome {
    Ok(())
}

fn main() {}
