use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use inbox_core::Envelope;
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, DecimalValue, FieldTable, ShortString};
use serde_json::Value;

use super::short;

/// Nesting beyond this becomes `null`: headers come from strangers.
const DEEPEST: usize = 64;

/// The delivery mode of a message that the server writes to disk.
const PERSISTENT: u8 = 2;

/// The message as its producer made it.
pub(super) fn envelope(delivery: Delivery) -> Envelope {
    let properties = &delivery.properties;
    let mut envelope = Envelope::new(delivery.data).key(delivery.routing_key.as_str());
    envelope.id = text(properties.message_id());
    envelope.message_type = text(properties.kind());
    envelope.content_type = text(properties.content_type());
    envelope.correlation_id = text(properties.correlation_id());
    // A timestamp that the clock cannot express is no reason to refuse the message.
    envelope.published_at = properties
        .timestamp()
        .and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
    for (name, value) in properties.headers().iter().flat_map(FieldTable::inner) {
        if let Some(value) = header(value) {
            envelope.headers.push(name.as_str(), value);
        }
    }
    envelope
}

/// What the queue counts: a quorum queue every delivery, and some versions leave the first count out.
pub(super) fn earlier_deliveries(properties: &BasicProperties, counts: bool) -> Option<u32> {
    let count = properties
        .headers()
        .as_ref()
        .and_then(|headers| headers.inner().get("x-delivery-count"))
        .and_then(integer)
        .and_then(|count| u32::try_from(count.max(0)).ok());
    count.or(counts.then_some(0))
}

/// Whether a queue gave the message up that had delivered it (`x-death`): it was moved back since, as a new message.
pub(super) fn was_given_up(properties: &BasicProperties) -> bool {
    let headers = properties.headers().as_ref();
    let Some(AMQPValue::FieldArray(deaths)) =
        headers.and_then(|headers| headers.inner().get("x-death"))
    else {
        return false;
    };
    deaths.as_slice().iter().any(|death| {
        let AMQPValue::FieldTable(death) = death else {
            return false;
        };
        // Not `expired` or `maxlen`, which nobody need have seen.
        matches!(death.inner().get("reason"), Some(AMQPValue::LongString(reason))
            if [&b"rejected"[..], b"delivery_limit"].contains(&reason.as_bytes()))
    })
}

fn text(property: &Option<ShortString>) -> Option<String> {
    property.as_ref().map(|text| text.as_str().to_owned())
}

fn integer(value: &AMQPValue) -> Option<i64> {
    Some(match value {
        AMQPValue::ShortShortInt(n) => (*n).into(),
        AMQPValue::ShortShortUInt(n) => (*n).into(),
        AMQPValue::ShortInt(n) => (*n).into(),
        AMQPValue::ShortUInt(n) => (*n).into(),
        AMQPValue::LongInt(n) => (*n).into(),
        AMQPValue::LongUInt(n) => (*n).into(),
        AMQPValue::LongLongInt(n) => *n,
        _ => return None,
    })
}

/// The bytes of a header; `None` for one without a value.
fn header(value: &AMQPValue) -> Option<Bytes> {
    let text = match value {
        AMQPValue::Void => return None,
        AMQPValue::LongString(text) => return Some(Bytes::copy_from_slice(text.as_bytes())),
        AMQPValue::ByteArray(bytes) => return Some(Bytes::copy_from_slice(bytes.as_slice())),
        AMQPValue::ShortString(text) => text.as_str().to_owned(),
        AMQPValue::Boolean(switch) => switch.to_string(),
        AMQPValue::Float(number) => number.to_string(),
        AMQPValue::Double(number) => number.to_string(),
        AMQPValue::DecimalValue(number) => decimal(*number),
        AMQPValue::Timestamp(seconds) => seconds.to_string(),
        AMQPValue::FieldArray(_) | AMQPValue::FieldTable(_) => json(value, DEEPEST).to_string(),
        number => integer(number)?.to_string(),
    };
    Some(text.into())
}

