#![allow(unused_variables)]

use fixtures::Outcome;
use inbox_core::inbox_handler;

#[inbox_handler(consumer = "billing")]
async fn charge() -> Outcome {
    Ok(())
}

fn main() {}
