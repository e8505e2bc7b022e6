use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Tx, inbox_handler};
use sqlx::{PgPool, Postgres};

#[inbox_handler(consumer = "billing")]
async fn charge(_order: OrderPlaced, _tx: &mut Tx<Postgres>, _pool: PgPool) -> Outcome {
    Ok(())
}

fn main() {}
