#![allow(unused_variables)]

use fixtures::{OrderPlaced, Outcome, Rates};
use inbox_core::{State, Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, State(rates): State<Rates>, tx: &mut Tx<Postgres>) -> Outcome {
    Ok(())
}

fn main() {}