fn decimal(number: DecimalValue) -> String {
    let scale = usize::from(number.scale);
    if scale == 0 {
        return number.value.to_string();
    }
    let digits = format!("{:0>width$}", number.value, width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    format!("{whole}.{fraction}")
}

fn json(value: &AMQPValue, depth: usize) -> Value {
    let bytes = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => Value::from(text),
        // Text cannot hold them, and their numbers lose nothing.
        Err(_) => Value::from(bytes),
    };
    match value {
        AMQPValue::FieldArray(_) | AMQPValue::FieldTable(_) if depth == 0 => Value::Null,
        AMQPValue::FieldArray(values) => values
            .as_slice()
            .iter()
            .map(|value| json(value, depth - 1))
            .collect(),
        AMQPValue::FieldTable(table) => table
            .inner()
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), json(value, depth - 1)))
            .collect(),
        AMQPValue::Void => Value::Null,
        AMQPValue::Boolean(switch) => Value::from(*switch),
        // Through its text, which has the digits that were meant: 0.1 and not 0.10000000149011612.
        AMQPValue::Float(number) => number
            .to_string()
            .parse::<f64>()
            .map_or(Value::Null, Value::from),
        AMQPValue::Double(number) => Value::from(*number),
        AMQPValue::DecimalValue(number) => Value::from(decimal(*number)),
        AMQPValue::Timestamp(seconds) => Value::from(*seconds),
        AMQPValue::ShortString(text) => Value::from(text.as_str()),
        AMQPValue::LongString(text) => bytes(text.as_bytes()),
        AMQPValue::ByteArray(array) => bytes(array.as_slice()),
        number => integer(number).map_or(Value::Null, Value::from),
    }
}

