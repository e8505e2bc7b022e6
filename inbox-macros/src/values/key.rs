//! What identifies a message.

use super::literal;
use crate::diag::Finding;
use crate::options::{AttrOption, snake_case};
use crate::suggest;
use syn::{Expr, Lit, LitStr};

pub(crate) enum DedupKey {
    MessageId,
    CloudEvents,
    Header(LitStr),
    Payload(LitStr),
}

const FORMS: &str =
    r#"the keys are `"message_id"`, `"cloudevents"`, `"header:NAME"`, `"payload:/json/pointer"`"#;

/// Why a value that brokers or transports attach does not identify a message, and the names it goes by, without case
/// and separators.
const NO_IDENTITY: [(&str, &[&str]); 6] = [
    (
        "the broker assigns a new one on every delivery, so no duplicate would be found",
        &[
            "deliverytag",
            "deliveryid",
            "consumertag",
            "receipthandle",
            "acktoken",
            "ackid",
            "locktoken",
        ],
    ),
    (
        "it is made anew for each request or attempt",
        &[
            "requestid",
            "xrequestid",
            "xamznrequestid",
            "xamzntraceid",
            "traceparent",
            "tracestate",
            "traceid",
            "spanid",
            "xb3traceid",
            "xb3spanid",
            "signature",
            "webhooksignature",
            "stripesignature",
        ],
    ),
    (
        "it counts deliveries, so it differs between two copies of a message",
        &[
            "deliverycount",
            "xdeliverycount",
            "deliveryattempt",
            "deliverynumber",
            "receivecount",
            "approximatereceivecount",
            "attempt",
            "attempts",
            "retrycount",
            "xretrycount",
            "numdelivered",
            "natsnumdelivered",
            "timesdelivered",
            "xdeath",
            "xacquiredcount",
        ],
    ),
    (
        "it names a place in a log, and the same message published again gets another one",
        &[
            "offset",
            "xstreamoffset",
            "partition",
            "sequence",
            "sequencenumber",
            "streamsequence",
            "natssequence",
            "natslastsequence",
            "consumersequence",
            "entryid",
            "sqsmessageid",
        ],
    ),
    (
        "it changes between deliveries",
        &[
            "redelivered",
            "receivedat",
            "approximatefirstreceivetimestamp",
            "xfirstdeathqueue",
            "xfirstdeathreason",
            "xfirstdeathexchange",
            "xlastdeathqueue",
            "xlastdeathreason",
            "xlastdeathexchange",
        ],
    ),
    (
        "it is not unique",
        &[
            "timestamp",
            "senttimestamp",
            "webhooktimestamp",
            "date",
            "correlationid",
            "xcorrelationid",
            "md5ofbody",
            "routingkey",
            "exchange",
        ],
    ),
];

impl DedupKey {
    pub(crate) fn read(option: &AttrOption, value: &Expr) -> Result<Self, Finding> {
        let instead = called(value)
            .or_else(|| {
                literal::last_name(value)
                    .and_then(|name| nearest(&snake_case(&name)))
                    .map(ToOwned::to_owned)
            })
            .unwrap_or_else(|| "message_id".to_owned());
        let text = literal::string(
            option,
            value,
            &format!("write `key = \"{}\"`", instead.escape_debug()),
        )?;
        let given = text.value();
        match given.split_once(':') {
            Some(("header", name)) => header(&text, name),
            Some(("payload", pointer)) => payload(&text, pointer),
            _ => plain(&text, &given),
        }
    }
}

fn plain(text: &LitStr, given: &str) -> Result<DedupKey, Finding> {
    match given {
        "message_id" => return Ok(DedupKey::MessageId),
        "cloudevents" => return Ok(DedupKey::CloudEvents),
        "header" => return header(text, ""),
        "payload" => return payload(text, ""),
        _ => {}
    }
    if given.trim().is_empty() {
        return Err(Finding::new(text, "the message key is empty").help(FORMS));
    }
    identifies(text, given)?;
    let finding = Finding::new(
        text,
        format!("unknown message key `{}`", given.escape_debug()),
    );
    let lower = given.to_lowercase();
    if given.starts_with('/') {
        return Err(finding.help(format!(
            "did you mean `\"payload:{}\"`?",
            given.escape_debug()
        )));
    }
    if let Some((kind, rest)) = given.split_once([':', '=', ' '])
        && let kind @ ("header" | "payload") = &*kind.trim().to_lowercase()
    {
        return Err(finding.help(format!(
            "did you mean `\"{kind}:{}\"`?",
            rest.trim_start_matches([':', '=', ' '])
                .trim_end()
                .escape_debug()
        )));
    }
    let remedy = match nearest(&lower) {
        Some(near) => format!("did you mean `\"{near}\"`?"),
        None if lower.starts_with("x-") || lower.starts_with("ce-") => {
            format!("did you mean `\"header:{}\"`?", given.escape_debug())
        }
        None => FORMS.to_owned(),
    };
    Err(finding.help(remedy))
}

fn nearest(word: &str) -> Option<&'static str> {
    suggest::nearest(word, ["message_id", "cloudevents"])
}

/// What `header("x-event-id")` or `DedupKey::Payload("/id")` is meant to be.
fn called(value: &Expr) -> Option<String> {
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

fn header(text: &LitStr, name: &str) -> Result<DedupKey, Finding> {
    let trimmed = name.trim();
    if trimmed.is_empty() {
        return Err(Finding::new(text, "`header:` needs a header name")
            .help(r#"`key = "header:x-event-id"`"#));
    }
    if trimmed != name {
        return Err(
            Finding::new(text, "the header name starts or ends with white space")
                .help(format!("`key = \"header:{}\"`", trimmed.escape_debug())),
        );
    }
    identifies(text, name)?;
    Ok(DedupKey::Header(LitStr::new(name, text.span())))
}

/// Refuses what the broker or the transport attaches.
fn identifies(text: &LitStr, name: &str) -> Result<(), Finding> {
    let plain: String = name
        .to_lowercase()
        .chars()
        .filter(|letter| letter.is_alphanumeric())
        .collect();
    match NO_IDENTITY
        .iter()
        .find(|(_, names)| names.contains(&plain.as_str()))
    {
        None => Ok(()),
        Some((why, _)) => Err(Finding::new(
            text,
            format!("`{}` cannot identify a message: {why}", name.escape_debug()),
        )
        .help(r#"use an id set by the producer, e.g. `key = "message_id"`"#)),
    }
}

/// A JSON pointer as in RFC 6901. The empty pointer, the whole document, is refused: it is no id.
fn payload(text: &LitStr, pointer: &str) -> Result<DedupKey, Finding> {
    let write = |pointer: &str| format!("`key = \"payload:{}\"`", pointer.escape_debug());
    if pointer.trim().is_empty() {
        return Err(Finding::new(text, "`payload:` needs a JSON pointer").help(write("/order/id")));
    }
    if !pointer.starts_with('/') {
        let dotted = pointer
            .trim_start_matches(['$', '#', '.', ' '])
            .replace('.', "/");
        return Err(Finding::new(
            text,
            format!(
                "a JSON pointer starts with `/`, found `{}`",
                pointer.escape_debug()
            ),
        )
        .help(write(&format!("/{}", dotted.trim_start_matches('/')))));
    }
    if pointer.ends_with('/') {
        let instead = match pointer.trim_end_matches('/') {
            "" => "/order/id",
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
    Ok(DedupKey::Payload(LitStr::new(pointer, text.span())))
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
