#![allow(unused_variables)]

use fixtures::{OrderPlaced, Outcome};
use inbox_core::{InboxDatabase, Tx, inbox_handler};
use inbox_runtime::Inbox;
use sqlx::{Postgres};

#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Outcome {
    Ok(())
}

fn register<DB: InboxDatabase>(pool: sqlx::Pool<DB>) {
    let _inbox = Inbox::builder(pool).register(charge::handler());
}

fn main() {}
