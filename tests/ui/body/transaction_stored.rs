#![allow(unused_variables)]

use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Outcome {
    static KEPT: std::sync::Mutex<Option<&'static mut Tx<Postgres>>> = std::sync::Mutex::new(None);
    *KEPT.lock().expect("no panic") = Some(tx);
    Ok(())
}

fn main() {}
