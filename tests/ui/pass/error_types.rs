use super::{ORDER, deliver};
use fixtures::OrderPlaced;
use inbox_core::{BoxError, CallError, Handler, HandlerError, StateMap, Tx, inbox_handler};
use sqlx::Sqlite;
use std::error::Error;

#[derive(Debug, thiserror::Error)]
enum BillingError {
    #[error("declined")]
    Declined,
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

/// Like the report types of popular error crates: made from any error, and no error itself.
struct Report(BoxError);

impl<E: Error + Send + Sync + 'static> From<E> for Report {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl From<Report> for BoxError {
    fn from(report: Report) -> Self {
        report.0
    }
}

#[inbox_handler(consumer = "custom")]
async fn custom(order: OrderPlaced, tx: &mut Tx<Sqlite>) -> Result<(), BillingError> {
    sqlx::query("SELECT ?")
        .bind(order.amount_cents)
        .execute(&mut *tx)
        .await?;
    Err(BillingError::Declined)
}

#[inbox_handler(consumer = "boxed")]
async fn boxed(
    _order: OrderPlaced,
    tx: &mut Tx<Sqlite>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    sqlx::query("no statement").execute(&mut *tx).await?;
    Ok(())
}

#[inbox_handler(consumer = "report")]
async fn report(_order: OrderPlaced, tx: &mut Tx<Sqlite>) -> Result<(), Report> {
    sqlx::query("no statement").execute(&mut *tx).await?;
    Ok(())
}

#[inbox_handler(consumer = "database")]
async fn database(_order: OrderPlaced, tx: &mut Tx<Sqlite>) -> sqlx::Result<()> {
    sqlx::query("no statement").execute(&mut *tx).await?;
    Ok(())
}

#[inbox_handler(consumer = "text")]
async fn text(_order: OrderPlaced, _tx: &mut Tx<Sqlite>) -> Result<(), &'static str> {
    Err("declined")
}

#[inbox_handler(consumer = "own")]
async fn own(_order: OrderPlaced, _tx: &mut Tx<Sqlite>) -> Result<(), HandlerError> {
    Err(HandlerError::reject("declined"))
}

#[inbox_handler(consumer = "infallible")]
async fn infallible(
    _order: OrderPlaced,
    _tx: &mut Tx<Sqlite>,
) -> Result<(), std::convert::Infallible> {
    Ok(())
}

async fn error_of<H: Handler<Db = Sqlite>>(handler: H) -> HandlerError {
    match deliver(handler, ORDER, &StateMap::new()).await {
        Err(CallError::Handler(error)) => error,
        other => panic!("no error of the handler: {other:?}"),
    }
}

#[tokio::test]
async fn errors_arrive_as_the_handlers() {
    assert_eq!(error_of(custom::handler()).await.to_string(), "declined");
    assert!(
        error_of(boxed::handler())
            .await
            .to_string()
            .contains("syntax")
    );
    assert!(
        error_of(report::handler())
            .await
            .to_string()
            .contains("syntax")
    );
    assert!(
        error_of(database::handler())
            .await
            .to_string()
            .contains("syntax")
    );
    assert_eq!(error_of(text::handler()).await.to_string(), "declined");
    assert!(error_of(own::handler()).await.is_rejected());
    deliver(infallible::handler(), ORDER, &StateMap::new())
        .await
        .expect("success");
}
