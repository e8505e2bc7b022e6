use super::{ORDER, deliver};
use fixtures::{OrderPlaced, Rates};
use inbox_core::{HandlerError, State, StateMap, Tx, inbox_handler};
use sqlx::Sqlite;

type Order = OrderPlaced;
type LiteTx = Tx<Sqlite>;
type Shared<T> = State<T>;
type Fallible<T> = Result<T, HandlerError>;
type Done = Fallible<()>;

#[inbox_handler(consumer = "billing")]
async fn charge(order: Order, tx: &mut LiteTx, rates: Shared<Rates>) -> Done {
    sqlx::query("SELECT ?")
        .bind(order.amount_cents * rates.0.percent)
        .execute(&mut *tx)
        .await?;
    Ok(())
}

#[inbox_handler(consumer = "billing")]
async fn qualified(
    _order: self::Order,
    _tx: &mut self::LiteTx,
) -> std::result::Result<(), inbox_core::HandlerError> {
    Ok(())
}

#[inbox_handler(consumer = "billing")]
async fn one_parameter(_order: (String, u8), _tx: &mut LiteTx) -> Fallible<()> {
    Err(HandlerError::new("declined"))
}

#[tokio::test]
async fn aliases_are_seen_through() {
    let mut state = StateMap::new();
    state.insert(Rates { percent: 7 });
    deliver(charge::handler(), ORDER, &state)
        .await
        .expect("success");
    deliver(qualified::handler(), ORDER, &state)
        .await
        .expect("success");
    deliver(one_parameter::handler(), r#"["a", 1]"#, &state)
        .await
        .expect_err("a failure");
}
