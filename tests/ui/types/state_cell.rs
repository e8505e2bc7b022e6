use fixtures::{OrderPlaced, Outcome};
use inbox_core::{State, Tx, inbox_handler};
use std::cell::Cell;
use sqlx::Postgres;

#[inbox_handler(consumer = "billing")]
async fn charge(_order: OrderPlaced, _tx: &mut Tx<Postgres>, _total: State<Cell<u64>>) -> Outcome {
    Ok(())
}

fn main() {}
