//! The attribute `#[inbox_handler]`. Its documentation is at the re-exports in `inbox-core` and `inbox-runtime`.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod args;
mod batch;
mod check;
mod companion;
mod diag;
mod expand;
mod handler;
mod item;
mod model;
mod options;
mod parameters;
mod path;
mod reader;
mod rejected;
mod retry;
mod spec;
mod suggest;
#[cfg(test)]
mod tests;
mod types;
mod values;

use path::Root;
use proc_macro::TokenStream;

/// Makes an inbox handler of an `async fn`: register it with `.register(name::handler())`.
#[proc_macro_attribute]
pub fn inbox_handler(args: TokenStream, item: TokenStream) -> TokenStream {
    handler::expand(args.into(), item.into(), Root::Crate("inbox_core")).into()
}

/// Makes an inbox handler of an `async fn`: register it with `.register(name::handler())`.
///
/// This one serves a crate that depends on `inbox-runtime` alone.
#[proc_macro_attribute]
pub fn inbox_handler_runtime(args: TokenStream, item: TokenStream) -> TokenStream {
    handler::expand(args.into(), item.into(), Root::Crate("inbox_runtime")).into()
}
