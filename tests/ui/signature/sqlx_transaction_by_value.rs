#![allow(unused_variables)]

use fixtures::{OrderPlaced, Outcome};
use inbox_core::inbox_handler;
use sqlx::{Postgres, Transaction};

#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: Transaction<'_, Postgres>) -> Outcome {
    Ok(())
}

fn main() {}
