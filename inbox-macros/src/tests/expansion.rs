//! The generated code, pretty-printed. `INBOX_BLESS=1` writes the snapshots anew.

use super::split;
use crate::handler;
use crate::path::Root;
use proc_macro2::{Group, TokenStream, TokenTree};
use std::path::Path;

/// What is generated behind the user's item, which must come first and untouched.
fn generated(source: &str) -> String {
    let (args, item) = split(source);
    let expansion = handler::expand(args, item.clone(), Root::Crate("inbox_core"));
    let mut tokens = expansion.into_iter();
    let first: TokenStream = tokens
        .by_ref()
        .take(item.clone().into_iter().count())
        .collect();
    assert_eq!(
        first.to_string(),
        item.to_string(),
        "the item is not untouched"
    );
    let file = syn::parse2(tokens.collect()).expect("the generated code is no Rust");
    prettyplease::unparse(&file)
}

fn assert_snapshot(name: &str, source: &str) {
    let actual = format!("/* {} */\n\n{}", source.trim(), generated(source));
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/tests/snapshots")
        .join(name)
        .with_extension("rs");
    if std::env::var_os("INBOX_BLESS").is_some() {
        std::fs::write(&path, actual).expect("the snapshot is writable");
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        actual,
        expected,
        "{} differs; INBOX_BLESS=1 writes it anew",
        path.display()
    );
}

#[test]
fn a_minimal_handler() {
    assert_snapshot(
        "minimal",
        r#"
#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), BillingError> { Ok(()) }
"#,
    );
}

#[test]
fn a_handler_with_extractors_and_every_option() {
    assert_snapshot(
        "complete",
        r#"
#[deprecated]
#[inbox_handler(
    consumer = "billing", on = ["OrderPlaced", "OrderChanged"], from = "orders", key = "header:x-event-id",
    timeout = "2m", max_attempts = 3, retry(first = "200ms", longest = "5m"), isolation = "serializable",
    order_by = "payload:/account", own_transaction = true, crate = crate::facade
)]
#[cfg(unix)]
#[cfg_attr(feature = "a", inline, cfg(feature = "b"))]
#[expect(unused_parens, reason = "an example")]
#[cfg_attr(unix, inline, allow(clippy::too_many_arguments))]
pub(crate) async fn r#move(
    OrderPlaced { id }: OrderPlaced, tx: &mut Tx<Postgres>, State(rates): State<Rates>, Attempt(n): Attempt<'_>,
) -> Outcome { Ok(()) }
"#,
    );
}

#[test]
fn a_handler_of_batches() {
    assert_snapshot(
        "batch",
        r#"
#[inbox_handler(consumer = "billing", order_by = "key", batch(max = 500, linger = "5ms"), own_transaction = false)]
async fn post(orders: Batch<OrderPlaced>, tx: &mut Tx<Postgres>, State(rates): State<Rates>) -> Outcome { Ok(()) }
"#,
    );
}

/// What is asked of the types is the same as with the option as it should be.
#[test]
fn a_wrong_batch_option_keeps_the_types_checked() {
    let of_types = |attribute: &str| {
        let source = format!(
            "#[inbox_handler(consumer = \"billing\", {attribute})] async fn post(o: Batch<O>, tx: &mut Tx<P>, s: S) -> R {{}}"
        );
        let generated = generated(&source);
        let requirements = generated.find("fn requirements").expect("a handler");
        generated[requirements..].to_owned()
    };
    let right = of_types("batch(max = 8)");
    assert!(
        right.contains("begin_batch_1") && !right.contains("FromDelivery"),
        "{right}"
    );
    for wrong in [
        "batch",
        "batch = 8",
        "batch()",
        "batch(8)",
        "batch(max = 0)",
        "batch_size = 8",
        "bacth(max = 8)",
    ] {
        assert_eq!(of_types(wrong), right, "{wrong}");
    }
    assert_ne!(of_types("colour = 8"), right);
}

/// The handler that `tests/expansion` measures: source and lines are taken from this snapshot.
#[test]
fn the_measured_handler() {
    let source = r#"
#[inbox_handler(consumer = "billing")]
pub async fn charge(
    order: OrderPlaced,
    tx: &mut Tx<Postgres>,
    State(rates): State<Rates>,
) -> Result<(), sqlx::Error> {
    let fee = order.amount_cents * rates.percent / 100;
    sqlx::query("UPDATE accounts SET balance = balance - $1 WHERE id = $2")
        .bind(order.amount_cents + fee)
        .bind(&order.account)
        .execute(&mut *tx)
        .await?;
    Ok(())
}
"#;
    assert_snapshot("measured", source);
    let lines = generated(source).lines().count();
    assert!(
        lines <= 62,
        "one handler expands to {lines} lines; every one is compiled once per handler"
    );
}

#[test]
fn a_rejected_signature_keeps_its_name() {
    assert_snapshot(
        "rejected",
        r#"
#[inbox_handler(consumer = "billing")]
pub async fn charge(order: OrderPlaced) -> Result<(), BillingError> { Ok(()) }
"#,
    );
}

