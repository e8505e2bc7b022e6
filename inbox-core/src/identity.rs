use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde_json::value::RawValue;

use crate::envelope::Envelope;
use crate::handler::{DedupKey, OrderBy};
use crate::pointer::{self, Found};

/// The longest message id, in bytes; the same on every database.
pub const MAX_ID_BYTES: usize = 255;

/// The media type of a CloudEvent in structured JSON mode.
pub const CLOUD_EVENTS_JSON: &str = "application/cloudevents+json";

/// The prefixes under which brokers carry the attributes of a CloudEvent in binary mode: HTTP and Kafka
/// (`ce-`, `ce_`) and the two spellings of the AMQP binding.
const CLOUD_EVENTS_PREFIXES: [&str; 4] = ["ce-", "ce_", "cloudEvents:", "cloudEvents_"];

/// The id under which a message is claimed: what its producer called it, byte for byte.
///
/// Text of 1 to [`MAX_ID_BYTES`] bytes, not blank, without U+0000 (PostgreSQL text cannot hold it). Never
/// trimmed, never cut, compared as bytes. As a handler parameter it gives the handler a copy.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(Arc<str>);

impl MessageId {
    /// Checks an id and keeps it.
    ///
    /// # Errors
    ///
    /// [`InvalidMessageId`] says why it cannot be a dedup key.
    pub fn new(id: &str) -> Result<Self, InvalidMessageId> {
        if id.is_empty() {
            Err(InvalidMessageId::Empty)
        } else if id.chars().all(char::is_whitespace) {
            Err(InvalidMessageId::Blank)
        } else if id.len() > MAX_ID_BYTES {
            Err(InvalidMessageId::TooLong { bytes: id.len() })
        } else if id.contains('\0') {
            Err(InvalidMessageId::Nul)
        } else {
            Ok(Self(id.into()))
        }
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for MessageId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// Why a text cannot be a message id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidMessageId {
    /// It has no characters.
    #[error("the message id is empty")]
    Empty,
    /// It has only white space.
    #[error("the message id is blank")]
    Blank,
    /// It does not fit; it is refused, not cut, because two ids cut alike would be one.
    #[error("the message id has {bytes} bytes, at most {MAX_ID_BYTES} are allowed")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// It contains U+0000, which PostgreSQL cannot store in text.
    #[error("the message id contains the character U+0000")]
    Nul,
}

/// Where a source looks for the id of a message, in its order.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum IdSource {
    /// The broker's own property for it, set by the producer (AMQP `message-id`).
    Property,
    /// The CloudEvents attribute `id`, in binary or structured mode.
    CloudEvents,
    /// A header set by the producer.
    Header(String),
}

/// Why a message has no usable identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdProblem {
    /// No id was found where the consumer looks for it.
    #[error("the message id is missing: looked at {looked_at}")]
    Missing {
        /// The places.
        looked_at: String,
    },
    /// An id was found, and it cannot be a dedup key.
    #[error("{problem} (from {place})")]
    Invalid {
        /// The place.
        place: String,
        /// What is wrong.
        problem: InvalidMessageId,
        /// The text found.
        found: String,
    },
    /// One header has several values that differ.
    #[error("the header `{name}` has several different values")]
    Ambiguous {
        /// The header.
        name: String,
    },
    /// The id is not text, or the payload that should hold it cannot be read.
    #[error("the message id cannot be read from {place}: {problem}")]
    Unreadable {
        /// The place.
        place: String,
        /// What is wrong.
        problem: String,
    },
}

impl IdProblem {
    /// The id as it was found, where there was one.
    #[must_use]
    pub fn found(&self) -> Option<&str> {
        match self {
            Self::Invalid { found, .. } => Some(found),
            Self::Missing { .. } | Self::Ambiguous { .. } | Self::Unreadable { .. } => None,
        }
    }
}

