//! The values of the options, each with its rules.

pub(crate) mod consumer;
pub(crate) mod duration;
pub(crate) mod flag;
mod isolation;
mod key;
pub(crate) mod literal;
mod names;
pub(crate) mod number;
mod order;
mod place;

pub(crate) use isolation::Isolation;
pub(crate) use key::DedupKey;
pub(crate) use names::Names;
pub(crate) use order::OrderBy;
pub(crate) use place::Place;
