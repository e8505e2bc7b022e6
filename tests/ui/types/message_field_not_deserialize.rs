use fixtures::Outcome;
use inbox_core::{Tx, inbox_handler};
use sqlx::Postgres;

struct Order;

#[inbox_handler(consumer = "billing")]
async fn charge(_orders: Vec<Order>, _tx: &mut Tx<Postgres>) -> Outcome {
    Ok(())
}

fn main() {}
