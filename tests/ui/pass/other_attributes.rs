#![deny(unused_must_use)]

use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Tx, inbox_handler};
use sqlx::Sqlite;

#[must_use = "a handler is called for its effect"]
#[allow(clippy::unused_async)]
#[inbox_handler(consumer = "billing")]
#[inline]
#[expect(unused_variables)]
async fn charge(order: OrderPlaced, tx: &mut Tx<Sqlite>) -> Outcome {
    Ok(())
}

#[test]
fn the_handler_exists() {
    let _handler = charge::handler();
}
