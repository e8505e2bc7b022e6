#![allow(unused_variables)]

use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Tx, inbox_handler};
use inbox_runtime::Inbox;
use sqlx::{PgPool, Postgres, Sqlite};

#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Outcome {
    Ok(())
}

#[inbox_handler(consumer = "billing")]
async fn ship(order: OrderPlaced, tx: &mut Tx<Sqlite>) -> Outcome {
    Ok(())
}

fn register(pool: PgPool) {
    let _inbox = Inbox::builder(pool)
        .register(charge::handler())
        .register(ship::handler());
}

fn main() {}
