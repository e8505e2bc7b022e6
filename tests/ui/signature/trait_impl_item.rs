use inbox_core::inbox_handler;

trait Charge {}

#[inbox_handler(consumer = "billing")]
impl Charge for u8 {}

fn main() {}