/// Why a header or property of this name cannot identify a message, if it cannot: brokers and proxies set it
/// anew for each delivery, attempt or copy.
#[must_use]
pub fn broker_side_identifier(name: &str) -> Option<&'static str> {
    const PER_DELIVERY: &str =
        "the broker sets it anew on every delivery, so no duplicate would be found";
    const PER_COPY: &str =
        "it names one stored copy, and the same message sent again gets another one";
    const PER_ATTEMPT: &str = "it is made anew for each request or attempt";
    const NOT_UNIQUE: &str = "it is not unique to a message";
    let plain: String = name
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .map(|c| c.to_ascii_lowercase())
        .collect();
    match plain.as_str() {
        "deliverytag"
        | "redelivered"
        | "consumertag"
        | "xdeliverycount"
        | "deliverycount"
        | "xdeath"
        | "xacquiredcount"
        | "receipthandle"
        | "approximatereceivecount"
        | "numdelivered"
        | "deliveryattempt"
        | "deliverynumber"
        | "natsnumdelivered" => Some(PER_DELIVERY),
        "offset" | "partition" | "sequence" | "xstreamoffset" | "streamsequence"
        | "natssequence" | "natslastsequence" | "sqsmessageid" | "entryid" => Some(PER_COPY),
        "traceparent" | "tracestate" | "xrequestid" | "requestid" | "xamzntraceid"
        | "signature" | "webhooksignature" | "stripesignature" => Some(PER_ATTEMPT),
        "timestamp" | "receivedat" | "webhooktimestamp" | "md5ofbody" | "exchange"
        | "routingkey" | "correlationid" => Some(NOT_UNIQUE),
        name if name.starts_with("xfirstdeath") || name.starts_with("xlastdeath") => {
            Some(PER_DELIVERY)
        }
        _ => None,
    }
}

impl Envelope {
    /// The id under which a consumer claims this message: where `key` says, or where the source looks
    /// (`places`, in order), put behind the source's `scope` if it has one.
    ///
    /// # Errors
    ///
    /// [`IdProblem`] when there is none or it cannot be used; nothing is guessed.
    pub fn identify(
        &self,
        key: DedupKey,
        places: &[IdSource],
        scope: Option<&str>,
    ) -> Result<MessageId, IdProblem> {
        let (place, found) = match key {
            DedupKey::MessageId => self.look_at(places)?,
            DedupKey::Header(name) => {
                let place = Place::Header(name);
                (
                    place,
                    self.header_text(name)?.ok_or_else(|| place.missing())?,
                )
            }
            DedupKey::Payload(pointer) => (Place::Payload(pointer), self.payload_text(pointer)?),
            DedupKey::CloudEvents => {
                let (Some(source), Some(id)) = (
                    self.cloud_events_attribute("source")?,
                    self.cloud_events_attribute("id")?,
                ) else {
                    return Err(IdProblem::Missing {
                        looked_at: "the CloudEvents attributes `source` and `id`".to_owned(),
                    });
                };
                check(Place::CloudEventsId, &id)?;
                // The length in front keeps (`a:b`, `c`) and (`a`, `b:c`) apart.
                (
                    Place::CloudEvents,
                    Cow::Owned(format!("{}:{source}:{id}", source.len())),
                )
            }
        };
        match scope {
            None => check(place, &found),
            Some(scope) => {
                check(place, &found)?;
                check(place, &format!("{scope}/{found}"))
            }
        }
    }

