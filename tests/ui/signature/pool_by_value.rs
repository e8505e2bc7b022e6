#![allow(unused_variables)]

use fixtures::{OrderPlaced, Outcome};
use inbox_core::inbox_handler;
use sqlx::PgPool;

#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, pool: PgPool) -> Outcome {
    Ok(())
}

fn main() {}
