use inbox_core::inbox_handler;

#[inbox_handler(consumer = "billing")]
const CHARGE: u8 = 1;

fn main() {}
