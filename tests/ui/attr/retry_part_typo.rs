use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing", retry(frist = "1s"))]
async fn charge(_order: OrderPlaced, _tx: &mut Tx<Postgres>) -> Outcome {
    Ok(())
}

fn main() {}
