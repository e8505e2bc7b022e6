use inbox_core::inbox_handler;

#[inbox_handler(consumer = "billing")]
unsafe extern "C" {
    fn charge();
}

fn main() {}
