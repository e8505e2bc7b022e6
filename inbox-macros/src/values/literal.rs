//! Literals, and what stands in their place.

use crate::diag::Finding;
use crate::options::AttrOption;
use quote::ToTokens;
use syn::{Expr, ExprLit, Lit, LitStr};

/// The value without the invisible groups that a `$value:expr` of a `macro_rules!` has around it.
pub(crate) fn peel(value: &Expr) -> &Expr {
    match value {
        Expr::Group(group) => peel(&group.expr),
        other => other,
    }
}

/// The literal, if the value is one.
pub(crate) fn literal(value: &Expr) -> Option<&Lit> {
    match peel(value) {
        Expr::Lit(ExprLit { lit, attrs }) if attrs.is_empty() => Some(lit),
        _ => None,
    }
}

/// Reads a string. `instead` is the remedy for an expression.
pub(crate) fn string(option: &AttrOption, value: &Expr, instead: &str) -> Result<LitStr, Finding> {
    let name = option.name;
    let Some(literal) = literal(value) else {
        return Err(Finding::new(
            value,
            format!("`{name}` takes a string literal, not an expression"),
        )
        .help(instead));
    };
    let wrong = |found: &str| format!("`{name}` takes a string literal{found}");
    match literal {
        Lit::Str(text) if text.suffix().is_empty() => Ok(text.clone()),
        Lit::Str(text) => Err(Finding::new(text, wrong(" without a suffix"))
            .help(format!("remove the `{}`", text.suffix()))),
        Lit::ByteStr(bytes) => {
            Err(Finding::new(bytes, wrong(", found a byte string")).help("remove the `b`"))
        }
        Lit::CStr(text) => {
            Err(Finding::new(text, wrong(", found a C string")).help("remove the `c`"))
        }
        Lit::Char(letter) => Err(Finding::new(letter, wrong("")).help(format!(
            "write `{name} = \"{}\"`",
            letter.value().escape_default()
        ))),
        other => Err(Finding::new(other, wrong(""))
            .help(format!("write `{name} = \"{}\"`", other.to_token_stream()))),
    }
}

/// A literal with its article, as found where something else was expected.
pub(crate) fn article(literal: &Lit) -> &'static str {
    match literal {
        Lit::Str(_) => "a string",
        Lit::ByteStr(_) => "a byte string",
        Lit::CStr(_) => "a C string",
        Lit::Byte(_) => "a byte",
        Lit::Char(_) => "a character",
        Lit::Int(_) | Lit::Float(_) => "a number",
        Lit::Bool(_) => "a truth value",
        _ => "a literal",
    }
}
