#![allow(unused_variables)]

use fixtures::{OrderPlaced, Outcome};
use inbox_core::inbox_handler;
use sqlx::PgConnection;

#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, conn: &PgConnection) -> Outcome {
    Ok(())
}

fn main() {}
