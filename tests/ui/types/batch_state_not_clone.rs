use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Batch, State, Tx, inbox_handler};
use sqlx::Postgres;

struct Counter;

#[inbox_handler(consumer = "billing", batch(max = 100))]
async fn post(_orders: Batch<OrderPlaced>, _tx: &mut Tx<Postgres>, _counter: State<Counter>) -> Outcome {
    Ok(())
}

fn main() {}
