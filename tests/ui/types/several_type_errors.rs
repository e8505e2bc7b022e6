use fixtures::OrderPlaced;
use inbox_core::inbox_handler;

#[inbox_handler(consumer = "billing")]
async fn charge(_order: OrderPlaced, _tx: &mut u8, _limit: u32) -> Option<()> {
    None
}

fn main() {}
