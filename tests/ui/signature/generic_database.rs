#![allow(unused_variables)]

use fixtures::{OrderPlaced, Outcome};
use inbox_core::{InboxDatabase, Tx, inbox_handler};

#[inbox_handler(consumer = "billing")]
async fn charge<DB: InboxDatabase>(order: OrderPlaced, tx: &mut Tx<DB>) -> Outcome {
    Ok(())
}

fn main() {}
