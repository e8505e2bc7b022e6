use fixtures::{Outcome};
use inbox_core::{Batch, Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing", batch(max = 100))]
async fn post(_orders: Batch, _tx: &mut Tx<Postgres>) -> Outcome {
    Ok(())
}

fn main() {}
