//! Types that the cases share.

use inbox_core::HandlerError;

/// A message.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
pub struct OrderPlaced {
    /// The account to charge.
    pub account: String,
    /// How much.
    pub amount_cents: i64,
}

/// A value of the application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rates {
    /// The commission.
    pub percent: i64,
}

/// What the handlers return.
pub type Outcome = Result<(), HandlerError>;
