use fixtures::{OrderPlaced, Outcome};
use inbox_core::inbox_handler;
use sqlx::Postgres;

#[inbox_handler(consumer = "billing")]
async fn charge(_order: OrderPlaced, _tx: &mut sqlx::Transaction<'_, Postgres>) -> Outcome {
    Ok(())
}

fn main() {}
