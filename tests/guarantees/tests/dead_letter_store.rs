//! What a person can do with dead letters: look at them, replay them and discard them, also from several places at
//! once. Nothing is replayed twice, and nothing is lost on the way.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use inbox_core::{DeadLetter, ExistingEntry, FailureText, Requisites};
use inbox_guarantees::dispatch::Serve as _;
use inbox_guarantees::{
    OrderPlaced, Running, Sandbox, TestDatabase, all_acked, bill, eventually, on_each_database,
    order,
};
use inbox_runtime::brokers::MemoryBroker;
use inbox_runtime::dead_letters::{
    DeadLetterError, DeadLetterOrder, DeadLetterPage, DeadLetterQuery, DeadLetterReason,
    DeadLetterState, DeadLetters, Replay,
};
use inbox_runtime::{
    Envelope, HandlerError, Inbox, InboxBuilder, MessageId, RetryPolicy, State, Tables, Tx,
    inbox_handler,
};
use sqlx::Database as _;

/// Keeps dead letters as the runtime does.
struct Keeper<'a, Db: TestDatabase> {
    sandbox: &'a Sandbox<Db>,
    statements: Db::Statements,
}

impl<'a, Db: TestDatabase> Keeper<'a, Db> {
    async fn new(sandbox: &'a Sandbox<Db>) -> Self {
        let requisites = Requisites {
            claim_wait: Duration::from_secs(5),
            longest_handler: Duration::from_secs(30),
            behind_pooler: false,
        };
        let mut conn = sandbox.pool.acquire().await.unwrap();
        let inspection = Db::inspect(&mut conn, &Tables::default(), &requisites)
            .await
            .unwrap();
        Self {
            sandbox,
            statements: inspection.statements,
        }
    }

    /// Keeps a message and answers the number of its entry.
    async fn keep_as(&self, letter: &DeadLetter<'_>, existing: ExistingEntry) -> i64 {
        let mut conn = self.sandbox.pool.acquire().await.unwrap();
        Db::store_dead_letter(&mut conn, &self.statements, letter, existing)
            .await
            .unwrap();
        drop(conn);
        let payload: String = letter
            .payload()
            .iter()
            .map(|byte| format!("{byte:02X}"))
            .collect();
        let hex = if Db::NAME == "PostgreSQL" {
            "upper(encode(payload, 'hex'))"
        } else {
            "hex(payload)"
        };
        let sql = format!(
            "SELECT id FROM inbox_dead_letters WHERE source = '{}' AND COALESCE(consumer_name, '') = '{}' \
             AND COALESCE(message_id, '') = '{}' AND {hex} = '{payload}'",
            letter.source,
            letter.consumer.unwrap_or_default(),
            letter.id.unwrap_or_default(),
        );
        Db::number(&self.sandbox.pool, &sql).await
    }

    /// Keeps an order of the consumer billing, which has failed twice.
    async fn keep(&self, reason: DeadLetterReason, envelope: &Envelope) -> i64 {
        let text = FailureText::new("it failed");
        let mut letter = DeadLetter::new("orders", envelope, reason, &text);
        letter.consumer = Some("billing");
        letter.id = envelope.id.as_deref();
        letter.attempts = 2;
        let id = self.keep_as(&letter, ExistingEntry::Reopen).await;
        let failures = format!(
            "INSERT INTO inbox_attempts (message_id, consumer_name, attempts, last_failure) \
             SELECT '{id}', 'billing', 2, 'it failed' WHERE NOT EXISTS \
             (SELECT 1 FROM inbox_attempts WHERE message_id = '{id}' AND consumer_name = 'billing')",
            id = envelope.id.as_deref().unwrap_or_default()
        );
        Db::run(&self.sandbox.pool, &failures).await;
        id
    }
}

async fn opened<Db: TestDatabase>(sandbox: &Sandbox<Db>) -> DeadLetters<Db> {
    DeadLetters::open(sandbox.pool.clone(), &Tables::default())
        .await
        .unwrap()
}

/// `consumer|id|source|status` of what waits, by their numbers.
async fn waiting<Db: TestDatabase>(sandbox: &Sandbox<Db>) -> Vec<String> {
    let sql = "SELECT consumer_name || '|' || message_id || '|' || source || '|' || status FROM inbox_messages ORDER BY id";
    Db::texts(&sandbox.pool, sql).await
}

async fn process<Db: TestDatabase>(sandbox: &Sandbox<Db>, id: &str) {
    let sql = format!(
        "INSERT INTO inbox_processed_messages (message_id, consumer_name) VALUES ('{id}', 'billing')"
    );
    Db::run(&sandbox.pool, &sql).await;
}

/// A handler that fails until it is repaired.
#[derive(Clone, Default)]
struct Repairable {
    is_repaired: Arc<AtomicBool>,
    runs: Arc<AtomicU32>,
}

fn inbox<Db: TestDatabase>(sandbox: &Sandbox<Db>, broker: &MemoryBroker) -> InboxBuilder<Db> {
    Inbox::builder(sandbox.pool.clone())
        .source("orders", broker.source("orders"))
        .poll_interval(Duration::from_millis(20))
        .retry(RetryPolicy::default().first_delay(Duration::from_millis(20)))
}

async fn nothing_waits<Db: TestDatabase>(sandbox: &Sandbox<Db>) {
    eventually("nothing waits in the database", || async {
        waiting(sandbox).await.is_empty()
    })
    .await;
}

fn ids(page: &DeadLetterPage) -> Vec<i64> {
    page.entries.iter().map(|entry| entry.id).collect()
}

