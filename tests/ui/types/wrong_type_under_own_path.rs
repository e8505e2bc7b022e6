use fixtures::{OrderPlaced, Outcome};
use inbox_core::{self as inbox, inbox_handler};

#[inbox_handler(consumer = "billing", crate = crate::inbox)]
async fn charge(_order: OrderPlaced, _tx: &mut String) -> Outcome {
    Ok(())
}

fn main() {}
