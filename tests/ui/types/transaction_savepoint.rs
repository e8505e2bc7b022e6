use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Savepoint, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing")]
async fn charge(_order: OrderPlaced, _tx: &mut Savepoint<'_, Postgres>) -> Outcome {
    Ok(())
}

fn main() {}
