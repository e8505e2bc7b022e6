use inbox_core::inbox_handler;

#[inbox_handler(consumer = "billing")]
type Charge = u8;

fn main() {}
