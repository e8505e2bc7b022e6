#![allow(unused_variables)]

use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Tx, inbox_handler};
use inbox_runtime::Inbox;
use sqlx::{PgPool, Postgres};

#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Outcome {
    Ok(())
}

fn register(pool: PgPool) {
    drop(Inbox::builder(pool).register(charge::handler()).run());
}

fn main() {}
