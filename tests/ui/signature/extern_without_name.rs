#![allow(missing_abi, unused_variables)]

use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing")]
async extern fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Outcome {
    Ok(())
}

fn main() {}
