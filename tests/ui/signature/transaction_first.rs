#![allow(unused_variables)]

use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing")]
async fn charge(tx: &mut Tx<Postgres>, order: OrderPlaced) -> Outcome {
    Ok(())
}

fn main() {}
