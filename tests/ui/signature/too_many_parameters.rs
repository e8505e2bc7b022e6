#![allow(unused_variables)]

use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Attempt, Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing")]
async fn charge(
    order: OrderPlaced,
    tx: &mut Tx<Postgres>,
    e1: Attempt,
    e2: Attempt,
    e3: Attempt,
    e4: Attempt,
    e5: Attempt,
    e6: Attempt,
    e7: Attempt,
    e8: Attempt,
    e9: Attempt,
    e10: Attempt,
    e11: Attempt,
    e12: Attempt,
    e13: Attempt,
    e14: Attempt,
    e15: Attempt,
) -> Outcome {
    Ok(())
}

fn main() {}
