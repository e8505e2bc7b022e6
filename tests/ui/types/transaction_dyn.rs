use fixtures::{OrderPlaced, Outcome};
use inbox_core::inbox_handler;

#[inbox_handler(consumer = "billing")]
async fn charge(_order: OrderPlaced, _tx: &mut dyn std::any::Any) -> Outcome {
    Ok(())
}

fn main() {}
