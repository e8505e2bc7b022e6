#![allow(unused_variables)]

use fixtures::OrderPlaced;
use inbox_core::{HandlerOutcome, Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> impl HandlerOutcome {
    Ok::<(), inbox_core::HandlerError>(())
}

fn main() {}
