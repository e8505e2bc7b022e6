//! Handlers whose bodies say nothing about the attribute. The test `lints` compares what is found in this file with
//! what is found without the attribute.
#![warn(
    future_incompatible,
    keyword_idents,
    let_underscore,
    missing_copy_implementations,
    missing_debug_implementations,
    missing_docs,
    nonstandard_style,
    refining_impl_trait,
    rust_2018_idioms,
    rust_2021_compatibility,
    rust_2024_compatibility,
    single_use_lifetimes,
    trivial_casts,
    trivial_numeric_casts,
    unit_bindings,
    unnameable_types,
    unreachable_pub,
    unused,
    unused_crate_dependencies,
    unused_import_braces,
    unused_lifetimes,
    unused_macro_rules,
    unused_qualifications,
    unused_results,
    variant_size_differences,
    clippy::all,
    clippy::cargo,
    clippy::nursery,
    clippy::pedantic,
    clippy::restriction
)]
#![forbid(unsafe_code)]

use inbox_core::{Attempt, Batch, HandlerError, State, Tx, inbox_handler};
use sqlx::Postgres;

/// A message.
#[derive(Debug, Clone, serde::Deserialize)]
pub struct Order {
    /// How much.
    pub cents: i64,
}

/// An empty body.
#[inbox_handler(consumer = "empty")]
pub async fn empty(_order: Order, _tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    Ok(())
}

/// An early return.
#[inbox_handler(consumer = "early", on = ["OrderPlaced", "OrderChanged"], from = "orders", timeout = "5s", max_attempts = 3, retry(first = "1s", longest = "5m"))]
pub async fn early_return(order: Order, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    if order.cents < 0 {
        return Err(HandlerError::reject("negative"));
    }
    tx.savepoint().await?.release().await?;
    Ok(())
}

/// A question mark, in a handler with extractors.
#[inbox_handler(consumer = "question", key = "header:x-event-id", isolation = "serializable")]
pub async fn question_mark(order: Order, tx: &mut Tx<Postgres>, State(rate): State<i64>, _attempt: Attempt) -> Result<(), sqlx::Error> {
    let _done = sqlx::query("SELECT $1").bind(order.cents.saturating_mul(rate)).execute(&mut *tx).await?;
    Ok(())
}

/// A batch, with an extractor and the options that speak of order and transactions.
#[inbox_handler(consumer = "batch", order_by = "payload:/account", batch(max = 500, linger = "5ms"), own_transaction = false)]
pub async fn batch(orders: Batch<Order>, tx: &mut Tx<Postgres>, State(rate): State<i64>) -> Result<(), sqlx::Error> {
    for order in &orders {
        let query = sqlx::query("SELECT $1, $2").bind(order.id().as_str()).bind(order.cents.saturating_mul(rate));
        let _done = query.execute(&mut *tx).await?;
    }
    Ok(())
}

/// A body that never returns.
#[inbox_handler(consumer = "never")]
pub async fn never(_order: Order, _tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    core::future::pending().await
}

/// A name that is a keyword.
#[inbox_handler(consumer = "keyword")]
pub(crate) async fn r#move(r#type: Order, _tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    drop(r#type);
    Ok(())
}

/// Instrumented above.
#[tracing::instrument(skip_all)]
#[inbox_handler(consumer = "above")]
pub async fn above(_order: Order, _tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    Ok(())
}

/// Instrumented below.
#[inbox_handler(consumer = "below")]
#[tracing::instrument(skip_all)]
pub async fn below(_order: Order, _tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    Ok(())
}

/// Deprecated.
#[deprecated]
#[inbox_handler(consumer = "deprecated")]
pub async fn deprecated(_order: Order, _tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    Ok(())
}

/// A message of the past.
#[deprecated]
pub type Old = Order;

/// What is expected in the function is expected for its types.
#[inbox_handler(consumer = "expected")]
#[expect(deprecated, unused_parens, reason = "the message is old")]
pub async fn expected(_order: (Old), _tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    Ok(())
}

/// What is allowed under a condition as well.
#[inbox_handler(consumer = "allowed")]
#[cfg_attr(all(), inline, allow(deprecated, clippy::allow_attributes, clippy::allow_attributes_without_reason))]
pub async fn allowed(_order: Old, _tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    Ok(())
}

/// Under a condition.
#[inbox_handler(consumer = "conditional", crate = ::inbox_core)]
#[cfg_attr(all(), cfg(all()), must_use)]
pub async fn conditional(_order: Order, _tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    Ok(())
}

/// Declares a handler.
macro_rules! handler {
    ($name:ident: $message:ty, $transaction:ty => $output:ty) => {
        /// Made by a macro.
        #[inbox_handler(consumer = "macro")]
        pub async fn $name(_message: $message, _tx: &mut $transaction) -> $output {
            Ok(())
        }
    };
}

handler!(declared: Order, Tx<Postgres> => Result<(), HandlerError>);

/// Declares a handler of batches.
macro_rules! batch_handler {
    ($name:ident: $batch:ty, $max:expr) => {
        /// Made by a macro.
        #[inbox_handler(consumer = "batch_macro", batch(max = $max))]
        pub async fn $name(_messages: $batch, _tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
            Ok(())
        }
    };
}

batch_handler!(declared_batch: Batch<Order>, 5);

/// A module with a private handler and another `inbox` in scope.
pub mod inbox {
    use super::{HandlerError, Order, Postgres, Tx, inbox_handler};

    /// Private, and used by nobody.
    #[inbox_handler(consumer = "private")]
    async fn unused(_order: Order, _tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
        Ok(())
    }

    /// Inside of a function.
    pub fn function() {
        #[inbox_handler(consumer = "local")]
        async fn local(_order: Order, _tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
            Ok(())
        }
        let _future = local;
    }
}

/// The bodies are looked at as ever.
#[inbox_handler(consumer = "careless")]
pub async fn careless(order: Order, _tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    let unused = order.clone();
    Ok(())
}
