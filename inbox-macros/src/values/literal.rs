//! Literals, and what stands in their place.

use crate::diag::Finding;
use crate::options::AttrOption;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::{Expr, ExprLit, Lit, LitStr, Token};

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

/// One literal as it is written, or several in brackets.
pub(crate) fn list(tokens: TokenStream) -> Option<String> {
    let literals = Punctuated::<Lit, Token![,]>::parse_terminated
        .parse2(tokens)
        .ok()?;
    let texts: Vec<String> = literals
        .iter()
        .map(|literal| literal.to_token_stream().to_string())
        .collect();
    match texts.as_slice() {
        [] => None,
        [only] => Some(only.clone()),
        several => Some(format!("[{}]", several.join(", "))),
    }
}

/// A list of strings without the commas between them, as it should be.
pub(crate) fn unseparated(value: &TokenStream) -> Option<String> {
    let mut tokens = value.clone().into_iter();
    let (Some(TokenTree::Group(list)), None) = (tokens.next(), tokens.next()) else {
        return None;
    };
    let mut names = Vec::new();
    for token in list.stream() {
        match token {
            TokenTree::Literal(name) => names.push(name.to_string()),
            TokenTree::Punct(comma) if comma.as_char() == ',' => {}
            _ => return None,
        }
    }
    (list.delimiter() == Delimiter::Bracket && names.len() > 1)
        .then(|| format!("[{}]", names.join(", ")))
}

/// The last name of a path: `OrderPlaced` of `events::OrderPlaced`.
pub(crate) fn last_name(value: &Expr) -> Option<String> {
    match peel(value) {
        Expr::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
        _ => None,
    }
}

/// Reads a string that is any text. `instead` is the remedy for an expression.
pub(crate) fn text(option: &AttrOption, value: &Expr, instead: &str) -> Result<LitStr, Finding> {
    string(option, value, instead).map_err(|finding| match literal(value) {
        Some(Lit::Char(letter)) => wrong_kind(option, value, &letter.value().to_string()),
        Some(other @ (Lit::Int(_) | Lit::Float(_) | Lit::Bool(_))) => {
            wrong_kind(option, value, &other.to_token_stream().to_string())
        }
        _ => finding,
    })
}

fn wrong_kind(option: &AttrOption, value: &Expr, text: &str) -> Finding {
    let name = option.name;
    Finding::new(value, format!("`{name}` takes a string literal"))
        .help(format!("write `{name} = \"{}\"`", text.escape_default()))
}

/// Reads a string that has one of a few forms. `instead` is the remedy for anything else.
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
        other => Err(Finding::new(other, wrong("")).help(instead)),
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
