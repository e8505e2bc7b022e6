//! An editor without a screen: rust-analyzer on a small crate that uses the framework, and texts that show a place or
//! a range in themselves.

mod editor;
mod markup;
mod server;
mod shop;

pub use editor::Editor;
pub use markup::{Mark, Marked, Place, annotated};
