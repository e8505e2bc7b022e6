use std::fmt;
use std::time::SystemTime;

use bytes::Bytes;

use crate::identity::CLOUD_EVENTS_JSON;

/// A message as its producer made it: identity, type, headers and the payload's own bytes.
///
/// An adapter fills it from what the broker delivered and changes nothing on the way; every field but the
/// payload may be missing. As a handler parameter it gives the handler a copy (the payload is shared, not
/// copied).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Envelope {
    /// The id in the broker's own property for it (AMQP `message-id`), not validated yet.
    pub id: Option<String>,
    /// The type in the broker's own property for it (AMQP `type`).
    pub message_type: Option<String>,
    /// The media type of the payload.
    pub content_type: Option<String>,
    /// What the producer wants to correlate this message with.
    pub correlation_id: Option<String>,
    /// The key that orders this message among others: routing key, partition key, message group.
    pub key: Option<String>,
    /// When the producer says it was published.
    pub published_at: Option<SystemTime>,
    /// Headers in the order of arrival.
    pub headers: Headers,
    /// The payload, byte for byte.
    pub payload: Bytes,
}

impl Envelope {
    /// An envelope with a payload and nothing else.
    #[must_use]
    pub fn new(payload: impl Into<Bytes>) -> Self {
        Self {
            payload: payload.into(),
            ..Self::default()
        }
    }

    /// Sets the id.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Sets the message type.
    #[must_use]
    pub fn message_type(mut self, message_type: impl Into<String>) -> Self {
        self.message_type = Some(message_type.into());
        self
    }

    /// Sets the media type of the payload.
    #[must_use]
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    /// Sets the correlation id.
    #[must_use]
    pub fn correlation_id(mut self, correlation_id: impl Into<String>) -> Self {
        self.correlation_id = Some(correlation_id.into());
        self
    }

    /// Sets the ordering key.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Bytes>) -> Self {
        self.headers.push(name, value);
        self
    }

    /// Whether the payload is a CloudEvent in structured JSON mode
    /// (CloudEvents 1.0.2, HTTP and AMQP bindings, "structured content mode").
    #[must_use]
    pub fn is_structured_cloud_event(&self) -> bool {
        self.content_type.as_deref().is_some_and(|media| {
            let essence = media.split(';').next().unwrap_or_default().trim();
            essence.eq_ignore_ascii_case(CLOUD_EVENTS_JSON)
        })
    }
}

/// Header names and values, in the order of arrival; a name may occur more than once.
///
/// Values are bytes, because brokers carry bytes. As a handler parameter it gives the handler a copy.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, Bytes)>);

impl Headers {
    /// No headers.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a header behind the others.
    pub fn push(&mut self, name: impl Into<String>, value: impl Into<Bytes>) {
        self.0.push((name.into(), value.into()));
    }

    /// The first value of `name`, compared exactly.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.0
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| &**value)
    }

    /// The first value of `name` as text; `None` also when it is not UTF-8.
    #[must_use]
    pub fn get_str(&self, name: &str) -> Option<&str> {
        self.get(name)
            .and_then(|value| std::str::from_utf8(value).ok())
    }

    /// Every value of `name`.
    pub fn get_all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> + 'a {
        self.0
            .iter()
            .filter(move |(n, _)| n == name)
            .map(|(_, value)| &**value)
    }

    /// All headers.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().map(|(name, value)| (name.as_str(), &**value))
    }

    /// The number of headers.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(
                self.iter()
                    .map(|(name, value)| (name, value.escape_ascii().to_string())),
            )
            .finish()
    }
}

impl<N: Into<String>, V: Into<Bytes>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(headers: I) -> Self {
        Self(
            headers
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        )
    }
}
