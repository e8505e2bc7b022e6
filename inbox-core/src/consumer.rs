use std::fmt;
use std::sync::Arc;

/// The name under which a handler's claims are stored: together with the message id it is the dedup key.
///
/// 1 to [`ConsumerName::MAX_BYTES`] ASCII letters, digits, `_`, `-` or `.`. The name is persisted identity:
/// renaming a consumer makes every message new to it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConsumerName(Arc<str>);

impl ConsumerName {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 128;

    /// Checks `name` and keeps it.
    ///
    /// # Errors
    ///
    /// [`InvalidConsumerName`] names the value and what is wrong with it.
    pub fn new(name: &str) -> Result<Self, InvalidConsumerName> {
        let problem = if name.is_empty() {
            Some("it is empty".to_owned())
        } else if name.len() > Self::MAX_BYTES {
            Some(format!(
                "it has {} bytes, at most {} fit",
                name.len(),
                Self::MAX_BYTES
            ))
        } else {
            name.chars()
                .find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')))
                .map(|c| format!("it contains {c:?}; use ASCII letters, digits, `_`, `-`, `.`"))
        };
        match problem {
            None => Ok(Self(name.into())),
            Some(problem) => Err(InvalidConsumerName {
                name: name.to_owned(),
                problem,
            }),
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ConsumerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Display for ConsumerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A consumer name that cannot be stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the consumer name {name:?} is not usable: {problem}")]
pub struct InvalidConsumerName {
    name: String,
    problem: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_the_offender_is_named() {
        assert!(ConsumerName::new("billing-eu.v2_x").is_ok());
        for (name, word) in [("", "empty"), ("a b", "' '"), ("é", "'é'")] {
            let error = ConsumerName::new(name).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        assert!(ConsumerName::new(&"a".repeat(129)).is_err());
        assert!(ConsumerName::new(&"a".repeat(128)).is_ok());
    }
}
