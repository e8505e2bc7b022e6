#![allow(unused_variables)]

use fixtures::Outcome;
use inbox_core::{Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing")]
const fn charge(cents: i64, tx: &mut Tx<Postgres>) -> Outcome {
    Ok(())
}

fn main() {}
