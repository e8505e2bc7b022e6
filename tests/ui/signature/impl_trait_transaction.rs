#![allow(unused_variables)]

use fixtures::{OrderPlaced, Outcome};
use inbox_core::{HandlerTx, inbox_handler};

#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut impl HandlerTx) -> Outcome {
    Ok(())
}

fn main() {}
