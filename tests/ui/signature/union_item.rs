use inbox_core::inbox_handler;

#[inbox_handler(consumer = "billing")]
union Charge {
    cents: u64,
}

fn main() {}
