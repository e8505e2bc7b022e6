//! A record of Kafka as an envelope, and the other way round.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use inbox_core::Envelope;
use rdkafka::message::{Header, Headers as _, Message, OwnedHeaders};

/// The headers that stand for what AMQP has properties for: Kafka has none.
pub(super) const ID: &str = "message-id";
pub(super) const TYPE: &str = "message-type";
const CORRELATION_ID: &str = "correlation-id";
const CONTENT_TYPE: &str = "content-type";

/// What orders records among each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OrderedBy {
    Key,
    Partition,
}

/// The record as its producer made it.
pub(super) fn envelope(
    record: &impl Message,
    ordered_by: OrderedBy,
    type_header: &str,
) -> Envelope {
    let payload = record.payload().unwrap_or_default();
    let mut envelope = Envelope::new(Bytes::copy_from_slice(payload));
    for header in record
        .headers()
        .into_iter()
        .flat_map(|headers| headers.iter())
    {
        // Without a value it is as good as absent.
        if let Some(value) = header.value {
            envelope
                .headers
                .push(header.key, Bytes::copy_from_slice(value));
        }
    }
    envelope.id = single(&envelope, ID);
    envelope.message_type = single(&envelope, type_header);
    envelope.content_type = single(&envelope, CONTENT_TYPE);
    envelope.correlation_id = single(&envelope, CORRELATION_ID);
    envelope.key = match ordered_by {
        OrderedBy::Key => record.key().map(key),
        OrderedBy::Partition => Some(format!("{}/{}", record.topic(), record.partition())),
    };
    envelope.published_at = match record.timestamp() {
        rdkafka::Timestamp::CreateTime(milliseconds) => u64::try_from(milliseconds)
            .ok()
            .and_then(|milliseconds| UNIX_EPOCH.checked_add(Duration::from_millis(milliseconds))),
        _ => None,
    };
    envelope
}

/// A header that has one value, and that is text. What is ambiguous is no property; as a header it is still there.
fn single(envelope: &Envelope, name: &str) -> Option<String> {
    let mut values = envelope
        .headers
        .iter()
        .filter(|(other, _)| *other == name)
        .map(|(_, value)| value);
    let value = values.next()?;
    if values.any(|other| other != value) {
        return None;
    }
    std::str::from_utf8(value).ok().map(str::to_owned)
}

/// Keys that are no text, or that a database could not store as text, stay apart as hex digits.
fn key(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => text.to_owned(),
        _ => {
            let start = char::REPLACEMENT_CHARACTER.to_string();
            bytes.iter().fold(start, |mut hex, byte| {
                use std::fmt::Write as _;
                let _ = write!(hex, "{byte:02x}");
                hex
            })
        }
    }
}

/// The headers of a record to publish.
pub(super) fn headers(envelope: &Envelope) -> Result<OwnedHeaders, String> {
    let mut headers = OwnedHeaders::new();
    for (key, value) in envelope.headers.iter() {
        if key.contains('\0') {
            return Err("the name of one of its headers contains U+0000".to_owned());
        }
        let value = Some(value);
        headers = headers.insert(Header { key, value });
    }
    for (key, property) in [
        (ID, &envelope.id),
        (TYPE, &envelope.message_type),
        (CONTENT_TYPE, &envelope.content_type),
        (CORRELATION_ID, &envelope.correlation_id),
    ] {
        let Some(property) = property else {
            continue;
        };
        let mut is_there = false;
        for (_, value) in envelope.headers.iter().filter(|(name, _)| *name == key) {
            if value != property.as_bytes() {
                return Err(format!(
                    "its header `{key}` and the property that this header stands for have different values"
                ));
            }
            is_there = true;
        }
        if !is_there {
            let value = Some(property.as_str());
            headers = headers.insert(Header { key, value });
        }
    }
    Ok(headers)
}

/// Milliseconds since 1970.
pub(super) fn timestamp(published_at: SystemTime) -> Option<i64> {
    let since = published_at.duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(since.as_millis()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdkafka::Timestamp;
    use rdkafka::message::OwnedMessage;

    fn record(payload: Option<&[u8]>, key: Option<&[u8]>, headers: OwnedHeaders) -> OwnedMessage {
        OwnedMessage::new(
            payload.map(<[u8]>::to_vec),
            key.map(<[u8]>::to_vec),
            "orders".to_owned(),
            Timestamp::CreateTime(1_000),
            3,
            17,
            Some(headers),
        )
    }

    fn read(record: &OwnedMessage) -> Envelope {
        envelope(record, OrderedBy::Key, TYPE)
    }

    #[test]
    fn what_is_published_is_read_again() {
        let published = Envelope::new("{}")
            .id("m-1")
            .message_type("OrderPlaced")
            .content_type("application/json")
            .correlation_id("c-1")
            .header("traceparent", "00-1")
            .key("acc-1");
        let sent = record(Some(b"{}"), Some(b"acc-1"), headers(&published).unwrap());
        let read = read(&sent);
        assert_eq!(read.id.as_deref(), Some("m-1"));
        assert_eq!(read.message_type.as_deref(), Some("OrderPlaced"));
        assert_eq!(read.content_type.as_deref(), Some("application/json"));
        assert_eq!(read.correlation_id.as_deref(), Some("c-1"));
        assert_eq!(read.key.as_deref(), Some("acc-1"));
        assert_eq!(read.published_at, Some(UNIX_EPOCH + Duration::from_secs(1)));
        // And it can be passed on as it is.
        let again = record(Some(b"{}"), None, headers(&read).unwrap());
        assert_eq!(again.headers().unwrap().count(), 5);
    }

    #[test]
    fn a_null_body_is_an_empty_payload_and_a_header_without_value_is_absent() {
        let nothing: Option<&[u8]> = None;
        let headers = OwnedHeaders::new().insert(Header {
            key: ID,
            value: nothing,
        });
        let read = read(&record(None, None, headers));
        assert!(read.payload.is_empty());
        assert_eq!(read.id, None);
        assert_eq!(read.headers.iter().count(), 0);
        assert_eq!(read.key, None);
    }

    #[test]
    fn an_ambiguous_id_is_no_property() {
        let twice = |a: &str, b: &str| {
            let headers = [a, b].iter().fold(OwnedHeaders::new(), |headers, value| {
                headers.insert(Header {
                    key: ID,
                    value: Some(*value),
                })
            });
            read(&record(Some(b""), None, headers)).id
        };
        assert_eq!(twice("m-1", "m-2"), None);
        assert_eq!(twice("m-1", "m-1").as_deref(), Some("m-1"));
    }

    #[test]
    fn keys_that_are_no_text_stay_apart() {
        assert_eq!(key(b"acc-1"), "acc-1");
        assert_eq!(key(&[0xff, 0]), "\u{fffd}ff00");
        assert_eq!(key(b"a\0"), "\u{fffd}6100");
        assert_ne!(key(&[0xff, 0]), key(b"ff00"));
    }

    #[test]
    fn a_partition_orders_its_records() {
        let record = record(Some(b""), Some(b"acc-1"), OwnedHeaders::new());
        let read = envelope(&record, OrderedBy::Partition, TYPE);
        assert_eq!(read.key.as_deref(), Some("orders/3"));
    }

    #[test]
    fn a_header_that_contradicts_a_property_is_refused() {
        let envelope = Envelope::new("").id("m-1").header(ID, "m-2");
        let problem = headers(&envelope).unwrap_err();
        assert!(problem.contains(ID), "{problem}");
    }
}
