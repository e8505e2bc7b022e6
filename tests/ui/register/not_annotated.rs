#![allow(unused_variables)]

use fixtures::{OrderPlaced, Outcome};
use inbox_runtime::{Inbox, Tx};
use sqlx::{PgPool, Postgres};

async fn bill(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Outcome {
    Ok(())
}

fn register(pool: PgPool) {
    let _inbox = Inbox::builder(pool).register(bill::handler());
}

fn main() {}
