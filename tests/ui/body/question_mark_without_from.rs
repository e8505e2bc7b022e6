#![allow(unused_variables)]

use fixtures::OrderPlaced;
use inbox_core::{Tx, inbox_handler};
use sqlx::Postgres;

#[derive(Debug, thiserror::Error)]
#[error("declined")]
struct Declined;

#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), Declined> {
    let _cents = order.account.parse::<i64>()?;
    Ok(())
}

fn main() {}
