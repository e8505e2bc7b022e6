//! What cannot be processed is kept whole, once, with its reason, and never loops.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use inbox_guarantees::dispatch::Serve as _;
use inbox_guarantees::{
    OrderPlaced, Running, TestDatabase, all_acked, bill, on_each_database, order, with_placeholders,
};
use inbox_runtime::brokers::MemoryBroker;
use inbox_runtime::{
    Envelope, HandlerError, Inbox, InboxBuilder, InboxDatabase, MessageId, RetryPolicy, State, Tx,
    Verdict, inbox_handler,
};
use sqlx::Pool;

#[derive(Clone, Default)]
struct Entered(Arc<AtomicU32>);

impl Entered {
    fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

#[derive(serde::Deserialize)]
struct Note {
    note: String,
}

/// The text of every failure: longer than is kept, with a NUL, and with characters of four bytes.
fn long_text() -> String {
    format!("a\0b{}", "😀".repeat(20_000))
}

fn build<Db: InboxDatabase>(
    pool: &Pool<Db>,
    broker: &MemoryBroker,
    entered: &Entered,
) -> InboxBuilder<Db> {
    Inbox::builder(pool.clone())
        .source("orders", broker.source("orders"))
        .state(entered.clone())
        .retry(RetryPolicy::default().first_delay(Duration::from_millis(20)))
}

on_each_database! {
    #[inbox_handler(consumer = "billing", on = "OrderPlaced", max_attempts = 2)]
    async fn charge(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId, State(entered): State<Entered>) -> Result<(), HandlerError> {
        entered.0.fetch_add(1, Ordering::SeqCst);
        bill!(Db, order, id, tx);
        Ok(())
    }

    #[inbox_handler(consumer = "billing", on = "OrderPlaced.v2")]
    async fn charge_v2(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        Ok(())
    }

    #[inbox_handler(consumer = "billing", max_attempts = 2)]
    async fn fail(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId, State(entered): State<Entered>) -> Result<(), HandlerError> {
        entered.0.fetch_add(1, Ordering::SeqCst);
        bill!(Db, order, id, tx);
        Err(long_text().into())
    }

    /// Gets the payload as it came.
    #[inbox_handler(consumer = "archive")]
    async fn store_bytes(message: Note, tx: &mut Tx<Db>, id: MessageId, whole: Envelope) -> Result<(), HandlerError> {
        sqlx::query::<Db>(with_placeholders::<Db>("INSERT INTO bodies (id, body, note) VALUES ($1, $2, $3)"))
            .bind(id.as_str())
            .bind(&*whole.payload)
            .bind(message.note.into_bytes())
            .execute(&mut *tx)
            .await?;
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_unknown_type_is_kept_with_its_name_and_the_next_message_is_processed() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let entered = Entered::default();
        let inbox = build(&sandbox.pool, &broker, &entered).serve(charge::handler());
        let running = Running::start(inbox.build().await.unwrap());
        broker.publish("orders", order("m-1").message_type("OrderPlaced.v2"));
        broker.publish("orders", order("m-2"));
        all_acked(&broker).await;
        running.stop().await;
        assert_eq!(sandbox.dead_letters().await, ["unknown_type"]);
        assert!(sandbox.dead_letter_texts().await[0].contains("OrderPlaced.v2"));
        assert_eq!(
            Db::texts(&sandbox.pool, "SELECT message_id FROM inbox_dead_letters").await,
            ["m-1"]
        );
        assert_eq!(sandbox.claims("m-1").await, 0);
        sandbox.assert_stored_once("m-2").await;

        // It is nobody's: a handler that is registered later can have the message.
        let inbox = build(&sandbox.pool, &broker, &entered)
            .serve(charge::handler())
            .serve(charge_v2::handler());
        let running = Running::start(inbox.build().await.unwrap());
        broker.publish("orders", order("m-1").message_type("OrderPlaced.v2"));
        all_acked(&broker).await;
        running.stop().await;
        sandbox.assert_stored_once("m-1").await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn every_early_exit_settles_its_delivery_for_good() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let entered = Entered::default();
        let bad = [
            Envelope::new(vec![0xff, 0xfe, b'{']).id("no-json").message_type("OrderPlaced"),
            Envelope::new(r#"{"account":"acc-1"}"#).id("no-field").message_type("OrderPlaced"),
            Envelope::new(r#"{"account":"acc-1","amount":100}"#).id("no-type"),
        ];
        for envelope in bad {
            broker.publish("orders", envelope);
        }
        broker.publish("orders", order("m-2"));
        for _ in 0..2 {
            let inbox = build(&sandbox.pool, &broker, &entered).serve(charge::handler());
            let running = Running::start(inbox.build().await.unwrap());
            all_acked(&broker).await;
            running.stop().await;
            let settled = broker.settled();
            assert_eq!(settled.len(), 4, "{settled:?}");
            assert!(settled.iter().all(|s| s.verdict == Verdict::Ack), "{settled:?}");
        }
        let mut reasons = sandbox.dead_letters().await;
        reasons.sort();
        assert_eq!(reasons, ["undecodable", "undecodable", "unknown_type"]);
        sandbox.assert_stored_once("m-2").await;
        assert_eq!(sandbox.claims_total().await, 1, "a dead letter has no claim");
        assert_eq!(entered.count(), 1);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_second_copy_of_a_dead_message_adds_no_entry_and_does_not_run_the_handler() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let entered = Entered::default();
        let inbox = build(&sandbox.pool, &broker, &entered).serve(fail::handler());
        let running = Running::start(inbox.build().await.unwrap());
        let no_id = || Envelope::new(r#"{"account":"acc-1","amount":1}"#);
        for _ in 0..3 {
            broker.publish("orders", order("m-1"));
            broker.publish("orders", no_id());
            all_acked(&broker).await;
        }
        running.stop().await;
        let mut reasons = sandbox.dead_letters().await;
        reasons.sort();
        assert_eq!(reasons, ["attempts_exhausted", "invalid_id"]);
        assert_eq!(entered.count(), 2, "max_attempts runs, and none for the copies");
        assert_eq!(sandbox.claims_total().await, 0);
        assert_eq!(sandbox.ledger_total().await, 0);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn another_copy_of_a_closed_dead_letter_reopens_it() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let entered = Entered::default();
        let inbox = build(&sandbox.pool, &broker, &entered).serve(fail::handler());
        let running = Running::start(inbox.build().await.unwrap());
        broker.publish("orders", order("m-1"));
        all_acked(&broker).await;
        // What a replay leaves behind; it forgets the counted failures too.
        Db::run(
            &sandbox.pool,
            "UPDATE inbox_dead_letters SET replayed_at = first_failed_at, attempts = 1, failure = 'old';
             DELETE FROM inbox_attempts",
        )
        .await;
        broker.publish("orders", order("m-1"));
        all_acked(&broker).await;
        running.stop().await;
        assert_eq!(entered.count(), 4, "a closed entry holds nothing back");
        assert_eq!(sandbox.dead_letters().await, ["attempts_exhausted"]);
        let open = "SELECT count(*) FROM inbox_dead_letters WHERE replayed_at IS NULL AND attempts = 2 AND failure <> 'old'";
        assert_eq!(Db::number(&sandbox.pool, open).await, 1);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn other_bytes_under_one_id_are_an_entry_of_their_own() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let inbox = build(&sandbox.pool, &broker, &Entered::default()).serve(charge::handler());
        let running = Running::start(inbox.build().await.unwrap());
        for body in ["one", "two", "one"] {
            broker.publish("orders", Envelope::new(body).id("m-1").message_type("Other"));
        }
        all_acked(&broker).await;
        running.stop().await;
        let mut kept = Db::bytes(&sandbox.pool, "SELECT payload FROM inbox_dead_letters").await;
        kept.sort();
        assert_eq!(kept, [b"one", b"two"]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn another_message_under_the_id_of_an_open_dead_letter_is_kept_beside_it_and_not_run() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let entered = Entered::default();
        let inbox = build(&sandbox.pool, &broker, &entered).serve(charge::handler());
        let running = Running::start(inbox.build().await.unwrap());
        broker.publish("orders", Envelope::new("no order").id("m-1").message_type("OrderPlaced"));
        all_acked(&broker).await;
        for _ in 0..2 {
            broker.publish("orders", order("m-1"));
            all_acked(&broker).await;
        }
        running.stop().await;
        assert_eq!(sandbox.dead_letters().await, ["undecodable", "held"]);
        let kept = Db::bytes(&sandbox.pool, "SELECT payload FROM inbox_dead_letters ORDER BY id").await;
        assert_eq!(kept, [&b"no order"[..], &order("m-1").payload[..]]);
        assert_eq!(entered.count(), 0);
        assert_eq!(sandbox.claims("m-1").await, 0);
        assert_eq!(broker.settled().len(), 3);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn duplicate_beats_the_limit_of_attempts() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let entered = Entered::default();
        let inbox = build(&sandbox.pool, &broker, &entered).serve(charge::handler());
        let running = Running::start(inbox.build().await.unwrap());
        broker.publish("orders", order("m-1"));
        all_acked(&broker).await;
        // It had failed often in another process, which counted after the success here.
        let sql = "INSERT INTO inbox_attempts (message_id, consumer_name, attempts, last_failure) VALUES ('m-1', 'billing', 99, 'x')";
        Db::run(&sandbox.pool, sql).await;
        broker.publish("orders", order("m-1"));
        all_acked(&broker).await;
        running.stop().await;
        sandbox.assert_stored_once("m-1").await;
        assert!(sandbox.dead_letters().await.is_empty());
        assert_eq!(entered.count(), 1);
        assert_eq!(broker.settled().len(), 2);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn after_a_crash_between_last_failure_and_dead_letter_the_handler_does_not_run_again() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let entered = Entered::default();
        let inbox = build(&sandbox.pool, &broker, &entered).serve(charge::handler());
        let running = Running::start(inbox.build().await.unwrap());
        let sql = "INSERT INTO inbox_attempts (message_id, consumer_name, attempts, last_failure) VALUES ('m-1', 'billing', 2, 'x')";
        Db::run(&sandbox.pool, sql).await;
        broker.publish("orders", order("m-1"));
        all_acked(&broker).await;
        running.stop().await;
        assert_eq!(entered.count(), 0);
        assert_eq!(sandbox.dead_letters().await, ["attempts_exhausted"]);
        assert_eq!(Db::number(&sandbox.pool, "SELECT attempts FROM inbox_dead_letters").await, 2);
        assert_eq!(sandbox.claims("m-1").await, 0, "a dead letter has no claim");
        assert_eq!(broker.settled().len(), 1);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn payload_headers_and_id_are_kept_exactly() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let inbox = build(&sandbox.pool, &broker, &Entered::default()).serve(charge::handler());
        let running = Running::start(inbox.build().await.unwrap());
        let bytes = vec![0xff, 0xfe, 0x00, b'a', 0x00, 0x00, b'\'', b'\\', 0x80];
        let envelope = Envelope::new(bytes.clone())
            .id("m-1")
            .message_type("OrderPlaced")
            .content_type("application/octet-stream")
            .correlation_id("c-\u{e9}")
            .key("k")
            .header("zero", b"a\0b".to_vec())
            .header("raw", vec![0xff, 0x00])
            .header("twice", "1")
            .header("twice", "2")
            .header("grüße\0", "😀");
        broker.publish("orders", envelope);
        // An empty payload is a payload.
        broker.publish("orders", Envelope::new("").id("m-2").message_type("OrderPlaced"));
        all_acked(&broker).await;
        running.stop().await;
        assert_eq!(sandbox.dead_letters().await, ["undecodable"; 2]);
        let payload = |id: &'static str| {
            let pool = sandbox.pool.clone();
            async move {
                let sql = format!("SELECT payload FROM inbox_dead_letters WHERE message_id = '{id}'");
                Db::bytes(&pool, &sql).await
            }
        };
        assert_eq!(payload("m-1").await, [bytes]);
        assert_eq!(payload("m-2").await, [b""]);
        let document = Db::texts(&sandbox.pool, "SELECT headers FROM inbox_dead_letters WHERE message_id = 'm-1'").await.remove(0);
        let document: serde_json::Value = serde_json::from_str(&document).unwrap();
        assert_eq!(
            document,
            serde_json::json!({
                "id": "m-1",
                "type": "OrderPlaced",
                "content_type": "application/octet-stream",
                "correlation_id": "c-\u{e9}",
                "published_at": null,
                "key": "k",
                "published_at": null,
                "headers": [
                    ["zero", "a\0b"], ["raw", {"bytes": [255, 0]}], ["twice", "1"], ["twice", "2"],
                    ["grüße\0", "😀"]
                ],
            })
        );
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_long_failure_text_is_cut_on_a_character_and_marked() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let inbox = build(&sandbox.pool, &broker, &Entered::default()).serve(fail::handler());
        let running = Running::start(inbox.build().await.unwrap());
        let envelope = order("m-1");
        let body = envelope.payload.clone();
        broker.publish("orders", envelope);
        all_acked(&broker).await;
        running.stop().await;
        assert_eq!(sandbox.dead_letters().await, ["attempts_exhausted"]);
        let text = sandbox.dead_letter_texts().await.remove(0);
        let (kept, mark) = text.split_once("... [cut, ").expect("a mark");
        assert!(kept.starts_with("a\\0b😀") && kept.ends_with('😀'), "{text}");
        assert!(kept.len() > 3_900 && mark.ends_with(" bytes in all]"), "{mark}");
        assert_eq!(
            Db::texts(&sandbox.pool, "SELECT message_id FROM inbox_dead_letters").await,
            ["m-1"]
        );
        assert_eq!(Db::bytes(&sandbox.pool, "SELECT payload FROM inbox_dead_letters").await, [body.to_vec()]);
        assert_eq!(broker.settled().last().unwrap().verdict, Verdict::Ack);
        assert_eq!(sandbox.ledger_total().await, 0);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn nul_characters_reach_the_handler_in_the_body_and_are_escaped_in_an_id() {
        let sandbox = Db::fresh(10).await;
        let blob = if <Db as sqlx::Database>::NAME == "PostgreSQL" { "BYTEA" } else { "BLOB" };
        Db::run(&sandbox.pool, &format!("CREATE TABLE bodies (id TEXT, body {blob}, note {blob})")).await;
        let broker = MemoryBroker::new();
        let inbox = build(&sandbox.pool, &broker, &Entered::default()).serve(store_bytes::handler());
        let running = Running::start(inbox.build().await.unwrap());
        let body = r#"{"note":"a\u0000b"}"#;
        broker.publish("orders", Envelope::new(body).id("m-1").header("x", b"\0".to_vec()).message_type("A\0B").correlation_id("\0"));
        broker.publish("orders", Envelope::new(body).id("m-\0-2").message_type("A\0B"));
        all_acked(&broker).await;
        running.stop().await;
        assert_eq!(Db::bytes(&sandbox.pool, "SELECT body FROM bodies").await, [body.as_bytes()]);
        assert_eq!(Db::bytes(&sandbox.pool, "SELECT note FROM bodies").await, [b"a\0b"]);
        assert_eq!(sandbox.dead_letters().await, ["invalid_id"]);
        assert_eq!(
            Db::texts(&sandbox.pool, "SELECT message_id FROM inbox_dead_letters").await,
            ["m-\\0-2"]
        );
        assert_eq!(broker.settled().len(), 2, "nothing is retried");
        assert_eq!(sandbox.claims_total().await, 1);
    }
}

mod processed_elsewhere {
    use super::*;

    #[derive(Clone)]
    struct Elsewhere(sqlx::PgPool);

    /// Fails while another process waits for its claim: that one wins it as soon as this one rolls back.
    #[inbox_handler(consumer = "billing", max_attempts = 1)]
    async fn fail_while_claimed_elsewhere(
        _order: OrderPlaced,
        _tx: &mut Tx<sqlx::Postgres>,
        State(elsewhere): State<Elsewhere>,
    ) -> Result<(), HandlerError> {
        let mut conn = elsewhere.0.acquire().await?;
        tokio::spawn(async move {
            // The lock keeps this one from counting its failure until the other is through: the dead letter
            // would come after the other's commit.
            let copy = "BEGIN; LOCK TABLE inbox_attempts IN SHARE ROW EXCLUSIVE MODE; \
                INSERT INTO inbox_processed_messages (message_id, consumer_name) VALUES ('m-1', 'billing'); \
                INSERT INTO ledger (account, amount, msg_id) VALUES ('acc-1', 100, 'm-1'); \
                UPDATE accounts SET balance = balance + 100 WHERE id = 'acc-1'; \
                SELECT pg_sleep(0.5); COMMIT";
            sqlx::raw_sql(copy).execute(&mut *conn).await.unwrap();
        });
        loop {
            let waiting: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                 AND wait_event_type = 'Lock' AND query LIKE 'BEGIN; LOCK TABLE inbox_attempts%'",
            )
            .fetch_one(&elsewhere.0)
            .await?;
            if waiting == 1 {
                return Err("fails here".into());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_that_another_process_processed_while_it_failed_here_is_no_dead_letter() {
        let sandbox = <sqlx::Postgres as TestDatabase>::fresh(10).await;
        let broker = MemoryBroker::new();
        let inbox = build(&sandbox.pool, &broker, &Entered::default())
            .serve(fail_while_claimed_elsewhere::handler())
            .state(Elsewhere(sandbox.pool.clone()));
        let running = Running::start(inbox.build().await.unwrap());
        broker.publish("orders", order("m-1"));
        all_acked(&broker).await;
        running.stop().await;
        assert!(sandbox.dead_letters().await.is_empty());
        sandbox.assert_stored_once("m-1").await;
        assert_eq!(broker.settled().len(), 1);
    }
}
