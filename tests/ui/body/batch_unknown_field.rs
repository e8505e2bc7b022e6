use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Batch, Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing", batch(max = 100))]
async fn post(orders: Batch<OrderPlaced>, _tx: &mut Tx<Postgres>) -> Outcome {
    for order in &orders {
        println!("{}", order.colour);
    }
    Ok(())
}

fn main() {}
