use fixtures::{OrderPlaced, Outcome};
use inbox_core::{MessageId, Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing")]
async fn charge(_order: OrderPlaced, _tx: &mut Tx<Postgres>, _id: Option<MessageId>) -> Outcome {
    Ok(())
}

fn main() {}
