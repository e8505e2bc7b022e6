use serde::de::DeserializeOwned;

use crate::error::DecodeError;
use crate::incoming::Incoming;

/// A type that a handler can take as its message, decoded from the payload.
///
/// Every type that serde can deserialize without borrowing is one, decoded as JSON. A type with another
/// encoding implements this trait itself.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the message of an inbox handler",
    label = "not decodable",
    note = "the first parameter is decoded from the body of the message: its type needs `#[derive(serde::Deserialize)]`",
    note = "if `{Self}` is an extractor such as `State<T>`, it belongs behind the transaction"
)]
pub trait Message: Sized {
    /// Decodes the message.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] sends the message to the dead letters: no retry can mend its bytes.
    fn decode(incoming: &Incoming<'_>) -> Result<Self, DecodeError>;
}

#[diagnostic::do_not_recommend]
impl<T: DeserializeOwned> Message for T {
    fn decode(incoming: &Incoming<'_>) -> Result<Self, DecodeError> {
        serde_json::from_slice(&incoming.body()).map_err(DecodeError::new)
    }
}
