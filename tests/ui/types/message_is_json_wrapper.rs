use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Tx, inbox_handler};
use sqlx::Postgres;

struct Json<T>(T);

#[inbox_handler(consumer = "billing")]
async fn charge(_order: Json<OrderPlaced>, _tx: &mut Tx<Postgres>) -> Outcome {
    Ok(())
}

fn main() {}
