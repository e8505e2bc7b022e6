#![allow(unused_variables)]

use fixtures::{Outcome, Rates};
use inbox_core::{State, inbox_handler};

#[inbox_handler(consumer = "billing")]
async fn charge(rates: State<Rates>) -> Outcome {
    Ok(())
}

fn main() {}
