use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing", retry(longest = "0s"))]
async fn charge(_order: OrderPlaced, _tx: &mut Tx<Postgres>) -> Outcome {
    Ok(())
}

fn main() {}
