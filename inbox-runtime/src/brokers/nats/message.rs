//! Messages of JetStream as envelopes, and back.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::header::{HeaderName, HeaderValue};
use async_nats::{HeaderMap, Message};
use inbox_core::Envelope;

/// The header by which JetStream itself knows copies of a message, for some minutes.
pub(super) const MESSAGE_ID: &str = "Nats-Msg-Id";

/// Headers for what other brokers have properties for. A producer may write them in either way.
const TYPE: [&str; 2] = ["type", "Type"];
const CONTENT_TYPE: [&str; 2] = ["content-type", "Content-Type"];
const CORRELATION_ID: [&str; 2] = ["correlation-id", "Correlation-Id"];

/// What the server says of a delivery, in the subject that its ack goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Delivered {
    /// How often it was delivered, this one included.
    pub(super) times: u64,
    /// Its place in the stream: for people, never an id.
    pub(super) sequence: u64,
    /// When the stream stored it.
    pub(super) stored_at: Option<SystemTime>,
}

impl Delivered {
    /// Reads `$JS.ACK.STREAM.CONSUMER.TIMES.SEQUENCE.CONSUMER_SEQUENCE.NANOSECONDS.PENDING`, into which newer servers put
    /// a domain and an account after `ACK`, and more at the end (ADR-15).
    pub(super) fn read(reply: &str) -> Option<Self> {
        let tokens: Vec<&str> = reply.strip_prefix("$JS.ACK.")?.split('.').collect();
        let tokens = match tokens.len() {
            7 => tokens.get(2..)?,
            9.. => tokens.get(4..)?,
            _ => return None,
        };
        let nanoseconds = tokens.get(3)?.parse().ok()?;
        Some(Self {
            times: tokens.first()?.parse().ok()?,
            sequence: tokens.get(1)?.parse().ok()?,
            stored_at: UNIX_EPOCH.checked_add(Duration::from_nanos(nanoseconds)),
        })
    }

    pub(super) fn earlier(self) -> u32 {
        u32::try_from(self.times.saturating_sub(1)).unwrap_or(u32::MAX)
    }
}

/// The message as its producer made it.
pub(super) fn envelope(message: Message, delivered: Delivered) -> Envelope {
    let mut envelope = Envelope::new(message.payload).key(message.subject.as_str());
    envelope.published_at = delivered.stored_at;
    let headers = message.headers.unwrap_or_default();
    envelope.id = one_of(&headers, &[MESSAGE_ID]);
    envelope.message_type = one_of(&headers, &TYPE);
    envelope.content_type = one_of(&headers, &CONTENT_TYPE);
    envelope.correlation_id = one_of(&headers, &CORRELATION_ID);
    let mut names: Vec<_> = headers.iter().collect();
    // The client keeps no order of arrival; one that is always the same is the next best.
    names.sort_unstable_by(|(one, _), (other, _)| {
        AsRef::<str>::as_ref(*one).cmp(AsRef::<str>::as_ref(*other))
    });
    for (name, values) in names {
        let name: &str = name.as_ref();
        for value in values {
            envelope.headers.push(name, value.as_str().to_owned());
        }
    }
    if envelope.type_name().is_none() {
        envelope.message_type = envelope.key.clone();
    }
    envelope
}

/// The value of a header, unless there are several that differ: which of them is meant, nobody knows.
fn one_of(headers: &HeaderMap, names: &[&str]) -> Option<String> {
    let mut values = names
        .iter()
        .flat_map(|name| headers.get_all(*name))
        .map(HeaderValue::as_str);
    let first = values.next()?;
    values.all(|other| other == first).then(|| first.to_owned())
}

