use fixtures::{OrderPlaced, Outcome};
use inbox_core::inbox_handler;
use sqlx::pool::PoolConnection;
use sqlx::Postgres;

#[inbox_handler(consumer = "billing")]
async fn charge(_order: OrderPlaced, _conn: &mut PoolConnection<Postgres>) -> Outcome {
    Ok(())
}

fn main() {}
