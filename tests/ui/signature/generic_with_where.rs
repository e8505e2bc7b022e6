#![allow(unused_variables)]

use fixtures::Outcome;
use inbox_core::{Message, Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing")]
async fn charge<T>(order: T, tx: &mut Tx<Postgres>) -> Outcome
where
    T: Message,
 {
    Ok(())
}

fn main() {}
