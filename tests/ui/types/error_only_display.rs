use fixtures::OrderPlaced;
use inbox_core::{Tx, inbox_handler};
use sqlx::Postgres;

#[derive(Debug)]
struct Declined;

impl std::fmt::Display for Declined {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("declined")
    }
}

#[inbox_handler(consumer = "billing")]
async fn charge(_order: OrderPlaced, _tx: &mut Tx<Postgres>) -> Result<(), Declined> {
    Ok(())
}

fn main() {}
