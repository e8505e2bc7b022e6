use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::fmt::{self, Write as _};

use sha2::{Digest as _, Sha256};

use crate::envelope::{Envelope, Headers};
use crate::error::ExtractError;
use crate::identity::MessageId;
use crate::incoming::Incoming;

/// A type that a handler can take as a parameter behind the transaction.
///
/// Implement it for your own types to hand them to handlers.
///
/// ```
/// use inbox_core::{ExtractError, FromDelivery, Incoming};
///
/// struct Tenant(String);
///
/// impl FromDelivery for Tenant {
///     fn from_delivery(incoming: &Incoming<'_>) -> Result<Self, ExtractError> {
///         let tenant = incoming.envelope().headers.get_str("x-tenant");
///         Ok(Tenant(tenant.unwrap_or("default").to_owned()))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not available to inbox handlers",
    label = "not an extractor",
    note = "write `State<{Self}>` for a value that the builder is given with `.state(..)`, or implement `FromDelivery`",
    note = "the message is the first parameter, and there is only one"
)]
pub trait FromDelivery: Sized {
    /// Says what the builder must be able to provide; asked once, before the first message.
    fn requirements(needs: &mut Requirements) {
        let _ = needs;
    }

    /// Makes the value for one message.
    ///
    /// # Errors
    ///
    /// [`ExtractError`] is a fault of the configuration: the message is kept and tried again.
    fn from_delivery(incoming: &Incoming<'_>) -> Result<Self, ExtractError>;
}

/// What the handlers' parameters need from the builder.
#[derive(Debug, Default)]
pub struct Requirements(Vec<StateRequirement>);

/// One type of state that a handler asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateRequirement {
    id: TypeId,
    name: &'static str,
}

impl StateRequirement {
    /// The type's name.
    #[must_use]
    pub const fn type_name(&self) -> &'static str {
        self.name
    }
}

impl Requirements {
    /// Asks for a value of type `T` in the builder's state.
    pub fn state<T: Any>(&mut self) {
        self.0.push(StateRequirement {
            id: TypeId::of::<T>(),
            name: type_name::<T>(),
        });
    }

    /// The requirements that `state` does not meet.
    #[must_use]
    pub fn missing(&self, state: &StateMap) -> Vec<StateRequirement> {
        self.0
            .iter()
            .filter(|needed| !state.0.contains_key(&needed.id))
            .copied()
            .collect()
    }
}

/// The values given to the builder with `.state(..)`, one per type.
#[derive(Default)]
pub struct StateMap(HashMap<TypeId, (&'static str, Box<dyn Any + Send + Sync>)>);

impl StateMap {
    /// No state.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value; a second one of the same type replaces the first, and `false` says that it did.
    pub fn insert<T: SharedState>(&mut self, value: T) -> bool {
        self.0
            .insert(TypeId::of::<T>(), (type_name::<T>(), Box::new(value)))
            .is_none()
    }

    /// The value of type `T`.
    #[must_use]
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0
            .get(&TypeId::of::<T>())
            .and_then(|(_, value)| value.downcast_ref())
    }
}

impl fmt::Debug for StateMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(self.0.values().map(|(name, _)| name))
            .finish()
    }
}

/// What can be shared between handlers as [`State`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be shared between handlers",
    label = "needs `Clone + Send + Sync + 'static`",
    note = "each message gets a clone, on any thread: add `#[derive(Clone)]` or wrap it in `Arc<..>`, and what changes in a `Mutex`"
)]
pub trait SharedState: Clone + Send + Sync + 'static {}

#[diagnostic::do_not_recommend]
impl<T: Clone + Send + Sync + 'static> SharedState for T {}

/// A value of the application, given to the builder with `.state(..)` and cloned for each message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State<T>(pub T);

impl<T: SharedState> FromDelivery for State<T> {
    fn requirements(needs: &mut Requirements) {
        needs.state::<T>();
    }

    fn from_delivery(incoming: &Incoming<'_>) -> Result<Self, ExtractError> {
        incoming
            .state()
            .get::<T>()
            .cloned()
            .map(Self)
            .ok_or_else(|| {
                ExtractError::new(format!(
                    "no state of type `{}`; add `.state(value)` to the builder",
                    type_name::<T>()
                ))
            })
    }
}

impl FromDelivery for MessageId {
    fn from_delivery(incoming: &Incoming<'_>) -> Result<Self, ExtractError> {
        Ok(incoming.id().clone())
    }
}

impl FromDelivery for Headers {
    fn from_delivery(incoming: &Incoming<'_>) -> Result<Self, ExtractError> {
        Ok(incoming.envelope().headers.clone())
    }
}

impl FromDelivery for Envelope {
    fn from_delivery(incoming: &Incoming<'_>) -> Result<Self, ExtractError> {
        Ok(incoming.envelope().clone())
    }
}

/// The number of this attempt: 1 for the first, one more for every counted failure before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempt(pub u32);

impl FromDelivery for Attempt {
    fn from_delivery(incoming: &Incoming<'_>) -> Result<Self, ExtractError> {
        Ok(Self(incoming.attempt()))
    }
}

/// A key for calls to outside services that is the same for every attempt at one message by one consumer,
/// over restarts too, and different for any other consumer or message.
///
/// What a handler does outside its transaction is not rolled back with it; a service that takes an
/// idempotency key can still do it once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey {
    consumer: String,
    message_id: String,
}

impl IdempotencyKey {
    /// The key of a consumer's work on a message.
    #[must_use]
    pub fn new(consumer: &str, message_id: &str) -> Self {
        Self {
            consumer: consumer.to_owned(),
            message_id: message_id.to_owned(),
        }
    }

    /// The key of one call: 64 hexadecimal digits. Give each outside call in a handler a step name of its own.
    #[must_use]
    pub fn step(&self, step: &str) -> String {
        let mut hash = Sha256::new();
        for part in [&*self.consumer, &*self.message_id, step] {
            // Lengths first, so that no two different triples feed the same bytes.
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.finalize()
            .iter()
            .fold(String::with_capacity(64), |mut key, byte| {
                let _ = write!(key, "{byte:02x}");
                key
            })
    }
}

impl FromDelivery for IdempotencyKey {
    fn from_delivery(incoming: &Incoming<'_>) -> Result<Self, ExtractError> {
        Ok(Self::new(
            incoming.consumer().as_str(),
            incoming.id().as_str(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_idempotency_key_depends_on_consumer_message_and_step_alone() {
        let key = IdempotencyKey::new("billing", "m-1");
        assert_eq!(
            key.step("charge"),
            IdempotencyKey::new("billing", "m-1").step("charge")
        );
        // Pinned: the key must survive restarts and releases.
        assert_eq!(
            key.step("charge"),
            "4da1f29c2082d69327b4ea5003c018360987bc87696f46b0c152ad5e332b32a8"
        );
        assert_ne!(key.step("charge"), key.step("refund"));
        assert_ne!(
            key.step("charge"),
            IdempotencyKey::new("billing2", "m-1").step("charge")
        );
        assert_ne!(
            IdempotencyKey::new("a", "bc").step("d"),
            IdempotencyKey::new("ab", "c").step("d")
        );
    }

    #[test]
    fn missing_state_is_named() {
        let mut needs = Requirements::default();
        needs.state::<u64>();
        needs.state::<String>();
        let mut state = StateMap::new();
        assert!(state.insert(7_u64));
        assert!(
            !state.insert(8_u64),
            "the second value of a type is reported"
        );
        let missing = needs.missing(&state);
        assert_eq!(missing.len(), 1);
        assert!(missing[0].type_name().contains("String"));
    }
}
