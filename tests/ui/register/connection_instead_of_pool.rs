#![allow(unused_variables)]

use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Tx, inbox_handler};
use inbox_runtime::Inbox;
use sqlx::{PgConnection, Postgres};

#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Outcome {
    Ok(())
}

fn register(conn: PgConnection) {
    let _inbox = Inbox::builder(conn).register(charge::handler());
}

fn main() {}
