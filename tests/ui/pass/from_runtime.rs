use super::{ORDER, deliver};
use fixtures::{OrderPlaced, Outcome};
use inbox_runtime::{Inbox, StateMap, Tx, inbox_handler};
use sqlx::{Sqlite, SqlitePool};

#[inbox_handler(consumer = "billing")]
async fn charge(_order: OrderPlaced, _tx: &mut Tx<Sqlite>) -> Outcome {
    Ok(())
}

#[tokio::test]
async fn the_attribute_of_the_runtime_crate_makes_the_same_handlers() {
    deliver(charge::handler(), ORDER, &StateMap::new())
        .await
        .expect("success");
    let pool = SqlitePool::connect_lazy("sqlite::memory:").expect("a pool");
    let _builder = Inbox::builder(pool).register(charge::handler());
}
