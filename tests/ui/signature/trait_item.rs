use inbox_core::inbox_handler;

#[inbox_handler(consumer = "billing")]
trait Charge {}

fn main() {}
