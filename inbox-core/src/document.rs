//! Properties and headers of an envelope as one JSON document: what is stored beside a payload.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;

use crate::envelope::{Envelope, Headers};

impl Envelope {
    /// Everything but the payload as a JSON document of ASCII text, whatever bytes the headers hold.
    #[must_use]
    pub fn to_document(&self) -> String {
        let published_at = self
            .published_at
            .and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok())
            .and_then(|since| u64::try_from(since.as_micros()).ok());
        let document = json!({
            "id": self.id,
            "type": self.message_type,
            "content_type": self.content_type,
            "correlation_id": self.correlation_id,
            "key": self.key,
            "published_at": published_at,
            "headers": headers_as_json(&self.headers),
        });
        ascii(&document.to_string())
    }

    /// The envelope whose document this is.
    ///
    /// # Errors
    ///
    /// [`InvalidDocument`] when it is none.
    pub fn from_document(
        document: &str,
        payload: impl Into<Bytes>,
    ) -> Result<Self, InvalidDocument> {
        let read: Document = serde_json::from_str(document).map_err(InvalidDocument)?;
        let published_at = read
            .published_at
            .and_then(|at| SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(at)));
        Ok(Self {
            id: read.id,
            message_type: read.message_type,
            content_type: read.content_type,
            correlation_id: read.correlation_id,
            key: read.key,
            published_at,
            headers: read
                .headers
                .into_iter()
                .map(|(name, value)| (name, value.into_bytes()))
                .collect(),
            payload: payload.into(),
        })
    }
}

/// A text that is stored where the properties and headers of a message should be, and is something else.
#[derive(Debug, thiserror::Error)]
#[error("the stored headers are not a document of this framework")]
pub struct InvalidDocument(#[source] serde_json::Error);

#[derive(Deserialize)]
struct Document {
    id: Option<String>,
    #[serde(rename = "type")]
    message_type: Option<String>,
    content_type: Option<String>,
    correlation_id: Option<String>,
    key: Option<String>,
    /// Microseconds since 1970.
    published_at: Option<u64>,
    headers: Vec<(String, HeaderValue)>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum HeaderValue {
    Text(String),
    Bytes { bytes: Vec<u8> },
}

impl HeaderValue {
    fn into_bytes(self) -> Bytes {
        match self {
            Self::Text(text) => text.into(),
            Self::Bytes { bytes } => bytes.into(),
        }
    }
}

/// `[[name, text], [name, {"bytes": [..]}], ..]`: a list, because names repeat; bytes where a value is no text.
fn headers_as_json(headers: &Headers) -> serde_json::Value {
    headers
        .iter()
        .map(|(name, value)| match std::str::from_utf8(value) {
            Ok(text) => json!([name, text]),
            Err(_) => json!([name, { "bytes": value }]),
        })
        .collect()
}

/// Escapes everything outside ASCII in a JSON document, so that no server encoding can refuse it.
fn ascii(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut units = [0_u16; 2];
    for c in json.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn headers_of_any_bytes_become_a_document_of_ascii() {
        let envelope = Envelope::new("")
            .header("é", "a\0b")
            .header("raw", vec![0xff, 0x00]);
        let document = envelope.to_document();
        assert!(
            document.is_ascii() && !document.contains('\0'),
            "{document}"
        );
        let read: serde_json::Value = serde_json::from_str(&document).unwrap();
        assert_eq!(
            read["headers"],
            json!([["é", "a\0b"], ["raw", { "bytes": [255, 0] }]])
        );
    }

    #[test]
    fn another_text_is_no_document() {
        for text in ["", "{", "[]", "{}", r#"{"headers":[["a",1]]}"#] {
            assert!(Envelope::from_document(text, "").is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_stored_is_what_is_read(
            texts in proptest::collection::vec(proptest::option::of(".*"), 5),
            micros in proptest::option::of(0_u64..4_000_000_000_000_000),
            headers in proptest::collection::vec((".*", proptest::collection::vec(any::<u8>(), 0..20)), 0..5),
            payload in proptest::collection::vec(any::<u8>(), 0..50),
        ) {
            let [id, message_type, content_type, correlation_id, key] =
                <[Option<String>; 5]>::try_from(texts).unwrap();
            let envelope = Envelope {
                id,
                message_type,
                content_type,
                correlation_id,
                key,
                published_at: micros.map(|at| SystemTime::UNIX_EPOCH + Duration::from_micros(at)),
                headers: headers.into_iter().collect(),
                payload: payload.clone().into(),
            };
            prop_assert_eq!(Envelope::from_document(&envelope.to_document(), payload).unwrap(), envelope);
        }
    }
}
