use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::db::PayloadHash;
use crate::envelope::Envelope;

mod entry;
mod query;

pub use entry::{DeadLetterEntry, StoredDeadLetter};
pub use query::{DeadLetterOrder, DeadLetterQuery, DeadLetterState};

/// Why a message was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeadLetterReason {
    /// It has no id, or one that cannot be a dedup key.
    InvalidId,
    /// No handler takes its type.
    UnknownType,
    /// Its payload cannot be decoded.
    Undecodable,
    /// Its handler failed `max_attempts` times.
    AttemptsExhausted,
    /// Its handler rejected it.
    Rejected,
    /// Its handler ended the runtime's transaction and made its claim durable: whether the effect is complete
    /// is for a person to decide. The claim stays.
    Escaped,
    /// Another message under its id, with another payload, is an open dead letter of its consumer.
    Held,
    /// Another message under its id, with another payload, was processed. Its claim stays.
    Collision,
}

impl DeadLetterReason {
    const ALL: [Self; 8] = [
        Self::InvalidId,
        Self::UnknownType,
        Self::Undecodable,
        Self::AttemptsExhausted,
        Self::Rejected,
        Self::Escaped,
        Self::Held,
        Self::Collision,
    ];

    /// The word that is stored.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidId => "invalid_id",
            Self::UnknownType => "unknown_type",
            Self::Undecodable => "undecodable",
            Self::AttemptsExhausted => "attempts_exhausted",
            Self::Rejected => "rejected",
            Self::Escaped => "escaped",
            Self::Held => "held",
            Self::Collision => "collision",
        }
    }

    /// Whether an entry with this reason stands beside a claim that stays. Such an entry holds no message back: the
    /// claim does.
    #[must_use]
    pub const fn leaves_claim(self) -> bool {
        matches!(self, Self::Escaped | Self::Collision)
    }
}

impl FromStr for DeadLetterReason {
    type Err = UnknownReason;

    fn from_str(word: &str) -> Result<Self, UnknownReason> {
        let known = Self::ALL.into_iter().find(|reason| reason.as_str() == word);
        known.ok_or_else(|| UnknownReason {
            word: word.to_owned(),
        })
    }
}

/// A word that is none of the reasons that this version knows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{word}` is no reason for a dead letter; the reasons are {}", DeadLetterReason::ALL.map(DeadLetterReason::as_str).join(", "))]
pub struct UnknownReason {
    word: String,
}

impl fmt::Display for DeadLetterReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What happens to the entry that a dead letter already has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExistingEntry {
    /// The message failed again: the entry is open again, with the latest failure.
    Reopen,
    /// The message came again and was not tried: an open entry stays as it is. One that was replayed is open again,
    /// because the copy that it was replayed as goes now.
    Leave,
}

/// A failure's text in a form that every database can store: U+0000 is written as `\0`, and what is longer
/// than [`FailureText::MAX_BYTES`] is cut on a character border and marked as cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureText(String);

impl FailureText {
    /// The longest text kept, in bytes, without the mark.
    pub const MAX_BYTES: usize = 4000;

    /// Whether a text is storable as it is.
    pub(crate) fn takes(text: &str) -> bool {
        text.len() <= Self::MAX_BYTES && !text.contains('\0')
    }

    /// Makes `text` storable.
    #[must_use]
    pub fn new(text: impl fmt::Display) -> Self {
        let mut text = text.to_string().replace('\0', "\\0");
        if text.len() > Self::MAX_BYTES {
            let full = text.len();
            text.truncate(text.floor_char_boundary(Self::MAX_BYTES));
            text.push_str(&format!("... [cut, {full} bytes in all]"));
        }
        Self(text)
    }

