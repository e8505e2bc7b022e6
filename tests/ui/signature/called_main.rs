#![allow(unused_variables)]

mod handlers {
    use fixtures::{OrderPlaced, Outcome};
    use inbox_core::{Tx, inbox_handler};
    use sqlx::Postgres;

    #[inbox_handler(consumer = "billing")]
    async fn main(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Outcome {
        Ok(())
    }
}

fn main() {}
