use fixtures::OrderPlaced;
use inbox_core::{Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing")]
async fn charge(_order: OrderPlaced, _tx: &mut Tx<Postgres>) -> Result<(), Box<dyn std::error::Error + Send>> {
    Ok(())
}

fn main() {}
