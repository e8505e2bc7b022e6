use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Batch, Tx, inbox_handler};
use sqlx::Postgres;

type Orders = Batch<OrderPlaced>;

#[inbox_handler(consumer = "billing")]
async fn post(_orders: Orders, _tx: &mut Tx<Postgres>) -> Outcome {
    Ok(())
}

fn main() {}