    /// The value that orders this message among others, if it has one that is text or an integer.
    #[must_use]
    pub fn order_key(&self, by: OrderBy) -> Option<Cow<'_, str>> {
        match by {
            OrderBy::Key => self.key.as_deref().map(Cow::Borrowed),
            OrderBy::Header(name) => self.header_text(name).ok().flatten(),
            OrderBy::Payload(pointer) => self.payload_text(pointer).ok(),
        }
    }

    /// The type of this message: the broker's property for it, else the CloudEvents attribute `type`.
    #[must_use]
    pub fn type_name(&self) -> Option<Cow<'_, str>> {
        match self.message_type.as_deref() {
            Some(name) if !name.is_empty() => Some(Cow::Borrowed(name)),
            _ => self
                .cloud_events_attribute("type")
                .ok()
                .flatten()
                .filter(|name| !name.is_empty()),
        }
    }

    fn look_at<'a>(
        &'a self,
        places: &'a [IdSource],
    ) -> Result<(Place<'a>, Cow<'a, str>), IdProblem> {
        for source in places {
            let found = match source {
                IdSource::Property => self.id.as_deref().map(Cow::Borrowed),
                IdSource::CloudEvents => self.cloud_events_attribute("id")?,
                IdSource::Header(name) => self.header_text(name)?,
            };
            if let Some(found) = found {
                return Ok((Place::of(source), found));
            }
        }
        let looked_at: Vec<_> = places
            .iter()
            .map(|source| Place::of(source).to_string())
            .collect();
        Err(IdProblem::Missing {
            looked_at: looked_at.join(", "),
        })
    }

    fn header_text(&self, name: &str) -> Result<Option<Cow<'_, str>>, IdProblem> {
        let mut values = self
            .headers
            .iter()
            .filter(|(n, _)| *n == name)
            .map(|(_, value)| value);
        let Some(first) = values.next() else {
            return Ok(None);
        };
        if values.any(|other| other != first) {
            return Err(IdProblem::Ambiguous {
                name: name.to_owned(),
            });
        }
        match std::str::from_utf8(first) {
            Ok(text) => Ok(Some(Cow::Borrowed(text))),
            Err(_) => Err(IdProblem::Unreadable {
                place: Place::Header(name).to_string(),
                problem: "it is not UTF-8".to_owned(),
            }),
        }
    }

    fn payload_text(&self, pointer: &str) -> Result<Cow<'_, str>, IdProblem> {
        let place = Place::Payload(pointer);
        let unreadable = |problem| IdProblem::Unreadable {
            place: place.to_string(),
            problem,
        };
        let found =
            pointer::find(&self.payload, pointer).map_err(|error| unreadable(error.to_string()))?;
        let kind = match found {
            None | Some(Found::Null) => return Err(place.missing()),
            Some(Found::Text(text)) => return Ok(Cow::Owned(text)),
            Some(Found::Boolean) => "a boolean",
            Some(Found::Fraction) => "a number with a fraction",
            Some(Found::Array) => "an array",
            Some(Found::Object) => "an object",
        };
        Err(unreadable(format!(
            "{kind} is no id; use a string or an integer"
        )))
    }

    /// An attribute of the CloudEvent that this message is, in binary or structured mode.
    fn cloud_events_attribute(&self, name: &str) -> Result<Option<Cow<'_, str>>, IdProblem> {
        for prefix in CLOUD_EVENTS_PREFIXES {
            if let Some(text) = self.header_text(&format!("{prefix}{name}"))? {
                return Ok(Some(text));
            }
        }
        if !self.is_structured_cloud_event() {
            return Ok(None);
        }
        let document: serde_json::Value =
            serde_json::from_slice(&self.payload).map_err(|error| IdProblem::Unreadable {
                place: "the structured CloudEvent".to_owned(),
                problem: error.to_string(),
            })?;
        Ok(document
            .get(name)
            .and_then(|value| value.as_str())
            .map(|text| Cow::Owned(text.to_owned())))
    }
}

/// Where an id is looked for, in words; made into text only when something is wrong.
#[derive(Debug, Clone, Copy)]
enum Place<'a> {
    Property,
    CloudEventsId,
    CloudEvents,
    Header(&'a str),
    Payload(&'a str),
}

impl<'a> Place<'a> {
    fn of(source: &'a IdSource) -> Self {
        match source {
            IdSource::Property => Self::Property,
            IdSource::CloudEvents => Self::CloudEventsId,
            IdSource::Header(name) => Self::Header(name),
        }
    }

    fn missing(self) -> IdProblem {
        IdProblem::Missing {
            looked_at: self.to_string(),
        }
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Property => f.write_str("the message id property"),
            Self::CloudEventsId => f.write_str("the CloudEvents attribute `id`"),
            Self::CloudEvents => f.write_str("the CloudEvents attributes"),
            Self::Header(name) => write!(f, "the header `{name}`"),
            Self::Payload(pointer) => write!(f, "`{pointer}` in the payload"),
        }
    }
}

fn check(place: Place<'_>, text: &str) -> Result<MessageId, IdProblem> {
    MessageId::new(text).map_err(|problem| IdProblem::Invalid {
        place: place.to_string(),
        problem,
        found: text.to_owned(),
    })
}

