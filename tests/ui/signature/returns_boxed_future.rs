#![allow(unused_variables)]

use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Tx, inbox_handler};
use std::pin::Pin;
use sqlx::Postgres;

#[inbox_handler(consumer = "billing")]
fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Pin<Box<dyn Future<Output = Outcome> + Send>> {
    Box::pin(async { Ok(()) })
}

fn main() {}
