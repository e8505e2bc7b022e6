//! What makes two deliveries the same message: the id that its producer gave it, whole, and nothing else.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use inbox_guarantees::dispatch::Serve as _;
use inbox_guarantees::{
    EventLog, OrderPlaced, Running, TestDatabase, all_acked, bill, on_each_database, order, unique,
};
use inbox_runtime::brokers::{MemoryBroker, MemorySource};
use inbox_runtime::{
    Envelope, Handler, HandlerError, IdSource, IdempotencyKey, Inbox, InboxBuilder, MessageId,
    RetryPolicy, State, Tx, inbox_handler,
};
use sqlx::Pool;

/// The longest id that is documented.
const N: usize = 255;

#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<(String, String)>>>);

impl Calls {
    fn note(&self, consumer: &str, key: String) -> usize {
        let mut calls = self.0.lock().unwrap();
        calls.push((consumer.to_owned(), key));
        calls.iter().filter(|(of, _)| of == consumer).count()
    }

    fn of(&self, consumer: &str) -> Vec<String> {
        let calls = self.0.lock().unwrap();
        calls
            .iter()
            .filter(|(of, _)| of == consumer)
            .map(|(_, key)| key.clone())
            .collect()
    }
}

fn inbox_of<H: Handler>(
    pool: &Pool<H::Db>,
    source: MemorySource,
    handler: H,
) -> InboxBuilder<H::Db> {
    Inbox::builder(pool.clone())
        .source("orders", source)
        .serve(handler)
        .retry(RetryPolicy::default().first_delay(Duration::from_millis(20)))
}

