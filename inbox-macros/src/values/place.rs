//! Places in a message at which a value can stand: a header, or a JSON pointer into the payload.

use super::literal;
use crate::diag::Finding;
use crate::options::{AttrOption, snake_case};
use syn::{Expr, Lit, LitStr};

pub(crate) enum Place {
    Header(LitStr),
    Payload(LitStr),
}

/// How an option speaks of places.
pub(crate) struct Spoken<'o> {
    pub(crate) option: &'o AttrOption,
    /// A header that it could take.
    pub(crate) header: &'static str,
    /// A pointer that it could take.
    pub(crate) pointer: &'static str,
}

impl Spoken<'_> {
    fn write(&self, place: &str) -> String {
        format!("`{} = \"{}\"`", self.option.name, place.escape_debug())
    }

    /// Reads `header:NAME` or `payload:/json/pointer`; `None`: it is neither.
    pub(crate) fn place(&self, text: &LitStr) -> Option<Result<Place, Finding>> {
        let given = text.value();
        match given.split_once(':').unwrap_or((&given, "")) {
            ("header", name) => Some(self.header(text, name)),
            ("payload", pointer) => Some(self.payload(text, pointer)),
            _ => None,
        }
    }

    fn header(&self, text: &LitStr, name: &str) -> Result<Place, Finding> {
        let trimmed = name.trim();
        if trimmed.is_empty() {
            return Err(Finding::new(text, "`header:` needs a header name")
                .help(self.write(&format!("header:{}", self.header))));
        }
        if trimmed != name {
            return Err(
                Finding::new(text, "the header name starts or ends with white space")
                    .help(self.write(&format!("header:{trimmed}"))),
            );
        }
        Ok(Place::Header(LitStr::new(name, text.span())))
    }

    /// A JSON pointer as in RFC 6901. The empty pointer, the whole document, is refused: it is no single value.
    fn payload(&self, text: &LitStr, pointer: &str) -> Result<Place, Finding> {
        let write = |pointer: &str| self.write(&format!("payload:{pointer}"));
        if pointer.trim().is_empty() {
            return Err(
                Finding::new(text, "`payload:` needs a JSON pointer").help(write(self.pointer))
            );
        }
        if !pointer.starts_with('/') {
            return Err(Finding::new(
                text,
                format!(
                    "a JSON pointer starts with `/`, found `{}`",
                    pointer.escape_debug()
                ),
            )
            .help(write(&slashed(pointer))));
        }
        if pointer.ends_with('/') {
            let instead = match pointer.trim_end_matches('/') {
                "" => self.pointer,
                shorter => shorter,
            };
            return Err(Finding::new(
                text,
                "a JSON pointer that ends with `/` names a property without a name",
            )
            .help(write(instead)));
        }
        let escaped = escaped(pointer);
        if escaped != pointer {
            return Err(
                Finding::new(text, "a `~` in a JSON pointer is written `~0`").help(write(&escaped)),
            );
        }
        Ok(Place::Payload(LitStr::new(pointer, text.span())))
    }
}

/// The place that is meant by text in another form: `/order/id`, `$.order.id`, `Header = x-id`, `x-id`.
pub(crate) fn meant(given: &str) -> Option<String> {
    if given.starts_with('/') {
        return Some(format!("payload:{given}"));
    }
    if given.starts_with("$.") {
        return Some(format!("payload:{}", slashed(given)));
    }
    if let Some((kind, rest)) = given.split_once([':', '=', ' '])
        && let kind @ ("header" | "payload") = &*kind.trim().to_lowercase()
    {
        let rest = rest.trim_start_matches([':', '=', ' ']).trim_end();
        return Some(format!("{kind}:{rest}"));
    }
    let lower = given.to_lowercase();
    (lower.starts_with("x-") || lower.starts_with("ce-")).then(|| format!("header:{given}"))
}

/// What `header("x-event-id")` or `DedupKey::Payload("/id")` is meant to be.
pub(crate) fn called(value: &Expr) -> Option<String> {
    let Expr::Call(call) = literal::peel(value) else {
        return None;
    };
    let kind = snake_case(&literal::last_name(&call.func)?);
    match (
        kind.as_str(),
        call.args.first().and_then(literal::literal),
        call.args.len(),
    ) {
        ("header" | "payload", Some(Lit::Str(text)), 1) => Some(format!("{kind}:{}", text.value())),
        _ => None,
    }
}

/// `$.order.id`, `#/order/id` and `order.id` as a pointer.
pub(crate) fn slashed(pointer: &str) -> String {
    let dotted = pointer
        .trim_start_matches(['$', '#', '.', ' '])
        .replace('.', "/");
    format!("/{}", dotted.trim_start_matches('/'))
}

/// The pointer with each `~` that does not begin `~0` or `~1` written as `~0`.
fn escaped(pointer: &str) -> String {
    let mut escaped = String::with_capacity(pointer.len());
    let mut letters = pointer.chars().peekable();
    while let Some(letter) = letters.next() {
        escaped.push(letter);
        if letter == '~' && !matches!(letters.peek(), Some('0' | '1')) {
            escaped.push('0');
        }
    }
    escaped
}
