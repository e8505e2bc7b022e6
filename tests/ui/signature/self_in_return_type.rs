#![allow(unused_variables)]

use fixtures::OrderPlaced;
use inbox_core::{Tx, inbox_handler};
use sqlx::Postgres;

struct Billing;

impl Billing {
    #[inbox_handler(consumer = "billing")]
    async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), Self> {
        Ok(())
    }
}

fn main() {}
