//! However the return type is written, a failure is the handler's.

use super::{ORDER, deliver};
use fixtures::OrderPlaced;
use inbox_core::{BoxError, CallError, Handler, HandlerError, StateMap, Tx, inbox_handler};
use sqlx::Sqlite;

type Fallible<T> = Result<T, BoxError>;
type Done = Fallible<()>;

#[inbox_handler(consumer = "alias-with-parameter")]
async fn alias_with_parameter(_order: OrderPlaced, tx: &mut Tx<Sqlite>) -> Fallible<()> {
    sqlx::query("no statement").execute(&mut *tx).await?;
    Ok(())
}

#[inbox_handler(consumer = "alias-without-parameter")]
#[expect(clippy::needless_return)]
async fn alias_without_parameter(_order: OrderPlaced, _tx: &mut Tx<Sqlite>) -> Done {
    return Err("declined".into());
}

#[inbox_handler(consumer = "fully-qualified")]
async fn fully_qualified(
    _order: OrderPlaced,
    tx: &mut Tx<Sqlite>,
) -> ::std::result::Result<(), ::inbox_core::HandlerError> {
    sqlx::query("no statement").execute(&mut *tx).await?;
    Ok(())
}

#[inbox_handler(consumer = "boxed")]
async fn boxed(
    order: OrderPlaced,
    _tx: &mut Tx<Sqlite>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync + 'static>> {
    order.account.parse::<u8>()?;
    Ok(())
}

#[inbox_handler(consumer = "path")]
async fn through_a_path(_order: OrderPlaced, _tx: &mut Tx<Sqlite>) -> self::Fallible<()> {
    Err(HandlerError::reject("declined"))?
}

#[inbox_handler(consumer = "macro")]
async fn through_a_macro(_order: OrderPlaced, _tx: &mut Tx<Sqlite>) -> done!() {
    Err("declined".into())
}

macro_rules! done {
    () => {
        Result<(), HandlerError>
    };
}
use done;

async fn assert_fails<H: Handler<Db = Sqlite>>(handler: H) {
    let outcome = deliver(handler, ORDER, &StateMap::new()).await;
    assert!(
        matches!(outcome, Err(CallError::Handler(_))),
        "{}: {outcome:?}",
        H::SPEC.consumer
    );
}

#[tokio::test]
async fn a_failure_in_any_form_is_the_handlers() {
    assert_fails(alias_with_parameter::handler()).await;
    assert_fails(alias_without_parameter::handler()).await;
    assert_fails(fully_qualified::handler()).await;
    assert_fails(boxed::handler()).await;
    assert_fails(through_a_path::handler()).await;
    assert_fails(through_a_macro::handler()).await;
}
