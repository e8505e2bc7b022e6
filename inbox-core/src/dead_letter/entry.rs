use std::time::SystemTime;

use bytes::Bytes;

use crate::document::InvalidDocument;
use crate::envelope::Envelope;

/// A dead letter as it is kept, without its payload and headers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetterEntry {
    /// Its number. Later entries have higher ones.
    pub id: i64,
    /// The source that delivered the message.
    pub source: String,
    /// The consumer that gave it up; `None` when no consumer takes it.
    pub consumer: Option<String>,
    /// The message's id, with U+0000 escaped and cut where it is longer than a valid one.
    pub message_id: Option<String>,
    /// The message's type.
    pub message_type: Option<String>,
    /// The handler's name at that time.
    pub handler: Option<String>,
    /// Why: a word of [`DeadLetterReason`](crate::DeadLetterReason), or one of a newer version.
    pub reason: String,
    /// Why, in words.
    pub failure: String,
    /// How many failures were counted.
    pub attempts: u32,
    /// When it failed first, by the database's clock.
    pub first_failed_at: SystemTime,
    /// When it failed last, by the database's clock.
    pub last_failed_at: SystemTime,
    /// When it was replayed last; `None` while it is open, also when it failed again after a replay.
    pub replayed_at: Option<SystemTime>,
    /// Who replayed it last.
    pub replayed_by: Option<String>,
    /// How often it was replayed.
    pub replays: u32,
    /// The size of its payload in bytes.
    pub payload_bytes: u64,
}

impl DeadLetterEntry {
    /// Whether nobody has replayed it, or it failed again after that.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.replayed_at.is_none()
    }
}

/// A dead letter as it is kept, with everything of its message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredDeadLetter {
    /// What is known of it.
    pub entry: DeadLetterEntry,
    /// The payload, byte for byte.
    pub payload: Bytes,
    /// Headers and properties as they are stored: [`Envelope::to_document`].
    pub document: String,
}

impl StoredDeadLetter {
    /// The message as it was delivered.
    ///
    /// # Errors
    ///
    /// When something else than this framework has changed the stored headers.
    pub fn envelope(&self) -> Result<Envelope, InvalidDocument> {
        Envelope::from_document(&self.document, self.payload.clone())
    }
}
