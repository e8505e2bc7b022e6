//! The name of a consumer, which is stored with every message that it processed.

use super::literal;
use crate::diag::Finding;
use crate::options::AttrOption;
use syn::{Expr, LitStr};

/// The width of the column.
const LONGEST: usize = 128;

pub(crate) fn read(option: &AttrOption, value: &Expr) -> Result<LitStr, Finding> {
    let unquoted = literal::last_name(value)
        .filter(|name| !name.contains(char::is_uppercase))
        .unwrap_or_else(|| "billing".to_owned());
    let instead = format!(
        "write `consumer = \"{unquoted}\"`: the name is persisted, so it is spelled out where the handler is defined",
    );
    let text = literal::text(option, value, &instead)?;
    let name = text.value();
    let trimmed = name.trim();
    let pick = r#"pick a stable name such as `"billing"`; messages are deduplicated per consumer"#;
    let finding = if name.is_empty() {
        Finding::new(&text, "the consumer name is empty").help(pick)
    } else if trimmed.is_empty() {
        Finding::new(&text, "the consumer name is blank").help(pick)
    } else if trimmed != name {
        Finding::new(&text, "the consumer name starts or ends with white space")
            .help(format!("write `\"{}\"`", trimmed.escape_debug()))
    } else if let Some(offender) = name.chars().find(|letter| !is_allowed(*letter)) {
        Finding::new(
            &text,
            format!("the consumer name contains `{}`", offender.escape_debug()),
        )
        .help(format!(
            "use ASCII letters, digits, `_`, `-`, `.`, for example `\"{}\"`",
            allowed(&name)
        ))
    } else if name.len() > LONGEST {
        let length = name.len();
        Finding::new(
            &text,
            format!(
                "the consumer name has {length} characters, at most {LONGEST} fit the inbox table"
            ),
        )
        .help("shorten it")
    } else {
        return Ok(text);
    };
    Err(finding)
}

const fn is_allowed(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.')
}

/// The name with each run of other letters written as one `-`.
fn allowed(name: &str) -> String {
    let parts: Vec<&str> = name
        .split(|letter| !is_allowed(letter))
        .filter(|part| !part.is_empty())
        .collect();
    match parts.as_slice() {
        [] => "billing".to_owned(),
        parts => parts.join("-"),
    }
}
