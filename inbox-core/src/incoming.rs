use std::borrow::Cow;

use crate::consumer::ConsumerName;
use crate::envelope::Envelope;
use crate::extract::StateMap;
use crate::identity::MessageId;

/// What decoding and extractors see of the message in work.
#[derive(Debug, Clone, Copy)]
pub struct Incoming<'a> {
    envelope: &'a Envelope,
    id: &'a MessageId,
    consumer: &'a ConsumerName,
    source: &'a str,
    attempt: u32,
    state: &'a StateMap,
}

impl<'a> Incoming<'a> {
    /// Puts a view together; a unit test of an extractor uses it too.
    #[must_use]
    pub const fn new(
        envelope: &'a Envelope,
        id: &'a MessageId,
        consumer: &'a ConsumerName,
        source: &'a str,
        attempt: u32,
        state: &'a StateMap,
    ) -> Self {
        Self {
            envelope,
            id,
            consumer,
            source,
            attempt,
            state,
        }
    }

    /// The message as its producer made it.
    #[must_use]
    pub const fn envelope(&self) -> &'a Envelope {
        self.envelope
    }

    /// The id under which the message is claimed.
    #[must_use]
    pub const fn id(&self) -> &'a MessageId {
        self.id
    }

    /// The consumer that handles it.
    #[must_use]
    pub const fn consumer(&self) -> &'a ConsumerName {
        self.consumer
    }

    /// The name of the source that delivered it, as given to the builder.
    #[must_use]
    pub const fn source(&self) -> &'a str {
        self.source
    }

    /// The number of this attempt: 1 for the first, one more for every counted failure before.
    #[must_use]
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// What the builder was given with `.state(..)`.
    #[must_use]
    pub const fn state(&self) -> &'a StateMap {
        self.state
    }

    /// The bytes to decode: the payload, or the `data` member of a structured CloudEvent as it stands there.
    #[must_use]
    pub fn body(&self) -> Cow<'a, [u8]> {
        if self.envelope.is_structured_cloud_event() {
            crate::identity::structured_data(&self.envelope.payload)
        } else {
            Cow::Borrowed(&self.envelope.payload)
        }
    }
}
