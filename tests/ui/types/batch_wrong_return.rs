use fixtures::{OrderPlaced};
use inbox_core::{Batch, Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing", batch(max = 100))]
async fn post(_orders: Batch<OrderPlaced>, _tx: &mut Tx<Postgres>) -> usize {
    0
}

fn main() {}
