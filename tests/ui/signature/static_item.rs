use inbox_core::inbox_handler;

#[inbox_handler(consumer = "billing")]
static CHARGE: u8 = 1;

fn main() {}
