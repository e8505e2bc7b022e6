//! What identifies a message.

use super::literal;
use super::place::{self, Place, Spoken};
use crate::diag::Finding;
use crate::options::{AttrOption, snake_case};
use crate::suggest;
use syn::{Expr, LitStr};

pub(crate) enum DedupKey {
    MessageId,
    CloudEvents,
    At(Place),
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
        let instead = place::called(value)
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
        let places = Spoken {
            option,
            header: "x-event-id",
            pointer: "/order/id",
        };
        match places.place(&text) {
            Some(place) => {
                let place = place?;
                if let Place::Header(name) = &place {
                    identifies(&text, &name.value())?;
                }
                Ok(Self::At(place))
            }
            None => plain(&text, &text.value()),
        }
    }
}

fn plain(text: &LitStr, given: &str) -> Result<DedupKey, Finding> {
    match given {
        "message_id" => return Ok(DedupKey::MessageId),
        "cloudevents" => return Ok(DedupKey::CloudEvents),
        _ => {}
    }
    if given.trim().is_empty() {
        return Err(Finding::new(text, "the message key is empty").help(FORMS));
    }
    identifies(text, given)?;
    let near = || nearest(&given.to_lowercase()).map(ToOwned::to_owned);
    let remedy = match near().or_else(|| place::meant(given)) {
        Some(near) => format!("did you mean `\"{}\"`?", near.escape_debug()),
        None => FORMS.to_owned(),
    };
    Err(Finding::new(
        text,
        format!("unknown message key `{}`", given.escape_debug()),
    )
    .help(remedy))
}

fn nearest(word: &str) -> Option<&'static str> {
    suggest::nearest(word, ["message_id", "cloudevents"])
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
