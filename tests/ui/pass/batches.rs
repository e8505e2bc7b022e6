use super::{ORDER, deliver_all};
use fixtures::{OrderPlaced, Outcome, Rates};
use inbox_core::{
    Batch, BatchLimits, CallError, ExtractError, FromBatch, Handler as _, HandlerError, Incoming,
    MessageId, Requirements, State, StateMap, Tx, inbox_handler,
};
use sqlx::{Sqlite, SqlitePool};
use std::time::Duration;

const LARGER: &str = r#"{"account": "a-2", "amount_cents": 1000}"#;

type LiteTx = Tx<Sqlite>;
type Orders = Batch<OrderPlaced>;
type Shared<T> = State<T>;

#[inbox_handler(consumer = "billing", batch(max = 500))]
async fn post(orders: Batch<OrderPlaced>, tx: &mut Tx<Sqlite>) -> Outcome {
    let ids: Vec<&str> = orders.iter().map(|order| order.id().as_str()).collect();
    let cents: Vec<i64> = orders.iter().map(|order| order.amount_cents).collect();
    sqlx::query("SELECT ?")
        .bind(cents.iter().sum::<i64>())
        .execute(&mut *tx)
        .await?;
    if (ids.as_slice(), cents.as_slice()) == (&["m-1", "m-2"][..], &[250, 1000][..]) {
        Ok(())
    } else {
        Err(HandlerError::new("other messages, or in another order"))
    }
}

#[inbox_handler(consumer = "aliases", batch(max = 10_000, linger = "10s",))]
async fn aliased(
    mut orders: Orders,
    tx: &mut LiteTx,
    State(Rates { percent }): Shared<Rates>,
) -> Outcome {
    orders
        .as_mut_slice()
        .sort_by_key(|order| std::cmp::Reverse(order.amount_cents));
    for order in orders {
        let id = order.id().clone();
        let OrderPlaced {
            account,
            amount_cents,
        } = order.into_message();
        sqlx::query("SELECT ?, ?, ?")
            .bind(id.as_str())
            .bind(account)
            .bind(amount_cents * percent)
            .execute(&mut *tx)
            .await?;
    }
    Ok(())
}

/// Something of the whole batch.
struct Count(usize);

impl FromBatch for Count {
    fn requirements(needs: &mut Requirements) {
        needs.state::<Rates>();
    }

    fn from_batch(incoming: &[Incoming<'_>]) -> Result<Self, ExtractError> {
        Ok(Self(incoming.len()))
    }
}

#[inbox_handler(consumer = "own", batch(max = 2))]
async fn with_own_extractor(
    orders: Batch<OrderPlaced>,
    _tx: &mut Tx<Sqlite>,
    Count(count): Count,
) -> Outcome {
    if orders.len() == count {
        Ok(())
    } else {
        Err(HandlerError::new("another number"))
    }
}

macro_rules! poster {
    ($name:ident, $batch:ty, $tx:ty, $max:literal, $linger:expr) => {
        #[inbox_handler(consumer = "macro", batch(max = $max, linger = $linger))]
        async fn $name(_orders: $batch, _tx: &mut $tx) -> Outcome {
            Ok(())
        }
    };
}

poster!(declared, Batch<OrderPlaced>, Tx<Sqlite>, 8, "5ms");

/// A message that is called like it, and is one.
mod mine {
    use super::{Outcome, Sqlite, Tx, inbox_handler};

    #[derive(serde::Deserialize)]
    pub(super) struct Batch<T>(Vec<T>);

    #[inbox_handler(consumer = "mine")]
    pub(super) async fn weigh(batch: Batch<u32>, _tx: &mut Tx<Sqlite>) -> Outcome {
        drop(batch.0);
        Ok(())
    }
}

#[tokio::test]
async fn a_batch_is_decoded_in_order_and_has_ids() {
    let state = StateMap::new();
    deliver_all(post::handler(), &[ORDER, LARGER], &state)
        .await
        .expect("success");
    let swapped = deliver_all(post::handler(), &[LARGER, ORDER], &state).await;
    assert!(matches!(swapped, Err(CallError::Handler(_))), "{swapped:?}");
    let mixed = deliver_all(post::handler(), &[ORDER, "{}", LARGER, "no JSON"], &state).await;
    assert!(
        matches!(&mixed, Err(CallError::DecodeSome(undecodable)) if *undecodable == [1, 3]),
        "{mixed:?}"
    );
}

#[tokio::test]
async fn aliases_patterns_and_extractors_work_in_a_batch() {
    let mut state = StateMap::new();
    let missing = deliver_all(aliased::handler(), &[ORDER], &state).await;
    assert!(matches!(missing, Err(CallError::Extract(_))), "{missing:?}");
    state.insert(Rates { percent: 7 });
    deliver_all(aliased::handler(), &[ORDER, LARGER], &state)
        .await
        .expect("success");
    deliver_all(with_own_extractor::handler(), &[ORDER, LARGER], &state)
        .await
        .expect("success");
    deliver_all(declared::handler(), &[ORDER], &state)
        .await
        .expect("success");
    deliver_all(mine::weigh::handler(), &["[1, 2]"], &state)
        .await
        .expect("success");
}

#[test]
fn the_requirements_of_a_batch_are_asked() {
    for requirements in [aliased::requirements, with_own_extractor::requirements] {
        let mut needs = Requirements::default();
        requirements(&mut needs);
        assert_eq!(needs.missing(&StateMap::new()).len(), 1);
    }
}

#[test]
fn the_limits_are_in_the_handler() {
    let limits = |max, millis| Some(BatchLimits::new(max).linger(Duration::from_millis(millis)));
    assert_eq!(post::SPEC.batch, limits(500, 0));
    assert_eq!(aliased::SPEC.batch, limits(10_000, 10_000));
    assert_eq!(declared::SPEC.batch, limits(8, 5));
    assert_eq!(mine::weigh::SPEC.batch, None);
}

#[tokio::test]
async fn a_batch_handler_can_be_called() {
    let pool = SqlitePool::connect("sqlite::memory:")
        .await
        .expect("a database in memory");
    let mut tx = Tx::begin(&pool).await.expect("a transaction");
    let order = |account: &str, amount_cents| OrderPlaced {
        account: account.to_owned(),
        amount_cents,
    };
    let id = |id: &str| MessageId::new(id).expect("an id");
    let orders = Batch::from_iter([
        (id("m-1"), order("a-1", 250)),
        (id("m-2"), order("a-2", 1000)),
    ]);
    post(orders, &mut tx).await.expect("success");
}
