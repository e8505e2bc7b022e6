//! What orders messages among each other.

use super::literal;
use super::place::{self, Place, Spoken};
use crate::diag::Finding;
use crate::options::{AttrOption, snake_case};
use crate::suggest;
use syn::{Expr, LitStr};

pub(crate) enum OrderBy {
    Key,
    At(Place),
}

const FORMS: &str = r#"the order keys are `"key"`, `"header:NAME"`, `"payload:/json/pointer"`"#;

/// What brokers call the key that their messages are ordered by, without case and separators.
const KEYS: [&str; 15] = [
    "key",
    "messagekey",
    "recordkey",
    "brokerkey",
    "orderingkey",
    "orderkey",
    "partition",
    "partitionkey",
    "routingkey",
    "group",
    "groupid",
    "messagegroup",
    "messagegroupid",
    "session",
    "sessionid",
];

/// What differs from message to message: the identities of `key = ".."`, and what people call them.
const UNIQUE: [&str; 5] = ["messageid", "cloudevents", "id", "eventid", "uuid"];

impl OrderBy {
    pub(crate) fn read(option: &AttrOption, value: &Expr) -> Result<Self, Finding> {
        let named = || meant(&snake_case(&literal::last_name(value)?));
        let instead = match place::called(value).or_else(named) {
            Some(meant) => format!("write `order_by = \"{}\"`", meant.escape_debug()),
            None => format!("write `{}`", option.example),
        };
        let text = literal::string(option, value, &instead)?;
        let places = Spoken {
            option,
            header: "x-account",
            pointer: "/account",
        };
        match places.place(&text) {
            Some(place) => Ok(Self::At(place?)),
            None => plain(option, &text, &text.value()),
        }
    }
}

fn plain(option: &AttrOption, text: &LitStr, given: &str) -> Result<OrderBy, Finding> {
    if given == "key" {
        return Ok(OrderBy::Key);
    }
    if given.trim().is_empty() {
        return Err(Finding::new(text, "the order key is empty").help(FORMS));
    }
    let shown = given.escape_debug();
    if UNIQUE.contains(&&*bare(given)) {
        return Err(Finding::new(
            text,
            format!("`{shown}` orders nothing: every message has one of its own"),
        )
        .help(format!(
            "name what messages of one order have in common, e.g. `{}`",
            option.example
        )));
    }
    let remedy = match meant(given) {
        Some(meant) => format!("did you mean `\"{}\"`?", meant.escape_debug()),
        None => FORMS.to_owned(),
    };
    Err(Finding::new(text, format!("unknown order key `{shown}`")).help(remedy))
}

/// What is meant by a word that is no order key.
fn meant(given: &str) -> Option<String> {
    let given = given.trim();
    if KEYS.contains(&&*bare(given)) {
        return Some("key".to_owned());
    }
    if let Some(place) = place::meant(given) {
        return Some(place);
    }
    if let Some(near) = suggest::nearest(&given.to_lowercase(), ["key"]) {
        return Some(near.to_owned());
    }
    // `account`, `order.account`: most likely a property of the payload.
    let is_path = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '.');
    (!UNIQUE.contains(&&*bare(given)) && given.chars().all(is_path) && !given.is_empty())
        .then(|| format!("payload:{}", place::slashed(given)))
}

/// The word without case and separators.
fn bare(word: &str) -> String {
    word.to_lowercase()
        .chars()
        .filter(|letter| letter.is_alphanumeric())
        .collect()
}
