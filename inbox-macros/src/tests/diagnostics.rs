//! What is said about a mistake, and which part of the source is underlined.

use super::split;
use crate::diag::Diagnostics;
use crate::handler;
use crate::path::Root;

/// The headline, the help (or nothing), the underlined text.
type Expected<'s> = (&'s str, &'s str, &'s str);

/// Underlined when no token of the source fits.
const ATTRIBUTE: &str = "<the attribute>";

pub(super) fn findings(source: &str) -> Vec<(String, String, String)> {
    let (args, item) = split(source);
    let mut diag = Diagnostics::default();
    handler::generate(args, item, Root::Crate("inbox_core"), &mut diag);
    let finding = |(message, tokens): (String, proc_macro2::TokenStream)| {
        let (headline, help) = message.split_once("\nhelp: ").unwrap_or((&message, ""));
        let tokens: Vec<_> = tokens.into_iter().collect();
        let underlined = match (tokens.first(), tokens.last()) {
            (Some(first), Some(last)) => {
                &source[first.span().byte_range().start..last.span().byte_range().end]
            }
            _ => ATTRIBUTE,
        };
        (headline.to_owned(), help.to_owned(), underlined.to_owned())
    };
    diag.into_pairs().map(finding).collect()
}

fn assert_findings(source: &str, expected: &[Expected<'_>]) {
    let found = findings(source);
    let found: Vec<Expected<'_>> = found
        .iter()
        .map(|(headline, help, at)| (&**headline, &**help, &**at))
        .collect();
    assert_eq!(found, expected, "\nin: {source}");
    for (headline, help, _) in found {
        assert_form(headline, help);
    }
}

/// Cases of options in front of a correct function.
fn assert_options(cases: &[(&str, &[Expected<'_>])]) {
    for (options, expected) in cases {
        let item = "async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), E> { Ok(()) }";
        assert_findings(&format!("#[inbox_handler({options})] {item}"), expected);
    }
}

/// Cases of options besides the consumer in front of a correct function that takes a batch.
fn assert_batch_options(cases: &[(&str, &[Expected<'_>])]) {
    for (options, expected) in cases {
        let item = "async fn post(orders: Batch<OrderPlaced>, tx: &mut Tx<Postgres>) -> Result<(), E> { Ok(()) }";
        assert_findings(
            &format!("#[inbox_handler(consumer = \"x\", {options})] {item}"),
            expected,
        );
    }
}

/// Cases of options besides the consumer in front of a correct function.
fn assert_retries(cases: &[(&str, &[Expected<'_>])]) {
    for (options, expected) in cases {
        assert_options(&[(&format!("consumer = \"x\", {options}"), expected)]);
    }
}

/// Cases of items under a correct attribute.
fn assert_items(cases: &[(&str, &[Expected<'_>])]) {
    for (item, expected) in cases {
        assert_findings(
            &format!("#[inbox_handler(consumer = \"billing\")] {item}"),
            expected,
        );
    }
}

const NEEDS_CONSUMER: &str = "`#[inbox_handler]` needs a consumer name";
const PICK: &str =
    "pick a stable name such as `\"billing\"`; messages are deduplicated per consumer";
const PRODUCER_ID: &str = "use an id set by the producer, e.g. `key = \"message_id\"`";
const OPTIONS: &str = "the options are `consumer`, `on`, `from`, `key`, `timeout`, `max_attempts`, `retry`, \
                       `isolation`, `order_by`, `batch`, `own_transaction`, `crate`";
const KEYS: &str =
    r#"the keys are `"message_id"`, `"cloudevents"`, `"header:NAME"`, `"payload:/json/pointer"`"#;
const PERSISTED: &str = "write `consumer = \"billing\"`: the name is persisted, so it is spelled out where the handler is defined";

#[test]
fn a_correct_definition_has_no_findings() {
    assert_options(&[
        (r#"consumer = "billing""#, &[]),
        (r#"consumer = "a.B-c_9","#, &[]),
        (
            r#"consumer = r"billing", on = "OrderPlaced", from = "orders""#,
            &[],
        ),
        (
            r#"consumer = "billing", on = ["OrderPlaced", "OrderChanged"], from = ["a", "b",]"#,
            &[],
        ),
        (r#"consumer = "billing", key = "message_id""#, &[]),
        (r#"consumer = "billing", key = "cloudevents""#, &[]),
        (r#"consumer = "billing", key = "header:x-event-id""#, &[]),
        (
            r#"consumer = "billing", key = "payload:/order/id~0a~1b""#,
            &[],
        ),
        (r#"consumer = "billing", key = "payload:/sequence""#, &[]),
        (r#"consumer = "billing", timeout = "1ms""#, &[]),
        (
            r#"consumer = "billing", timeout = "12h", max_attempts = 1000"#,
            &[],
        ),
        (
            r#"consumer = "billing", isolation = "serializable", crate = "::facade""#,
            &[],
        ),
        (
            r#"crate = crate::facade, consumer = "billing", isolation = "repeatable read""#,
            &[],
        ),
        (
            r#"crate = ::facade::inbox, consumer = "billing", max_attempts = 0x10"#,
            &[],
        ),
        (r#"consumer = "billing", order_by = "key""#, &[]),
        (
            r#"consumer = "billing", order_by = "header:x-account""#,
            &[],
        ),
        // What is no identity can be an order.
        (
            r#"consumer = "billing", order_by = "header:partition""#,
            &[],
        ),
        (
            r#"consumer = "billing", order_by = "payload:/order/account~1a", own_transaction = true"#,
            &[],
        ),
        (r#"consumer = "billing", own_transaction = false"#, &[]),
    ]);
    assert_batch_options(&[
        ("batch(max = 1)", &[]),
        (r#"batch(max = 10_000, linger = "10s",)"#, &[]),
        (
            r#"batch(linger = "1ms", max = 0x10), own_transaction = false, order_by = "key""#,
            &[],
        ),
    ]);
    assert_items(&[(
        "async fn f((a, _): M, mut tx: &mut Tx<Sqlite>, State(s): State<'_, A>) -> Outcome { loop {} }",
        &[],
    )]);
}

/// The wrong uses that a first attempt is made of.
#[test]
fn wrong_use_is_one_error_at_its_token() {
    let item = "async fn charge(order: O, tx: &mut Tx<Postgres>) -> Result<(), E> { Ok(()) }";
    for (attribute, item, underlined) in [
        ("#[inbox_handler]", item, ATTRIBUTE),
        (r#"#[inbox_handler(consumer = "")]"#, item, r#""""#),
        ("#[inbox_handler(consumer = 5)]", item, "5"),
        (
            r#"#[inbox_handler(consumer = "billing", colour = "red")]"#,
            item,
            "colour",
        ),
        (
            r#"#[inbox_handler(consumer = "billing", key = "message_id", key = "cloudevents")]"#,
            item,
            "key",
        ),
        (
            r#"#[inbox_handler(consumer = "billing")]"#,
            "fn charge(order: O, tx: &mut Tx<Postgres>) -> Result<(), E> { Ok(()) }",
            "fn",
        ),
        (
            r#"#[inbox_handler(consumer = "billing")]"#,
            "async fn charge(&self, order: O, tx: &mut Tx<Postgres>) -> Result<(), E> { Ok(()) }",
            "&self",
        ),
        (
            r#"#[inbox_handler(consumer = "billing")]"#,
            "struct Charge;",
            "struct",
        ),
    ] {
        let found = findings(&format!("{attribute} {item}"));
        let [(headline, help, at)] = found.as_slice() else {
            panic!("{attribute} {item}: {found:?}");
        };
        assert_eq!(at, underlined, "{attribute} {item}");
        assert!(!help.is_empty(), "{attribute} {item}: {headline}");
    }
}

/// How every text of this crate reads: the form is checked wherever the tables name one.
fn assert_form(headline: &str, help: &str) {
    let begins_low = !headline.starts_with(char::is_uppercase);
    assert!(
        begins_low && !headline.ends_with('.'),
        "headline: {headline}"
    );
    assert!(!help.is_empty(), "no remedy for: {headline}");
    assert!(!help.ends_with('.'), "remedy: {help}");
    assert_eq!(help.matches('`').count() % 2, 0, "remedy: {help}");
}

#[test]
fn the_consumer_is_required() {
    assert_findings(
        "#[inbox_handler] async fn charge(order: O, tx: &mut Tx<Postgres>) -> Result<(), E> {}",
        &[(
            NEEDS_CONSUMER,
            "write `#[inbox_handler(consumer = \"billing\")]`; the name is stored with every claimed message",
            ATTRIBUTE,
        )],
    );
    assert_options(&[
        (
            r#"key = "message_id""#,
            &[(NEEDS_CONSUMER, r#"add `consumer = "..."`"#, ATTRIBUTE)],
        ),
        (
            r#"key = "offset""#,
            &[
                (
                    "`offset` cannot identify a message: it names a place in a log, and the same message published again \
                     gets another one",
                    PRODUCER_ID,
                    r#""offset""#,
                ),
                (NEEDS_CONSUMER, r#"add `consumer = "..."`"#, ATTRIBUTE),
            ],
        ),
    ]);
}

#[test]
fn consumer_names_are_checked() {
    let long = format!("\"{}\"", "x".repeat(300));
    assert_options(&[
        (
            r#"consumer = """#,
            &[("the consumer name is empty", PICK, r#""""#)],
        ),
        (
            r#"consumer = "  ""#,
            &[("the consumer name is blank", PICK, r#""  ""#)],
        ),
        (
            r#"consumer = " billing ""#,
            &[(
                "the consumer name starts or ends with white space",
                r#"write `"billing"`"#,
                r#"" billing ""#,
            )],
        ),
        (
            r#"consumer = "billing/eu é""#,
            &[(
                "the consumer name contains `/`",
                "use ASCII letters, digits, `_`, `-`, `.`, for example `\"billing-eu\"`",
                r#""billing/eu é""#,
            )],
        ),
        (
            r#"consumer = "bill\u{200b}ing""#,
            &[(
                r"the consumer name contains `\u{200b}`",
                "use ASCII letters, digits, `_`, `-`, `.`, for example `\"bill-ing\"`",
                r#""bill\u{200b}ing""#,
            )],
        ),
        (
            &format!("consumer = {long}"),
            &[(
                "the consumer name has 300 characters, at most 128 fit the inbox table",
                "shorten it",
                &long,
            )],
        ),
    ]);
}

#[test]
fn a_consumer_is_a_string_literal() {
    assert_options(&[
        (
            "consumer = 42",
            &[(
                "`consumer` takes a string literal",
                r#"write `consumer = "42"`"#,
                "42",
            )],
        ),
        (
            "consumer = 'b'",
            &[(
                "`consumer` takes a string literal",
                r#"write `consumer = "b"`"#,
                "'b'",
            )],
        ),
        (
            "consumer = true",
            &[(
                "`consumer` takes a string literal",
                r#"write `consumer = "true"`"#,
                "true",
            )],
        ),
        (
            "consumer = NAME",
            &[(
                "`consumer` takes a string literal, not an expression",
                PERSISTED,
                "NAME",
            )],
        ),
        (
            r#"consumer = concat!("a", "b")"#,
            &[(
                "`consumer` takes a string literal, not an expression",
                PERSISTED,
                r#"concat!("a", "b")"#,
            )],
        ),
        (
            r#"consumer = b"x""#,
            &[(
                "`consumer` takes a string literal, found a byte string",
                "remove the `b`",
                r#"b"x""#,
            )],
        ),
        (
            r#"consumer = c"x""#,
            &[(
                "`consumer` takes a string literal, found a C string",
                "remove the `c`",
                r#"c"x""#,
            )],
        ),
        (
            r#"consumer = "billing"s"#,
            &[(
                "`consumer` takes a string literal without a suffix",
                "remove the `s`",
                r#""billing"s"#,
            )],
        ),
    ]);
}

#[test]
fn options_are_written_with_an_equals_sign() {
    assert_options(&[
        (
            "consumer",
            &[(
                "`consumer` needs a value",
                r#"`consumer = "billing"`"#,
                "consumer",
            )],
        ),
        (
            "consumer =",
            &[(
                "`consumer` needs a value",
                r#"`consumer = "billing"`"#,
                "consumer =",
            )],
        ),
        (
            r#"consumer = , key = "message_id""#,
            &[(
                "`consumer` needs a value",
                r#"`consumer = "billing"`"#,
                "consumer =",
            )],
        ),
        (
            "consumer = @",
            &[("`consumer` needs a value", r#"`consumer = "billing"`"#, "@")],
        ),
        (
            "consumer == \"x\"",
            &[(
                "`consumer` is written with `=`",
                r#"`consumer = "x"`"#,
                "==",
            )],
        ),
        (
            "consumer => \"x\"",
            &[(
                "`consumer` is written with `=`",
                r#"`consumer = "x"`"#,
                "=>",
            )],
        ),
        (
            r#"consumer("billing")"#,
            &[(
                "`consumer` is written with `=`",
                r#"`consumer = "billing"`"#,
                r#"("billing")"#,
            )],
        ),
        (
            r#"consumer: "x""#,
            &[("`consumer` is written with `=`", r#"`consumer = "x"`"#, ":")],
        ),
        (
            "consumer: ",
            &[(
                "`consumer` is written with `=`",
                r#"`consumer = "billing"`"#,
                ":",
            )],
        ),
        (
            r#"consumer "x""#,
            &[(
                "`consumer` is written with `=`",
                r#"`consumer = "x"`"#,
                r#""x""#,
            )],
        ),
        (
            r#"consumer = "x", max_attempts(3)"#,
            &[(
                "`max_attempts` is written with `=`",
                "`max_attempts = 3`",
                "(3)",
            )],
        ),
        (
            r#""billing""#,
            &[(
                "expected `option = value`, found a string",
                r#"`consumer = "billing"`"#,
                r#""billing""#,
            )],
        ),
        (
            "42",
            &[(
                "expected `option = value`, found a number",
                r#"`consumer = "billing"`"#,
                "42",
            )],
        ),
        (
            r#"consumer = "x", "y""#,
            &[(
                "expected `option = value`, found a string",
                "remove it, or say which option it is",
                r#""y""#,
            )],
        ),
        (
            "names::BILLING",
            &[(
                "expected `option = value`, found a path",
                r#"`consumer = "billing"`"#,
                "names::BILLING",
            )],
        ),
        (
            r#", consumer = "billing""#,
            &[("expected an option before `,`", "remove the comma", ",")],
        ),
        (
            r#"consumer = "billing",, key = "message_id""#,
            &[("expected an option before `,`", "remove the comma", ",")],
        ),
    ]);
}

#[test]
fn unknown_options_are_explained() {
    let of_builder =
        r#"the subscription belongs to the runtime builder; here use `consumer = "..."`"#;
    let consumer = r#"here use `consumer = "billing"`"#;
    assert_options(&[
        (
            r#"consumr = "x""#,
            &[(
                "unknown option `consumr`",
                "did you mean `consumer`?",
                "consumr",
            )],
        ),
        (
            r#"queue = "x""#,
            &[("unknown option `queue`", of_builder, "queue")],
        ),
        (
            r#"topic = "x""#,
            &[("unknown option `topic`", of_builder, "topic")],
        ),
        (
            r#"name = "x""#,
            &[("unknown option `name`", consumer, "name")],
        ),
        (
            r#"group("x")"#,
            &[("unknown option `group`", consumer, "group")],
        ),
        (
            r#"colour = "x""#,
            &[("unknown option `colour`", OPTIONS, "colour")],
        ),
        (
            r#"colour"#,
            &[("unknown option `colour`", OPTIONS, "colour")],
        ),
        (
            r#"consumer = "x", kye = "message_id", retries = 3, type = "X""#,
            &[
                ("unknown option `kye`", "did you mean `key`?", "kye"),
                (
                    "unknown option `retries`",
                    "here use `max_attempts = 5`",
                    "retries",
                ),
                (
                    "unknown option `type`",
                    r#"here use `on = "OrderPlaced"`"#,
                    "type",
                ),
            ],
        ),
        (
            r#"Consumer = "x""#,
            &[(
                "unknown option `Consumer`",
                "did you mean `consumer`?",
                "Consumer",
            )],
        ),
        (
            r#"consumer = "x", max-attempts = 3, maxAttempts = 3, Timeout = "1s""#,
            &[
                (
                    "unknown option `max-attempts`",
                    "did you mean `max_attempts`?",
                    "max-attempts",
                ),
                (
                    "unknown option `maxAttempts`",
                    "did you mean `max_attempts`?",
                    "maxAttempts",
                ),
                (
                    "unknown option `Timeout`",
                    "did you mean `timeout`?",
                    "Timeout",
                ),
            ],
        ),
        (
            r#"consumer = "x", dedup-key = "message_id", concurrency = 4, a-b-"#,
            &[
                (
                    "unknown option `dedup-key`",
                    r#"here use `key = "message_id"`"#,
                    "dedup-key",
                ),
                (
                    "unknown option `concurrency`",
                    "this belongs to the runtime builder: `.concurrency(4)`",
                    "concurrency",
                ),
                ("unknown option `a-b`", OPTIONS, "a-b"),
            ],
        ),
        (
            r#"consumer = "x", mode = "stored""#,
            &[("unknown option `mode`", OPTIONS, "mode")],
        ),
    ]);
}

#[test]
fn an_option_is_given_once_and_separated_by_a_comma() {
    let source =
        r#"#[inbox_handler(consumer = "a", consumer = "b")] async fn f(m: M, tx: &mut T) -> R {}"#;
    assert_findings(
        source,
        &[("`consumer` is given twice", "keep one", "consumer")],
    );
    assert_options(&[
        (
            r#"consumer = "a" key = "message_id""#,
            &[("expected `,` before `key`", "write `, key`", "key")],
        ),
        (
            r#"consumer = "a" "b", key = "message_id""#,
            &[(
                "expected `,`, found `\"b\"`",
                "remove `\"b\"`, or write `, option = value`",
                r#""b""#,
            )],
        ),
        (
            r#"consumer = "a"; key = "message_id""#,
            &[("expected `,`, found `;`", "write `,`", ";")],
        ),
        (
            r#"consumer = "a", on = "", on = "B""#,
            &[
                (
                    "`on` has an empty name",
                    r#"write `on = "OrderPlaced"`, or remove the option for every message of its sources"#,
                    r#""""#,
                ),
                ("`on` is given twice", "keep one", "on"),
            ],
        ),
    ]);
}

#[test]
fn broker_side_values_are_no_key() {
    let refused = |name: &str, why: &str| format!("`{name}` cannot identify a message: {why}");
    let per_delivery =
        "the broker assigns a new one on every delivery, so no duplicate would be found";
    let per_attempt = "it is made anew for each request or attempt";
    let counter = "it counts deliveries, so it differs between two copies of a message";
    let place = "it names a place in a log, and the same message published again gets another one";
    for (key, name, why) in [
        ("delivery_tag", "delivery_tag", per_delivery),
        ("receipt_handle", "receipt_handle", per_delivery),
        ("ReceiptHandle", "ReceiptHandle", per_delivery),
        ("header:delivery-tag", "delivery-tag", per_delivery),
        ("header:x-request-id", "x-request-id", per_attempt),
        ("header:traceparent", "traceparent", per_attempt),
        ("header:x-delivery-count", "x-delivery-count", counter),
        ("header:x-death", "x-death", counter),
        (
            "header:ApproximateReceiveCount",
            "ApproximateReceiveCount",
            counter,
        ),
        ("attempt", "attempt", counter),
        ("offset", "offset", place),
        ("partition", "partition", place),
        ("sequence", "sequence", place),
        ("header:Nats-Sequence", "Nats-Sequence", place),
        (
            "redelivered",
            "redelivered",
            "it changes between deliveries",
        ),
        (
            "received_at",
            "received_at",
            "it changes between deliveries",
        ),
        ("timestamp", "timestamp", "it is not unique"),
        ("correlation_id", "correlation_id", "it is not unique"),
    ] {
        let literal = format!("\"{key}\"");
        assert_options(&[(
            &format!("consumer = \"x\", key = {literal}"),
            &[(&refused(name, why), PRODUCER_ID, &literal)],
        )]);
    }
}

#[test]
fn a_key_has_one_of_four_forms() {
    for (key, headline, help) in [
        (
            "mesage_id",
            "unknown message key `mesage_id`",
            "did you mean `\"message_id\"`?",
        ),
        (
            "message-id",
            "unknown message key `message-id`",
            "did you mean `\"message_id\"`?",
        ),
        (
            "cloud_events",
            "unknown message key `cloud_events`",
            "did you mean `\"cloudevents\"`?",
        ),
        ("body:/id", "unknown message key `body:/id`", KEYS),
        (
            "Header: x-id",
            "unknown message key `Header: x-id`",
            r#"did you mean `"header:x-id"`?"#,
        ),
        (
            "Payload = /Order/Id",
            "unknown message key `Payload = /Order/Id`",
            r#"did you mean `"payload:/Order/Id"`?"#,
        ),
        (
            "x-event-id",
            "unknown message key `x-event-id`",
            r#"did you mean `"header:x-event-id"`?"#,
        ),
        (
            "/order/id",
            "unknown message key `/order/id`",
            r#"did you mean `"payload:/order/id"`?"#,
        ),
        ("", "the message key is empty", KEYS),
        (
            "header:",
            "`header:` needs a header name",
            r#"`key = "header:x-event-id"`"#,
        ),
        (
            "header:  ",
            "`header:` needs a header name",
            r#"`key = "header:x-event-id"`"#,
        ),
        (
            "header",
            "`header:` needs a header name",
            r#"`key = "header:x-event-id"`"#,
        ),
        (
            "header: x-id",
            "the header name starts or ends with white space",
            r#"`key = "header:x-id"`"#,
        ),
        (
            "payload:",
            "`payload:` needs a JSON pointer",
            r#"`key = "payload:/order/id"`"#,
        ),
        (
            "payload",
            "`payload:` needs a JSON pointer",
            r#"`key = "payload:/order/id"`"#,
        ),
        (
            "payload:id",
            "a JSON pointer starts with `/`, found `id`",
            r#"`key = "payload:/id"`"#,
        ),
        (
            "payload:$.order.id",
            "a JSON pointer starts with `/`, found `$.order.id`",
            r#"`key = "payload:/order/id"`"#,
        ),
        (
            "payload:#/order/id",
            "a JSON pointer starts with `/`, found `#/order/id`",
            r#"`key = "payload:/order/id"`"#,
        ),
        (
            "payload: /order/id",
            "a JSON pointer starts with `/`, found ` /order/id`",
            r#"`key = "payload:/order/id"`"#,
        ),
        (
            "payload:/",
            "a JSON pointer that ends with `/` names a property without a name",
            r#"`key = "payload:/order/id"`"#,
        ),
        (
            "payload:/order/",
            "a JSON pointer that ends with `/` names a property without a name",
            r#"`key = "payload:/order"`"#,
        ),
        (
            "$.order.id",
            "unknown message key `$.order.id`",
            r#"did you mean `"payload:/order/id"`?"#,
        ),
        (
            "payload:/a~b~0c~",
            "a `~` in a JSON pointer is written `~0`",
            r#"`key = "payload:/a~0b~0c~0"`"#,
        ),
    ] {
        let literal = format!("\"{key}\"");
        assert_options(&[(
            &format!("consumer = \"x\", key = {literal}"),
            &[(headline, help, &literal)],
        )]);
    }
    assert_options(&[(
        r#"consumer = "x", key = 7"#,
        &[(
            "`key` takes a string literal",
            r#"write `key = "message_id"`"#,
            "7",
        )],
    )]);
}

#[test]
fn a_key_that_is_no_literal_is_shown_as_one() {
    for (value, help) in [
        ("message_id", r#"write `key = "message_id"`"#),
        ("DedupKey::CloudEvents", r#"write `key = "cloudevents"`"#),
        ("header(\"x-id\")", r#"write `key = "header:x-id"`"#),
        (
            "DedupKey::Payload(\"/order/id\")",
            r#"write `key = "payload:/order/id"`"#,
        ),
        ("header(NAME)", r#"write `key = "message_id"`"#),
        ("[\"message_id\"]", r#"write `key = "message_id"`"#),
    ] {
        assert_options(&[(
            &format!("consumer = \"x\", key = {value}"),
            &[(
                "`key` takes a string literal, not an expression",
                help,
                value,
            )],
        )]);
    }
}

#[test]
fn an_order_key_has_one_of_three_forms() {
    let forms = r#"the order keys are `"key"`, `"header:NAME"`, `"payload:/json/pointer"`"#;
    let common =
        r#"name what messages of one order have in common, e.g. `order_by = "payload:/account"`"#;
    let key = r#"did you mean `"key"`?"#;
    let account = r#"did you mean `"payload:/account"`?"#;
    for (order, headline, help) in [
        ("", "the order key is empty", forms),
        ("  ", "the order key is empty", forms),
        ("/account", "unknown order key `/account`", account),
        ("$.account", "unknown order key `$.account`", account),
        ("account", "unknown order key `account`", account),
        (
            "order.account_id",
            "unknown order key `order.account_id`",
            r#"did you mean `"payload:/order/account_id"`?"#,
        ),
        (
            "x-account",
            "unknown order key `x-account`",
            r#"did you mean `"header:x-account"`?"#,
        ),
        (
            "Header = x-account",
            "unknown order key `Header = x-account`",
            r#"did you mean `"header:x-account"`?"#,
        ),
        (
            "header x-account",
            "unknown order key `header x-account`",
            r#"did you mean `"header:x-account"`?"#,
        ),
        ("body:/account", "unknown order key `body:/account`", forms),
        ("a b", "unknown order key `a b`", forms),
        ("Key", "unknown order key `Key`", key),
        ("keys", "unknown order key `keys`", key),
        ("routing_key", "unknown order key `routing_key`", key),
        ("routing-key", "unknown order key `routing-key`", key),
        ("partition_key", "unknown order key `partition_key`", key),
        ("partitionKey", "unknown order key `partitionKey`", key),
        ("partition", "unknown order key `partition`", key),
        ("group", "unknown order key `group`", key),
        ("MessageGroupId", "unknown order key `MessageGroupId`", key),
        (
            "message_id",
            "`message_id` orders nothing: every message has one of its own",
            common,
        ),
        (
            "cloudevents",
            "`cloudevents` orders nothing: every message has one of its own",
            common,
        ),
        (
            "id",
            "`id` orders nothing: every message has one of its own",
            common,
        ),
        (
            "header:",
            "`header:` needs a header name",
            r#"`order_by = "header:x-account"`"#,
        ),
        (
            "header",
            "`header:` needs a header name",
            r#"`order_by = "header:x-account"`"#,
        ),
        (
            "header: x-account",
            "the header name starts or ends with white space",
            r#"`order_by = "header:x-account"`"#,
        ),
        (
            "payload",
            "`payload:` needs a JSON pointer",
            r#"`order_by = "payload:/account"`"#,
        ),
        (
            "payload:account.id",
            "a JSON pointer starts with `/`, found `account.id`",
            r#"`order_by = "payload:/account/id"`"#,
        ),
        (
            "payload:/account/",
            "a JSON pointer that ends with `/` names a property without a name",
            r#"`order_by = "payload:/account"`"#,
        ),
        (
            "payload:/a~b",
            "a `~` in a JSON pointer is written `~0`",
            r#"`order_by = "payload:/a~0b"`"#,
        ),
    ] {
        let literal = format!("\"{order}\"");
        assert_options(&[(
            &format!("consumer = \"x\", order_by = {literal}"),
            &[(headline, help, &literal)],
        )]);
    }
}

#[test]
fn an_order_key_is_a_string_literal() {
    let expression = "`order_by` takes a string literal, not an expression";
    for (value, headline, help) in [
        (
            "7",
            "`order_by` takes a string literal",
            r#"write `order_by = "payload:/account"`"#,
        ),
        (
            "true",
            "`order_by` takes a string literal",
            r#"write `order_by = "payload:/account"`"#,
        ),
        (
            "b\"key\"",
            "`order_by` takes a string literal, found a byte string",
            "remove the `b`",
        ),
        ("key", expression, r#"write `order_by = "key"`"#),
        ("OrderBy::Key", expression, r#"write `order_by = "key"`"#),
        (
            "account",
            expression,
            r#"write `order_by = "payload:/account"`"#,
        ),
        (
            "OrderBy::Payload(\"/order/id\")",
            expression,
            r#"write `order_by = "payload:/order/id"`"#,
        ),
        (
            "header(\"x-account\")",
            expression,
            r#"write `order_by = "header:x-account"`"#,
        ),
        (
            "[\"key\"]",
            expression,
            r#"write `order_by = "payload:/account"`"#,
        ),
    ] {
        assert_options(&[(
            &format!("consumer = \"x\", order_by = {value}"),
            &[(headline, help, value)],
        )]);
    }
}

#[test]
fn words_for_the_order_the_batch_and_the_own_transaction() {
    for (words, help) in [
        (
            "ordered_by order partition_by partition_key group_by ordering_key affinity shard_by orderBy",
            r#"here use `order_by = "payload:/account"`"#,
        ),
        (
            "batch_size max_batch bulk chunk max_batch_size maxBatchSize",
            "here use `batch(max = 100)`",
        ),
        (
            "isolated single exclusive separate_transaction no_batch",
            "here use `own_transaction = true`",
        ),
        (
            "shared_transaction shared_transactions shareTransaction",
            "messages share a transaction unless a handler has `own_transaction = true`",
        ),
        ("max Max", "write it as `batch(max = 100)`"),
        ("linger", "write it as `batch(max = 100, linger = \"5ms\")`"),
        ("orderby order_bye", "did you mean `order_by`?"),
        ("bacth Batch", "did you mean `batch`?"),
        (
            "own_transactions ownTransaction",
            "did you mean `own_transaction`?",
        ),
    ] {
        for word in words.split(' ') {
            let help = match word {
                "orderBy" => "did you mean `order_by`?",
                _ => help,
            };
            assert_options(&[(
                &format!("consumer = \"x\", {word} = 5"),
                &[(&format!("unknown option `{word}`"), help, word)],
            )]);
        }
    }
    assert_options(&[
        (
            r#"consumer = "x", routing_key = "a""#,
            &[(
                "unknown option `routing_key`",
                r#"the subscription belongs to the runtime builder; here use `consumer = "..."`"#,
                "routing_key",
            )],
        ),
        (
            r#"consumer = "x", idempotency_key = "a""#,
            &[(
                "unknown option `idempotency_key`",
                r#"here use `key = "message_id"`"#,
                "idempotency_key",
            )],
        ),
    ]);
}

#[test]
fn a_batch_has_its_limits_in_parentheses() {
    let written = "`batch` is written with parentheses";
    let needs = "`batch` needs `max`, the most messages of one call";
    let example = "`batch(max = 100)`";
    assert_batch_options(&[
        ("batch", &[(written, example, "batch")]),
        ("batch, timeout = \"5s\"", &[(written, example, "batch")]),
        ("batch = 500", &[(written, "`batch(max = 500)`", "=")]),
        ("batch = \"max = 5\"", &[(written, "`batch(max = 5)`", "=")]),
        ("batch = \"5\"", &[(written, "`batch(max = 5)`", "=")]),
        ("batch = (max = 5)", &[(written, "`batch(max = 5)`", "=")]),
        ("batch = true", &[(written, example, "=")]),
        ("batch = SIZE", &[(written, example, "=")]),
        ("batch =", &[(written, example, "=")]),
        ("batch: 500", &[(written, "`batch(max = 500)`", ":")]),
        ("batch 500", &[(written, "`batch(max = 500)`", "500")]),
        (
            "batch[max = 5]",
            &[(written, "`batch(max = 5)`", "[max = 5]")],
        ),
        ("batch { max: 5 }", &[(written, example, "{ max: 5 }")]),
        ("batch()", &[(needs, example, "batch()")]),
        (
            "batch(linger = \"5ms\")",
            &[(needs, "add `max = 100`", "batch(linger = \"5ms\")")],
        ),
        (
            "batch(max = 5), batch(max = 6)",
            &[("`batch` is given twice", "keep one", "batch")],
        ),
        (
            "batch(max = 5) 6",
            &[(
                "expected `,`, found `6`",
                "remove `6`, or write `, option = value`",
                "6",
            )],
        ),
    ]);
}

#[test]
fn the_options_of_a_batch_are_checked_like_the_others() {
    let max = "here use `max = 100`";
    let unknown = |name: &str| format!("unknown option `{name}` of `batch`");
    assert_batch_options(&[
        (
            "batch(500)",
            &[(
                "expected `option = value`, found a number",
                "`max = 500`",
                "500",
            )],
        ),
        (
            "batch(\"500\")",
            &[(
                "expected `option = value`, found a string",
                "`max = 100`",
                "\"500\"",
            )],
        ),
        (
            "batch(max = 5, \"5ms\")",
            &[(
                "expected `option = value`, found a string",
                "remove it, or say which option it is",
                "\"5ms\"",
            )],
        ),
        (
            "batch(max)",
            &[("`max` needs a value", "`max = 100`", "max")],
        ),
        (
            "batch(max =)",
            &[("`max` needs a value", "`max = 100`", "max =")],
        ),
        (
            "batch(max: 5)",
            &[("`max` is written with `=`", "`max = 5`", ":")],
        ),
        (
            "batch(max(5))",
            &[("`max` is written with `=`", "`max = 5`", "(5)")],
        ),
        ("batch(size = 5)", &[(&unknown("size"), max, "size")]),
        (
            "batch(maximum = 5)",
            &[(&unknown("maximum"), max, "maximum")],
        ),
        (
            "batch(mx = 5)",
            &[(&unknown("mx"), "did you mean `max`?", "mx")],
        ),
        (
            "batch(max = 5, wait = \"5ms\")",
            &[(&unknown("wait"), "here use `linger = \"5ms\"`", "wait")],
        ),
        (
            "batch(max = 5, timeout = \"5ms\")",
            &[(
                &unknown("timeout"),
                "here use `linger = \"5ms\"`",
                "timeout",
            )],
        ),
        (
            "batch(max = 5, order_by = \"key\")",
            &[(
                &unknown("order_by"),
                "write it behind the parentheses: `, order_by = \"payload:/account\"`",
                "order_by",
            )],
        ),
        (
            "batch(max = 5, colour = 1)",
            &[(
                &unknown("colour"),
                "the options are `max`, `linger`",
                "colour",
            )],
        ),
        (
            "batch(max = 5, max = 6)",
            &[("`max` is given twice", "keep one", "max")],
        ),
        (
            "batch(max = 5 linger = \"5ms\")",
            &[("expected `,` before `linger`", "write `, linger`", "linger")],
        ),
        (
            "batch(max = 5; linger = \"5ms\")",
            &[("expected `,`, found `;`", "write `,`", ";")],
        ),
        (
            "batch(, max = 5)",
            &[("expected an option before `,`", "remove the comma", ",")],
        ),
        (
            "batch(max = 0, linger = \"0s\"), colour = 1",
            &[
                (
                    "`max = 0` would never run the handler",
                    "write `max = 1` for one message at a time",
                    "0",
                ),
                (
                    "a linger of `0s` waits for nothing",
                    "remove `linger`",
                    "\"0s\"",
                ),
                ("unknown option `colour`", OPTIONS, "colour"),
            ],
        ),
    ]);
}

#[test]
fn the_size_and_the_linger_of_a_batch_are_bounded() {
    for (value, headline, help) in [
        (
            "0",
            "`max = 0` would never run the handler",
            "write `max = 1` for one message at a time",
        ),
        (
            "10001",
            "`max` is at most 10000, found 10001",
            "write `max = 10000`",
        ),
        (
            "\"5\"",
            "`max` takes a whole number, found a string",
            "write `max = 5`",
        ),
        (
            "5usize",
            "`max` takes a plain whole number",
            "write `max = 5`",
        ),
        (
            "-1",
            "`max` takes a whole number, 1 or more",
            "write `max = 100`",
        ),
        (
            "MANY",
            "`max` takes a whole number, 1 or more",
            "write `max = 100`",
        ),
    ] {
        assert_batch_options(&[(&format!("batch(max = {value})"), &[(headline, help, value)])]);
    }
    for (value, headline, help) in [
        (
            "5",
            "durations need a unit, found `5`",
            "`linger = \"5ms\"`",
        ),
        (
            "\"5\"",
            "durations need a unit, found `5`",
            "`linger = \"5ms\"`",
        ),
        (
            "5ms",
            "`linger` takes a string literal",
            "`linger = \"5ms\"`",
        ),
        (
            "\"11s\"",
            "`11s` is longer than a batch may wait: at most `10s`",
            "`linger = \"10s\"`",
        ),
        (
            "\"1 minute\"",
            "`1 minute` is longer than a batch may wait: at most `10s`",
            "`linger = \"10s\"`",
        ),
        ("0", "a linger of `0` waits for nothing", "remove `linger`"),
        (
            "\"0ms\"",
            "a linger of `0ms` waits for nothing",
            "remove `linger`",
        ),
        (
            "\"500us\"",
            "unknown unit `us` in `500us`: the units are `ms`, `s`, `m`, `h`",
            "`linger = \"5ms\"`",
        ),
        (
            "Duration::from_millis(5)",
            "`linger` takes a string literal, not an expression",
            "write `linger = \"5ms\"`",
        ),
    ] {
        assert_batch_options(&[(
            &format!("batch(max = 5, linger = {value})"),
            &[(headline, help, value)],
        )]);
    }
}

#[test]
fn words_for_the_retries() {
    for (words, help) in [
        (
            "retries max_retries maxRetries tries",
            "here use `max_attempts = 5`",
        ),
        (
            "backoff retry_policy retryDelay delay max_delay",
            "here use `retry(first = \"200ms\", longest = \"5m\")`",
        ),
        ("first", "write it as `retry(first = \"200ms\")`"),
        ("longest", "write it as `retry(longest = \"5m\")`"),
        ("rerty Retry", "did you mean `retry`?"),
    ] {
        for word in words.split(' ') {
            assert_options(&[(
                &format!("consumer = \"x\", {word} = 5"),
                &[(&format!("unknown option `{word}`"), help, word)],
            )]);
        }
    }
}

#[test]
fn a_retry_has_its_delays_in_parentheses() {
    let written = "`retry` is written with parentheses";
    let needs = "`retry` needs `first` or `longest`, the delays between the runs";
    let example = "`retry(first = \"200ms\", longest = \"5m\")`";
    let attempts =
        "`max_attempts = 3`; the delays are `retry(first = \"200ms\", longest = \"5m\")`";
    assert_retries(&[
        ("retry(first = \"200ms\")", &[]),
        ("retry(longest = \"24h\",)", &[]),
        ("retry(longest = \"200ms\", first = \"200ms\")", &[]),
        ("retry", &[(written, example, "retry")]),
        ("retry = 3", &[(written, attempts, "=")]),
        ("retry 3", &[(written, attempts, "3")]),
        ("retry =", &[(written, example, "=")]),
        ("retry = true", &[(written, example, "=")]),
        ("retry = POLICY", &[(written, example, "=")]),
        (
            "retry = \"5 seconds\"",
            &[(written, "`retry(first = \"5s\")`", "=")],
        ),
        ("retry: \"often\"", &[(written, example, ":")]),
        (
            "retry = (longest = \"5m\")",
            &[(written, "`retry(longest = \"5m\")`", "=")],
        ),
        (
            "retry { first = \"1s\" }",
            &[(written, "`retry(first = \"1s\")`", "{ first = \"1s\" }")],
        ),
        ("retry()", &[(needs, example, "retry()")]),
        (
            "retry(first = \"1s\"), retry(longest = \"1m\")",
            &[("`retry` is given twice", "keep one", "retry")],
        ),
    ]);
}

#[test]
fn the_delays_of_a_retry_are_checked_like_the_other_options() {
    let unknown = |name: &str| format!("unknown option `{name}` of `retry`");
    let (first, longest) = (
        "here use `first = \"200ms\"`",
        "here use `longest = \"5m\"`",
    );
    assert_retries(&[
        (
            "retry(\"1s\")",
            &[(
                "expected `option = value`, found a string",
                "`first = \"1s\"`",
                "\"1s\"",
            )],
        ),
        (
            "retry(3)",
            &[(
                "expected `option = value`, found a number",
                "write `max_attempts = 3` behind the parentheses, and `first = \"200ms\"` in them",
                "3",
            )],
        ),
        (
            "retry(first = \"1s\", \"5m\")",
            &[(
                "expected `option = value`, found a string",
                "remove it, or say which option it is",
                "\"5m\"",
            )],
        ),
        (
            "retry(first)",
            &[("`first` needs a value", "`first = \"200ms\"`", "first")],
        ),
        (
            "retry(longest: \"5m\")",
            &[("`longest` is written with `=`", "`longest = \"5m\"`", ":")],
        ),
        (
            "retry(delay = \"1s\")",
            &[(&unknown("delay"), first, "delay")],
        ),
        ("retry(min = \"1s\")", &[(&unknown("min"), first, "min")]),
        ("retry(max = \"1s\")", &[(&unknown("max"), longest, "max")]),
        (
            "retry(maxDelay = \"1s\")",
            &[(&unknown("maxDelay"), longest, "maxDelay")],
        ),
        (
            "retry(frist = \"1s\")",
            &[(&unknown("frist"), "did you mean `first`?", "frist")],
        ),
        (
            "retry(first = \"1s\", attempts = 5)",
            &[(
                &unknown("attempts"),
                "write it behind the parentheses: `, max_attempts = 5`",
                "attempts",
            )],
        ),
        (
            "retry(first = \"1s\", timeout = \"5s\")",
            &[(
                &unknown("timeout"),
                "write it behind the parentheses: `, timeout = \"30s\"`",
                "timeout",
            )],
        ),
        (
            "retry(retry = \"1s\")",
            &[(
                &unknown("retry"),
                "the options are `first`, `longest`",
                "retry",
            )],
        ),
        (
            "retry(first = \"1s\" longest = \"5m\")",
            &[(
                "expected `,` before `longest`",
                "write `, longest`",
                "longest",
            )],
        ),
        (
            "retry(first = \"1s\", first = \"2s\")",
            &[("`first` is given twice", "keep one", "first")],
        ),
    ]);
}

#[test]
fn the_delays_of_a_retry_are_bounded() {
    for (part, value, headline, help) in [
        (
            "first",
            "200",
            "durations need a unit, found `200`",
            "`first = \"200ms\"`",
        ),
        (
            "longest",
            "\"300\"",
            "durations need a unit, found `300`",
            "`longest = \"5m\"`",
        ),
        (
            "first",
            "\"0s\"",
            "a first delay of `0s` is none, and none grows from it",
            "`first = \"200ms\"`",
        ),
        (
            "longest",
            "0",
            "a longest delay of `0` leaves no delay at all",
            "`longest = \"5m\"`",
        ),
        (
            "first",
            "\"25h\"",
            "`25h` is longer than a message may wait: at most `24h`",
            "`first = \"24h\"`",
        ),
        (
            "longest",
            "\"2 days\"",
            "`2 days` is longer than a message may wait: at most `24h`",
            "`longest = \"24h\"`",
        ),
        (
            "longest",
            "\"1d\"",
            "unknown unit `d` in `1d`: the units are `ms`, `s`, `m`, `h`",
            "`longest = \"24h\"`",
        ),
        (
            "first",
            "DELAY",
            "`first` takes a string literal, not an expression",
            "write `first = \"200ms\"`",
        ),
    ] {
        assert_retries(&[(
            &format!("retry({part} = {value})"),
            &[(headline, help, value)],
        )]);
    }
    let longer = "the first delay of `10m` is longer than the longest, `300s`";
    let help = "write `longest = \"10m\"`, or a shorter `first`";
    assert_retries(&[
        (
            "retry(first = \"10m\", longest = \"300s\")",
            &[(longer, help, "\"10m\"")],
        ),
        (
            "retry(longest = \"300s\", first = \"10m\"), timeout = 5",
            &[
                (longer, help, "\"10m\""),
                (
                    "durations need a unit, found `5`",
                    "`timeout = \"5s\"`",
                    "5",
                ),
            ],
        ),
        // A delay that is wrong by itself is compared with none.
        (
            "retry(first = \"10m\", longest = \"0s\")",
            &[(
                "a longest delay of `0s` leaves no delay at all",
                "`longest = \"5m\"`",
                "\"0s\"",
            )],
        ),
    ]);
}

#[test]
fn an_own_transaction_is_true_or_false() {
    for (value, found, help) in [
        ("\"true\"", "found a string", "true"),
        ("\"no\"", "found a string", "false"),
        ("1", "found a number", "true"),
        ("0", "found a number", "false"),
        ("YES", "not an expression", "true"),
        ("False", "not an expression", "false"),
        ("!true", "not an expression", "true"),
    ] {
        assert_options(&[(
            &format!("consumer = \"x\", own_transaction = {value}"),
            &[(
                &format!("`own_transaction` takes `true` or `false`, {found}"),
                &format!("write `own_transaction = {help}`"),
                value,
            )],
        )]);
    }
    assert_options(&[(
        "consumer = \"x\", own_transaction",
        &[(
            "`own_transaction` needs a value",
            "`own_transaction = true`",
            "own_transaction",
        )],
    )]);
    let contradiction =
        "`own_transaction` contradicts `batch(..)`: the messages of a batch share one transaction";
    let remove = "remove `own_transaction`, or `batch(..)`";
    assert_batch_options(&[
        (
            "own_transaction = true, batch(max = 5)",
            &[(contradiction, remove, "own_transaction")],
        ),
        (
            "batch(max = 5), own_transaction = true, timeout = \"5s\"",
            &[(contradiction, remove, "own_transaction")],
        ),
    ]);
}

#[test]
fn a_batch_of_messages_is_no_list() {
    let takes =
        |found: &str| format!("a handler with `batch(..)` takes `Batch<M>`, found `{found}`");
    for (ty, help) in [
        ("Vec<OrderPlaced>", "write `Batch<OrderPlaced>`"),
        ("std::vec::Vec<OrderPlaced>", "write `Batch<OrderPlaced>`"),
        ("&[OrderPlaced]", "write `Batch<OrderPlaced>`"),
        ("&mut Vec<OrderPlaced>", "write `Batch<OrderPlaced>`"),
        ("[OrderPlaced; 8]", "write `Batch<OrderPlaced>`"),
        (
            "Vec<(u8, events::Order)>",
            "write `Batch<(u8, events::Order)>`",
        ),
    ] {
        assert_findings(
            &format!(
                "#[inbox_handler(consumer = \"x\", batch(max = 5))] async fn post(orders: {ty}, tx: &mut Tx<P>) -> R {{}}"
            ),
            &[(&takes(ty), help, ty)],
        );
    }
    for batch in ["batch(max = 5)", "batch = 5"] {
        let found = findings(&format!(
            "#[inbox_handler(consumer = \"x\", {batch})] async fn post(orders: &Batch<M>, tx: &mut Tx<P>) -> R {{}}"
        ));
        assert!(
            found.contains(&(
                "the batch is passed by value".to_owned(),
                "remove the `&`".to_owned(),
                "&Batch<M>".to_owned()
            )),
            "{found:?}"
        );
    }
    // Without the option it is one message.
    assert_items(&[
        ("async fn f(m: Vec<M>, tx: &mut Tx<P>) -> R {}", &[]),
        ("async fn f(m: [M; 8], tx: &mut Tx<P>) -> R {}", &[]),
        ("async fn f(m: Batch<M>, tx: &mut Tx<P>) -> R {}", &[]),
        (
            "async fn f(m: &[M], tx: &mut Tx<P>) -> R {}",
            &[("the message is passed by value", "remove the `&`", "&[M]")],
        ),
    ]);
}

#[test]
fn names_of_types_and_sources_are_checked() {
    let on = r#"write `on = "OrderPlaced"`, or remove it for every message of its sources"#;
    let from = r#"write `from = "orders"`, or remove the option for every source"#;
    let list = r#"write `on = "OrderPlaced"`, or a list of names in `[]`"#;
    assert_options(&[
        (
            r#"consumer = "x", on = []"#,
            &[("`on` lists nothing", on, "[]")],
        ),
        (
            r#"consumer = "x", from = """#,
            &[("`from` has an empty name", from, r#""""#)],
        ),
        (
            r#"consumer = "x", from = ["a", " "]"#,
            &[("`from` has a blank name", from, r#"" ""#)],
        ),
        (
            r#"consumer = "x", on = ["A", "B", "A" ]"#,
            &[("`on` lists `A` twice", "keep one", r#""A""#)],
        ),
        (
            r#"consumer = "x", on = "A ""#,
            &[(
                "the name in `on` starts or ends with white space",
                r#"write `"A"`"#,
                r#""A ""#,
            )],
        ),
        (
            r#"consumer = "x", on = OrderPlaced"#,
            &[(
                "`on` takes a string literal, not an expression",
                r#"write `on = "OrderPlaced"`"#,
                "OrderPlaced",
            )],
        ),
        (
            r#"consumer = "x", on = ("A", "B")"#,
            &[(
                "`on` takes a string literal, not an expression",
                r#"write `on = ["A", "B"]`"#,
                r#"("A", "B")"#,
            )],
        ),
        (
            r#"consumer = "x", on = "A" | "B""#,
            &[(
                "`on` takes a string literal, not an expression",
                list,
                r#""A" | "B""#,
            )],
        ),
        (
            r#"consumer = "x", on("A", "B")"#,
            &[(
                "`on` is written with `=`",
                r#"`on = ["A", "B"]`"#,
                r#"("A", "B")"#,
            )],
        ),
        (
            r#"consumer = "x", on = [events::OrderPlaced, "B"]"#,
            &[(
                "`on` takes string literals, not expressions",
                r#"write `on = ["OrderPlaced", "B"]`"#,
                r#"[events::OrderPlaced, "B"]"#,
            )],
        ),
        (
            r#"consumer = "x", on = [A, B, f()]"#,
            &[("`on` takes a string literal, not an expression", list, "A")],
        ),
        (
            r#"consumer = "x", from = ["a" "b", "c"]"#,
            &[(
                "the list in `from` needs commas",
                r#"`from = ["a", "b", "c"]`"#,
                r#"["a" "b", "c"]"#,
            )],
        ),
        (
            r#"consumer = "x", on = "*""#,
            &[(
                "`on` takes whole names, found the pattern `*`",
                "remove the option for every message of its sources",
                r#""*""#,
            )],
        ),
        (
            r#"consumer = "x", on = ["order.*", "B"]"#,
            &[(
                "`on` takes whole names, found the pattern `order.*`",
                r#"list the names: `on = ["..", ".."]`"#,
                r#""order.*""#,
            )],
        ),
        (
            r#"consumer = "x", on = true"#,
            &[(
                "`on` takes a string literal",
                r#"write `on = "true"`"#,
                "true",
            )],
        ),
        (
            r#"consumer = "x", on = ["A", 1]"#,
            &[("`on` takes a string literal", r#"write `on = "1"`"#, "1")],
        ),
    ]);
}

#[test]
fn a_timeout_is_a_number_and_a_unit() {
    for (value, headline, help) in [
        (
            "30",
            "durations need a unit, found `30`",
            "`timeout = \"30s\"`",
        ),
        (
            "\"30\"",
            "durations need a unit, found `30`",
            "`timeout = \"30s\"`",
        ),
        (
            "30s",
            "`timeout` takes a string literal",
            "`timeout = \"30s\"`",
        ),
        ("\"\"", "the duration is empty", "`timeout = \"30s\"`"),
        (
            "\"soon\"",
            "a duration is a whole number and a unit, found `soon`",
            "`timeout = \"30s\"`",
        ),
        (
            "\"-5s\"",
            "a duration is a whole number and a unit, found `-5s`",
            "`timeout = \"30s\"`",
        ),
        (
            "\"1.5s\"",
            "a duration is a whole number and a unit, found `1.5s`",
            "`timeout = \"1500ms\"`",
        ),
        (
            "\"30 s\"",
            "a duration has no white space, found `30 s`",
            "`timeout = \"30s\"`",
        ),
        (
            "\"30 seconds\"",
            "unknown unit `seconds` in `30 seconds`: the units are `ms`, `s`, `m`, `h`",
            "`timeout = \"30s\"`",
        ),
        (
            "\"5M\"",
            "unknown unit `M` in `5M`: the units are `ms`, `s`, `m`, `h`",
            "`timeout = \"5m\"`",
        ),
        (
            "\"500us\"",
            "unknown unit `us` in `500us`: the units are `ms`, `s`, `m`, `h`",
            "`timeout = \"30s\"`",
        ),
        (
            "\"2d\"",
            "`2d` is longer than a handler may run: at most `12h`",
            "`timeout = \"12h\"`",
        ),
        (
            "\"1m30s\"",
            "a duration is one number and one unit, found `1m30s`",
            "`timeout = \"90s\"`",
        ),
        (
            "\"2.5m\"",
            "a duration is a whole number and a unit, found `2.5m`",
            "`timeout = \"150s\"`",
        ),
        (
            "\"1h 30 min\"",
            "a duration is one number and one unit, found `1h 30 min`",
            "`timeout = \"90m\"`",
        ),
        (
            "1.5",
            "durations need a unit, found `1.5`",
            "`timeout = \"1500ms\"`",
        ),
        (
            "90_000ms",
            "`timeout` takes a string literal",
            "`timeout = \"90s\"`",
        ),
        (
            "false",
            "`timeout` takes a string literal",
            "write `timeout = \"30s\"`",
        ),
        (
            "Duration::from_secs(30)",
            "`timeout` takes a string literal, not an expression",
            "write `timeout = \"30s\"`",
        ),
        (
            "0",
            "a timeout of `0` would end every run at once",
            "`timeout = \"30s\"`",
        ),
        (
            "\"0s\"",
            "a timeout of `0s` would end every run at once",
            "`timeout = \"30s\"`",
        ),
        (
            "\"13h\"",
            "`13h` is longer than a handler may run: at most `12h`",
            "`timeout = \"12h\"`",
        ),
        (
            "\"99999999999999999999h\"",
            "`99999999999999999999h` is longer than a handler may run: at most `12h`",
            "`timeout = \"12h\"`",
        ),
        (
            "SLOW",
            "`timeout` takes a string literal, not an expression",
            "write `timeout = \"30s\"`",
        ),
    ] {
        assert_options(&[(
            &format!("consumer = \"x\", timeout = {value}"),
            &[(headline, help, value)],
        )]);
    }
}

#[test]
fn the_number_of_attempts_is_checked() {
    for (value, headline, help) in [
        (
            "0",
            "`max_attempts = 0` would never run the handler",
            "write `max_attempts = 1` to give up after the first failure",
        ),
        (
            "1001",
            "`max_attempts` is at most 1000, found 1001",
            "write `max_attempts = 1000`",
        ),
        (
            "99999999999999999999",
            "`max_attempts` is at most 1000, found 99999999999999999999",
            "write `max_attempts = 1000`",
        ),
        (
            "\"5\"",
            "`max_attempts` takes a whole number, found a string",
            "write `max_attempts = 5`",
        ),
        (
            "5u8",
            "`max_attempts` takes a plain whole number",
            "write `max_attempts = 5`",
        ),
        (
            "-1",
            "`max_attempts` takes a whole number, 1 or more",
            "write `max_attempts = 5`",
        ),
        (
            "1.5",
            "`max_attempts` takes a whole number, 1 or more",
            "write `max_attempts = 5`",
        ),
        (
            "MANY",
            "`max_attempts` takes a whole number, 1 or more",
            "write `max_attempts = 5`",
        ),
    ] {
        assert_options(&[(
            &format!("consumer = \"x\", max_attempts = {value}"),
            &[(headline, help, value)],
        )]);
    }
}

#[test]
fn isolation_levels_are_named() {
    let levels = r#"the levels are `"read committed"`, `"repeatable read"`, `"serializable"`"#;
    for (value, headline, help) in [
        ("snapshot", "unknown isolation level `snapshot`", levels),
        (
            "read uncommitted",
            "unknown isolation level `read uncommitted`",
            levels,
        ),
        (
            "READ COMMITTED",
            "unknown isolation level `READ COMMITTED`",
            r#"did you mean `"read committed"`?"#,
        ),
        (
            "read_commited",
            "unknown isolation level `read_commited`",
            r#"did you mean `"read committed"`?"#,
        ),
        (
            "serialisable",
            "unknown isolation level `serialisable`",
            r#"did you mean `"serializable"`?"#,
        ),
    ] {
        let literal = format!("\"{value}\"");
        assert_options(&[(
            &format!("consumer = \"x\", isolation = {literal}"),
            &[(headline, help, &literal)],
        )]);
    }
    for (value, headline, help) in [
        (
            "Isolation::RepeatableRead",
            "`isolation` takes a string literal, not an expression",
            r#"write `isolation = "repeatable read"`"#,
        ),
        (
            "STRICT",
            "`isolation` takes a string literal, not an expression",
            r#"write `isolation = "read committed"`"#,
        ),
        (
            "3",
            "`isolation` takes a string literal",
            r#"write `isolation = "read committed"`"#,
        ),
    ] {
        assert_options(&[(
            &format!("consumer = \"x\", isolation = {value}"),
            &[(headline, help, value)],
        )]);
    }
}

#[test]
fn the_crate_path_is_absolute() {
    let absolute = "the `crate` path must be absolute";
    let start = "start with `::` or `crate::`";
    for (value, help) in [
        ("\"super::x\"", start),
        ("\"self::x\"", start),
        ("super::x", start),
        ("\"inbox\"", "write `crate = \"::inbox\"`"),
        ("inbox_core", "write `crate = \"::inbox_core\"`"),
        ("facade::inbox", "write `crate = \"::facade::inbox\"`"),
    ] {
        assert_options(&[(
            &format!("consumer = \"x\", crate = {value}"),
            &[(absolute, help, value)],
        )]);
    }
    assert_options(&[(
        "consumer = \"x\", crate = 1",
        &[(
            "`crate` takes a string literal",
            "write `crate = \"::inbox_core\"`",
            "1",
        )],
    )]);
    assert_options(&[
        (
            r#"consumer = "x", crate = "a b""#,
            &[(
                "`a b` is not a path",
                r#"write `crate = "::inbox_core"`"#,
                r#""a b""#,
            )],
        ),
        (
            r#"consumer = "x", crate = "::a<T>""#,
            &[(
                "`::a<T>` is not a path",
                r#"write `crate = "::inbox_core"`"#,
                r#""::a<T>""#,
            )],
        ),
    ]);
}

#[test]
fn all_mistakes_are_reported_in_source_order() {
    assert_findings(
        r#"#[inbox_handler(consumer = "", kye = "x")] fn charge(order: &O, tx: Tx<Postgres>) {}"#,
        &[
            ("the consumer name is empty", PICK, r#""""#),
            ("unknown option `kye`", "did you mean `key`?", "kye"),
            (
                "an inbox handler must be `async`",
                "`async fn charge(..)`",
                "fn",
            ),
            ("the message is passed by value", "remove the `&`", "&O"),
            (
                "the transaction must be borrowed: it is committed by the runtime after the handler returns",
                "`tx: &mut Tx<Postgres>`",
                "Tx<Postgres>",
            ),
            (
                "an inbox handler must return `Result<(), E>`",
                "add `-> Result<(), HandlerError>`; `Err` rolls the claim back",
                "charge",
            ),
        ],
    );
}

#[test]
fn parameters_are_reported_from_left_to_right() {
    assert_items(&[(
        "async fn f(#[cfg(x)] m: &M, tx: Tx<P>, s: impl Send) -> R {}",
        &[
            (
                "`cfg` on a parameter of an inbox handler is not supported",
                "put `cfg` on two versions of the handler",
                "#[cfg(x)]",
            ),
            ("the message is passed by value", "remove the `&`", "&M"),
            (
                "the transaction must be borrowed: it is committed by the runtime after the handler returns",
                "`tx: &mut Tx<P>`",
                "Tx<P>",
            ),
            (
                "`impl Trait` makes the handler generic: the runtime needs one concrete type",
                "name the type",
                "impl Send",
            ),
        ],
    )]);
}

#[test]
fn a_function_has_one_handler_attribute() {
    let help = "one function serves one consumer; move the shared part to a plain function";
    let already = "`charge` already has `#[inbox_handler]`";
    assert_items(&[
        (
            r#"#[inbox_handler(consumer = "b")] async fn charge(m: M, tx: &mut T) -> R {}"#,
            &[(already, help, r#"#[inbox_handler(consumer = "b")]"#)],
        ),
        (
            "#[inbox_core::inbox_handler] async fn charge(m: M, tx: &mut T) -> R {}",
            &[(already, help, "#[inbox_core::inbox_handler]")],
        ),
    ]);
}

#[test]
fn only_functions_are_handlers() {
    let free = "annotate `async fn name(message: M, tx: &mut Tx<Postgres>) -> Result<(), E>`";
    let found = |what: &str| format!("`#[inbox_handler]` goes on a function, found {what}");
    for (item, what, help, keyword) in [
        ("pub struct S;", "a struct", free, "struct"),
        ("enum E {}", "an enum", free, "enum"),
        ("union U { a: u8 }", "a union", free, "union"),
        (
            "pub unsafe trait T {}",
            "a trait",
            "annotate a free function and call the trait from it",
            "trait",
        ),
        (
            "impl S { async fn f() {} }",
            "an `impl` block",
            "annotate a free function and call the method from it",
            "impl",
        ),
        (
            "unsafe impl T for S {}",
            "an `impl` block",
            "annotate a free function and call the method from it",
            "impl",
        ),
        (
            "mod m { fn f() {} }",
            "a module",
            "annotate each handler inside the module",
            "mod",
        ),
        ("const C: u8 = 1;", "a constant", free, "const"),
        ("static S: u8 = 1;", "a static", free, "static"),
        ("type T = u8;", "a type alias", free, "type"),
        ("use a::b;", "an import", free, "use"),
        ("extern crate a;", "an `extern crate`", free, "extern"),
        (
            r#"extern "C" { fn f(); }"#,
            "an `extern` block",
            free,
            "extern",
        ),
        ("let x = 1;", "a `let` statement", free, "let"),
        ("handlers! {}", "a macro call", free, "handlers"),
    ] {
        assert_items(&[(item, &[(&found(what), help, keyword)])]);
    }
}

#[test]
fn modifiers_are_checked() {
    let rest = "f(m: M, tx: &mut T) -> R {}";
    for (modifiers, headline, help, at) in [
        (
            "fn",
            "an inbox handler must be `async`",
            "`async fn f(..)`",
            "fn",
        ),
        (
            "async unsafe fn",
            "an inbox handler cannot be `unsafe`: the runtime calls it",
            "put the unsafe part in a block",
            "unsafe",
        ),
        (
            r#"async extern "C" fn"#,
            "an inbox handler cannot have an ABI",
            "remove `extern \"C\"`",
            r#"extern "C""#,
        ),
        (
            "pub const fn",
            "an inbox handler cannot be `const`",
            "remove `const`",
            "const",
        ),
    ] {
        assert_items(&[(&format!("{modifiers} {rest}"), &[(headline, help, at)])]);
    }
    assert_items(&[
        (
            "async fn main(m: M, tx: &mut T) -> R {}",
            &[(
                "a handler cannot be called `main`",
                "name it after what it does, and register it in `main`",
                "main",
            )],
        ),
        (
            "async fn f(m: M, tx: &mut T) -> R;",
            &[(
                "an inbox handler needs a body",
                "write the body here; a method of a trait cannot be a handler",
                ";",
            )],
        ),
    ]);
}

#[test]
fn handlers_are_not_generic() {
    let generic = "an inbox handler cannot be generic: the runtime needs one concrete message type";
    let helper = "write one handler per message type around a generic helper";
    let opaque = "`impl Trait` makes the handler generic: the runtime needs one concrete type";
    assert_items(&[
        (
            "async fn f<T>(m: T, tx: &mut Tx<P>) -> R {}",
            &[(generic, helper, "<T>")],
        ),
        (
            "async fn f<T>(m: T, tx: &mut Tx<P>) -> R where T: Message {}",
            &[(generic, helper, "<T>")],
        ),
        (
            "async fn f<const N: usize>(m: M, tx: &mut Tx<P>) -> R {}",
            &[(generic, helper, "<const N: usize>")],
        ),
        (
            "async fn f<'a>(m: M, tx: &'a mut Tx<P>) -> R {}",
            &[(
                "an inbox handler cannot name lifetimes",
                "write `&mut Tx<Postgres>`",
                "<'a>",
            )],
        ),
        (
            "async fn f(m: M, tx: &mut Tx<P>) -> R where M: Debug {}",
            &[(
                "an inbox handler cannot have a `where` clause",
                "remove it: nothing is generic here, so the bound is either true or an error",
                "where M: Debug",
            )],
        ),
        (
            "async fn f(m: impl Message, tx: &mut Tx<P>) -> R {}",
            &[(opaque, "name the type", "impl Message")],
        ),
        (
            "async fn f(m: M, tx: &mut Tx<P>, s: State<Box<impl Fn(u8) -> Vec<u8> + Send>>) -> R {}",
            &[(opaque, "name the type", "impl Fn(u8) -> Vec<u8> + Send")],
        ),
    ]);
}

#[test]
fn methods_are_not_handlers() {
    let meaningless = "`Self` has no meaning in a free function";
    let name_it = "name the type, and move the handler out of the `impl` block";
    let receiver = "an inbox handler cannot take `self`";
    let state = "move it out of the `impl` block and take the object as `State<T>`";
    assert_items(&[
        (
            "async fn f(&self, m: M, tx: &mut Tx<P>) -> R {}",
            &[(receiver, state, "&self")],
        ),
        (
            "async fn f(&mut self) -> R {}",
            &[(receiver, state, "&mut self")],
        ),
        (
            "async fn f(self: Arc<Self>) -> R {}",
            &[(receiver, state, "self: Arc<Self>")],
        ),
        (
            "async fn f(m: Self, tx: &mut Tx<P>) -> R {}",
            &[(meaningless, name_it, "Self")],
        ),
        (
            "async fn f(m: M, tx: &mut Tx<Self>) -> R {}",
            &[(meaningless, name_it, "Self")],
        ),
        (
            "async fn f(m: M, tx: &mut Tx<P>) -> Result<(), Self::Error> {}",
            &[(meaningless, name_it, "Self")],
        ),
    ]);
}

#[test]
fn parameters_have_roles_by_position() {
    let add = "add `tx: &mut Tx<Postgres>` after the message";
    let second = "the transaction must be the second parameter";
    let value = "the message is passed by value";
    assert_items(&[
        (
            "async fn f() -> R {}",
            &[(
                "an inbox handler takes a message and a transaction",
                "`async fn f(message: M, tx: &mut Tx<Postgres>) -> Result<(), E>`",
                "()",
            )],
        ),
        (
            "async fn f(m: M) -> R {}",
            &[(
                "`f` has no transaction parameter",
                "add `tx: &mut Tx<Postgres>` after the message; work done outside it is not rolled back with the claim",
                "(m: M)",
            )],
        ),
        (
            "async fn f(tx: &mut Tx<P>) -> R {}",
            &[(
                "`f` has no message parameter",
                "add `message: M` before the transaction",
                "(tx: &mut Tx<P>)",
            )],
        ),
        (
            "async fn f(m: M, tx: Tx<Postgres>) -> R {}",
            &[(
                "the transaction must be borrowed: it is committed by the runtime after the handler returns",
                "`tx: &mut Tx<Postgres>`",
                "Tx<Postgres>",
            )],
        ),
        (
            "async fn f(m: M, db: &Tx<Postgres>) -> R {}",
            &[(
                "the transaction must be borrowed mutably",
                "`db: &mut Tx<Postgres>`",
                "&Tx<Postgres>",
            )],
        ),
        (
            "async fn f(m: M, tx: &sqlx::Transaction<'_, P>) -> R {}",
            &[(
                "the transaction must be borrowed mutably",
                "`tx: &mut Tx<Postgres>`",
                "&sqlx::Transaction<'_, P>",
            )],
        ),
        (
            "async fn f(m: M, pool: &PgPool) -> R {}",
            &[(
                "the second parameter must be the transaction",
                "`tx: &mut Tx<Postgres>` in its place; work done outside it is not rolled back with the claim",
                "&PgPool",
            )],
        ),
        (
            "async fn f(m: M, conn: sqlx::PgConnection) -> R {}",
            &[(
                "the second parameter must be the transaction",
                "`tx: &mut Tx<Postgres>` in its place; work done outside it is not rolled back with the claim",
                "sqlx::PgConnection",
            )],
        ),
        (
            "async fn f(m: M, s: &A) -> R {}",
            &[("the second parameter must be the transaction", add, "&A")],
        ),
        (
            "async fn f(m: M, s: State<A>) -> R {}",
            &[(
                "the second parameter must be the transaction",
                add,
                "State<A>",
            )],
        ),
        (
            "async fn f(tx: &mut Tx<Postgres>, m: M) -> R {}",
            &[(
                "the message comes first, then the transaction",
                "swap the two parameters",
                "&mut Tx<Postgres>",
            )],
        ),
        (
            "async fn f(m: M, s: State<A>, tx: &mut Tx<Postgres>) -> R {}",
            &[(second, "move `tx` before `s`", "&mut Tx<Postgres>")],
        ),
        (
            "async fn f(m: M, State(s): State<A>, tx: &mut Tx<Postgres>) -> R {}",
            &[(
                second,
                "move `tx` before the second parameter",
                "&mut Tx<Postgres>",
            )],
        ),
        (
            "async fn f(s: State<A>, m: M, tx: &mut Tx<Postgres>) -> R {}",
            &[(
                second,
                "move `s` behind `tx`; extractors come last",
                "&mut Tx<Postgres>",
            )],
        ),
        (
            "async fn f(State(s): inbox_core::State<A>, m: M, tx: &mut Tx<Postgres>) -> R {}",
            &[(
                second,
                "move the first parameter behind `tx`; extractors come last",
                "&mut Tx<Postgres>",
            )],
        ),
        (
            "async fn f(m: M, tx: Option<&mut Tx<Postgres>>) -> R {}",
            &[(
                "the second parameter must be the transaction",
                "`tx: &mut Tx<Postgres>` in its place; work done outside it is not rolled back with the claim",
                "Option<&mut Tx<Postgres>>",
            )],
        ),
        (
            "async fn f(m: M, tx: &'static mut Tx<Postgres>) -> R {}",
            &[(
                "the transaction is lent for one call, it cannot be borrowed for `'static`",
                "write `&mut Tx<Postgres>`",
                "'static",
            )],
        ),
        (
            "async fn f(m: M, tx: &mut &mut Tx<Postgres>) -> R {}",
            &[(
                "the transaction is borrowed once",
                "write `&mut Tx<Postgres>`",
                "&mut &mut Tx<Postgres>",
            )],
        ),
        (
            "async fn f(m: M, tx: &mut Tx<A>, s: &mut State<Vec<u8>>) -> R {}",
            &[(
                "extractors are passed by value",
                "write `State<Vec<u8>>`",
                "&mut State<Vec<u8>>",
            )],
        ),
        (
            "async fn f(m: M, tx: &mut Tx<A>, #[cfg_attr(x, allow(unused))] s: S) -> R {}",
            &[],
        ),
        (
            "async fn f(m: M, tx: &mut Tx<A>, #[cfg_attr(x, cfg(y))] s: S) -> R {}",
            &[(
                "`cfg` on a parameter of an inbox handler is not supported",
                "put `cfg` on two versions of the handler",
                "#[cfg_attr(x, cfg(y))]",
            )],
        ),
        ("async fn f<>(m: M, tx: &mut Tx<A>) -> R where {}", &[]),
        (
            "async fn f(m: M, tx: &mut Tx<A>, other: &mut Tx<B>) -> R {}",
            &[(
                "a handler gets one transaction",
                "remove this parameter; `tx.savepoint()` nests inside the one there is",
                "&mut Tx<B>",
            )],
        ),
        (
            "async fn f(m: &M, tx: &mut Tx<P>) -> R {}",
            &[(value, "remove the `&`", "&M")],
        ),
        (
            "async fn f(m: &mut M, tx: &mut Tx<P>) -> R {}",
            &[(value, "remove the `&mut`", "&mut M")],
        ),
        (
            "async fn f(m: M, tx: &mut Tx<P>, #[cfg(x)] s: State<A>) -> R {}",
            &[(
                "`cfg` on a parameter of an inbox handler is not supported",
                "put `cfg` on two versions of the handler",
                "#[cfg(x)]",
            )],
        ),
        (
            "async fn f(m: M, tx: &mut Tx<P>, ...) -> R {}",
            &[(
                "an inbox handler has a fixed number of parameters",
                "take what it needs as extractors, e.g. `State<T>`",
                "...",
            )],
        ),
    ]);
    let extractors: String = (1..=15)
        .map(|number| format!(", e{number}: E{number}"))
        .collect();
    assert_items(&[(
        &format!("async fn f(m: M, tx: &mut Tx<P>{extractors}) -> R {{}}"),
        &[(
            "an inbox handler takes at most 14 extractors",
            "bundle them in one state type",
            "e15: E15",
        )],
    )]);
}

#[test]
fn the_return_type_is_named() {
    let must = "an inbox handler must return `Result<(), E>`";
    let opaque = "an inbox handler cannot return `impl Trait`: the runtime has to name the type";
    let name_it = "name the error type, e.g. `-> Result<(), HandlerError>`";
    let parameters = "(m: M, tx: &mut Tx<P>)";
    for (output, headline, help, at) in [
        (
            "",
            must,
            "add `-> Result<(), HandlerError>`; `Err` rolls the claim back",
            "charge",
        ),
        (
            "-> !",
            "an inbox handler must return `Result<(), E>`, found `!`",
            "write `-> Result<(), HandlerError>`; only a handler that returns is committed",
            "!",
        ),
        (
            "-> impl Future<Output = R>",
            opaque,
            name_it,
            "impl Future<Output = R>",
        ),
        (
            "-> Result<(), impl Error + Send>",
            opaque,
            name_it,
            "impl Error + Send",
        ),
    ] {
        assert_items(&[(
            &format!("async fn charge{parameters} {output} {{}}"),
            &[(headline, help, at)],
        )]);
    }
}

#[test]
fn what_is_no_rust_is_the_compilers() {
    for parameters in [
        "m: ",
        "m: M, tx: ",
        "m: , tx: &mut T",
        "m",
        "m: M, t",
        "m: M, tx: &mut T, s: ",
    ] {
        assert_items(&[(&format!("async fn charge({parameters}) -> R {{}}"), &[])]);
    }
    for item in [
        "async fn charge {}",
        "async fn charge",
        "async fn charge(m: M, tx: &new mut T) -> R {}",
        "async fn charge(m: M, tx: &mut ) -> R {}",
        "async fn charge(m: M, tx: &mut Tx<sqlx::>) -> R {}",
        "async fn charge(m: M, tx: &mut Tx<P) -> R {}",
        "async fn charge(m: M tx: &mut T) -> R {}",
        "async fn charge(m M, tx: &mut T) -> R {}",
        "async fn charge(m: M, tx: &mut T, n: u8 = 5) -> R {}",
        "async fn charge(type: M, tx: &mut T) -> R {}",
        "async fn charge(m: M, tx: &mut T) R {}",
        "async fn charge(m: M, tx: &mut T) -> {}",
        "async fn charge<T(m: M, tx: &mut T) -> R {}",
        "async fn (m: M, tx: &mut T) -> R {}",
        "async fn move(m: M, tx: &mut T) -> R {}",
        "async charge(m: M, tx: &mut T) -> R {}",
        "fn async charge(m: M, tx: &mut T) -> R {}",
        "unsafe async fn charge(m: M, tx: &mut T) -> R {}",
        "async safe fn charge(m: M, tx: &mut T) -> R {}",
        "const async fn charge(m: M, tx: &mut T) -> R {}",
        "async fn charge(m: _, tx: &mut T) -> R {}",
        "async fn charge(m: M, tx: &mut Tx<_>) -> R {}",
        "async fn charge(m: M, tx: &mut T) -> Result<(), _> {}",
        "async",
        "",
    ] {
        assert_items(&[(item, &[])]);
    }
}
