#![allow(unused_variables)]

use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Tx, inbox_handler};
use sqlx::Postgres;

struct Bills;

trait Billing {
    async fn bill(&self, order: OrderPlaced, tx: &mut Tx<Postgres>) -> Outcome;
}

impl Billing for Bills {
    #[inbox_handler(consumer = "billing")]
    async fn bill(&self, order: OrderPlaced, tx: &mut Tx<Postgres>) -> Outcome {
        Ok(())
    }
}

fn main() {}
