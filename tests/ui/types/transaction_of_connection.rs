use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Tx, inbox_handler};
use sqlx::PgConnection;

#[inbox_handler(consumer = "billing")]
async fn charge(_order: OrderPlaced, _tx: &mut Tx<PgConnection>) -> Outcome {
    Ok(())
}

fn main() {}
