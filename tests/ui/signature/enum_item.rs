use inbox_core::inbox_handler;

#[inbox_handler(consumer = "billing")]
enum Charge {}

fn main() {}
