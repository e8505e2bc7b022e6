//! Correct uses of the attribute, one module each, compiled and, where it says more, run.

// clippy sees no test in a helper of tests.
#![allow(clippy::expect_used)]

mod aliased_types;
mod batches;
mod cfg_off;
mod deny_lints;
mod deprecated_handler;
mod direct_call;
mod doc_comments;
mod error_types;
mod extractors;
mod from_runtime;
mod inside_function;
mod inside_macro_rules;
mod instrumented;
mod minimal;
mod no_prelude;
mod odd_forms;
mod options;
mod other_attributes;
mod other_crates;
mod parameter_patterns;
mod raw_identifiers;
mod return_types;
mod shadowed_names;
mod two_handlers;
mod visibility;

use inbox_core::{CallError, ConsumerName, Envelope, Handler, Incoming, MessageId, StateMap, Tx};
use sqlx::{Sqlite, SqlitePool};

const ORDER: &str = r#"{"account": "a-1", "amount_cents": 250}"#;

/// Delivers a message to a handler as the runtime does, in a transaction on an empty database.
async fn deliver<H: Handler<Db = Sqlite>>(
    handler: H,
    payload: &'static str,
    state: &StateMap,
) -> Result<(), CallError> {
    deliver_all(handler, &[payload], state).await
}

/// The same with messages `m-1`, `m-2` and so on in one call.
async fn deliver_all<H: Handler<Db = Sqlite>>(
    handler: H,
    payloads: &[&'static str],
    state: &StateMap,
) -> Result<(), CallError> {
    let pool = SqlitePool::connect("sqlite::memory:")
        .await
        .expect("a database in memory");
    let mut tx = Tx::begin(&pool).await.expect("a transaction");
    let consumer = ConsumerName::new(H::SPEC.consumer).expect("a consumer name");
    let messages: Vec<(Envelope, MessageId)> = (1..)
        .zip(payloads)
        .map(|(number, payload)| {
            let id = format!("m-{number}");
            let envelope = Envelope::new(*payload).id(id.clone());
            (envelope, MessageId::new(&id).expect("a message id"))
        })
        .collect();
    let incoming: Vec<Incoming<'_>> = messages
        .iter()
        .map(|(envelope, id)| Incoming::new(envelope, id, &consumer, "orders", 1, state))
        .collect();
    handler.call(&incoming, &mut tx).await
}
