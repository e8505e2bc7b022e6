use super::{ORDER, deliver};
use inbox_core::{Handler, StateMap};
use sqlx::Sqlite;

fn handler() -> impl Handler<Db = Sqlite> {
    use fixtures::{OrderPlaced, Outcome};
    use inbox_core::{Tx, inbox_handler};

    #[derive(serde::Deserialize)]
    struct Local(OrderPlaced);

    #[inbox_handler(consumer = "billing")]
    async fn charge(Local(order): Local, _tx: &mut Tx<Sqlite>) -> Outcome {
        drop(order);
        Ok(())
    }

    charge::handler()
}

#[tokio::test]
async fn a_local_handler_runs() {
    deliver(handler(), ORDER, &StateMap::new())
        .await
        .expect("success");
}
