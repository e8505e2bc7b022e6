use inbox_core::inbox_handler;

struct Charge;

#[inbox_handler(consumer = "billing")]
impl Charge {}

fn main() {}
