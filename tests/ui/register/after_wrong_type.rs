#![allow(unused_variables)]

use fixtures::{OrderPlaced, Outcome};
use inbox_core::inbox_handler;
use inbox_runtime::Inbox;
use sqlx::PgPool;

#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut String) -> Outcome {
    Ok(())
}

fn register(pool: PgPool) {
    let _inbox = Inbox::builder(pool).register(charge::handler());
}

fn main() {}
