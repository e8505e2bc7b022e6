//! No lint fires in what the attribute adds, whatever the crate denies.
#![deny(
    warnings,
    keyword_idents,
    let_underscore,
    missing_copy_implementations,
    missing_debug_implementations,
    missing_docs,
    nonstandard_style,
    refining_impl_trait,
    single_use_lifetimes,
    trivial_casts,
    trivial_numeric_casts,
    unnameable_types,
    unreachable_pub,
    unused,
    unused_import_braces,
    unused_lifetimes,
    unused_macro_rules,
    unused_qualifications,
    unused_results,
    variant_size_differences,
    clippy::all,
    clippy::nursery,
    clippy::pedantic
)]
#![forbid(unsafe_code)]

use fixtures::{OrderPlaced, Outcome, Rates};
use inbox_core::{HandlerError, State, Tx, inbox_handler};
use sqlx::{Postgres, Sqlite};

/// An empty body.
///
/// # Errors
///
/// None.
#[inbox_handler(consumer = "empty")]
#[allow(clippy::unused_async)]
async fn empty(_order: OrderPlaced, _tx: &mut Tx<Postgres>) -> Outcome {
    Ok(())
}

/// An early return.
#[inbox_handler(
    consumer = "early",
    on = "OrderPlaced",
    timeout = "5s",
    max_attempts = 3
)]
async fn early_return(order: OrderPlaced, tx: &mut Tx<Sqlite>) -> Outcome {
    if order.amount_cents < 0 {
        return Err(HandlerError::reject("negative"));
    }
    let savepoint = tx.savepoint().await?;
    savepoint.release().await?;
    Ok(())
}

/// A question mark in the last expression.
#[inbox_handler(
    consumer = "question",
    key = "header:x-event-id",
    isolation = "serializable"
)]
async fn question_mark(
    order: OrderPlaced,
    tx: &mut Tx<Sqlite>,
    State(rates): State<Rates>,
) -> Result<(), sqlx::Error> {
    let _done = sqlx::query("SELECT ?")
        .bind(order.amount_cents * rates.percent)
        .execute(&mut *tx)
        .await?;
    Ok(())
}

/// A body that never returns.
#[inbox_handler(consumer = "never")]
async fn never(_order: OrderPlaced, _tx: &mut Tx<Sqlite>) -> Outcome {
    std::future::pending().await
}

/// A body that always fails.
#[inbox_handler(consumer = "fails")]
#[allow(clippy::unused_async)]
async fn fails(_order: OrderPlaced, _tx: &mut Tx<Sqlite>) -> Outcome {
    Err(HandlerError::new("always"))
}

#[test]
fn the_handlers_exist() {
    let _handlers = (
        empty::handler(),
        early_return::handler(),
        question_mark::handler(),
        never::handler(),
        fails::handler(),
    );
}
