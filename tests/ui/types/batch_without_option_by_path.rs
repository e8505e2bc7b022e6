use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing")]
async fn post(_orders: inbox_core::Batch<OrderPlaced>, _tx: &mut Tx<Postgres>) -> Outcome {
    Ok(())
}

fn main() {}
