#![allow(unused_variables)]

use fixtures::{OrderPlaced, Outcome};
use inbox_core::{State, Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: State<Tx<Postgres>>) -> Outcome {
    Ok(())
}

fn main() {}
