use fixtures::{OrderPlaced, Outcome};
use inbox_core::{DedupKey, Handler as _, Isolation, OrderBy, RetryDelays, Tx, inbox_handler};
use sqlx::Postgres;
use std::time::Duration;

#[inbox_handler(
    consumer = "billing.eu-1_b",
    on = ["OrderPlaced", "OrderChanged"],
    from = "orders",
    key = "payload:/order/id~0a~1b",
    timeout = "1500ms",
    max_attempts = 1000,
    retry(first = "200ms", longest = "24h"),
    isolation = "repeatable read",
    order_by = "payload:/order/account~1a",
    own_transaction = true,
)]
async fn charge(_order: OrderPlaced, _tx: &mut Tx<Postgres>) -> Outcome {
    Ok(())
}

#[inbox_handler(
    on = "OrderPlaced",
    key = "header:x-event-id",
    timeout = "2h",
    consumer = "b",
    retry(longest = "2m",),
    isolation = "serializable",
    order_by = "header:x-account",
    own_transaction = false
)]
async fn by_header(_order: OrderPlaced, _tx: &mut Tx<Postgres>) -> Outcome {
    Ok(())
}

#[inbox_handler(
    consumer = "c",
    from = ["a", "b"],
    key = "cloudevents",
    isolation = "read committed",
    max_attempts = 1,
    order_by = "key",
    retry(first = "24h")
)]
async fn by_cloud_event(_order: OrderPlaced, _tx: &mut Tx<Postgres>) -> Outcome {
    Ok(())
}

#[test]
fn the_handler_knows_its_options() {
    let spec = charge::SPEC;
    assert_eq!(spec.consumer, "billing.eu-1_b");
    assert_eq!(spec.on, ["OrderPlaced", "OrderChanged"]);
    assert_eq!(spec.from, ["orders"]);
    assert_eq!(spec.key, DedupKey::Payload("/order/id~0a~1b"));
    assert_eq!(spec.timeout, Duration::from_millis(1500));
    assert_eq!(spec.max_attempts, 1000);
    let (millis, seconds) = (Duration::from_millis, Duration::from_secs);
    let delays = RetryDelays::new();
    assert_eq!(
        spec.retry,
        delays.first(millis(200)).longest(seconds(86_400))
    );
    assert_eq!(spec.isolation, Isolation::RepeatableRead);
    assert_eq!(spec.order_by, Some(OrderBy::Payload("/order/account~1a")));
    assert!(spec.own_transaction);

    let spec = by_header::SPEC;
    assert_eq!(spec.on, ["OrderPlaced"]);
    assert_eq!(spec.key, DedupKey::Header("x-event-id"));
    assert_eq!(spec.timeout, Duration::from_secs(7200));
    assert_eq!(spec.retry, delays.longest(seconds(120)));
    assert_eq!(spec.isolation, Isolation::Serializable);
    assert_eq!(spec.order_by, Some(OrderBy::Header("x-account")));
    assert!(!spec.own_transaction);

    let spec = by_cloud_event::SPEC;
    assert_eq!(spec.from, ["a", "b"]);
    assert_eq!(spec.key, DedupKey::CloudEvents);
    assert_eq!(spec.isolation, Isolation::ReadCommitted);
    assert_eq!(spec.max_attempts, 1);
    assert_eq!(spec.retry, delays.first(seconds(86_400)));
    assert_eq!(spec.order_by, Some(OrderBy::Key));
}
