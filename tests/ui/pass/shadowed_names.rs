use super::{ORDER, deliver};
use inbox_core::StateMap;

#[allow(dead_code)]
mod handlers {
    mod core {}
    mod std {}
    mod alloc {}
    mod inbox_core {}
    struct Box;
    struct Future;
    struct Pin;
    struct Self_;
    enum Option {}
    trait Send {}
    trait From {}

    // The handler's own names of what the expansion means otherwise.
    type String = ::fixtures::OrderPlaced;
    type Result = ::fixtures::Outcome;
    type Tx = ::inbox_core::Tx<::sqlx::Sqlite>;
    use ::core::result::Result::Ok as Fine;
    use ::inbox_core::inbox_handler;

    #[allow(non_snake_case)]
    fn Ok() {}

    #[inbox_handler(consumer = "billing")]
    pub(super) async fn charge(__message: String, __tx: &mut Tx) -> Result {
        drop(__message);
        drop(__tx.savepoint().await);
        Fine(())
    }

    #[inbox_handler(consumer = "billing")]
    pub(super) async fn handler(_: String, _: &mut Tx) -> Result {
        Fine(())
    }
}

#[tokio::test]
async fn the_expansion_means_its_own_names() {
    deliver(handlers::charge::handler(), ORDER, &StateMap::new())
        .await
        .expect("success");
    deliver(handlers::handler::handler(), ORDER, &StateMap::new())
        .await
        .expect("success");
}
