use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Batch, inbox_handler};

#[inbox_handler(consumer = "billing", batch(max = 100))]
async fn post(_orders: Batch<OrderPlaced>) -> Outcome {
    Ok(())
}

fn main() {}
