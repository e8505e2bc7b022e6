use fixtures::OrderPlaced;
use inbox_core::{Tx, inbox_handler};
use sqlx::Postgres;

#[derive(Debug, thiserror::Error)]
#[error("declined")]
struct Declined(std::rc::Rc<str>);

#[inbox_handler(consumer = "billing")]
async fn charge(_order: OrderPlaced, _tx: &mut Tx<Postgres>) -> Result<(), Declined> {
    Ok(())
}

fn main() {}
