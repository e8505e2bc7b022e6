//! The isolation of the handler's transaction.

use super::literal;
use crate::diag::Finding;
use crate::options::{AttrOption, snake_case};
use crate::suggest;
use syn::Expr;

#[derive(Clone, Copy)]
pub(crate) enum Isolation {
    ReadCommitted,
    RepeatableRead,
    Serializable,
}

impl Isolation {
    const NAMED: [(&'static str, Self); 3] = [
        ("read committed", Self::ReadCommitted),
        ("repeatable read", Self::RepeatableRead),
        ("serializable", Self::Serializable),
    ];

    pub(crate) fn read(option: &AttrOption, value: &Expr) -> Result<Self, Finding> {
        let named = literal::last_name(value).and_then(|name| nearest(&snake_case(&name)));
        let instead = match named {
            Some(near) => format!("write `{} = \"{near}\"`", option.name),
            None => format!("write `{}`", option.example),
        };
        let text = literal::string(option, value, &instead)?;
        let given = text.value();
        if let Some((_, level)) = Self::NAMED.into_iter().find(|(name, _)| *name == given) {
            return Ok(level);
        }
        let remedy = if let Some(near) = nearest(&given) {
            format!("did you mean `\"{near}\"`?")
        } else {
            let names: Vec<String> = Self::NAMED
                .into_iter()
                .map(|(name, _)| format!("`\"{name}\"`"))
                .collect();
            format!("the levels are {}", names.join(", "))
        };
        let headline = if given.trim().is_empty() {
            "the isolation level is empty".to_owned()
        } else {
            format!("unknown isolation level `{}`", given.escape_debug())
        };
        Err(Finding::new(&text, headline).help(remedy))
    }
}

fn nearest(given: &str) -> Option<&'static str> {
    let given = plain(given);
    // Weaker than anything that keeps the promise, and one word away from a level that does.
    if given == "read uncommitted" {
        return None;
    }
    suggest::nearest(&given, Isolation::NAMED.into_iter().map(|(name, _)| name))
}

/// `READ_COMMITTED`, `read-committed` and ` Read Committed ` as `read committed`.
fn plain(given: &str) -> String {
    given
        .to_ascii_lowercase()
        .replace(['_', '-'], " ")
        .trim()
        .to_owned()
}
