use super::{ORDER, deliver};
use inbox_core::StateMap;

mod handlers {
    use fixtures::{OrderPlaced, Outcome};
    use inbox_core::{Tx, inbox_handler};
    use sqlx::Sqlite;

    #[inbox_handler(consumer = "billing")]
    pub(super) async fn charge(_order: OrderPlaced, _tx: &mut Tx<Sqlite>) -> Outcome {
        Ok(())
    }

    pub(crate) mod inner {
        use super::{OrderPlaced, Outcome, Sqlite, Tx, inbox_handler};

        #[inbox_handler(consumer = "refunds")]
        pub(in crate::visibility) async fn refund(
            _order: OrderPlaced,
            _tx: &mut Tx<Sqlite>,
        ) -> Outcome {
            Ok(())
        }
    }
}

// One import brings the function and what is registered.
use handlers::charge;
use handlers::inner::refund;

#[tokio::test]
async fn one_import_is_enough() {
    deliver(charge::handler(), ORDER, &StateMap::new())
        .await
        .expect("success");
    deliver(refund::handler(), ORDER, &StateMap::new())
        .await
        .expect("success");
    let _callable = (charge, refund);
}