    /// An error with everything in its `source()` chain.
    #[must_use]
    pub fn of_error(error: &(dyn std::error::Error + 'static)) -> Self {
        let mut text = String::new();
        for part in crate::error::chain(error).map(ToString::to_string) {
            // Wrappers often repeat their cause's text.
            if !text.contains(&part) {
                if !text.is_empty() {
                    text.push_str(": ");
                }
                text.push_str(&part);
            }
        }
        Self::new(text)
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A message that was given up, as it is written to the table of dead letters.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeadLetter<'a> {
    /// The source that delivered it.
    pub source: &'a str,
    /// The consumer that gave it up; `None` when no consumer takes it.
    pub consumer: Option<&'a str>,
    /// The handler's name, for people.
    pub handler: Option<&'a str>,
    /// The id, valid or not.
    pub id: Option<&'a str>,
    /// The message, whose payload and headers are kept as they are.
    pub envelope: &'a Envelope,
    /// Why.
    pub reason: DeadLetterReason,
    /// Why, in words.
    pub text: &'a FailureText,
    /// How many failures were counted.
    pub attempts: u32,
}

impl<'a> DeadLetter<'a> {
    /// A dead letter without consumer, handler, id and attempts.
    #[must_use]
    pub const fn new(
        source: &'a str,
        envelope: &'a Envelope,
        reason: DeadLetterReason,
        text: &'a FailureText,
    ) -> Self {
        Self {
            source,
            consumer: None,
            handler: None,
            id: None,
            envelope,
            reason,
            text,
            attempts: 0,
        }
    }

    /// The key under which a second copy of the same entry reopens it instead of adding one: source, consumer,
    /// payload, and the id. A message without the id that its consumer needs may still have one in the broker's
    /// property, which tells it from others; with neither, the payload alone does.
    #[must_use]
    pub fn entry_key(&self) -> Vec<u8> {
        let mut hash = Sha256::new();
        let payload = PayloadHash::of(&self.envelope.payload);
        let (kind, id): (&[u8], &str) = match (self.id, self.envelope.id.as_deref()) {
            (Some(id), _) => (b"id", id),
            (None, Some(property)) => (b"property", property),
            (None, None) => (b"", ""),
        };
        let parts: [&[u8]; 5] = [
            self.source.as_bytes(),
            self.consumer.unwrap_or_default().as_bytes(),
            kind,
            id.as_bytes(),
            payload.as_bytes(),
        ];
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.finalize().to_vec()
    }

    /// The id as text that every database can store: U+0000 escaped, and cut where it is absurdly long.
    #[must_use]
    pub fn storable_id(&self) -> Option<String> {
        self.id.map(|id| FailureText::new(id).0)
    }

    /// The message type as text that every database can store.
    #[must_use]
    pub fn storable_type(&self) -> Option<String> {
        self.envelope
            .type_name()
            .map(|name| FailureText::new(name).0)
    }

    /// The payload.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        &self.envelope.payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_on_a_character_border_and_marked() {
        let text = FailureText::new(format!("\0{}", "😀".repeat(5000)));
        assert!(text.as_str().starts_with("\\0😀"));
        assert!(text.as_str().ends_with("[cut, 20002 bytes in all]"));
        assert!(!text.as_str().contains('\0'));
    }

    #[test]
    fn reasons_are_known_by_their_words() {
        for reason in DeadLetterReason::ALL {
            assert_eq!(reason.as_str().parse(), Ok(reason));
        }
        let error = "poison"
            .parse::<DeadLetterReason>()
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("`poison`") && error.contains("rejected"),
            "{error}"
        );
    }

    #[test]
    fn the_entry_key_tells_entries_apart() {
        let envelope = Envelope::new("body");
        let text = FailureText::new("x");
        let base = DeadLetter::new("orders", &envelope, DeadLetterReason::Undecodable, &text);
        let with = |f: &dyn Fn(&mut DeadLetter<'_>)| {
            let mut letter = base.clone();
            f(&mut letter);
            letter.entry_key()
        };
        let other = Envelope::new("other");
        let named = Envelope::new("body").id("m-1");
        assert_eq!(base.entry_key(), with(&|l| l.attempts = 7));
        assert_ne!(base.entry_key(), with(&|l| l.id = Some("")));
        assert_ne!(base.entry_key(), with(&|l| l.consumer = Some("billing")));
        assert_ne!(
            base.entry_key(),
            DeadLetter {
                envelope: &named,
                ..base.clone()
            }
            .entry_key()
        );
        assert_ne!(
            base.entry_key(),
            DeadLetter {
                envelope: &other,
                ..base.clone()
            }
            .entry_key()
        );
    }
}
