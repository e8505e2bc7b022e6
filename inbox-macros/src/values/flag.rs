//! `true` or `false`.

use super::literal;
use crate::diag::Finding;
use crate::options::AttrOption;
use syn::{Expr, Lit};

pub(crate) fn read(option: &AttrOption, value: &Expr) -> Result<bool, Finding> {
    let name = option.name;
    let found = match literal::literal(value) {
        Some(Lit::Bool(flag)) => return Ok(flag.value),
        Some(other) => format!("found {}", literal::article(other)),
        None => "not an expression".to_owned(),
    };
    let meant = match literal::literal(value) {
        Some(Lit::Str(text)) if is_false(&text.value()) => false,
        Some(Lit::Int(number)) if number.base10_digits() == "0" => false,
        None if literal::last_name(value).is_some_and(|name| is_false(&name)) => false,
        _ => true,
    };
    Err(
        Finding::new(value, format!("`{name}` takes `true` or `false`, {found}"))
            .help(format!("write `{name} = {meant}`")),
    )
}

fn is_false(word: &str) -> bool {
    ["false", "no", "off", "never", "0"].contains(&&*word.trim().to_lowercase())
}
