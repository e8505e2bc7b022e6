use inbox_core::inbox_handler;

#[inbox_handler(consumer = "billing")]
mod charge {}

fn main() {}
