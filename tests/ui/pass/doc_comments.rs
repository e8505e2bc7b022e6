//! Documentation is kept and nothing undocumented is added.
#![deny(missing_docs, rustdoc::all)]

use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Tx, inbox_handler};
use sqlx::Sqlite;

/// Charges the customer once per order, see [`Tx`].
#[inbox_handler(consumer = "billing")]
/// Below the attribute too.
#[doc(alias = "bill")]
pub(crate) async fn charge(_order: OrderPlaced, _tx: &mut Tx<Sqlite>) -> Outcome {
    Ok(())
}

#[test]
fn the_handler_exists() {
    let _handler = charge::handler();
}
