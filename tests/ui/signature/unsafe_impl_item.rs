use inbox_core::inbox_handler;

struct Charge(*const u8);

#[inbox_handler(consumer = "billing")]
unsafe impl Send for Charge {}

fn main() {}
