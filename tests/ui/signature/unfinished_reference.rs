#![allow(unused_variables)]

use fixtures::{OrderPlaced, Outcome};
use inbox_core::inbox_handler;

#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut ) -> Outcome {
    Ok(())
}

fn main() {}
