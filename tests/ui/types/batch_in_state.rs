use fixtures::{OrderPlaced, Outcome};
use inbox_core::{State, Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing", batch(max = 100))]
async fn post(_orders: State<OrderPlaced>, _tx: &mut Tx<Postgres>) -> Outcome {
    Ok(())
}

fn main() {}
