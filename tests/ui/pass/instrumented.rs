use super::{ORDER, deliver};
use fixtures::{OrderPlaced, Outcome};
use inbox_core::{HandlerError, StateMap, Tx, inbox_handler};
use sqlx::Sqlite;
use tracing::{Span, instrument};

#[instrument(skip_all, fields(account = %order.account), err)]
#[inbox_handler(consumer = "billing")]
async fn above(order: OrderPlaced, tx: &mut Tx<Sqlite>) -> Outcome {
    sqlx::query("SELECT ?")
        .bind(order.amount_cents)
        .execute(&mut *tx)
        .await?;
    Ok(())
}

#[inbox_handler(consumer = "billing")]
#[instrument(skip(tx), ret)]
async fn below(order: OrderPlaced, tx: &mut Tx<Sqlite>) -> Outcome {
    drop(tx.savepoint().await?);
    if order.amount_cents > 0 {
        return Err(HandlerError::new("declined"));
    }
    Ok(())
}

#[inbox_handler(consumer = "billing")]
#[instrument(name = "named", skip_all)]
async fn names_its_span(_order: OrderPlaced, _tx: &mut Tx<Sqlite>) -> Outcome {
    match Span::current().metadata().map(tracing::Metadata::name) {
        Some("named") => Ok(()),
        other => Err(HandlerError::new(format!("in the span {other:?}"))),
    }
}

#[instrument(skip_all)]
#[inbox_handler(consumer = "billing")]
pub(crate) async fn named_by_the_function(_order: OrderPlaced, _tx: &mut Tx<Sqlite>) -> Outcome {
    match Span::current().metadata().map(tracing::Metadata::name) {
        Some("named_by_the_function") => Ok(()),
        other => Err(HandlerError::new(format!("in the span {other:?}"))),
    }
}

#[tokio::test]
async fn the_span_covers_the_body_whether_it_stands_above_or_below() {
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry());
    let state = StateMap::new();
    deliver(names_its_span::handler(), ORDER, &state)
        .await
        .expect("the span of the attribute below");
    deliver(named_by_the_function::handler(), ORDER, &state)
        .await
        .expect("the span of the attribute above");
}

#[tokio::test]
async fn both_run() {
    deliver(above::handler(), ORDER, &StateMap::new())
        .await
        .expect("success");
    deliver(below::handler(), ORDER, &StateMap::new())
        .await
        .expect_err("a failure");
}
