use std::ops::{Deref, DerefMut};
use std::slice;
use std::vec;

use crate::error::{CallError, DecodeError, ExtractError};
use crate::extract::{FromDelivery, Requirements, SharedState, State};
use crate::identity::MessageId;
use crate::incoming::Incoming;
use crate::message::Message;

/// Messages that a handler processes together, in one transaction: each of them new to its consumer and decoded, in
/// the order in which they came, and at least one.
///
/// The parameter of a handler with the option `batch(max = ..)`. What was processed before and what cannot be decoded
/// is not in it. When the handler fails, the batch is rolled back and tried again in halves, until the message that
/// does not work is alone.
///
/// ```
/// use inbox_core::{Batch, MessageId};
///
/// struct Payment { account: i64, cents: i64 }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // In a unit test; the runtime makes them otherwise.
/// let payments: Batch<Payment> = [
///     (MessageId::new("p-1")?, Payment { account: 7, cents: 100 }),
///     (MessageId::new("p-2")?, Payment { account: 8, cents: 250 }),
/// ]
/// .into_iter()
/// .collect();
/// // One array for each column, for `unnest($1, $2)`.
/// let accounts: Vec<i64> = payments.iter().map(|payment| payment.account).collect();
/// let ids: Vec<&str> = payments.iter().map(|payment| payment.id().as_str()).collect();
/// # assert_eq!((accounts, ids), (vec![7, 8], vec!["p-1", "p-2"]));
/// # assert_eq!(payments.iter().map(|payment| payment.cents).sum::<i64>(), 350);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch<M>(Vec<Batched<M>>);

/// A message of a [`Batch`], with its id. Dereferences to the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batched<M> {
    id: MessageId,
    message: M,
}

impl<M> Batched<M> {
    /// The id under which the message is claimed.
    #[must_use]
    pub const fn id(&self) -> &MessageId {
        &self.id
    }

    /// The message alone.
    #[must_use]
    pub fn into_message(self) -> M {
        self.message
    }
}

impl<M> Deref for Batched<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.message
    }
}

impl<M> DerefMut for Batched<M> {
    fn deref_mut(&mut self) -> &mut M {
        &mut self.message
    }
}

impl<M> Batch<M> {
    /// The number of messages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none, which the runtime never hands to a handler.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The messages in the order in which they came.
    pub fn iter(&self) -> slice::Iter<'_, Batched<M>> {
        self.0.iter()
    }

    /// The messages, changeable: to sort them, for example.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [Batched<M>] {
        &mut self.0
    }
}

impl<M> FromIterator<(MessageId, M)> for Batch<M> {
    fn from_iter<I: IntoIterator<Item = (MessageId, M)>>(messages: I) -> Self {
        let batched = |(id, message)| Batched { id, message };
        Self(messages.into_iter().map(batched).collect())
    }
}

impl<M> IntoIterator for Batch<M> {
    type Item = Batched<M>;
    type IntoIter = vec::IntoIter<Batched<M>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a, M> IntoIterator for &'a Batch<M> {
    type Item = &'a Batched<M>;
    type IntoIter = slice::Iter<'a, Batched<M>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

/// What the first parameter of a handler with the option `batch` can be: [`Batch`] of a [`Message`].
#[diagnostic::on_unimplemented(
    message = "a handler with `batch(..)` takes `Batch<M>`, found `{Self}`",
    label = "not a batch",
    note = "write `Batch<M>`, where `M` is the type of one message, or remove `batch(..)` from the attribute"
)]
pub trait Messages: Sized {
    /// Decodes the messages of a call.
    ///
    /// # Errors
    ///
    /// [`CallError::Decode`] for a single one, [`CallError::DecodeSome`] where they are several.
    fn decode_all(incoming: &[Incoming<'_>]) -> Result<Self, CallError>;
}

impl<M: Message> Messages for Batch<M> {
    fn decode_all(incoming: &[Incoming<'_>]) -> Result<Self, CallError> {
        let mut batch = Vec::with_capacity(incoming.len());
        let mut undecodable = Vec::new();
        for (position, incoming_one) in incoming.iter().enumerate() {
            match M::decode(incoming_one) {
                Ok(message) => batch.push(Batched {
                    id: incoming_one.id().clone(),
                    message,
                }),
                Err(error) if incoming.len() == 1 => return Err(error.into()),
                Err(_) => undecodable.push(position),
            }
        }
        if undecodable.is_empty() {
            Ok(Self(batch))
        } else {
            Err(CallError::DecodeSome(undecodable))
        }
    }
}

/// What the first parameter of a handler without the option `batch` can be: every [`Message`].
///
/// The attribute asks for it instead of [`Message`] where the parameter is spelled `Batch<..>`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` needs the option `batch`",
    label = "this handler takes one message",
    note = "add `batch(max = 100)` to the attribute, or take the message itself"
)]
pub trait SingleMessage: Sized {
    /// Decodes the message.
    ///
    /// # Errors
    ///
    /// The message's.
    fn decode(incoming: &Incoming<'_>) -> Result<Self, DecodeError>;
}

#[diagnostic::do_not_recommend]
impl<T: Message> SingleMessage for T {
    fn decode(incoming: &Incoming<'_>) -> Result<Self, DecodeError> {
        Message::decode(incoming)
    }
}

/// A type that a handler with the option `batch` can take as a parameter behind the transaction.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not available to a handler with `batch(..)`",
    label = "not for a batch",
    note = "a batch has no id, attempt or headers of its own: each message has its id (`for order in &orders {{ order.id() }}`), and what else came with a message is decoded by its `impl Message`",
    note = "write `State<T>` for a value that the builder is given with `.state(..)`, or implement `FromBatch`"
)]
pub trait FromBatch: Sized {
    /// Says what the builder must be able to provide; asked once, before the first message.
    fn requirements(needs: &mut Requirements) {
        let _ = needs;
    }

    /// Makes the value for one call.
    ///
    /// # Errors
    ///
    /// [`ExtractError`] is a fault of the configuration: the messages are kept and tried again.
    fn from_batch(incoming: &[Incoming<'_>]) -> Result<Self, ExtractError>;
}

impl<T: SharedState> FromBatch for State<T> {
    fn requirements(needs: &mut Requirements) {
        <Self as FromDelivery>::requirements(needs);
    }

    fn from_batch(incoming: &[Incoming<'_>]) -> Result<Self, ExtractError> {
        match incoming.first() {
            Some(first) => Self::from_delivery(first),
            None => Err(ExtractError::new("a batch without a message")),
        }
    }
}
