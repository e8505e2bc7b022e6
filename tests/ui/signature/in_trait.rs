#![allow(unused_variables)]

use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Tx, inbox_handler};
use sqlx::Postgres;

trait Billing {
    #[inbox_handler(consumer = "billing")]
    async fn bill(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Outcome {
        Ok(())
    }
}

fn main() {}
