#![allow(unused_variables)]

use fixtures::Outcome;
use inbox_core::{Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing")]
async fn charge(order: _, tx: &mut Tx<Postgres>) -> Outcome {
    Ok(())
}

fn main() {}