/// The properties of a message to publish, and about how many bytes they take on the wire.
pub(super) fn properties(envelope: &Envelope) -> Result<(BasicProperties, usize), String> {
    let mut size = 0;
    let mut named = |setting: &str, value: &Option<String>| match value {
        None => Ok(None),
        Some(value) => {
            size += value.len() + 1;
            short(value)
                .map(Some)
                .map_err(|problem| format!("its {setting} {problem}"))
        }
    };
    let mut properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
    if let Some(id) = named("message id", &envelope.id)? {
        properties = properties.with_message_id(id);
    }
    if let Some(kind) = named("type", &envelope.message_type)? {
        properties = properties.with_type(kind);
    }
    if let Some(media) = named("content type", &envelope.content_type)? {
        properties = properties.with_content_type(media);
    }
    if let Some(id) = named("correlation id", &envelope.correlation_id)? {
        properties = properties.with_correlation_id(id);
    }
    if let Some(published_at) = envelope.published_at {
        let seconds = published_at
            .duration_since(UNIX_EPOCH)
            .map_err(|_| "it was published before 1970, which AMQP cannot say".to_owned())?
            .as_secs();
        properties = properties.with_timestamp(seconds);
    }
    let mut headers = FieldTable::default();
    for (name, value) in envelope.headers.iter() {
        size += name.len() + value.len() + 6;
        let name = short(name).map_err(|problem| format!("its header {problem}"))?;
        let value = AMQPValue::LongString(value.to_vec().into());
        match headers.inner().get(&name) {
            Some(earlier) if *earlier != value => {
                return Err(format!(
                    "its header `{name}` has several different values, and AMQP has room for one"
                ));
            }
            _ => {
                headers.insert(name, value);
            }
        }
    }
    Ok((properties.with_headers(headers), size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapin::types::FieldArray;

    fn shown(value: &AMQPValue) -> String {
        let bytes = header(value).unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[test]
    fn every_kind_of_header_has_bytes() {
        assert_eq!(header(&AMQPValue::Void), None);
        assert_eq!(shown(&AMQPValue::Boolean(true)), "true");
        assert_eq!(shown(&AMQPValue::ShortShortInt(-1)), "-1");
        assert_eq!(
            shown(&AMQPValue::LongLongInt(i64::MIN)),
            i64::MIN.to_string()
        );
        assert_eq!(shown(&AMQPValue::Double(0.1)), "0.1");
        assert_eq!(shown(&AMQPValue::Float(1.5)), "1.5");
        assert_eq!(shown(&AMQPValue::Timestamp(7)), "7");
        for (scale, value, text) in [(0, 5, "5"), (2, 12345, "123.45"), (3, 5, "0.005")] {
            let number = DecimalValue { scale, value };
            assert_eq!(shown(&AMQPValue::DecimalValue(number)), text);
        }
        let bytes = [0, 255, 10];
        assert_eq!(
            header(&AMQPValue::LongString(bytes.to_vec().into())).as_deref(),
            Some(&bytes[..])
        );
    }

    #[test]
    fn a_message_that_a_queue_gave_up_was_delivered_before() {
        let died_of = |reasons: &[&str]| {
            let deaths = reasons.iter().map(|reason| {
                let mut death = FieldTable::default();
                death.insert("reason".into(), AMQPValue::LongString((*reason).into()));
                AMQPValue::FieldTable(death)
            });
            let deaths: Vec<_> = deaths.collect();
            let mut headers = FieldTable::default();
            headers.insert("x-death".into(), AMQPValue::FieldArray(deaths.into()));
            BasicProperties::default().with_headers(headers)
        };
        assert!(was_given_up(&died_of(&["delivery_limit"])));
        assert!(was_given_up(&died_of(&["expired", "rejected"])));
        assert!(!was_given_up(&died_of(&["expired", "maxlen"])));
        assert!(!was_given_up(&BasicProperties::default()));
        let mut odd = FieldTable::default();
        odd.insert("x-death".into(), AMQPValue::Boolean(true));
        assert!(!was_given_up(&BasicProperties::default().with_headers(odd)));
    }

    #[test]
    fn nested_values_are_json_and_bounded() {
        let mut table = FieldTable::default();
        table.insert("n".into(), AMQPValue::LongInt(1));
        table.insert("f".into(), AMQPValue::Float(0.1));
        table.insert("nan".into(), AMQPValue::Double(f64::NAN));
        table.insert("none".into(), AMQPValue::Void);
        table.insert("raw".into(), AMQPValue::LongString(vec![255].into()));
        table.insert("text".into(), AMQPValue::LongString("a\"b".into()));
        assert_eq!(
            shown(&AMQPValue::FieldTable(table)),
            r#"{"f":0.1,"n":1,"nan":null,"none":null,"raw":[255],"text":"a\"b"}"#
        );
        let mut deep = AMQPValue::LongInt(1);
        for _ in 0..1000 {
            deep = AMQPValue::FieldArray(FieldArray::from(vec![deep]));
        }
        assert!(shown(&deep).len() < 1000);
    }

    #[test]
    fn a_count_that_makes_no_sense_is_none() {
        let count = |value: AMQPValue, counts| {
            let mut headers = FieldTable::default();
            headers.insert("x-delivery-count".into(), value);
            earlier_deliveries(&BasicProperties::default().with_headers(headers), counts)
        };
        assert_eq!(count(AMQPValue::LongLongInt(3), false), Some(3));
        assert_eq!(count(AMQPValue::LongLongInt(-3), false), Some(0));
        assert_eq!(count(AMQPValue::LongLongInt(i64::MAX), false), None);
        assert_eq!(count(AMQPValue::LongString("3".into()), false), None);
        assert_eq!(earlier_deliveries(&BasicProperties::default(), false), None);
        assert_eq!(
            earlier_deliveries(&BasicProperties::default(), true),
            Some(0)
        );
    }

    #[test]
    fn what_amqp_cannot_carry_is_refused_before_it_is_sent() {
        for (envelope, says) in [
            (Envelope::new("").id("a".repeat(256)), "message id"),
            (Envelope::new("").message_type("a".repeat(256)), "type"),
            (Envelope::new("").header("a".repeat(256), ""), "header"),
            (Envelope::new("").header("a", "1").header("a", "2"), "`a`"),
        ] {
            let problem = properties(&envelope).unwrap_err();
            assert!(problem.contains(says), "{problem}");
        }
        let twice_alike = Envelope::new("").header("a", "1").header("a", "1");
        assert!(properties(&twice_alike).is_ok());
    }
}
