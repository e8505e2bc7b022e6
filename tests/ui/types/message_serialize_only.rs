use fixtures::Outcome;
use inbox_core::{Tx, inbox_handler};
use sqlx::Postgres;

#[derive(serde::Serialize)]
struct Refund;

#[inbox_handler(consumer = "billing")]
async fn charge(_refund: Refund, _tx: &mut Tx<Postgres>) -> Outcome {
    Ok(())
}

fn main() {}