#[test]
fn a_rejected_attribute_keeps_the_types_checked() {
    assert_snapshot(
        "wrong_attribute",
        r#"
#[inbox_handler(consumer = "")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), BillingError> { Ok(()) }
"#,
    );
}

#[test]
fn a_method_gets_nothing_beside_it() {
    assert_snapshot(
        "method",
        r#"
#[inbox_handler(consumer = "billing")]
async fn charge(&self, order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), BillingError> { Ok(()) }
"#,
    );
}

#[test]
fn a_half_typed_body_changes_nothing() {
    let complete = generated(&handler_with_body("Ok(())"));
    for body in [
        "tx.",
        "order. ; Ok(())",
        "if 1",
        "let x = ;",
        "foo(order.)",
        "order.account.",
        "let Order { id, .. } = ",
        "|x| ",
        "tx.savepoint().",
        "= + !",
        "async fn",
    ] {
        assert_eq!(generated(&handler_with_body(body)), complete, "{body}");
    }
}

fn handler_with_body(body: &str) -> String {
    format!(
        "#[inbox_handler(consumer = \"billing\")] async fn charge(o: O, tx: &mut Tx<P>) -> Result<(), E> {{ {body} }}"
    )
}

#[test]
fn a_half_typed_signature_keeps_the_item_and_the_name() {
    for signature in [
        "charge(o: O, tx: &mut Tx<P>, s: )",
        "charge(o: )",
        "charge(o: O, tx)",
        "charge(o: O, tx: &mut )",
        "charge(o: O, tx: &mut Tx<sqlx::>)",
        "charge(o: O tx: T)",
        "charge",
    ] {
        let source = format!("#[inbox_handler(consumer = \"billing\")] async fn {signature} {{}}");
        assert!(generated(&source).contains("struct charge"), "{signature}");
    }
}

#[test]
fn a_half_typed_handler_keeps_its_body_and_its_name() {
    assert_snapshot(
        "half_typed",
        r#"
#[inbox_handler(consumer = "billing")]
pub async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), BillingError> { order. ; tx. }
"#,
    );
    assert_snapshot(
        "half_typed_parameter",
        r#"
#[inbox_handler(consumer = "billing")]
pub async fn charge(order: OrderPlaced, tx: &mut ) -> Result<(), BillingError> { order. }
"#,
    );
}

#[test]
fn a_wrong_option_changes_only_itself() {
    let wrong = "#[inbox_handler(consumer = \"billing\", colour = 1)] async fn charge(o: O, tx: &mut Tx<P>) -> R {}";
    let right =
        "#[inbox_handler(consumer = \"billing\")] async fn charge(o: O, tx: &mut Tx<P>) -> R {}";
    assert!(generated(wrong).ends_with(&generated(right)));
}

/// Every token of a rich definition left out, doubled, and made the last: the macro always answers, with the item
/// first.
#[test]
fn no_damage_makes_it_panic() {
    let source = r#"
#[inbox_handler(consumer = "billing", on = ["A", "B"], key = "header:x", timeout = "2m", max_attempts = 3,
    retry(first = "1s", longest = "5m"), order_by = "payload:/a", batch(max = 5, linger = "5ms"),
    own_transaction = false, crate = ::a::b)]
#[cfg_attr(feature = "a", inline, cfg(feature = "b"))]
pub(crate) async unsafe extern "C" fn charge<'a, T>(
    OrderPlaced { id }: OrderPlaced, tx: &'a mut Tx<Postgres>, State(rates): State<impl Fn(u8) -> T>, _: Self,
) -> Result<(), E> where T: Send { Ok(()) }
"#;
    let (args, item) = split(source);
    for damaged in damaged(&args) {
        assert_item_first(damaged, item.clone());
    }
    for damaged in damaged(&item) {
        assert_item_first(args.clone(), damaged);
    }
}

fn assert_item_first(args: TokenStream, item: TokenStream) {
    let expected = item.to_string();
    let count = item.clone().into_iter().count();
    let expansion = handler::expand(args, item, Root::Crate("inbox_core"));
    assert_eq!(
        expansion
            .into_iter()
            .take(count)
            .collect::<TokenStream>()
            .to_string(),
        expected
    );
}

fn damaged(tokens: &TokenStream) -> Vec<TokenStream> {
    let tokens: Vec<TokenTree> = tokens.clone().into_iter().collect();
    let mut damaged = Vec::new();
    for position in 0..tokens.len() {
        let (before, rest) = tokens.split_at(position);
        let (token, after) = (&rest[..1], &rest[1..]);
        damaged.push(before.iter().chain(after).cloned().collect());
        damaged.push(before.iter().chain(token).chain(rest).cloned().collect());
        damaged.push(before.iter().cloned().collect());
        if let TokenTree::Group(group) = &token[0] {
            for inner in self::damaged(&group.stream()) {
                let inner = TokenTree::Group(Group::new(group.delimiter(), inner));
                damaged.push(
                    before
                        .iter()
                        .chain([&inner])
                        .chain(after)
                        .cloned()
                        .collect(),
                );
            }
        }
    }
    damaged
}
