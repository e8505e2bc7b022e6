use fixtures::Outcome;
use inbox_core::{MessageId, Tx, inbox_handler};
use sqlx::Postgres;

#[inbox_handler(consumer = "billing")]
async fn charge(_id: MessageId, _tx: &mut Tx<Postgres>) -> Outcome {
    Ok(())
}

fn main() {}