on_each_database! {
    #[inbox_handler(consumer = "billing")]
    async fn charge(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        Ok(())
    }

    #[inbox_handler(consumer = "billing", key = "header:x-order")]
    async fn charge_by_header(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        Ok(())
    }

    #[inbox_handler(consumer = "billing", key = "payload:/meta/id")]
    async fn charge_by_payload(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        Ok(())
    }

    #[inbox_handler(consumer = "billing", key = "cloudevents")]
    async fn charge_by_event(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        Ok(())
    }

    /// Calls an outside service before its work, and fails twice after the call.
    #[inbox_handler(consumer = "billing")]
    async fn call_and_charge(
        order: OrderPlaced,
        tx: &mut Tx<Db>,
        id: MessageId,
        key: IdempotencyKey,
        State(calls): State<Calls>,
    ) -> Result<(), HandlerError> {
        if calls.note("billing", key.step("charge")) < 3 {
            return Err("failed after the call".into());
        }
        bill!(Db, order, id, tx);
        Ok(())
    }

    #[inbox_handler(consumer = "notifications")]
    async fn call_and_notify(
        _order: OrderPlaced,
        _tx: &mut Tx<Db>,
        key: IdempotencyKey,
        State(calls): State<Calls>,
    ) -> Result<(), HandlerError> {
        calls.note("notifications", key.step("charge"));
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_id_of_the_longest_length_is_processed_and_longer_ones_are_refused_not_cut() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let inbox = inbox_of(&sandbox.pool, broker.source("orders"), charge::handler());
        let running = Running::start(inbox.build().await.unwrap());
        let long = |last: &str| format!("{}{last}", "a".repeat(N + 44));
        broker.publish("orders", order(&long("1")));
        broker.publish("orders", order(&long("2")));
        // Bytes are what counts: 128 characters of two bytes are one too many.
        broker.publish("orders", order(&"é".repeat(N / 2 + 1)));
        let longest = "a".repeat(N);
        let wide = format!("{}b", "é".repeat(N / 2));
        broker.publish("orders", order(&longest));
        broker.publish("orders", order(&longest));
        broker.publish("orders", order(&wide));
        all_acked(&broker).await;
        running.stop().await;

        assert_eq!(broker.settled().len(), 6);
        assert_eq!(sandbox.dead_letters().await, ["invalid_id"; 3]);
        for text in sandbox.dead_letter_texts().await {
            assert!(text.contains("bytes, at most 255"), "{text}");
        }
        let kept = Db::texts(&sandbox.pool, "SELECT message_id FROM inbox_dead_letters").await;
        assert!(kept.contains(&long("1")) && kept.contains(&long("2")), "{kept:?}");
        assert_eq!(sandbox.ledger_total().await, 2);
        sandbox.assert_stored_once(&longest).await;
        sandbox.assert_stored_once(&wide).await;
        let claimed = Db::texts(&sandbox.pool, "SELECT message_id FROM inbox_processed_messages").await;
        assert!(claimed.iter().all(|id| id.len() == N), "{claimed:?}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_id_is_data_whatever_it_looks_like() {
        let odd = [
            "'", "''", "\\'", "\\", "\\x41", "E'\\\\x", "'); DROP TABLE ledger; --", "$1", "?1", "%s", "{}", "/*", "--", "\"",
            "a\r\n", "\t.", "é", "日本", "\u{202e}", "😀", "\u{feff}x", "a'::bytea",
        ];
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let inbox = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .serve(charge::handler())
            .concurrency(1)
            .build()
            .await
            .unwrap();
        // One worker takes them in a row: all but the first claim find a session that has just committed.
        for _ in 0..2 {
            for id in odd {
                let order = order(id).message_type(format!("OrderPlaced{id}")).correlation_id(id);
                broker.publish("orders", order);
            }
        }
        let running = Running::start(inbox);
        all_acked(&broker).await;
        running.stop().await;
        let mut stored = Db::texts(&sandbox.pool, "SELECT message_id FROM inbox_processed_messages").await;
        let mut effects = Db::texts(&sandbox.pool, "SELECT msg_id FROM ledger").await;
        let correlated = "SELECT count(*) FROM inbox_processed_messages WHERE correlation_id = message_id \
                          AND message_type = 'OrderPlaced' || message_id";
        assert_eq!(Db::number(&sandbox.pool, correlated).await, i64::try_from(odd.len()).unwrap());
        let mut expected = odd.map(str::to_owned);
        expected.sort();
        stored.sort();
        effects.sort();
        assert_eq!(stored, expected);
        assert_eq!(effects, expected);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn ids_are_compared_byte_for_byte() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let inbox = inbox_of(&sandbox.pool, broker.source("orders"), charge::handler());
        let running = Running::start(inbox.build().await.unwrap());
        // Case, trailing blanks, and the two spellings of one letter: each a message of its own.
        let ids = ["m-1", "M-1", "m-1 ", " m-1", "caf\u{e9}", "cafe\u{301}", "m-1\n"];
        for id in ids.iter().chain(&ids) {
            broker.publish("orders", order(id));
        }
        all_acked(&broker).await;
        running.stop().await;
        for id in ids {
            sandbox.assert_stored_once(id).await;
        }
        assert_eq!(sandbox.claims_total().await, ids.len() as i64);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn missing_empty_blank_and_null_ids_are_kept_as_dead_letters_and_nothing_is_retried() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let source = broker
            .source("orders")
            .id_from([IdSource::Property, IdSource::Header("order-id".to_owned())]);
        let inbox = inbox_of(&sandbox.pool, source, charge::handler());
        let running = Running::start(inbox.build().await.unwrap());
        let without_id = |note: &str| {
            Envelope::new(format!(r#"{{"account":"acc-1","amount":100,"note":"{note}"}}"#))
                .message_type("OrderPlaced")
        };
        let bad = [
            without_id("absent"),
            without_id("empty").id(""),
            without_id("blank").id("   "),
            // What an adapter makes of a header that is there without a value.
            without_id("null").header("order-id", ""),
        ];
        for envelope in bad {
            broker.publish("orders", envelope);
        }
        broker.publish("orders", order("m-2"));
        all_acked(&broker).await;
        running.stop().await;

        let settled = broker.settled();
        assert_eq!(settled.len(), 5, "{settled:?}");
        assert!(settled.iter().all(|s| s.delivery == 1), "{settled:?}");
        assert_eq!(sandbox.dead_letters().await, ["invalid_id"; 4]);
        let mut texts = sandbox.dead_letter_texts().await;
        texts.sort();
        for (text, expected) in texts.iter().zip([
            "is blank (from the message id property)",
            "is empty (from the header `order-id`)",
            "is empty (from the message id property)",
            "is missing: looked at the message id property, the header `order-id`",
        ]) {
            assert!(text.contains(expected), "{texts:?}");
        }
        assert_eq!(sandbox.ledger_total().await, 1);
        sandbox.assert_stored_once("m-2").await;
        assert_eq!(sandbox.claims_total().await, 1);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_tables_refuse_an_empty_or_null_id_from_anybody() {
        let sandbox = Db::fresh(10).await;
        for id in ["NULL", "''"] {
            let sql = format!(
                "INSERT INTO inbox_processed_messages (message_id, consumer_name) VALUES ({id}, 'billing')"
            );
            let refused = sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&sandbox.pool).await;
            assert!(refused.is_err(), "{id}");
        }
        assert_eq!(sandbox.claims_total().await, 0);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_key_from_a_header_decides_instead_of_the_message_id() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let inbox = inbox_of(&sandbox.pool, broker.source("orders"), charge_by_header::handler());
        let running = Running::start(inbox.build().await.unwrap());
        // The producer sends the order again under another message id.
        broker.publish("orders", order("a").header("x-order", "o-1"));
        broker.publish("orders", order("b").header("x-order", "o-1"));
        broker.publish("orders", order("b").header("x-order", "o-2"));
        broker.publish("orders", order("c"));
        broker.publish("orders", order("d").header("x-order", "o-3").header("x-order", "o-4"));
        all_acked(&broker).await;
        running.stop().await;
        sandbox.assert_stored_once("o-1").await;
        sandbox.assert_stored_once("o-2").await;
        assert_eq!(sandbox.ledger_total().await, 2);
        assert_eq!(sandbox.dead_letters().await, ["invalid_id"; 2]);
        let texts = sandbox.dead_letter_texts().await;
        assert!(texts.iter().all(|text| text.contains("x-order")), "{texts:?}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_key_from_the_payload_decides_instead_of_the_message_id() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let inbox = inbox_of(&sandbox.pool, broker.source("orders"), charge_by_payload::handler());
        let running = Running::start(inbox.build().await.unwrap());
        let with = |id: &str, meta: &str| {
            Envelope::new(format!(r#"{{"account":"acc-1","amount":100,"meta":{{"id":{meta}}}}}"#)).id(id)
        };
        broker.publish("orders", with("a", r#""o-1""#));
        broker.publish("orders", with("b", r#""o-1""#));
        broker.publish("orders", with("c", "17"));
        broker.publish("orders", with("c", "17"));
        for unusable in ["null", "1.5", "[1]", "true", r#""""#] {
            broker.publish("orders", with("c", unusable));
        }
        broker.publish("orders", Envelope::new("no JSON").id("d"));
        all_acked(&broker).await;
        running.stop().await;
        sandbox.assert_stored_once("o-1").await;
        sandbox.assert_stored_once("17").await;
        assert_eq!(sandbox.ledger_total().await, 2);
        assert_eq!(sandbox.dead_letters().await, ["invalid_id"; 6]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn cloud_events_are_told_apart_by_source_and_id_in_both_modes() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let inbox = inbox_of(&sandbox.pool, broker.source("orders"), charge_by_event::handler());
        let running = Running::start(inbox.build().await.unwrap());
        let binary = |source: &str, id: &str| order("ignored").header("ce-source", source.to_owned()).header("ce-id", id.to_owned());
        let structured = |source: &str, id: &str| {
            Envelope::new(format!(
                r#"{{"specversion":"1.0","type":"OrderPlaced","source":"{source}","id":"{id}","data":{{"account":"acc-1","amount":100}}}}"#
            ))
            .content_type("application/cloudevents+json; charset=utf-8")
        };
        broker.publish("orders", binary("/eu", "1"));
        broker.publish("orders", structured("/eu", "1"));
        broker.publish("orders", binary("/us", "1"));
        // Put together without the lengths, these two would be one.
        broker.publish("orders", structured("a:b", "c"));
        broker.publish("orders", structured("a", "b:c"));
        broker.publish("orders", order("no-attributes"));
        all_acked(&broker).await;
        running.stop().await;
        assert_eq!(sandbox.ledger_total().await, 4);
        assert_eq!(sandbox.balance("acc-1").await, 400);
        assert_eq!(sandbox.claims_total().await, 4);
        assert_eq!(sandbox.dead_letters().await, ["invalid_id"]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn sources_with_an_id_scope_have_ids_of_their_own() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let inbox = Inbox::builder(sandbox.pool.clone())
            .source("eu", broker.source("eu"))
            .source("us", broker.source("us"))
            .id_scope("eu", "eu")
            .id_scope("us", "us")
            .serve(charge::handler())
            .build()
            .await
            .unwrap();
        let running = Running::start(inbox);
        for queue in ["eu", "us", "eu", "us"] {
            broker.publish(queue, order("m-1"));
        }
        all_acked(&broker).await;
        running.stop().await;
        sandbox.assert_stored_once("eu/m-1").await;
        sandbox.assert_stored_once("us/m-1").await;
        assert_eq!(sandbox.ledger_total().await, 2);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn sources_with_a_shared_id_space_deliver_one_message_between_them() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let inbox = Inbox::builder(sandbox.pool.clone())
            .source("old", broker.source("old"))
            .source("new", broker.source("new"))
            .shared_id_space(["old", "new"])
            .serve(charge::handler())
            .build()
            .await
            .unwrap();
        let running = Running::start(inbox);
        for queue in ["old", "new", "old", "new"] {
            broker.publish(queue, order("m-1"));
        }
        all_acked(&broker).await;
        running.stop().await;
        sandbox.assert_stored_once("m-1").await;
        assert_eq!(sandbox.ledger_total().await, 1);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn outside_calls_carry_one_key_over_attempts_and_restarts_and_another_per_consumer() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let calls = Calls::default();
        broker.publish("orders", order("m-1"));
        // Each attempt by an inbox of its own, as after a restart.
        for attempt in 1..=3 {
            let inbox = inbox_of(&sandbox.pool, broker.source("orders"), call_and_charge::handler())
                .serve(call_and_notify::handler())
                .retry(RetryPolicy::default().first_delay(Duration::from_millis(500)))
                .state(calls.clone());
            let running = Running::start(inbox.build().await.unwrap());
            broker.until_settled(attempt).await;
            running.stop().await;
        }
        all_acked(&broker).await;
        assert_eq!(sandbox.ledger_rows("m-1").await, 1);
        assert_eq!(sandbox.claims("m-1").await, 2);
        let billing = calls.of("billing");
        assert_eq!(billing.len(), 3);
        assert!(billing.iter().all(|key| *key == billing[0]), "{billing:?}");
        let notifications = calls.of("notifications");
        assert_eq!(notifications.len(), 1);
        assert_ne!(notifications[0], billing[0]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn another_payload_under_a_known_id_is_a_duplicate_and_told_as_an_error() {
        let log = EventLog::of_process();
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let inbox = inbox_of(&sandbox.pool, broker.source("orders"), charge::handler());
        let running = Running::start(inbox.build().await.unwrap());
        let id = unique("collision");
        let told = || {
            log.text()
                .lines()
                .filter(|line| line.contains("ERROR") && line.contains(&id) && line.contains("another payload"))
                .count()
        };
        broker.publish("orders", order(&id));
        broker.publish("orders", order(&id));
        all_acked(&broker).await;
        assert_eq!(told(), 0, "the same payload is no collision");
        broker.publish("orders", Envelope::new(r#"{"account":"acc-1","amount":999}"#).id(&id));
        all_acked(&broker).await;
        // A row that an older version wrote without a hash can be compared with nothing.
        Db::run(&sandbox.pool, "UPDATE inbox_processed_messages SET payload_hash = NULL").await;
        broker.publish("orders", Envelope::new(r#"{"account":"acc-1","amount":998}"#).id(&id));
        all_acked(&broker).await;
        running.stop().await;

        assert_eq!(told(), 1, "{}", log.text());
        sandbox.assert_stored_once(&id).await;
        assert_eq!(sandbox.balance("acc-1").await, 100);
        assert!(sandbox.dead_letters().await.is_empty());
        assert_eq!(broker.settled().len(), 4);
    }
}

mod language {
    use super::*;

    #[inbox_handler(consumer = "billing")]
    async fn charge(
        order: OrderPlaced,
        tx: &mut Tx<sqlx::Postgres>,
        id: MessageId,
    ) -> Result<(), HandlerError> {
        bill!(sqlx::Postgres, order, id, tx);
        Ok(())
    }

    /// What decides is the code: a duplicate, a lock conflict and a serialization failure in German are what they
    /// are in English.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_the_database_says_is_judged_by_its_code_in_any_language() {
        let mut sandbox = <sqlx::Postgres as TestDatabase>::fresh(10).await;
        sandbox.set("lc_messages", "de_DE.UTF-8").await;
        let error = sqlx::query("SELECT 1/0").execute(&sandbox.pool).await;
        let text = error.unwrap_err().to_string();
        assert!(
            text.contains("Division durch Null"),
            "the server speaks no German: {text}"
        );
        sqlx::Postgres::run(
            &sandbox.pool,
            "CREATE FUNCTION speak() RETURNS trigger LANGUAGE plpgsql AS $$
             DECLARE conflict TEXT;
             BEGIN
                 -- A sequence is not rolled back: each mood comes up once.
                 CASE nextval('mood') WHEN 1 THEN conflict := '55P03'; WHEN 2 THEN conflict := '40001';
                 ELSE RETURN NEW; END CASE;
                 RAISE EXCEPTION 'Die Zeile ist gerade in Arbeit' USING ERRCODE = conflict;
             END $$;
             CREATE SEQUENCE mood;
             CREATE TRIGGER speak BEFORE INSERT ON inbox_processed_messages FOR EACH ROW EXECUTE FUNCTION speak();",
        )
        .await;
        let broker = MemoryBroker::new();
        let inbox = inbox_of(&sandbox.pool, broker.source("orders"), charge::handler());
        let running = Running::start(inbox.build().await.unwrap());
        for id in ["m-1", "m-1", "m-2"] {
            broker.publish("orders", order(id));
            all_acked(&broker).await;
        }
        running.stop().await;
        sandbox.assert_stored_once("m-1").await;
        sandbox.assert_stored_once("m-2").await;
        assert!(sandbox.dead_letters().await.is_empty());
        assert_eq!(
            sandbox.attempts("m-1").await,
            0,
            "a conflict of the claim counts nothing"
        );
    }
}
