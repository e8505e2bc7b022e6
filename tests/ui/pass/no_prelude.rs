#![no_implicit_prelude]

use ::fixtures::{OrderPlaced, Outcome};
use ::inbox_core::{Tx, inbox_handler};
use ::sqlx::Sqlite;

#[inbox_handler(consumer = "billing", on = "OrderPlaced", timeout = "1s")]
async fn charge(_order: OrderPlaced, _tx: &mut Tx<Sqlite>) -> Outcome {
    ::core::result::Result::Ok(())
}

#[::core::prelude::v1::test]
fn the_handler_exists() {
    let _handler = charge::handler();
}
