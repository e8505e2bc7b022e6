#![allow(unused_variables)]

use fixtures::{OrderPlaced, Outcome};
use inbox_core::{FromDelivery, Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>, rates: impl FromDelivery) -> Outcome {
    Ok(())
}

fn main() {}
