use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Batch, ExtractError, FromDelivery, Incoming, Tx, inbox_handler};
use sqlx::Postgres;

struct Tenant;

impl FromDelivery for Tenant {
    fn from_delivery(_incoming: &Incoming<'_>) -> Result<Self, ExtractError> {
        Ok(Self)
    }
}

#[inbox_handler(consumer = "billing", batch(max = 100))]
async fn post(_orders: Batch<OrderPlaced>, _tx: &mut Tx<Postgres>, _tenant: Tenant) -> Outcome {
    Ok(())
}

fn main() {}