on_each_database! {
    #[tokio::test(flavor = "multi_thread")]
    async fn a_list_goes_page_by_page_through_what_is_asked_for() {
        let sandbox = Db::fresh(5).await;
        let keeper = Keeper::new(&sandbox).await;
        let mut all = Vec::new();
        for number in 0..120 {
            let envelope = order(&format!("m-{number}"))
                .message_type(if number % 3 == 0 { "OrderPlaced" } else { "OrderPaid" });
            let text = FailureText::new(format!("failure {number}"));
            let reason = if number % 4 == 0 { DeadLetterReason::Rejected } else { DeadLetterReason::UnknownType };
            let source = if number % 5 == 0 { "shop" } else { "orders" };
            let mut letter = DeadLetter::new(source, &envelope, reason, &text);
            letter.id = envelope.id.as_deref();
            letter.consumer = (number % 2 == 0).then_some("billing");
            all.push(keeper.keep_as(&letter, ExistingEntry::Reopen).await);
        }
        let dead_letters = opened(&sandbox).await;
        let newest_first: Vec<i64> = all.iter().rev().copied().collect();
        for (order, expected) in [(DeadLetterOrder::OldestFirst, &all), (DeadLetterOrder::NewestFirst, &newest_first)] {
            let mut query = DeadLetterQuery::new().order(order);
            let mut found = Vec::new();
            let mut sizes = Vec::new();
            loop {
                let page = dead_letters.list(&query).await.unwrap();
                found.extend(ids(&page));
                sizes.push(page.entries.len());
                let Some(next) = page.next else { break };
                query = query.after(next);
            }
            assert_eq!(&found, expected, "{order:?}");
            assert_eq!(sizes, [50, 50, 20], "{order:?}");
        }

        let of = async |query: DeadLetterQuery| {
            let page = dead_letters.list(&query.clone().page_size(1000)).await.unwrap();
            assert_eq!(page.next, None);
            assert_eq!(dead_letters.count(&query.page_size(1)).await.unwrap(), page.entries.len() as u64);
            page.entries
        };
        let every = |step: usize| (0..120).filter(|number| number % step == 0).count();
        let new = DeadLetterQuery::new;
        assert_eq!(of(new().consumer("billing")).await.len(), every(2));
        assert_eq!(of(new().consumer("bill")).await.len(), 0);
        assert_eq!(of(new().reason(DeadLetterReason::Rejected)).await.len(), every(4));
        assert_eq!(of(new().source("shop")).await.len(), every(5));
        assert_eq!(of(new().message_type("OrderPlaced")).await.len(), every(3));
        let one = of(new().message_id("m-60").consumer("billing").source("shop").message_type("OrderPlaced")).await;
        assert_eq!(one.len(), 1);
        assert_eq!(one[0].failure, "failure 60");
        assert_eq!(one[0].payload_bytes, order("m-60").payload.len() as u64);
        assert!(of(new().message_id("m-\0")).await.is_empty());

        // Exactly one page is the last page.
        let exactly = new().page_size(u32::try_from(every(4)).unwrap()).reason(DeadLetterReason::Rejected);
        assert_eq!(dead_letters.list(&exactly).await.unwrap().next, None);
        assert_eq!(dead_letters.list(&new().page_size(0)).await.unwrap().entries.len(), 1);

        // What was on a page and is gone does not move the rest.
        let first = dead_letters.list(&new()).await.unwrap();
        assert_eq!(dead_letters.replay(newest_first[0], "ada").await.unwrap(), Replay::Queued);
        dead_letters.discard(first.next.unwrap(), "ada").await.unwrap();
        let second = dead_letters.list(&new().after(first.next.unwrap())).await.unwrap();
        assert_eq!(ids(&second), newest_first[50..100]);
        assert_eq!(dead_letters.count(&new()).await.unwrap(), 118);
        let replayed = of(new().state(DeadLetterState::Replayed)).await;
        assert_eq!(replayed.iter().map(|entry| entry.id).collect::<Vec<_>>(), newest_first[..1]);
        assert_eq!(of(new().state(DeadLetterState::All)).await.len(), 119);
        Db::assert_clean(&sandbox.pool).await;
    }

    #[inbox_handler(consumer = "billing", max_attempts = 1)]
    async fn fail(_order: OrderPlaced, _tx: &mut Tx<Db>) -> Result<(), HandlerError> {
        Err(format!("a\0b{}", "😀".repeat(20_000)).into())
    }

    #[inbox_handler(consumer = "billing", max_attempts = 1)]
    async fn charge(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_entry_shows_its_message_byte_for_byte() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let inbox = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .serve(fail::handler());
        let running = Running::start(inbox.build().await.unwrap());
        let mut published = Envelope::new(r#"{"account":"a\u0000b","amount":1}"#)
            .id("m-1")
            .message_type("OrderPlaced")
            .content_type("application/json")
            .correlation_id("c-\u{e9}")
            .key("k")
            .header("zero", b"a\0b".to_vec())
            .header("raw", vec![0xff, 0x00, 0x80])
            .header("twice", "1")
            .header("twice", "2")
            .header("grüße\0", "😀");
        published.published_at = Some(SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_456));
        broker.publish("orders", published.clone());
        let undecodable = Envelope::new(vec![0xff, 0xfe, 0x00]).id("m-2");
        broker.publish("orders", undecodable.clone());
        all_acked(&broker).await;
        running.stop().await;
        let dead_letters = opened(&sandbox).await;
        let page = dead_letters.list(&DeadLetterQuery::new()).await.unwrap();
        assert_eq!(page.entries.len(), 2);
        let number = |id: &str| page.entries.iter().find(|e| e.message_id.as_deref() == Some(id)).unwrap().id;

        // The database's clock and nothing else: it can be set.
        let (first, last) = match Db::NAME {
            "PostgreSQL" => ("2024-02-29 12:34:56.789012+00", "1969-12-31 23:59:59.5+00"),
            "MySQL" => ("2024-02-29 12:34:56.789012", "1969-12-31 23:59:59.5"),
            _ => ("2024-02-29T12:34:56.789Z", "1969-12-31T23:59:59.500Z"),
        };
        let sql = format!("UPDATE inbox_dead_letters SET first_failed_at = '{first}', last_failed_at = '{last}' WHERE message_id = 'm-1'");
        Db::run(&sandbox.pool, &sql).await;
        let shown = dead_letters.show(number("m-1")).await.unwrap();
        assert_eq!(shown.envelope().unwrap(), published);
        assert_eq!(shown.payload, published.payload);
        let entry = &shown.entry;
        let microseconds = if Db::NAME == "SQLite" { 789_000 } else { 789_012 };
        assert_eq!(
            entry.first_failed_at,
            SystemTime::UNIX_EPOCH + Duration::from_micros(1_709_210_096_000_000 + microseconds)
        );
        assert_eq!(entry.last_failed_at, SystemTime::UNIX_EPOCH - Duration::from_millis(500));
        assert_eq!(entry.reason.parse(), Ok(DeadLetterReason::AttemptsExhausted));
        assert_eq!(entry.consumer.as_deref(), Some("billing"));
        assert_eq!(entry.source, "orders");
        assert_eq!(entry.message_type.as_deref(), Some("OrderPlaced"));
        assert!(entry.handler.as_deref().unwrap().ends_with("fail"), "{entry:?}");
        assert!(entry.failure.starts_with("a\\0b😀") && entry.failure.ends_with(" bytes in all]"), "{}", entry.failure);
        assert_eq!((entry.attempts, entry.replays), (1, 0));
        assert_eq!((entry.replayed_at, &entry.replayed_by), (None, &None));
        assert!(entry.is_open());
        let listed = dead_letters.list(&DeadLetterQuery::new().message_id("m-1")).await.unwrap();
        assert_eq!(&listed.entries, std::slice::from_ref(entry));

        let shown = dead_letters.show(number("m-2")).await.unwrap();
        assert_eq!(shown.envelope().unwrap(), undecodable);

        // Stored headers that something else has changed do not keep the payload from being seen.
        Db::run(&sandbox.pool, "UPDATE inbox_dead_letters SET headers = '{\"headers\":5}' WHERE message_id = 'm-1'").await;
        let shown = dead_letters.show(number("m-1")).await.unwrap();
        assert_eq!(shown.payload, published.payload);
        assert!(shown.envelope().is_err());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_replay_queues_the_message_once_and_notes_who_did_it() {
        let sandbox = Db::fresh(5).await;
        let keeper = Keeper::new(&sandbox).await;
        let envelope = Envelope::new(vec![0xff, 0x00]).id("m-1").header("raw", vec![0xff]);
        let id = keeper.keep(DeadLetterReason::AttemptsExhausted, &envelope).await;
        let other = keeper.keep(DeadLetterReason::AttemptsExhausted, &order("m-2")).await;
        let dead_letters = opened(&sandbox).await;
        assert_eq!(dead_letters.replay(id, "ada").await.unwrap(), Replay::Queued);
        assert_eq!(dead_letters.replay(id, "grace").await.unwrap(), Replay::AlreadyQueued);

        assert_eq!(waiting(&sandbox).await, ["billing|m-1|orders|pending"]);
        let kept = Db::texts(&sandbox.pool, "SELECT headers FROM inbox_messages").await.remove(0);
        let payload = Db::bytes(&sandbox.pool, "SELECT payload FROM inbox_messages").await.remove(0);
        assert_eq!(Envelope::from_document(&kept, payload).unwrap(), envelope);
        let due = match Db::NAME {
            "PostgreSQL" => "now()",
            "MySQL" => "UTC_TIMESTAMP(6)",
            _ => "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')",
        };
        let sql = format!("SELECT count(*) FROM inbox_messages WHERE next_attempt_at <= {due} AND claim_token IS NULL");
        assert_eq!(Db::number(&sandbox.pool, &sql).await, 1, "it is due");
        assert_eq!(sandbox.attempts("m-1").await, 0, "it has all its attempts again");
        assert_eq!(sandbox.attempts("m-2").await, 2, "the others' failures stay counted");
        assert_eq!(sandbox.claims("m-1").await, 0, "a message that waits has no claim");

        let entry = dead_letters.show(id).await.unwrap().entry;
        assert!(!entry.is_open());
        assert!(entry.replayed_at.unwrap() >= entry.last_failed_at);
        assert_eq!((entry.replayed_by.as_deref(), entry.replays), (Some("ada"), 1));
        assert!(dead_letters.show(other).await.unwrap().entry.is_open());
        Db::assert_clean(&sandbox.pool).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn of_replays_at_once_one_queues_the_message() {
        let sandbox = Db::fresh(10).await;
        let keeper = Keeper::new(&sandbox).await;
        for round in 0..5 {
            let id = keeper.keep(DeadLetterReason::Rejected, &order(&format!("m-{round}"))).await;
            let dead_letters = opened(&sandbox).await;
            let replays = (0..4).map(|number| {
                let dead_letters = dead_letters.clone();
                tokio::spawn(async move { dead_letters.replay(id, &format!("operator {number}")).await })
            });
            let mut answers: Vec<Replay> =
                join_all(replays).await.into_iter().map(|answer| answer.unwrap().unwrap()).collect();
            answers.sort_by_key(|answer| *answer != Replay::Queued);
            assert_eq!(answers[0], Replay::Queued);
            assert_eq!(answers[1..], [Replay::AlreadyQueued; 3]);
            assert_eq!(dead_letters.show(id).await.unwrap().entry.replays, 1);
        }
        assert_eq!(waiting(&sandbox).await.len(), 5);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_replay_of_a_processed_message_is_a_duplicate_and_changes_nothing() {
        let sandbox = Db::fresh(5).await;
        let keeper = Keeper::new(&sandbox).await;
        let id = keeper.keep(DeadLetterReason::Rejected, &order("m-1")).await;
        let dead_letters = opened(&sandbox).await;
        process(&sandbox, "m-1").await;
        let before = dead_letters.show(id).await.unwrap();
        assert_eq!(dead_letters.replay(id, "ada").await.unwrap(), Replay::Duplicate);
        assert_eq!(dead_letters.show(id).await.unwrap(), before);
        assert!(waiting(&sandbox).await.is_empty());
        assert_eq!(sandbox.claims("m-1").await, 1);
        assert_eq!(sandbox.attempts("m-1").await, 2);
        Db::assert_clean(&sandbox.pool).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_replay_waits_for_a_copy_in_work_and_answers_by_what_became_of_it() {
        let sandbox = Db::fresh(5).await;
        let keeper = Keeper::new(&sandbox).await;
        let begin = if Db::NAME == "SQLite" { "BEGIN IMMEDIATE" } else { "BEGIN" };
        let elsewhere = sandbox.another_pool(1).await;
        for (id, end, expected) in [("m-1", "COMMIT", Replay::Duplicate), ("m-2", "ROLLBACK", Replay::Queued)] {
            let entry = keeper.keep(DeadLetterReason::Rejected, &order(id)).await;
            let dead_letters = opened(&sandbox).await;
            let claim = format!("{begin}; INSERT INTO inbox_processed_messages (message_id, consumer_name) VALUES ('{id}', 'billing')");
            Db::run(&elsewhere, &claim).await;
            let replay = tokio::spawn(async move { dead_letters.replay(entry, "ada").await });
            tokio::time::sleep(Duration::from_millis(200)).await;
            assert!(!replay.is_finished(), "it did not wait for the claim of {id}");
            Db::run(&elsewhere, end).await;
            assert_eq!(replay.await.unwrap().unwrap(), expected);
        }
        assert_eq!(waiting(&sandbox).await, ["billing|m-2|orders|pending"]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_stored_message_that_is_done_waits_again_and_one_in_work_is_left() {
        let sandbox = Db::fresh(5).await;
        let keeper = Keeper::new(&sandbox).await;
        for (id, status) in [("m-1", "done"), ("m-2", "processing"), ("m-3", "pending")] {
            let sql = format!(
                "INSERT INTO inbox_messages (consumer_name, message_id, source, status, headers, payload, claimed_by, claim_token) \
                 VALUES ('billing', '{id}', 'elsewhere', '{status}', '{{}}', '', 'w', 't')"
            );
            Db::run(&sandbox.pool, &sql).await;
        }
        let dead_letters = opened(&sandbox).await;
        let mut answers = Vec::new();
        for id in ["m-1", "m-2", "m-3"] {
            let entry = keeper.keep(DeadLetterReason::Rejected, &order(id)).await;
            answers.push(dead_letters.replay(entry, "ada").await.unwrap());
            let is_open = dead_letters.show(entry).await.unwrap().entry.is_open();
            assert_eq!(is_open, id != "m-1", "{id}");
            assert_eq!(sandbox.attempts(id).await, if is_open { 2 } else { 0 }, "{id}");
        }
        assert_eq!(answers, [Replay::Queued, Replay::AlreadyQueued, Replay::AlreadyQueued]);
        assert_eq!(
            waiting(&sandbox).await,
            ["billing|m-1|orders|pending", "billing|m-2|elsewhere|processing", "billing|m-3|elsewhere|pending"]
        );
        let payloads = Db::bytes(&sandbox.pool, "SELECT payload FROM inbox_messages ORDER BY id").await;
        assert_eq!(payloads, [&order("m-1").payload[..], b"", b""]);
        let claimed = "SELECT count(*) FROM inbox_messages WHERE claim_token = 't' AND claimed_by = 'w'";
        assert_eq!(Db::number(&sandbox.pool, claimed).await, 2);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_that_fails_again_after_its_replay_is_open_again() {
        let sandbox = Db::fresh(5).await;
        let keeper = Keeper::new(&sandbox).await;
        let id = keeper.keep(DeadLetterReason::Rejected, &order("m-1")).await;
        let dead_letters = opened(&sandbox).await;
        for replays in 1..3 {
            assert_eq!(dead_letters.replay(id, "ada").await.unwrap(), Replay::Queued);
            Db::run(&sandbox.pool, "DELETE FROM inbox_messages").await;
            assert_eq!(keeper.keep(DeadLetterReason::AttemptsExhausted, &order("m-1")).await, id);
            let entry = dead_letters.show(id).await.unwrap().entry;
            assert!(entry.is_open());
            assert_eq!(entry.reason, "attempts_exhausted");
            assert_eq!((entry.replays, entry.replayed_by.as_deref()), (replays, Some("ada")));
            assert!(entry.last_failed_at >= entry.first_failed_at);
        }
        assert_eq!(dead_letters.count(&DeadLetterQuery::new().state(DeadLetterState::All)).await.unwrap(), 1);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_replayed_message_that_is_held_back_is_open_again_and_an_open_one_stays_as_it_is() {
        let sandbox = Db::fresh(5).await;
        let keeper = Keeper::new(&sandbox).await;
        let id = keeper.keep(DeadLetterReason::Rejected, &order("m-1")).await;
        let dead_letters = opened(&sandbox).await;
        let (envelope, text) = (order("m-1"), FailureText::new("held back"));
        let mut held = DeadLetter::new("orders", &envelope, DeadLetterReason::Held, &text);
        held.consumer = Some("billing");
        held.id = Some("m-1");
        let before = dead_letters.show(id).await.unwrap();
        keeper.keep_as(&held, ExistingEntry::Leave).await;
        assert_eq!(dead_letters.show(id).await.unwrap(), before);
        assert_eq!(dead_letters.replay(id, "ada").await.unwrap(), Replay::Queued);
        keeper.keep_as(&held, ExistingEntry::Leave).await;
        let entry = dead_letters.show(id).await.unwrap().entry;
        assert!(entry.is_open(), "its only copy would be closed");
        assert_eq!((entry.reason.as_str(), entry.failure.as_str()), ("held", "held back"));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_left_its_claim_is_replayed_by_force_alone() {
        let sandbox = Db::fresh(5).await;
        let keeper = Keeper::new(&sandbox).await;
        let dead_letters = opened(&sandbox).await;
        for (message, reason) in [("m-1", DeadLetterReason::Escaped), ("m-2", DeadLetterReason::Collision)] {
            let id = keeper.keep(reason, &order(message)).await;
            process(&sandbox, message).await;
            let error = dead_letters.replay(id, "ada").await.unwrap_err();
            assert!(matches!(error, DeadLetterError::NeedsForce { .. }), "{error:?}");
            for word in [&id.to_string(), reason.as_str(), "replay_anyway"] {
                assert!(error.to_string().contains(word), "{error}");
            }
            assert!(dead_letters.show(id).await.unwrap().entry.is_open());
            assert_eq!(sandbox.claims(message).await, 1);

            assert_eq!(dead_letters.replay_anyway(id, "ada").await.unwrap(), Replay::Queued);
            assert_eq!(sandbox.claims(message).await, 0, "the claim would make it a duplicate");
            assert!(!dead_letters.show(id).await.unwrap().entry.is_open());
            assert_eq!(dead_letters.replay_anyway(id, "ada").await.unwrap(), Replay::AlreadyQueued);
            assert_eq!(dead_letters.replay(id, "ada").await.unwrap(), Replay::AlreadyQueued);

            // Its run makes a claim of its own, which is no longer in question.
            Db::run(&sandbox.pool, "DELETE FROM inbox_messages").await;
            process(&sandbox, message).await;
            assert_eq!(dead_letters.replay(id, "ada").await.unwrap(), Replay::Duplicate);
        }
        // A refusal withdraws nothing.
        let id = keeper.keep(DeadLetterReason::Rejected, &order("m-3")).await;
        process(&sandbox, "m-3").await;
        Db::run(
            &sandbox.pool,
            "INSERT INTO inbox_messages (consumer_name, message_id, source, headers, payload) VALUES ('billing', 'm-3', 'orders', '{}', '')",
        )
        .await;
        assert_eq!(dead_letters.replay_anyway(id, "ada").await.unwrap(), Replay::AlreadyQueued);
        assert_eq!(sandbox.claims("m-3").await, 1);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_has_no_usable_id_is_refused_with_the_way_out() {
        let sandbox = Db::fresh(5).await;
        let keeper = Keeper::new(&sandbox).await;
        let dead_letters = opened(&sandbox).await;
        let envelope = Envelope::new("x");
        let text = FailureText::new("the message id is missing: looked at the property");
        let mut letter = DeadLetter::new("orders", &envelope, DeadLetterReason::InvalidId, &text);
        letter.consumer = Some("billing");
        let long = "x".repeat(300);
        let mut too_long = letter.clone();
        too_long.id = Some(&long);
        too_long.reason = DeadLetterReason::Rejected;
        for (letter, words) in [(letter, "the message id is missing"), (too_long, "300 bytes")] {
            let id = keeper.keep_as(&letter, ExistingEntry::Reopen).await;
            for refused in [dead_letters.replay(id, "ada").await, dead_letters.replay_anyway(id, "ada").await] {
                let error = refused.unwrap_err();
                assert!(matches!(error, DeadLetterError::NoUsableId { .. }), "{error:?}");
                for word in [words, "billing", "discard", &id.to_string()] {
                    assert!(error.to_string().contains(word), "{error}");
                }
            }
        }
        assert!(waiting(&sandbox).await.is_empty());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_no_consumer_took_is_queued_for_whoever_takes_it_now() {
        let sandbox = Db::fresh(5).await;
        let keeper = Keeper::new(&sandbox).await;
        let dead_letters = opened(&sandbox).await;
        let text = FailureText::new("no handler");
        let mut expected = Vec::new();
        // The same id in two sources, and none at all.
        for (source, envelope) in [("a", order("m-1")), ("b", order("m-1")), ("a", Envelope::new("no id"))] {
            let mut letter = DeadLetter::new(source, &envelope, DeadLetterReason::UnknownType, &text);
            letter.id = envelope.id.as_deref();
            let id = keeper.keep_as(&letter, ExistingEntry::Reopen).await;
            assert_eq!(dead_letters.replay(id, "ada").await.unwrap(), Replay::Queued);
            assert_eq!(dead_letters.replay(id, "ada").await.unwrap(), Replay::AlreadyQueued);
            expected.push(format!("|dead-letter:{id}|{source}|pending"));
        }
        assert_eq!(waiting(&sandbox).await, expected);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn of_two_open_entries_under_one_id_a_person_chooses_one() {
        let sandbox = Db::fresh(5).await;
        let keeper = Keeper::new(&sandbox).await;
        let dead_letters = opened(&sandbox).await;
        let first = keeper.keep(DeadLetterReason::Rejected, &Envelope::new("first").id("m-1")).await;
        let second = keeper.keep(DeadLetterReason::Held, &Envelope::new("second").id("m-1")).await;
        for (id, other) in [(first, second), (second, first)] {
            for refused in [dead_letters.replay(id, "ada").await, dead_letters.replay_anyway(id, "ada").await] {
                let error = refused.unwrap_err();
                assert!(matches!(error, DeadLetterError::Beside { .. }), "{error:?}");
                assert!(error.to_string().contains(&other.to_string()), "{error}");
            }
        }
        assert_eq!(sandbox.attempts("m-1").await, 2, "a refusal forgets nothing");
        let discarded = dead_letters.discard(first, "ada").await.unwrap();
        assert_eq!((discarded.entry.id, discarded.forgot_failures), (first, false));
        assert_eq!(sandbox.attempts("m-1").await, 2, "they hold the other one back");
        assert_eq!(dead_letters.replay(second, "ada").await.unwrap(), Replay::Queued);
        assert_eq!(Db::bytes(&sandbox.pool, "SELECT payload FROM inbox_messages").await, [b"second"]);

        // What stands beside a claim holds nothing back.
        let third = keeper.keep(DeadLetterReason::Rejected, &Envelope::new("third").id("m-2")).await;
        keeper.keep(DeadLetterReason::Collision, &Envelope::new("fourth").id("m-2")).await;
        assert_eq!(dead_letters.replay(third, "ada").await.unwrap(), Replay::Queued);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_discarded_message_is_gone_and_a_new_one_when_it_comes_again() {
        let sandbox = Db::fresh(10).await;
        let keeper = Keeper::new(&sandbox).await;
        let dead_letters = opened(&sandbox).await;
        let id = keeper.keep(DeadLetterReason::Rejected, &order("m-1")).await;
        let other = keeper.keep(DeadLetterReason::Rejected, &order("m-2")).await;
        let before = dead_letters.show(id).await.unwrap().entry;
        let discarded = dead_letters.discard(id, "ada").await.unwrap();
        assert_eq!((discarded.entry, discarded.forgot_failures), (before, true));
        for error in [
            dead_letters.discard(id, "ada").await.map(drop).unwrap_err(),
            dead_letters.show(id).await.map(drop).unwrap_err(),
            dead_letters.replay(id, "ada").await.map(drop).unwrap_err(),
        ] {
            assert!(matches!(error, DeadLetterError::Unknown { id: unknown } if unknown == id), "{error:?}");
            assert!(error.to_string().contains(&id.to_string()), "{error}");
        }
        assert_eq!(sandbox.attempts("m-1").await, 0);
        assert_eq!(sandbox.attempts("m-2").await, 2);
        dead_letters.show(other).await.unwrap();

        let broker = MemoryBroker::new();
        let inbox = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .serve(charge::handler());
        let running = Running::start(inbox.build().await.unwrap());
        broker.publish("orders", order("m-1"));
        broker.publish("orders", order("m-2"));
        all_acked(&broker).await;
        running.stop().await;
        sandbox.assert_stored_once("m-1").await;
        assert_eq!(sandbox.ledger_rows("m-2").await, 0, "its dead letter is open");

        // Counted failures after a replay belong to what became of that.
        assert_eq!(dead_letters.replay(other, "ada").await.unwrap(), Replay::Queued);
        Db::run(
            &sandbox.pool,
            "INSERT INTO inbox_attempts (message_id, consumer_name, attempts, last_failure) VALUES ('m-2', 'billing', 1, 'x')",
        )
        .await;
        assert!(!dead_letters.discard(other, "ada").await.unwrap().forgot_failures);
        assert_eq!(sandbox.attempts("m-2").await, 1);
        assert_eq!(waiting(&sandbox).await, ["billing|m-2|orders|pending"]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_replay_of_all_goes_page_by_page_and_tells_what_it_refused() {
        let sandbox = Db::fresh(5).await;
        let keeper = Keeper::new(&sandbox).await;
        let dead_letters = opened(&sandbox).await;
        let mut all = Vec::new();
        for number in 0..23 {
            let reason = if number == 9 { DeadLetterReason::Escaped } else { DeadLetterReason::Rejected };
            all.push(keeper.keep(reason, &order(&format!("m-{number}"))).await);
        }
        process(&sandbox, "m-4").await;
        assert_eq!(dead_letters.replay(all[0], "ada").await.unwrap(), Replay::Queued);
        let bystander = Envelope::new("x").id("m-x");
        let text = FailureText::new("");
        let mut letter = DeadLetter::new("other", &bystander, DeadLetterReason::Rejected, &text);
        letter.consumer = Some("billing");
        letter.id = Some("m-x");
        keeper.keep_as(&letter, ExistingEntry::Reopen).await;

        let mut pages = Vec::new();
        let mut refused = Vec::new();
        let query = DeadLetterQuery::new().source("orders").page_size(10);
        let totals = dead_letters
            .replay_all(&query, "ada", |page| {
                pages.push((page.entries.len(), page.totals.queued));
                refused.extend(page.entries.iter().filter(|(_, replay)| replay.is_err()).map(|(id, _)| *id));
            })
            .await
            .unwrap();
        assert_eq!((totals.queued, totals.duplicates, totals.refused, totals.already_queued), (20, 1, 1, 0));
        assert_eq!(pages, [(10, 8), (10, 18), (2, 20)]);
        assert_eq!(refused, [all[9]]);
        let queued = waiting(&sandbox).await;
        assert_eq!(queued.len(), 21);
        assert_eq!(queued[1], "billing|m-1|orders|pending", "the earliest comes first");
        let left = dead_letters.list(&DeadLetterQuery::new().source("orders")).await.unwrap();
        assert_eq!(ids(&left), [all[9], all[4]], "what was not queued is open");

        // Nothing is done twice.
        let again = dead_letters.replay_all(&query.state(DeadLetterState::All), "grace", |_| {}).await.unwrap();
        assert_eq!((again.queued, again.already_queued, again.duplicates, again.refused), (0, 21, 1, 1));
        let none = DeadLetterQuery::new().source("nowhere");
        assert_eq!(dead_letters.replay_all(&none, "ada", |_| unreachable!()).await.unwrap().queued, 0);
        Db::assert_clean(&sandbox.pool).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn missing_and_older_tables_are_refused_by_name() {
        let sandbox = Db::fresh(5).await;
        let names = Tables::default().dead_letters("letters");
        let error = DeadLetters::open(sandbox.pool.clone(), &names).await.unwrap_err();
        assert!(error.to_string().contains("\"letters\" does not exist"), "{error}");
        Db::run(&sandbox.pool, "ALTER TABLE inbox_dead_letters DROP COLUMN replays").await;
        let error = DeadLetters::open(sandbox.pool.clone(), &Tables::default()).await.unwrap_err();
        assert!(error.to_string().contains("\"inbox_dead_letters\" is older"), "{error}");
        assert!(error.to_string().contains("replays"), "{error}");
        let error = DeadLetters::open(sandbox.pool.clone(), &Tables::default().attempts("a'b")).await.unwrap_err();
        assert!(matches!(error, DeadLetterError::Names(_)), "{error:?}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn nobody_acts_without_a_name() {
        let sandbox = Db::fresh(5).await;
        let keeper = Keeper::new(&sandbox).await;
        let id = keeper.keep(DeadLetterReason::Rejected, &order("m-1")).await;
        let dead_letters = opened(&sandbox).await;
        for by in ["", "  ", "a\0", &"x".repeat(256)] {
            for error in [
                dead_letters.replay(id, by).await.map(drop).unwrap_err(),
                dead_letters.replay_anyway(id, by).await.map(drop).unwrap_err(),
                dead_letters.discard(id, by).await.map(drop).unwrap_err(),
                dead_letters.replay_all(&DeadLetterQuery::new(), by, |_| {}).await.map(drop).unwrap_err(),
            ] {
                assert!(matches!(error, DeadLetterError::Operator { .. }), "{error:?}");
            }
        }
        assert!(dead_letters.show(id).await.unwrap().entry.is_open());
        let longest = "é".repeat(127);
        assert_eq!(dead_letters.replay(id, &longest).await.unwrap(), Replay::Queued);
        assert_eq!(dead_letters.show(id).await.unwrap().entry.replayed_by.as_deref(), Some(longest.as_str()));
    }

    #[inbox_handler(consumer = "billing", max_attempts = 2)]
    async fn charge_when_repaired(
        order: OrderPlaced,
        tx: &mut Tx<Db>,
        id: MessageId,
        State(handler): State<Repairable>,
    ) -> Result<(), HandlerError> {
        handler.runs.fetch_add(1, Ordering::SeqCst);
        bill!(Db, order, id, tx);
        if handler.is_repaired.load(Ordering::SeqCst) { Ok(()) } else { Err("broken".into()) }
    }

    /// C06, K12
    #[tokio::test(flavor = "multi_thread")]
    async fn a_replayed_message_is_processed_once_when_its_handler_is_repaired() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let handler = Repairable::default();
        let inbox = inbox(&sandbox, &broker).serve(charge_when_repaired::handler()).state(handler.clone());
        let running = Running::start(inbox.build().await.unwrap());
        broker.publish("orders", order("m-9"));
        let dead_letters = opened(&sandbox).await;
        let open = DeadLetterQuery::new().message_id("m-9");
        let is_open = || async { dead_letters.count(&open).await.unwrap() == 1 };
        eventually("a dead letter", is_open).await;
        all_acked(&broker).await;
        let id = dead_letters.list(&open).await.unwrap().entries[0].id;

        // Too early: it has all its attempts again, and is open again after them.
        let before = handler.runs.load(Ordering::SeqCst);
        assert_eq!(dead_letters.replay(id, "ada").await.unwrap(), Replay::Queued);
        eventually("it failed again", is_open).await;
        nothing_waits(&sandbox).await;
        let runs = handler.runs.load(Ordering::SeqCst) - before;
        assert!(runs >= 2, "{runs} runs are not all attempts");
        let entry = dead_letters.show(id).await.unwrap().entry;
        assert_eq!((entry.attempts, entry.replays, entry.reason.as_str()), (2, 1, "attempts_exhausted"));
        assert_eq!(sandbox.ledger_rows("m-9").await, 0);

        handler.is_repaired.store(true, Ordering::SeqCst);
        assert_eq!(dead_letters.replay(id, "grace").await.unwrap(), Replay::Queued);
        eventually("it is processed", || async { sandbox.ledger_rows("m-9").await == 1 }).await;
        nothing_waits(&sandbox).await;
        let runs = handler.runs.load(Ordering::SeqCst);
        assert_eq!(dead_letters.replay(id, "ada").await.unwrap(), Replay::Duplicate);
        let entry = dead_letters.show(id).await.unwrap().entry;
        assert!(!entry.is_open());
        assert_eq!((entry.replays, entry.replayed_by.as_deref()), (2, Some("grace")));
        // Another copy is known too.
        broker.publish("orders", order("m-9"));
        all_acked(&broker).await;
        running.stop().await;
        assert_eq!(handler.runs.load(Ordering::SeqCst), runs);
        sandbox.assert_stored_once("m-9").await;
        assert_eq!(sandbox.attempts("m-9").await, 0);
        assert_eq!(waiting(&sandbox).await, [""; 0]);
    }

    /// C16
    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_of_an_unknown_type_is_processed_when_it_is_replayed_to_a_new_handler() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let running = Running::start(inbox(&sandbox, &broker).serve(charge_first_version::handler()).build().await.unwrap());
        broker.publish("orders", order("m-1").message_type("OrderPlaced.v2"));
        broker.publish("orders", order("m-2"));
        all_acked(&broker).await;
        let dead_letters = opened(&sandbox).await;
        let page = dead_letters.list(&DeadLetterQuery::new()).await.unwrap();
        assert_eq!(page.entries.len(), 1);
        let entry = &page.entries[0];
        assert_eq!((entry.reason.as_str(), entry.message_type.as_deref()), ("unknown_type", Some("OrderPlaced.v2")));
        assert!(entry.failure.contains("OrderPlaced.v2"), "{}", entry.failure);
        // Nobody takes it yet: its entry is open again.
        assert_eq!(dead_letters.replay(entry.id, "ada").await.unwrap(), Replay::Queued);
        nothing_waits(&sandbox).await;
        assert_eq!(ids(&dead_letters.list(&DeadLetterQuery::new()).await.unwrap()), [entry.id]);
        running.stop().await;

        let both = inbox(&sandbox, &broker).serve(charge_first_version::handler()).serve(charge_second_version::handler());
        let running = Running::start(both.build().await.unwrap());
        for _ in 0..2 {
            assert_eq!(dead_letters.replay(entry.id, "ada").await.unwrap(), Replay::Queued);
            nothing_waits(&sandbox).await;
            sandbox.assert_stored_once("m-1").await;
        }
        running.stop().await;
        assert_eq!(dead_letters.count(&DeadLetterQuery::new()).await.unwrap(), 0);
        sandbox.assert_stored_once("m-2").await;
        assert_eq!(sandbox.balance("acc-1").await, 200);
    }

    #[inbox_handler(consumer = "billing", on = "OrderPlaced")]
    async fn charge_first_version(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        Ok(())
    }

    #[inbox_handler(consumer = "billing", on = "OrderPlaced.v2")]
    async fn charge_second_version(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn replays_and_discards_beside_running_inboxes_lose_nothing_and_do_nothing_twice() {
        let sandbox = Db::fresh(20).await;
        let broker = MemoryBroker::new();
        let keeper = Keeper::new(&sandbox).await;
        let mut all = Vec::new();
        for number in 0..30 {
            all.push(keeper.keep(DeadLetterReason::Rejected, &order(&format!("m-{number}"))).await);
        }
        let running = Running::start(inbox(&sandbox, &broker).serve(charge::handler()).build().await.unwrap());
        let operators = ["ada", "grace", "joan"].map(|by| {
            let (sandbox, all, broker) = (&sandbox, &all, &broker);
            async move {
                let dead_letters = opened(sandbox).await;
                let (mut queued, mut discarded) = (0, 0);
                for (number, id) in all.iter().enumerate() {
                    if number % 3 == 0 {
                        match dead_letters.discard(*id, by).await {
                            Ok(_) => discarded += 1,
                            Err(error) => assert!(matches!(error, DeadLetterError::Unknown { .. }), "{error:?}"),
                        }
                    } else if dead_letters.replay(*id, by).await.unwrap() == Replay::Queued {
                        queued += 1;
                    }
                    // The broker has copies of its own.
                    if number % 3 == 1 {
                        broker.publish("orders", order(&format!("m-{number}")));
                    }
                }
                (queued, discarded)
            }
        });
        let acts = join_all(operators).await;
        all_acked(&broker).await;
        nothing_waits(&sandbox).await;
        running.stop().await;
        assert_eq!(acts.iter().map(|(_, discarded)| discarded).sum::<u32>(), 10, "{acts:?}");
        for number in 0..30 {
            let expected = i64::from(number % 3 != 0);
            assert_eq!(sandbox.ledger_rows(&format!("m-{number}")).await, expected, "m-{number}");
        }
        assert_eq!(sandbox.balance("acc-1").await, 2_000);
        let dead_letters = opened(&sandbox).await;
        // What a copy processed before its replay stays open, and is a duplicate.
        for entry in dead_letters.list(&DeadLetterQuery::new()).await.unwrap().entries {
            assert_eq!(dead_letters.replay(entry.id, "ada").await.unwrap(), Replay::Duplicate);
        }
        Db::assert_clean(&sandbox.pool).await;
    }
}
