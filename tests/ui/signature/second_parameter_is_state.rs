#![allow(unused_variables)]

use fixtures::{OrderPlaced, Outcome, Rates};
use inbox_core::{State, inbox_handler};

#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, rates: State<Rates>) -> Outcome {
    Ok(())
}

fn main() {}
