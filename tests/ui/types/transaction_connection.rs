use fixtures::{OrderPlaced, Outcome};
use inbox_core::inbox_handler;
use sqlx::PgConnection;

#[inbox_handler(consumer = "billing")]
async fn charge(_order: OrderPlaced, _conn: &mut PgConnection) -> Outcome {
    Ok(())
}

fn main() {}
