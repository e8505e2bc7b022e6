#![allow(unused_variables)]

use fixtures::{OrderPlaced, Outcome};
use inbox_runtime::{Batch, Inbox, Tx, inbox_handler};
use sqlx::{Postgres, SqlitePool};

#[inbox_handler(consumer = "billing", batch(max = 500))]
async fn post(orders: Batch<OrderPlaced>, tx: &mut Tx<Postgres>) -> Outcome {
    Ok(())
}

fn register(pool: SqlitePool) {
    let _inbox = Inbox::builder(pool).register(post::handler());
}

fn main() {}
