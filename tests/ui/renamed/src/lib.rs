//! Handlers of a library that denies every lint, and that sees the framework under other names only.
#![deny(
    warnings,
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

use sqlx::Sqlite;

/// Found under the dependency's new name.
///
/// # Errors
///
/// The database's.
#[mailbox::inbox_handler(consumer = "renamed", crate = "::mailbox")]
pub async fn renamed(order: String, tx: &mut mailbox::Tx<Sqlite>) -> Result<(), sqlx::Error> {
    let _done = sqlx::query("SELECT ?")
        .bind(order)
        .execute(&mut *tx)
        .await?;
    Ok(())
}

/// Found through the facade.
///
/// # Errors
///
/// The database's.
#[facade::inbox::inbox_handler(consumer = "facade", crate = ::facade::inbox)]
pub async fn through_facade(
    order: String,
    tx: &mut facade::inbox::Tx<Sqlite>,
) -> Result<(), facade::inbox::HandlerError> {
    let _done = sqlx::query("SELECT ?")
        .bind(order)
        .execute(&mut *tx)
        .await?;
    Ok(())
}

/// A re-export inside the crate.
pub mod own {
    pub use mailbox as inbox;
}

/// Found through the crate's own re-export.
///
/// # Errors
///
/// None.
#[mailbox::inbox_handler(consumer = "own", crate = crate::own::inbox)]
#[allow(clippy::unused_async)]
pub async fn through_own(_order: String, _tx: &mut mailbox::Tx<Sqlite>) -> Result<(), String> {
    Ok(())
}

/// A batch, found under the dependency's new name.
///
/// # Errors
///
/// The database's.
#[mailbox::inbox_handler(
    consumer = "batch",
    order_by = "key",
    batch(max = 8, linger = "5ms"),
    crate = "::mailbox"
)]
pub async fn renamed_batch(
    orders: mailbox::Batch<String>,
    tx: &mut mailbox::Tx<Sqlite>,
    mailbox::State(limit): mailbox::State<i64>,
) -> Result<(), sqlx::Error> {
    for order in &orders {
        let _done = sqlx::query("SELECT ?, ?, ?")
            .bind(order.id().as_str())
            .bind(order.as_str())
            .bind(limit)
            .execute(&mut *tx)
            .await?;
    }
    Ok(())
}

facade::ignore_messages!(ignored, String, Sqlite, "ignored");

/// The name of the consumer of the handler that a macro of the facade declared.
#[must_use]
pub const fn ignored_consumer() -> &'static str {
    let _handler = ignored::handler();
    <ignored as facade::inbox::Handler>::SPEC.consumer
}
