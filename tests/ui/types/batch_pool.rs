use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Batch, Tx, inbox_handler};
use sqlx::{PgPool, Postgres};

#[inbox_handler(consumer = "billing", batch(max = 100))]
async fn post(_orders: Batch<OrderPlaced>, _tx: &mut Tx<Postgres>, _pool: PgPool) -> Outcome {
    Ok(())
}

fn main() {}
