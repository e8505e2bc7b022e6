#![deny(deprecated)]

use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Tx, inbox_handler};
use sqlx::Sqlite;

#[deprecated(note = "use `charge`")]
#[inbox_handler(consumer = "billing")]
async fn bill(_order: OrderPlaced, _tx: &mut Tx<Sqlite>) -> Outcome {
    Ok(())
}

#[inbox_handler(consumer = "billing")]
#[cfg_attr(all(), deprecated)]
async fn conditionally(_order: OrderPlaced, _tx: &mut Tx<Sqlite>) -> Outcome {
    Ok(())
}

#[test]
fn registration_does_not_warn() {
    let _handlers = (bill::handler(), conditionally::handler());
}
