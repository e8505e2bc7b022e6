use fixtures::{Outcome, Rates};
use inbox_core::{State, Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing")]
async fn charge(_rates: State<Rates>, _tx: &mut Tx<Postgres>) -> Outcome {
    Ok(())
}

fn main() {}
