use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Batch, inbox_handler};
use sqlx::PgConnection;

#[inbox_handler(consumer = "billing", batch(max = 100))]
async fn post(_orders: Batch<OrderPlaced>, _tx: &mut PgConnection) -> Outcome {
    Ok(())
}

fn main() {}
