#![allow(unused_variables)]

use fixtures::{OrderPlaced, Outcome, Rates};
use inbox_core::{State, Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>, rates: &State<Rates>) -> Outcome {
    Ok(())
}

fn main() {}
