use inbox_core::inbox_handler;

struct Charge {
    #[inbox_handler(consumer = "billing")]
    cents: u64,
}

fn main() {}