/// The headers of a message to publish, with its properties.
pub(super) fn headers(envelope: &Envelope) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    let mut add = |name: &str, value: &[u8]| {
        let wrong = |why: &str| format!("its header `{}` {why}", name.escape_debug());
        let value = std::str::from_utf8(value)
            .map_err(|_| wrong("is not UTF-8, which NATS headers are"))?;
        if value.trim() != value {
            return Err(wrong(
                "begins or ends with white space, which NATS would cut off",
            ));
        }
        let value: HeaderValue = value
            .parse()
            .map_err(|_| wrong("has a line break, which would end it"))?;
        if name.is_empty() {
            return Err(wrong("has a name that NATS cannot write"));
        }
        let name: HeaderName = name
            .parse()
            .map_err(|_| wrong("has a name that NATS cannot write"))?;
        if !headers.get_all(name.clone()).any(|other| *other == value) {
            headers.append(name, value);
        }
        Ok::<(), String>(())
    };
    for (name, value) in envelope.headers.iter() {
        add(name, value)?;
    }
    for (name, property) in [
        (MESSAGE_ID, &envelope.id),
        (TYPE[0], &envelope.message_type),
        (CONTENT_TYPE[0], &envelope.content_type),
        (CORRELATION_ID[0], &envelope.correlation_id),
    ] {
        if let Some(value) = property {
            add(name, value.as_bytes())?;
        }
    }
    if headers.get_all(MESSAGE_ID).count() > 1 {
        return Err(format!(
            "its header `{MESSAGE_ID}` is not the message's id: leave one of them off"
        ));
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELIVERED: Delivered = Delivered {
        times: 1,
        sequence: 7,
        stored_at: None,
    };

    fn message(headers: &[(&str, &str)]) -> Message {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, *value);
        }
        Message {
            subject: "orders.placed".into(),
            reply: None,
            payload: "{}".into(),
            headers: Some(map),
            status: None,
            description: None,
            length: 0,
        }
    }

    #[test]
    fn the_ack_subject_is_read_in_each_of_its_forms() {
        let stored_at = UNIX_EPOCH.checked_add(Duration::from_nanos(1_700_000_000_123_456_789));
        for reply in [
            "$JS.ACK.ORDERS.billing.3.17.42.1700000000123456789.5",
            "$JS.ACK._.ACCOUNT.ORDERS.billing.3.17.42.1700000000123456789.5",
            "$JS.ACK.hub.ACCOUNT.ORDERS.billing.3.17.42.1700000000123456789.5.random.more",
        ] {
            let read = Delivered::read(reply).unwrap();
            assert_eq!(
                (read.times, read.sequence, read.stored_at),
                (3, 17, stored_at),
                "{reply}"
            );
            assert_eq!(read.earlier(), 2);
        }
        for other in [
            "",
            "_INBOX.a.b",
            "$JS.ACK.ORDERS.billing.3",
            "$JS.ACK.a.b.c.d.e.f.g",
        ] {
            assert_eq!(Delivered::read(other), None, "{other}");
        }
    }

    #[test]
    fn properties_are_read_from_headers() {
        let headers = [
            (MESSAGE_ID, "m-1"),
            ("type", "OrderPlaced"),
            ("Content-Type", "application/json"),
            ("correlation-id", "c-1"),
            ("x", "1"),
            ("x", "2"),
        ];
        let envelope = envelope(message(&headers), DELIVERED);
        assert_eq!(envelope.id.as_deref(), Some("m-1"));
        assert_eq!(envelope.message_type.as_deref(), Some("OrderPlaced"));
        assert_eq!(envelope.content_type.as_deref(), Some("application/json"));
        assert_eq!(envelope.correlation_id.as_deref(), Some("c-1"));
        assert_eq!(envelope.key.as_deref(), Some("orders.placed"));
        assert_eq!(
            envelope.headers.get_all("x").collect::<Vec<_>>(),
            [b"1", b"2"]
        );
        assert_eq!(envelope.headers.get_str(MESSAGE_ID), Some("m-1"));
    }

    #[test]
    fn several_different_values_are_no_property() {
        let twice = envelope(
            message(&[(MESSAGE_ID, "m-1"), (MESSAGE_ID, "m-2")]),
            DELIVERED,
        );
        assert_eq!(twice.id, None);
        assert_eq!(twice.headers.get_all(MESSAGE_ID).count(), 2);
        let alike = envelope(
            message(&[(MESSAGE_ID, "m-1"), (MESSAGE_ID, "m-1")]),
            DELIVERED,
        );
        assert_eq!(alike.id.as_deref(), Some("m-1"));
    }

    #[test]
    fn the_subject_is_the_type_of_what_has_no_other() {
        let type_of = |headers: &[(&str, &str)]| {
            let envelope = envelope(message(headers), DELIVERED);
            envelope.type_name().map(|name| name.into_owned())
        };
        assert_eq!(type_of(&[]).as_deref(), Some("orders.placed"));
        assert_eq!(type_of(&[("type", "T")]).as_deref(), Some("T"));
        assert_eq!(type_of(&[("ce-type", "C")]).as_deref(), Some("C"));
    }

    #[test]
    fn what_is_published_is_read_back_as_it_was() {
        let sent = Envelope::new("{}")
            .id("m-1")
            .message_type("T")
            .content_type("text/plain")
            .correlation_id("c-1")
            .key("orders.placed")
            .header("x", "ä")
            .header("x", "2");
        let mut back = message(&[]);
        back.headers = Some(headers(&sent).unwrap());
        let back = envelope(back, DELIVERED);
        assert_eq!(back.id, sent.id);
        assert_eq!(back.message_type, sent.message_type);
        assert_eq!(back.content_type, sent.content_type);
        assert_eq!(back.correlation_id, sent.correlation_id);
        assert_eq!(back.headers.get_all("x").count(), 2);
        // Published once more, as from an outbox, it is still the same.
        assert_eq!(headers(&back).unwrap().len(), headers(&sent).unwrap().len());
    }

    #[test]
    fn what_nats_cannot_carry_is_refused_before_it_is_sent() {
        for (envelope, says) in [
            (
                Envelope::new("").header("x", &b"\xff"[..]),
                "`x` is not UTF-8",
            ),
            (Envelope::new("").header("x", "a\r\nb: c"), "line break"),
            (Envelope::new("").header("x", " a"), "white space"),
            (Envelope::new("").header("x:y", "a"), "name"),
            (Envelope::new("").header("", "a"), "name"),
            (
                Envelope::new("").id("m-1").header(MESSAGE_ID, "m-2"),
                MESSAGE_ID,
            ),
            (Envelope::new("").id("m-1\n"), MESSAGE_ID),
        ] {
            let problem = headers(&envelope).unwrap_err();
            assert!(problem.contains(says), "{says}: {problem}");
        }
    }
}
