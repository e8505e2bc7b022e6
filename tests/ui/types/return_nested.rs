use fixtures::{OrderPlaced, Outcome};
use inbox_core::{HandlerError, Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing")]
async fn charge(_order: OrderPlaced, _tx: &mut Tx<Postgres>) -> Result<Outcome, HandlerError> {
    Ok(Ok(()))
}

fn main() {}
