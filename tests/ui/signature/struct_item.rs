use inbox_core::inbox_handler;

#[inbox_handler(consumer = "billing")]
struct Charge;

fn main() {}
