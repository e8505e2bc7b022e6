#![allow(unused_variables)]

use fixtures::{OrderPlaced, Outcome};
use inbox_runtime::{Batch, Inbox, Tx, inbox_handler};
use sqlx::{PgPool, Postgres};

#[inbox_handler(consumer = "billing", batch = 500)]
async fn post(orders: Batch<OrderPlaced>, tx: &mut Tx<Postgres>) -> Outcome {
    Ok(())
}

fn register(pool: PgPool) {
    let _inbox = Inbox::builder(pool).register(post::handler());
}

fn main() {}
