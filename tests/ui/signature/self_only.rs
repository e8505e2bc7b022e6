#![allow(unused_variables)]

use fixtures::Outcome;
use inbox_core::inbox_handler;

struct Billing;

impl Billing {
    #[inbox_handler(consumer = "billing")]
    async fn charge(&mut self) -> Outcome {
        Ok(())
    }
}

fn main() {}
