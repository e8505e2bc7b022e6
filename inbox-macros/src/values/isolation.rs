//! The isolation of the handler's transaction.

use super::literal;
use crate::diag::Finding;
use crate::options::AttrOption;
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
        let text = literal::string(option, value, &format!("write `{}`", option.example))?;
        let given = text.value();
        if let Some((_, level)) = Self::NAMED.into_iter().find(|(name, _)| *name == given) {
            return Ok(level);
        }
        let names = || Self::NAMED.into_iter().map(|(name, _)| name);
        let remedy = match suggest::nearest(&plain(&given), names()) {
            // Weaker than anything that keeps the promise, and one word away from a level that does.
            Some(near) if plain(&given) != "read uncommitted" => {
                format!("did you mean `\"{near}\"`?")
            }
            _ => {
                let names: Vec<String> = names().map(|name| format!("`\"{name}\"`")).collect();
                format!("the levels are {}", names.join(", "))
            }
        };
        Err(Finding::new(
            &text,
            format!("unknown isolation level `{}`", given.escape_debug()),
        )
        .help(remedy))
    }
}

/// `READ_COMMITTED`, `read-committed` and ` Read Committed ` as `read committed`.
fn plain(given: &str) -> String {
    given
        .to_ascii_lowercase()
        .replace(['_', '-'], " ")
        .trim()
        .to_owned()
}
