#![allow(unused_imports, unused_variables)]

use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres) -> Outcome {
    Ok(())
}

fn main() {}
