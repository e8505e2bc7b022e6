//! One value of a JSON document, read without building the document.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// What lies at a place of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// A string, or an integer in its decimal digits.
    Text(String),
    Null,
    Boolean,
    Fraction,
    Array,
    Object,
}

/// The value at a JSON pointer (RFC 6901) into a document; `None`: there is none.
pub(crate) fn find(document: &[u8], pointer: &str) -> Result<Option<Found>, serde_json::Error> {
    if !pointer.is_empty() && !pointer.starts_with('/') {
        return Ok(None);
    }
    let mut document = serde_json::Deserializer::from_slice(document);
    let found = At(pointer.strip_prefix('/')).deserialize(&mut document)?;
    document.end()?;
    Ok(found)
}

/// The rest of a pointer behind its `/`, from the value that is read next on.
struct At<'p>(Option<&'p str>);

impl<'p> At<'p> {
    /// The first token and what is behind it.
    fn step(&self) -> Option<(&'p str, Self)> {
        let rest = self.0?;
        Some(match rest.split_once('/') {
            Some((token, rest)) => (token, Self(Some(rest))),
            None => (rest, Self(None)),
        })
    }

    fn leaf(&self, found: Found) -> Option<Found> {
        self.0.is_none().then_some(found)
    }
}

impl<'de> DeserializeSeed<'de> for At<'_> {
    type Value = Option<Found>;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<Self::Value, D::Error> {
        value.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for At<'_> {
    type Value = Option<Found>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(self.leaf(Found::Boolean))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        Ok(self.0.is_none().then(|| Found::Text(number.to_string())))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(self.0.is_none().then(|| Found::Text(number.to_string())))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(self.leaf(Found::Fraction))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(self.0.is_none().then(|| Found::Text(text.to_owned())))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(self.leaf(Found::Null))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Self::Value, A::Error> {
        let Some((token, rest)) = self.step() else {
            while values.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(Some(Found::Array));
        };
        // No leading zeros and no sign: "00" and "+1" are no indices.
        let is_index = token == "0"
            || (!token.starts_with('0') && token.bytes().all(|byte| byte.is_ascii_digit()));
        let index = is_index.then(|| token.parse::<usize>().ok()).flatten();
        let mut rest = Some(rest);
        let mut found = None;
        let mut position = 0;
        loop {
            let is_it = index == Some(position);
            if let Some(at) = rest.take_if(|_| is_it) {
                match values.next_element_seed(at)? {
                    Some(value) => found = value,
                    None => break,
                }
            } else if values.next_element::<IgnoredAny>()?.is_none() {
                break;
            }
            position += 1;
        }
        Ok(found)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        let step = self.step();
        loop {
            let name = Name(step.as_ref().map(|(token, _)| *token));
            let Some(is_it) = members.next_key_seed(name)? else {
                break;
            };
            match &step {
                // Of two members with one name, the last counts.
                Some((_, rest)) if is_it => found = members.next_value_seed(At(rest.0))?,
                _ => {
                    members.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(if step.is_none() {
            Some(Found::Object)
        } else {
            found
        })
    }
}

/// Whether a member's name is the one that a token means.
struct Name<'p>(Option<&'p str>);

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, name: D) -> Result<bool, D::Error> {
        name.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member's name")
    }

    fn visit_str<E>(self, name: &str) -> Result<bool, E> {
        Ok(self.0.is_some_and(|token| {
            if token.contains('~') {
                token.replace("~1", "/").replace("~0", "~") == name
            } else {
                token == name
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same question to the whole document.
    fn by_document(document: &str, pointer: &str) -> Option<Found> {
        let document: serde_json::Value = serde_json::from_str(document).ok()?;
        Some(match document.pointer(pointer)? {
            serde_json::Value::Null => Found::Null,
            serde_json::Value::Bool(_) => Found::Boolean,
            serde_json::Value::Number(number) if number.is_i64() || number.is_u64() => {
                Found::Text(number.to_string())
            }
            serde_json::Value::Number(_) => Found::Fraction,
            serde_json::Value::String(text) => Found::Text(text.clone()),
            serde_json::Value::Array(_) => Found::Array,
            serde_json::Value::Object(_) => Found::Object,
        })
    }

    #[test]
    fn the_value_is_that_of_the_whole_document() {
        let documents = [
            r#"{"a":{"b":["x",{"c":"deep"},7]},"a/b":"slash","m~n":"tilde","":"empty","é":-3}"#,
            r#"{"a":1,"a":{"b":"last"}}"#,
            r#"{"a":{"b":"first"},"a":1}"#,
            r#"[["in"],"1",2.5,true,null,18446744073709551615,18446744073709551616]"#,
            r#""text""#,
            "7",
            "{}",
            "[]",
        ];
        let pointers = [
            "", "/", "/a", "/a/b", "/a/b/0", "/a/b/1/c", "/a/b/2", "/a/b/3", "/a/b/00", "/a/b/+1",
            "/a/b/-", "/a~1b", "/m~0n", "/é", "/0", "/0/0", "/1", "/2", "/3", "/4", "/5", "/6",
            "/x", "/a/x", "/a/", "/a//b", "//", "a",
        ];
        for document in documents {
            for pointer in pointers {
                assert_eq!(
                    find(document.as_bytes(), pointer).ok().flatten(),
                    by_document(document, pointer),
                    "{pointer} in {document}"
                );
            }
        }
    }

    #[test]
    fn a_document_that_breaks_off_has_no_value() {
        for broken in [
            r#"{"a":"x""#,
            r#"{"a":"x"} y"#,
            r#"{"a":"x",}"#,
            "",
            "\u{0}",
        ] {
            assert!(find(broken.as_bytes(), "/a").is_err(), "{broken}");
        }
    }
}
