use fixtures::{OrderPlaced, Outcome};
use inbox_core::{State, Tx, inbox_handler};
use sqlx::Postgres;

struct Rates;

#[inbox_handler(consumer = "billing")]
async fn charge(_order: OrderPlaced, _tx: &mut Tx<Postgres>, _rates: State<Rates>) -> Outcome {
    Ok(())
}

fn main() {}
