use super::{ORDER, deliver};
use fixtures::{OrderPlaced, Outcome, Rates};
use inbox_core::{
    Attempt, CallError, Envelope, ExtractError, FromDelivery, Handler as _, Headers,
    IdempotencyKey, Incoming, MessageId, Requirements, State, StateMap, Tx, inbox_handler,
};
use sqlx::Sqlite;
use std::borrow::Cow;

struct Source<'a>(Cow<'a, str>);

impl FromDelivery for Source<'_> {
    fn from_delivery(incoming: &Incoming<'_>) -> Result<Self, ExtractError> {
        Ok(Source(Cow::Owned(incoming.source().to_owned())))
    }
}

#[inbox_handler(consumer = "billing")]
#[allow(clippy::too_many_arguments)]
async fn charge(
    order: OrderPlaced,
    _tx: &mut Tx<Sqlite>,
    State(rates): State<Rates>,
    id: MessageId,
    headers: Headers,
    Attempt(attempt): Attempt,
    key: IdempotencyKey,
    envelope: Envelope,
    source: Source<'_>,
) -> Outcome {
    assert_eq!((order.amount_cents, rates.percent), (250, 7));
    assert_eq!((id.as_str(), attempt, &*source.0), ("m-1", 1, "orders"));
    assert!(headers.is_empty());
    assert_ne!(key.step("charge"), key.step("mail"));
    assert_eq!(envelope.payload, ORDER);
    Ok(())
}

#[inbox_handler(consumer = "billing")]
#[allow(clippy::too_many_arguments)]
async fn takes_as_many_as_there_may_be(
    _order: OrderPlaced,
    _tx: &mut Tx<Sqlite>,
    _e1: Attempt,
    _e2: Attempt,
    _e3: Attempt,
    _e4: Attempt,
    _e5: Attempt,
    _e6: Attempt,
    _e7: Attempt,
    _e8: Attempt,
    _e9: Attempt,
    _e10: Attempt,
    _e11: Attempt,
    _e12: Attempt,
    _e13: Attempt,
    _e14: Attempt,
) -> Outcome {
    Ok(())
}

#[tokio::test]
async fn extractors_are_made_in_order() {
    let mut state = StateMap::new();
    state.insert(Rates { percent: 7 });
    deliver(charge::handler(), ORDER, &state)
        .await
        .expect("success");
    deliver(takes_as_many_as_there_may_be::handler(), ORDER, &state)
        .await
        .expect("success");
}

#[tokio::test]
async fn missing_state_is_known_before_and_during_the_call() {
    let state = StateMap::new();
    let mut needs = Requirements::default();
    charge::requirements(&mut needs);
    let missing: Vec<_> = needs
        .missing(&state)
        .iter()
        .map(|needed| needed.type_name())
        .collect();
    assert_eq!(missing, ["fixtures::Rates"]);

    let outcome = deliver(charge::handler(), ORDER, &state).await;
    assert!(matches!(outcome, Err(CallError::Extract(_))), "{outcome:?}");
}
