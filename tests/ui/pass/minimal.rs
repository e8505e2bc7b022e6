use super::{ORDER, deliver};
use fixtures::{OrderPlaced, Outcome};
use inbox_core::{CallError, Handler as _, StateMap, Tx, inbox_handler};
use sqlx::Sqlite;

const LINE_ABOVE: u32 = line!();

#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Sqlite>) -> Outcome {
    sqlx::query("SELECT ?")
        .bind(order.amount_cents)
        .execute(&mut *tx)
        .await?;
    Ok(())
}

#[tokio::test]
async fn the_handler_decodes_and_runs() {
    deliver(charge::handler(), ORDER, &StateMap::new())
        .await
        .expect("success");
}

#[tokio::test]
async fn a_body_that_does_not_decode_is_told_apart() {
    let outcome = deliver(charge::handler(), "{}", &StateMap::new()).await;
    assert!(matches!(outcome, Err(CallError::Decode(_))), "{outcome:?}");
}

#[test]
fn the_handler_knows_its_place_and_the_documented_defaults() {
    let spec = charge::SPEC;
    assert_eq!(spec.consumer, "billing");
    assert_eq!(spec.name, "pass::minimal::charge");
    assert!(spec.file.ends_with("minimal.rs"), "{}", spec.file);
    assert_eq!(spec.line, LINE_ABOVE + 3);
    assert!(spec.on.is_empty() && spec.from.is_empty());
    assert_eq!(spec.key, inbox_core::DedupKey::MessageId);
    assert_eq!(spec.timeout, std::time::Duration::from_secs(30));
    assert_eq!(spec.max_attempts, 5);
    assert_eq!(spec.isolation, inbox_core::Isolation::ReadCommitted);
}
