//! Another payload under an id that was processed is a duplicate, and, where that is asked for, kept for a person. It
//! is never processed by itself, and what was processed stays so.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::time::Duration;

use inbox_guarantees::dispatch::InBatches;
use inbox_guarantees::{
    OrderPlaced, Running, Sandbox, TestDatabase, all_acked, bill, eventually, on_each_database,
    order,
};
use inbox_runtime::brokers::MemoryBroker;
use inbox_runtime::dead_letters::{DeadLetterQuery, DeadLetters, Replay};
use inbox_runtime::{
    Envelope, Handler, HandlerError, Inbox, InboxBuilder, MessageId, State, Tables, Tx, Verdict,
    inbox_handler,
};

/// Another message under the id of an order.
fn other(id: &str, amount: u32) -> Envelope {
    Envelope::new(format!(r#"{{"account":"acc-1","amount":{amount}}}"#))
        .id(id)
        .message_type("OrderPlaced")
}

/// The ways in which a handler gets its messages.
#[derive(Debug, Clone, Copy)]
enum Dispatch {
    Alone,
    Shared,
    Batch,
}

impl Dispatch {
    const ALL: [Self; 3] = [Self::Alone, Self::Shared, Self::Batch];

    fn register<H: Handler>(self, builder: InboxBuilder<H::Db>, handler: H) -> InboxBuilder<H::Db> {
        match self {
            Self::Alone => builder.register(handler).messages_per_transaction(1),
            Self::Shared => builder
                .register(handler)
                .messages_per_transaction(16)
                .share_at_once(),
            Self::Batch => builder.register(InBatches(handler)),
        }
    }
}

/// Delivers messages that wait together, to one worker.
async fn deliver<H: Handler<Db = Db>, Db: TestDatabase>(
    sandbox: &Sandbox<Db>,
    (dispatch, handler): (Dispatch, H),
    keep: bool,
    messages: impl IntoIterator<Item = Envelope>,
) {
    let broker = MemoryBroker::new();
    for message in messages {
        broker.publish("orders", message);
    }
    let builder = Inbox::builder(sandbox.pool.clone())
        .source("orders", broker.source("orders"))
        .concurrency(1)
        .poll_interval(Duration::from_millis(20))
        .prefetch(32);
    let builder = if keep {
        builder.dead_letter_collisions()
    } else {
        builder
    };
    let builder = dispatch.register(builder, handler);
    let running = Running::start(builder.build().await.unwrap());
    all_acked(&broker).await;
    eventually("nothing waits in the database", || async {
        Db::number(&sandbox.pool, "SELECT count(*) FROM inbox_messages").await == 0
    })
    .await;
    running.stop().await;
    let settled = broker.settled();
    assert!(
        settled.iter().all(|one| one.verdict == Verdict::Ack),
        "{settled:?}"
    );
}

on_each_database! {
    #[inbox_handler(consumer = "billing")]
    async fn charge(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        Ok(())
    }

    /// `id:amount` of what is kept as a collision.
    async fn kept(sandbox: &Sandbox<Db>) -> Vec<String> {
        let letters = DeadLetters::open(sandbox.pool.clone(), &Tables::default()).await.unwrap();
        let mut kept = Vec::new();
        for entry in letters.list(&DeadLetterQuery::new()).await.unwrap().entries {
            assert_eq!((entry.reason.as_str(), entry.consumer.as_deref()), ("collision", Some("billing")));
            assert!(entry.failure.contains("another payload"), "{}", entry.failure);
            let shown = letters.show(entry.id).await.unwrap();
            let order: OrderPlaced = serde_json::from_slice(&shown.payload).unwrap();
            kept.push(format!("{}:{}", entry.message_id.unwrap(), order.amount));
        }
        kept.sort();
        kept
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn another_payload_under_a_processed_id_is_kept_where_that_is_asked_for() {
        for dispatch in Dispatch::ALL {
            let register = || (dispatch, charge::handler());
            let sandbox = Db::fresh(10).await;
            deliver(&sandbox, register(), true, (1..=4).map(|number| order(&format!("m-{number}")))).await;
            // Beside new messages and honest duplicates.
            let mixed = [
                order("m-5"), other("m-1", 7), order("m-2"), other("m-3", 7), order("m-6"),
                other("m-1", 8), other("m-1", 7), order("m-5"), order("m-7"),
            ];
            deliver(&sandbox, register(), true, mixed).await;
            assert_eq!(kept(&sandbox).await, ["m-1:7", "m-1:8", "m-3:7"], "{dispatch:?}");
            // Among duplicates alone.
            let known = [order("m-1"), other("m-2", 7), order("m-3"), other("m-1", 7), other("m-4", 7), order("m-5")];
            deliver(&sandbox, register(), true, known).await;
            let all = ["m-1:7", "m-1:8", "m-2:7", "m-3:7", "m-4:7"];
            assert_eq!(kept(&sandbox).await, all, "{dispatch:?}");
            for number in 1..=7 {
                sandbox.assert_stored_once(&format!("m-{number}")).await;
            }
            assert_eq!(sandbox.balance("acc-1").await, 700, "{dispatch:?}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn out_of_the_box_another_payload_is_a_duplicate() {
        for dispatch in Dispatch::ALL {
            let register = || (dispatch, charge::handler());
            let sandbox = Db::fresh(10).await;
            deliver(&sandbox, register(), false, [order("m-1"), order("m-2")]).await;
            let mixed = [other("m-1", 7), order("m-3"), other("m-2", 7), order("m-1")];
            deliver(&sandbox, register(), false, mixed).await;
            deliver(&sandbox, register(), false, [other("m-1", 7), other("m-2", 8)]).await;
            assert!(sandbox.dead_letters().await.is_empty(), "{dispatch:?}");
            assert_eq!(sandbox.balance("acc-1").await, 300, "{dispatch:?}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_claim_without_a_hash_or_with_one_of_another_version_collides_with_nothing() {
        for dispatch in Dispatch::ALL {
            let register = || (dispatch, charge::handler());
            let sandbox = Db::fresh(10).await;
            deliver(&sandbox, register(), true, [order("m-1"), order("m-2"), order("m-3")]).await;
            let later = if <Db as sqlx::Database>::NAME == "PostgreSQL" { "'\\x0201'" } else { "x'0201'" };
            Db::run(
                &sandbox.pool,
                &format!(
                    "UPDATE inbox_processed_messages SET payload_hash = NULL WHERE message_id = 'm-1'; \
                     UPDATE inbox_processed_messages SET payload_hash = {later} WHERE message_id = 'm-2'"
                ),
            )
            .await;
            deliver(&sandbox, register(), true, [other("m-1", 7), other("m-2", 7), other("m-3", 7)]).await;
            assert_eq!(kept(&sandbox).await, ["m-3:7"], "{dispatch:?}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_kept_collision_holds_back_nothing_and_is_open_again_when_it_comes_again() {
        let sandbox = Db::fresh(10).await;
        let register = || (Dispatch::Alone, charge::handler());
        deliver(&sandbox, register(), true, [order("m-1")]).await;
        deliver(&sandbox, register(), true, [other("m-1", 7), other("m-1", 8)]).await;
        let letters = DeadLetters::open(sandbox.pool.clone(), &Tables::default()).await.unwrap();
        let entry = letters.list(&DeadLetterQuery::new()).await.unwrap().entries.remove(1);
        assert_eq!(letters.replay_anyway(entry.id, "ada").await.unwrap(), Replay::Queued);
        assert_eq!(kept(&sandbox).await, ["m-1:8"]);
        deliver(&sandbox, register(), true, [other("m-1", 7)]).await;
        assert_eq!(sandbox.ledger_rows("m-1").await, 2, "the other collision does not hold it back");
        assert_eq!(kept(&sandbox).await, ["m-1:8"]);
        // From now on the id stands for it.
        deliver(&sandbox, register(), true, [order("m-1"), other("m-1", 7)]).await;
        assert_eq!(kept(&sandbox).await, ["m-1:100", "m-1:8"]);
        assert_eq!(sandbox.ledger_rows("m-1").await, 2);
    }

    /// Fails while another process waits to claim another message under its id, and processes that.
    #[inbox_handler(consumer = "billing", timeout = "50s", max_attempts = 3)]
    async fn fail_before_another(
        order: OrderPlaced,
        tx: &mut Tx<Db>,
        id: MessageId,
        State(elsewhere): State<Arc<Elsewhere<Db>>>,
    ) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        let mut session = elsewhere.0.acquire().await?;
        tokio::spawn(async move {
            let hash = if <Db as sqlx::Database>::NAME == "PostgreSQL" { "'\\x01ff'" } else { "x'01ff'" };
            let claim = format!("INSERT INTO inbox_processed_messages (message_id, consumer_name, payload_hash) VALUES ('m-1', 'billing', {hash})");
            sqlx::raw_sql(sqlx::AssertSqlSafe(claim)).execute(&mut *session).await.unwrap();
        });
        // Until it waits there.
        tokio::time::sleep(Duration::from_millis(300)).await;
        Err("it fails".into())
    }

    /// Whether it was this message that was processed meanwhile is looked at here too.
    #[tokio::test(flavor = "multi_thread")]
    async fn another_payload_that_was_processed_while_this_one_failed_is_a_collision() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let inbox = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .register(fail_before_another::handler())
            .state(Arc::new(Elsewhere(sandbox.another_pool(2).await)))
            .concurrency(1)
            .dead_letter_collisions()
            .build()
            .await
            .unwrap();
        let running = Running::start(inbox);
        broker.publish("orders", order("m-1"));
        all_acked(&broker).await;
        running.stop().await;
        assert_eq!(kept(&sandbox).await, ["m-1:100"]);
        assert_eq!((sandbox.claims("m-1").await, sandbox.ledger_total().await), (1, 0));
    }
}

/// A pool of another process.
struct Elsewhere<Db: TestDatabase>(sqlx::Pool<Db>);
