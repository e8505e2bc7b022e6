//! The values of the options, each with its rules.

pub(crate) mod attempts;
pub(crate) mod consumer;
mod isolation;
mod key;
pub(crate) mod literal;
mod names;
pub(crate) mod timeout;

pub(crate) use isolation::Isolation;
pub(crate) use key::DedupKey;
pub(crate) use names::Names;