/// The `data` member of a structured CloudEvent as it stands in the payload, or the whole payload where there
/// is none (decoding then fails with the decoder's own words).
pub(crate) fn structured_data(payload: &[u8]) -> Cow<'_, [u8]> {
    #[derive(serde::Deserialize)]
    struct Structured<'a> {
        #[serde(borrow)]
        data: Option<&'a RawValue>,
    }
    match serde_json::from_slice::<Structured<'_>>(payload) {
        Ok(Structured { data: Some(data) }) => Cow::Borrowed(data.get().as_bytes()),
        _ => Cow::Borrowed(payload),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [IdSource; 2] = [IdSource::Property, IdSource::CloudEvents];

    #[test]
    fn ids_are_refused_not_repaired() {
        assert_eq!(MessageId::new(""), Err(InvalidMessageId::Empty));
        assert_eq!(MessageId::new("   "), Err(InvalidMessageId::Blank));
        assert_eq!(MessageId::new("a\0b"), Err(InvalidMessageId::Nul));
        assert_eq!(
            MessageId::new(&"a".repeat(256)),
            Err(InvalidMessageId::TooLong { bytes: 256 })
        );
        assert_eq!(
            MessageId::new(" a ").map(|id| id.as_str().to_owned()),
            Ok(" a ".to_owned())
        );
        assert!(MessageId::new(&"a".repeat(MAX_ID_BYTES)).is_ok());
    }

    #[test]
    fn the_property_comes_before_cloud_events() {
        let envelope = Envelope::new("{}").header("ce-id", "ce-1");
        assert_eq!(
            envelope
                .identify(DedupKey::MessageId, &ALL, None)
                .unwrap()
                .as_str(),
            "ce-1"
        );
        let envelope = envelope.id("m-1");
        assert_eq!(
            envelope
                .identify(DedupKey::MessageId, &ALL, None)
                .unwrap()
                .as_str(),
            "m-1"
        );
    }

    #[test]
    fn an_empty_id_is_an_error_and_not_a_reason_to_look_further() {
        let envelope = Envelope::new("{}").id("").header("ce-id", "ce-1");
        let problem = envelope
            .identify(DedupKey::MessageId, &ALL, None)
            .unwrap_err();
        assert!(problem.to_string().contains("empty"), "{problem}");
    }

    #[test]
    fn differing_values_of_one_header_are_ambiguous() {
        let envelope = Envelope::new("").header("x-id", "1").header("x-id", "2");
        assert!(matches!(
            envelope.identify(DedupKey::Header("x-id"), &ALL, None),
            Err(IdProblem::Ambiguous { .. })
        ));
        let envelope = Envelope::new("").header("x-id", "1").header("x-id", "1");
        assert_eq!(
            envelope
                .identify(DedupKey::Header("x-id"), &ALL, None)
                .unwrap()
                .as_str(),
            "1"
        );
    }

    #[test]
    fn payload_pointers_take_strings_and_integers() {
        let envelope = Envelope::new(r#"{"order":{"id":"o-1","n":7,"f":1.5,"none":null}}"#);
        let id = |pointer| envelope.identify(DedupKey::Payload(pointer), &[], None);
        assert_eq!(id("/order/id").unwrap().as_str(), "o-1");
        assert_eq!(id("/order/n").unwrap().as_str(), "7");
        assert!(matches!(id("/order/f"), Err(IdProblem::Unreadable { .. })));
        assert!(matches!(id("/order/none"), Err(IdProblem::Missing { .. })));
        assert!(matches!(id("/nowhere"), Err(IdProblem::Missing { .. })));
    }

    #[test]
    fn cloud_events_keys_never_run_together() {
        let key = |source: &'static str, id: &'static str| {
            Envelope::new("")
                .header("ce-source", source)
                .header("ce-id", id)
                .identify(DedupKey::CloudEvents, &[], None)
                .unwrap()
        };
        assert_ne!(key("a:b", "c"), key("a", "b:c"));
    }

    #[test]
    fn structured_cloud_events_give_id_type_and_data() {
        let envelope = Envelope::new(
            r#"{"specversion":"1.0","id":"e-1","source":"/shop","type":"T","data":{"a": 1}}"#,
        )
        .content_type("application/cloudevents+json; charset=utf-8");
        assert_eq!(
            envelope
                .identify(DedupKey::MessageId, &ALL, None)
                .unwrap()
                .as_str(),
            "e-1"
        );
        assert_eq!(envelope.type_name().as_deref(), Some("T"));
        assert_eq!(&*structured_data(&envelope.payload), br#"{"a": 1}"#);
    }

    #[test]
    fn the_scope_is_part_of_the_id_and_of_its_length() {
        let envelope = Envelope::new("").id("m-1");
        assert_eq!(
            envelope
                .identify(DedupKey::MessageId, &ALL, Some("eu"))
                .unwrap()
                .as_str(),
            "eu/m-1"
        );
        let envelope = Envelope::new("").id("a".repeat(MAX_ID_BYTES));
        assert!(
            envelope
                .identify(DedupKey::MessageId, &ALL, Some("eu"))
                .is_err()
        );
        // An empty id does not become usable through its scope.
        assert!(
            Envelope::new("")
                .id("")
                .identify(DedupKey::MessageId, &ALL, Some("eu"))
                .is_err()
        );
    }

    #[test]
    fn broker_side_names_are_known_in_any_spelling() {
        for name in [
            "delivery_tag",
            "x-delivery-count",
            "x-death",
            "Redelivered",
            "offset",
            "X-Request-Id",
            "traceparent",
        ] {
            assert!(broker_side_identifier(name).is_some(), "{name}");
        }
        for name in ["x-event-id", "message-id", "webhook-id", "Nats-Msg-Id"] {
            assert!(broker_side_identifier(name).is_none(), "{name}");
        }
    }
}
