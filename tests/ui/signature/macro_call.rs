use inbox_core::inbox_handler;

macro_rules! handlers {
    () => {};
}

#[inbox_handler(consumer = "billing")]
handlers! {}

fn main() {}
