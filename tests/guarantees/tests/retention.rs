//! What is remembered, for how long, and how it is forgotten.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use inbox_guarantees::dispatch::Serve as _;
use inbox_guarantees::recorded::Recorded;
use inbox_guarantees::{
    EventLog, OrderPlaced, Running, Sandbox, TestDatabase, all_acked, bill, eventually,
    on_each_database, order, unique,
};
use inbox_runtime::brokers::MemoryBroker;
use inbox_runtime::{
    BuildError, Capabilities, HandlerError, Inbox, MessageId, PurgePolicy, Tx, inbox_handler,
};
use sqlx::{MySql, Pool, Postgres, Sqlite};

const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Runs every second, with hardly a pause.
const EAGER: fn() -> PurgePolicy = || {
    PurgePolicy::default()
        .interval(Duration::from_secs(1))
        .pause(Duration::from_millis(5))
};

/// What differs between databases when rows are made old, and deletes watched.
trait Aging: TestDatabase {
    /// How many expired rows a purge has to cope with. With SQLite's longer pauses a tenth takes as long.
    const MANY: usize;

    /// The pause between batches while messages go on. Who waits for SQLite asks again and again, and needs time to.
    const PAUSE: Duration;

    /// What has to stand before a query that makes many rows.
    const BEFORE: &str = "";

    /// The time so many seconds ago, as SQL.
    fn ago(seconds: &str) -> String;

    /// Logs deletes of claims in `purge_log (tx, removed)`.
    const WATCH: &str;

    /// Makes deletes of claims fail with this text.
    fn refuse(text: &str) -> String;

    /// Ends [`refuse`](Self::refuse).
    const ALLOW: &str;
}

impl Aging for Postgres {
    const MANY: usize = 200_000;
    const PAUSE: Duration = Duration::from_millis(5);

    fn ago(seconds: &str) -> String {
        format!("now() - ({seconds}) * interval '1 second'")
    }

    // Once for each statement, also for one that removes nothing.
    const WATCH: &str = "
        CREATE TABLE purge_log (id bigint GENERATED ALWAYS AS IDENTITY, tx text, removed bigint);
        CREATE FUNCTION watch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO purge_log (tx, removed) SELECT pg_current_xact_id()::text, count(*) FROM gone;
            RETURN NULL; END $$;
        CREATE TRIGGER watch AFTER DELETE ON inbox_processed_messages
            REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION watch();";

    fn refuse(text: &str) -> String {
        format!(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION '{text}'; END $$;
             CREATE TRIGGER refuse BEFORE DELETE ON inbox_processed_messages
                 FOR EACH STATEMENT EXECUTE FUNCTION refuse();"
        )
    }

    const ALLOW: &str = "DROP TRIGGER refuse ON inbox_processed_messages";
}

impl Aging for MySql {
    const MANY: usize = 20_000;
    const PAUSE: Duration = Duration::from_millis(5);
    const BEFORE: &str = "SET SESSION max_recursive_iterations = 4294967295;";

    fn ago(seconds: &str) -> String {
        format!("UTC_TIMESTAMP(6) - INTERVAL ({seconds}) SECOND")
    }

    // Row by row; the time is the statement's.
    const WATCH: &str = "
        CREATE TABLE purge_log (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, tx VARCHAR(40), removed BIGINT);
        CREATE TRIGGER watch AFTER DELETE ON inbox_processed_messages FOR EACH ROW
            INSERT INTO purge_log (tx, removed) VALUES (UTC_TIMESTAMP(6), 1);";

    fn refuse(text: &str) -> String {
        format!(
            "CREATE TRIGGER refuse BEFORE DELETE ON inbox_processed_messages
             FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = '{text}'"
        )
    }

    const ALLOW: &str = "DROP TRIGGER refuse";
}

impl Aging for Sqlite {
    const MANY: usize = 20_000;
    const PAUSE: Duration = Duration::from_millis(100);

    fn ago(seconds: &str) -> String {
        format!("strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-' || ({seconds}) || ' seconds')")
    }

    // Row by row; the time is the statement's, and between two transactions of a purge is a pause.
    const WATCH: &str = "
        CREATE TABLE purge_log (id INTEGER PRIMARY KEY, tx TEXT, removed INTEGER);
        CREATE TRIGGER watch AFTER DELETE ON inbox_processed_messages BEGIN
            INSERT INTO purge_log (tx, removed) VALUES (strftime('%s-%f', 'now'), 1); END;";

    fn refuse(text: &str) -> String {
        format!(
            "CREATE TRIGGER refuse BEFORE DELETE ON inbox_processed_messages
             BEGIN SELECT RAISE(ABORT, '{text}'); END;"
        )
    }

    const ALLOW: &str = "DROP TRIGGER refuse";
}

/// Makes claims of `billing` on `{prefix}-1`, `{prefix}-2`, .. whose age in seconds is an expression of `n`.
async fn claims<Db: Aging>(pool: &Pool<Db>, prefix: &str, count: usize, age: &str) {
    let sql = format!(
        "{} INSERT INTO inbox_processed_messages (message_id, consumer_name, received_at)
         WITH RECURSIVE series (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM series WHERE n < {count})
         SELECT '{prefix}-' || n, 'billing', {} FROM series",
        Db::BEFORE,
        Db::ago(age)
    );
    Db::run(pool, &sql).await;
}

/// Makes the claim of a message older.
async fn age<Db: Aging>(pool: &Pool<Db>, id: &str, age: Duration) {
    let sql = format!(
        "UPDATE inbox_processed_messages SET received_at = {} WHERE message_id = '{id}'",
        Db::ago(&age.as_secs().to_string())
    );
    Db::run(pool, &sql).await;
}

/// A dead letter of this consumer ('': of none) and message.
async fn dead_letter<Db: Aging>(pool: &Pool<Db>, consumer: &str, id: &str) {
    let key: String = format!("{consumer}/{id}")
        .bytes()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let key = if Db::NAME == "PostgreSQL" {
        format!("'\\x{key}'")
    } else {
        format!("x'{key}'")
    };
    Db::run(
        pool,
        &format!(
            "INSERT INTO inbox_dead_letters
             (entry_key, source, consumer_name, message_id, reason, failure, attempts, headers, payload)
             VALUES ({key}, 'orders', nullif('{consumer}', ''), '{id}', 'escaped', '', 1, '[]', '')"
        ),
    )
    .await;
}

/// A message of this consumer ('': of whoever takes it) that waits in the database, or is done there.
async fn stored<Db: Aging>(pool: &Pool<Db>, consumer: &str, id: &str, status: &str) {
    // Not due while the test runs: nobody takes it.
    Db::run(
        pool,
        &format!(
            "INSERT INTO inbox_messages (consumer_name, message_id, source, status, headers, payload, next_attempt_at)
             VALUES ('{consumer}', '{id}', 'orders', '{status}', '[]', '', '2999-01-01 00:00:00.000')"
        ),
    )
    .await;
}

/// A counted failure of this age.
async fn attempt<Db: Aging>(pool: &Pool<Db>, id: &str, age: Duration) {
    Db::run(
        pool,
        &format!(
            "INSERT INTO inbox_attempts (message_id, consumer_name, attempts, last_failure, last_failed_at)
             VALUES ('{id}', 'billing', 1, '', {})",
            Db::ago(&age.as_secs().to_string())
        ),
    )
    .await;
}

/// How many claims each transaction removed.
async fn removals<Db: TestDatabase>(pool: &Pool<Db>) -> Vec<String> {
    let sql = "SELECT sum(removed) || '' FROM purge_log GROUP BY tx ORDER BY min(id)";
    Db::texts(pool, sql).await
}

async fn ids<Db: TestDatabase>(pool: &Pool<Db>, table: &str) -> Vec<String> {
    let sql = format!("SELECT message_id FROM {table} ORDER BY message_id");
    Db::texts(pool, &sql).await
}

/// Finds the one problem that contains all of `words`.
fn assert_told(refused: &BuildError, words: &[&str]) {
    let found = refused
        .problems()
        .iter()
        .filter(|problem| words.iter().all(|word| problem.contains(word)));
    assert_eq!(found.count(), 1, "{words:?} in:\n{refused}");
}

on_each_database! {
    #[inbox_handler(consumer = "billing")]
    pub(super) async fn charge(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_retention_shorter_than_a_redelivery_window_is_refused_with_both_values() {
        let sandbox = Db::fresh(6).await;
        let broker = MemoryBroker::new();
        let knows = Capabilities::new().redelivery_window(14 * DAY);
        for (of_source, declared) in [(Some(knows.clone()), None), (None, Some(14 * DAY)), (Some(knows), Some(DAY))] {
            let source = broker.source("orders");
            let source = match of_source {
                Some(capabilities) => source.behave_as(capabilities),
                None => source,
            };
            let mut builder = Inbox::builder(sandbox.pool.clone())
                .source("orders", source)
                .serve(charge::handler())
                .retention(Duration::from_secs(5 * 60))
                // Whoever removes them, they would be gone too early.
                .without_purge();
            if let Some(window) = declared {
                builder = builder.redelivery_window("orders", window);
            }
            let refused = builder.build().await.unwrap_err();
            assert_eq!(refused.problems().len(), 1, "{refused}");
            assert_told(&refused, &["`orders`", "14 days", "5 minutes", ".retention("]);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn odd_values_are_refused_with_a_message() {
        let sandbox = Db::fresh(6).await;
        let broker = MemoryBroker::new();
        let builder = || {
            Inbox::builder(sandbox.pool.clone())
                .source("orders", broker.source("orders"))
                .serve(charge::handler())
        };
        for retention in [Duration::ZERO, Duration::from_secs(59), 1_000_000 * DAY, Duration::MAX] {
            let refused = builder().retention(retention).build().await.unwrap_err();
            assert_eq!(refused.problems().len(), 1, "{refused}");
            assert_told(&refused, &["retention(", "without_purge"]);
        }
        let refused = builder()
            .retention(1_000_000 * DAY)
            .redelivery_window("oders", HOUR)
            .purge(PurgePolicy::default().rows(0).pause(Duration::MAX).interval(Duration::ZERO))
            .build()
            .await
            .unwrap_err();
        assert_eq!(refused.problems().len(), 5, "{refused}");
        for words in [["1000000 days", "retention("], ["`oders`", "redelivery_window"], ["rows(0)", "purge"], ["pause(", "purge"], ["interval(", "purge"]] {
            assert_told(&refused, &words);
        }
        // The longest and the shortest that can be meant are numbers like any other to the database.
        for retention in [Duration::from_secs(60), 36_525 * DAY] {
            claims(&sandbox.pool, &unique("old"), 1, "3000000").await;
            let running = Running::start(builder().retention(retention).purge(EAGER()).build().await.unwrap());
            let left = if retention > DAY { 1 } else { 0 };
            eventually("a purge", || async { sandbox.claims_total().await == left }).await;
            broker.publish("orders", order("m-1"));
            all_acked(&broker).await;
            running.stop().await;
            Db::run(&sandbox.pool, "DELETE FROM inbox_processed_messages").await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_is_a_duplicate_within_the_retention_and_new_after_it() {
        let sandbox = Db::fresh(6).await;
        let broker = MemoryBroker::new();
        let (source, record) = Recorded::new(broker.source("orders"));
        let inbox = || {
            Inbox::builder(sandbox.pool.clone())
                .serve(charge::handler())
                .retention(DAY)
                .purge(EAGER())
        };
        let running = Running::start(inbox().source("orders", source).build().await.unwrap());
        for id in ["m-1", "m-2"] {
            broker.publish("orders", order(id));
        }
        all_acked(&broker).await;
        running.stop().await;
        assert_eq!(record.acks().len(), 2);

        // Downtime: nothing of this is the worse for it.
        age(&sandbox.pool, "m-1", 3 * HOUR).await;
        age(&sandbox.pool, "m-2", 25 * HOUR).await;
        let running = Running::start(inbox().source("orders", broker.source("orders")).build().await.unwrap());
        eventually("a purge", || async { sandbox.claims("m-2").await == 0 }).await;
        assert_eq!(sandbox.claims("m-1").await, 1, "forgotten within the retention");
        for id in ["m-1", "m-2"] {
            broker.publish("orders", order(id));
        }
        all_acked(&broker).await;
        running.stop().await;
        sandbox.assert_stored_once("m-1").await;
        // As documented: what came again after the retention is new.
        assert_eq!(sandbox.ledger_rows("m-2").await, 2);
        Db::assert_clean(&sandbox.pool).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_purge_removes_so_many_rows_in_a_transaction_while_messages_go_on() {
        let sandbox = Db::fresh(6).await;
        Db::run(&sandbox.pool, Db::WATCH).await;
        claims(&sandbox.pool, "old", Db::MANY + 500, "2592000 - n * 0.001").await;
        claims(&sandbox.pool, "young", 500, "n").await;
        let broker = MemoryBroker::new();
        let (source, record) = Recorded::new(broker.source("orders"));
        let inbox = Inbox::builder(sandbox.pool.clone())
            .source("orders", source)
            .serve(charge::handler())
            // The server tells of a claim that waits longer than the case allows: its message is handed back.
            .claim_wait(Duration::from_millis(250))
            // One run, soon after the start.
            .purge(PurgePolicy::default().rows(1000).pause(Db::PAUSE).interval(Duration::from_secs(10)))
            .build()
            .await
            .unwrap();
        let mut published = 0;
        let running = Running::start(inbox);
        eventually("everything expired is purged", || {
            published += 1;
            broker.publish("orders", order(&format!("new-{published}")));
            let sandbox = &sandbox;
            async move { Db::number(&sandbox.pool, "SELECT sum(removed) FROM purge_log").await >= Db::MANY as i64 + 500 }
        })
        .await;
        all_acked(&broker).await;
        let mut expected = vec!["1000"; Db::MANY / 1000];
        // The first short one is the last.
        expected.push("500");
        assert_eq!(removals(&sandbox.pool).await, expected);
        running.stop().await;
        assert_eq!(removals(&sandbox.pool).await, expected);
        assert_eq!(sandbox.claims_total().await, 500 + published);
        assert_eq!(sandbox.ledger_total().await, published);
        assert_eq!(record.acks().len() as i64, published);
        assert_eq!(record.hand_backs(), 0, "a claim waited for the purge");
        Db::assert_clean(&sandbox.pool).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn claims_that_something_open_needs_are_kept_and_do_not_stop_the_purge() {
        let sandbox = Db::fresh(6).await;
        let pool = &sandbox.pool;
        // The oldest of all, of one and the same time, and more than three batches of them.
        claims(pool, "needed", 35, "5000000").await;
        for n in 1..=35 {
            let id = format!("needed-{n}");
            match n {
                1..=10 => dead_letter(pool, "billing", &id).await,
                11..=15 => dead_letter(pool, "", &id).await,
                16..=25 => stored(pool, "billing", &id, "pending").await,
                26..=30 => stored(pool, "billing", &id, "processing").await,
                _ => stored(pool, "", &id, "pending").await,
            }
        }
        let mut needed = ids(pool, "inbox_processed_messages").await;
        // Among them and behind them, what nothing needs.
        claims(pool, "beside", 25, "5000000").await;
        claims(pool, "behind", 25, "4000000 - n").await;
        claims(pool, "closed", 3, "4500000").await;
        dead_letter(pool, "billing", "closed-1").await;
        Db::run(pool, "UPDATE inbox_dead_letters SET replayed_at = first_failed_at WHERE message_id = 'closed-1'").await;
        stored(pool, "billing", "closed-2", "done").await;
        dead_letter(pool, "shipping", "closed-3").await;
        stored(pool, "shipping", "closed-3", "pending").await;
        let letters = ids(pool, "inbox_dead_letters").await;
        let waiting = ids(pool, "inbox_messages").await;

        let broker = MemoryBroker::new();
        let inbox = Inbox::builder(pool.clone())
            .source("orders", broker.source("orders"))
            .serve(charge::handler())
            .purge(EAGER().rows(10))
            .build()
            .await
            .unwrap();
        let running = Running::start(inbox);
        eventually("what nothing needs is purged", || async { sandbox.claims_total().await <= 35 }).await;
        assert_eq!(ids(pool, "inbox_processed_messages").await, needed);
        assert_eq!(ids(pool, "inbox_dead_letters").await, letters);
        assert_eq!(ids(pool, "inbox_messages").await, waiting);

        // Nothing of it is in work, or comes again.
        Db::run(pool, "UPDATE inbox_dead_letters SET replayed_at = first_failed_at WHERE message_id <> 'needed-1'").await;
        Db::run(pool, "DELETE FROM inbox_messages WHERE message_id <> 'needed-16'").await;
        needed.retain(|id| ["needed-1", "needed-16"].contains(&id.as_str()));
        eventually("what was needed before is purged", || async { sandbox.claims_total().await <= 2 }).await;
        running.stop().await;
        assert_eq!(ids(pool, "inbox_processed_messages").await, needed);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn old_failures_are_forgotten_when_nothing_open_needs_them() {
        let sandbox = Db::fresh(6).await;
        let pool = &sandbox.pool;
        for n in 0..25 {
            attempt(pool, &format!("nobody-{n}"), 15 * DAY).await;
        }
        for id in ["dead", "closed", "parked"] {
            attempt(pool, id, 20 * DAY).await;
        }
        attempt(pool, "young", 13 * DAY).await;
        dead_letter(pool, "billing", "dead").await;
        dead_letter(pool, "billing", "closed").await;
        stored(pool, "billing", "parked", "pending").await;
        Db::run(pool, "UPDATE inbox_dead_letters SET replayed_at = first_failed_at WHERE message_id = 'closed'").await;
        let broker = MemoryBroker::new();
        let inbox = Inbox::builder(pool.clone())
            .source("orders", broker.source("orders"))
            .serve(charge::handler())
            .purge(EAGER().rows(10))
            .build()
            .await
            .unwrap();
        let running = Running::start(inbox);
        eventually("old failures are forgotten", || async { ids(pool, "inbox_attempts").await.len() <= 3 }).await;
        running.stop().await;
        assert_eq!(ids(pool, "inbox_attempts").await, ["dead", "parked", "young"]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn without_a_purge_nothing_is_deleted() {
        let sandbox = Db::fresh(6).await;
        Db::run(&sandbox.pool, Db::WATCH).await;
        claims(&sandbox.pool, "old", 10, "3000000").await;
        // The same beside it, with a purge: when that one has run twice, this one would have.
        let clock = Db::fresh(6).await;
        let broker = MemoryBroker::new();
        let builder = |sandbox: &Sandbox<Db>, queue: &str| {
            Inbox::builder(sandbox.pool.clone())
                .source("orders", broker.source(queue))
                .serve(charge::handler())
                .purge(EAGER())
        };
        let running = Running::start(builder(&sandbox, "orders").without_purge().build().await.unwrap());
        let purging = Running::start(builder(&clock, "clock").build().await.unwrap());
        broker.publish("orders", order("m-1"));
        for _ in 0..3 {
            claims(&clock.pool, "old", 1, "3000000").await;
            eventually("a purge", || async { clock.claims_total().await == 0 }).await;
        }
        all_acked(&broker).await;
        running.stop().await;
        purging.stop().await;
        assert_eq!(removals(&sandbox.pool).await, [""; 0]);
        assert_eq!(sandbox.claims_total().await, 11);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_purge_that_fails_backs_off_and_other_work_goes_on() {
        let log = EventLog::of_process();
        let sandbox = Db::fresh(6).await;
        let text = unique("no_deletes");
        Db::run(&sandbox.pool, &Db::refuse(&text)).await;
        claims(&sandbox.pool, "old", 10, "3000000").await;
        let broker = MemoryBroker::new();
        let inbox = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .serve(charge::handler())
            .purge(EAGER())
            .build()
            .await
            .unwrap();
        let running = Running::start(inbox);
        let mut published = 0;
        let failed = |tries: u32| {
            let told = log.text();
            let mut of_this = told.lines().filter(|line| line.contains(&text));
            of_this.any(|line| line.contains("the purge failed") && line.contains(&format!("tries={tries} ")))
        };
        // From one try to the next a second or two pass, then two to four.
        eventually("three tries of the purge", || {
            published += 1;
            broker.publish("orders", order(&format!("m-{published}")));
            std::future::ready(failed(3))
        })
        .await;
        all_acked(&broker).await;
        assert_eq!(sandbox.ledger_total().await, published);
        assert_eq!(sandbox.claims_total().await, published + 10);
        Db::run(&sandbox.pool, Db::ALLOW).await;
        eventually("the purge goes on", || async { sandbox.claims_total().await == published }).await;
        running.stop().await;
        Db::assert_clean(&sandbox.pool).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_shutdown_does_not_wait_for_the_next_batch() {
        let sandbox = Db::fresh(6).await;
        claims(&sandbox.pool, "old", 10, "3000000").await;
        let broker = MemoryBroker::new();
        let inbox = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .serve(charge::handler())
            // Longer than a stop may take.
            .purge(PurgePolicy::default().rows(1).pause(Duration::from_secs(600)).interval(Duration::from_secs(1)))
            .build()
            .await
            .unwrap();
        let running = Running::start(inbox);
        eventually("the first batch", || async { sandbox.claims_total().await == 9 }).await;
        running.stop().await;
        assert_eq!(sandbox.claims_total().await, 9);
        Db::assert_clean(&sandbox.pool).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn two_runtimes_purge_what_one_would() {
        let sandbox = Db::fresh(6).await;
        Db::run(&sandbox.pool, Db::WATCH).await;
        claims(&sandbox.pool, "old", 2000, "3000000 - n").await;
        let broker = MemoryBroker::new();
        let mut running = Vec::new();
        for _ in 0..2 {
            let inbox = Inbox::builder(sandbox.another_pool(6).await)
                .source("orders", broker.source("orders"))
                .serve(charge::handler())
                .purge(EAGER().rows(100))
                .build()
                .await
                .unwrap();
            running.push(Running::start(inbox));
        }
        eventually("everything is purged", || async { sandbox.claims_total().await == 0 }).await;
        for running in running {
            running.stop().await;
        }
        let removed = removals(&sandbox.pool).await;
        let removed = removed.iter().map(|removed| removed.parse::<u32>().unwrap());
        assert_eq!(removed.sum::<u32>(), 2000);
    }
}

/// K27: whoever is at it holds a lock of its transaction, and nobody else deletes meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn one_session_at_a_time_purges() {
    let sandbox = Postgres::fresh(6).await;
    let pool = &sandbox.pool;
    // Each batch takes a while, and says when another one is at it too.
    Postgres::run(
        pool,
        "CREATE TABLE batches (alone boolean, session_locks bigint);
         CREATE FUNCTION watch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO batches SELECT pg_try_advisory_xact_lock(1, 1), 0;
             PERFORM pg_sleep(0.02);
             RETURN NULL; END $$;
         CREATE TRIGGER watch BEFORE DELETE ON inbox_processed_messages
             FOR EACH STATEMENT EXECUTE FUNCTION watch();",
    )
    .await;
    claims(pool, "old", 5000, "3000000 - n").await;
    let broker = MemoryBroker::new();
    let mut running = Vec::new();
    for _ in 0..3 {
        let inbox = Inbox::builder(sandbox.another_pool(6).await)
            .source("orders", broker.source("orders"))
            .serve(postgres::charge::handler())
            .purge(EAGER().rows(100).pause(Duration::from_millis(1)))
            .build()
            .await
            .unwrap();
        running.push(Running::start(inbox));
    }
    eventually("everything is purged", || async {
        sandbox.claims_total().await == 0
    })
    .await;
    let at_once = "SELECT count(*) FROM batches WHERE NOT alone";
    assert_eq!(Postgres::number(pool, at_once).await, 0);
    assert!(Postgres::number(pool, "SELECT count(*) FROM batches").await >= 50);
    // No lock outlives its transaction.
    eventually("no advisory lock is left", || async {
        let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' \
                    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        Postgres::number(pool, held).await == 0
    })
    .await;
    for running in running {
        running.stop().await;
    }
}

/// C36: the index on the time, whatever the planner knows, also in a plan for any parameters.
#[tokio::test(flavor = "multi_thread")]
async fn expired_rows_are_found_by_the_index_on_their_time() {
    let log = EventLog::of_process();
    let mut sandbox = Postgres::fresh(6).await;
    // Nearly everything is expired: a sequential scan would find its first rows at once.
    claims(&sandbox.pool, "old", 30_000, "3000000 - n").await;
    claims(&sandbox.pool, "young", 100, "n").await;
    dead_letter(&sandbox.pool, "billing", "old-1").await;
    stored(&sandbox.pool, "billing", "old-2", "pending").await;
    attempt(&sandbox.pool, "old-3", 20 * DAY).await;
    Postgres::run(&sandbox.pool, "ANALYZE").await;
    // The server tells the plan of each statement as a warning.
    for (setting, value) in [
        ("session_preload_libraries", "auto_explain"),
        ("auto_explain.log_min_duration", "0"),
        ("auto_explain.log_level", "warning"),
    ] {
        sandbox.set(setting, value).await;
    }
    let broker = MemoryBroker::new();
    for mode in ["force_custom_plan", "force_generic_plan"] {
        sandbox.set("plan_cache_mode", mode).await;
        let inbox = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .serve(postgres::charge::handler())
            .purge(EAGER())
            .build()
            .await
            .unwrap();
        let before = log.text().len();
        let running = Running::start(inbox);
        let plans = |of: &str| {
            let told = log.text()[before..].to_owned();
            let of = format!("DELETE FROM \"public\".\"{of}\"");
            let texts = told.split("Query Text: ").skip(1);
            let texts =
                texts.filter(|text| text.starts_with("WITH examined") && text.contains(&of));
            texts.map(str::to_owned).collect::<Vec<_>>()
        };
        eventually("a run of the purge", || {
            std::future::ready(!plans("inbox_attempts").is_empty())
        })
        .await;
        running.stop().await;
        for (table, index) in [
            ("inbox_processed_messages", "received_at"),
            ("inbox_attempts", "last_failed_at"),
        ] {
            let plans = plans(table);
            assert!(!plans.is_empty(), "{mode}: no plan for {table}");
            for plan in plans {
                for step in [
                    format!("Index Scan using {table}_{index} on {table} old"),
                    format!("Tid Scan on {table}"),
                    format!("Index Cond: (({index} >= "),
                ] {
                    assert!(plan.contains(&step), "{mode}: no {step:?} in {plan}");
                }
                for step in ["Seq Scan", "Sort", "Bitmap"] {
                    assert!(!plan.contains(step), "{mode}: {step} in {plan}");
                }
                let is_generic =
                    plan.contains("LIMIT") && plan.contains(&format!("(({index} >= ($1"));
                assert_eq!(is_generic, mode == "force_generic_plan", "{mode}: {plan}");
            }
        }
        if mode == "force_custom_plan" {
            claims(&sandbox.pool, "older", 30_000, "3000000 - n").await;
        }
    }
    let left = ids(&sandbox.pool, "inbox_processed_messages").await;
    assert_eq!(left.len(), 102);
}

/// A batch that is in work when the grace is over is taken back, and its connection is closed.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_cut_off_is_taken_back() {
    let sandbox = Postgres::fresh(6).await;
    let pool = &sandbox.pool;
    Postgres::run(
        pool,
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             PERFORM pg_sleep(2); RETURN NULL; END $$;
         CREATE TRIGGER dawdle AFTER DELETE ON inbox_processed_messages
             FOR EACH STATEMENT EXECUTE FUNCTION dawdle();",
    )
    .await;
    claims(pool, "old", 10, "3000000").await;
    let broker = MemoryBroker::new();
    let of_inbox = sandbox.another_pool(6).await;
    let inbox = Inbox::builder(of_inbox.clone())
        .source("orders", broker.source("orders"))
        .serve(postgres::charge::handler())
        .grace(Duration::ZERO)
        .purge(EAGER())
        .build()
        .await
        .unwrap();
    let running = Running::start(inbox);
    let at_it = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                 AND pid <> pg_backend_pid() AND state = 'active' AND query LIKE 'WITH examined%'";
    eventually("a batch is in work", || async {
        Postgres::number(pool, at_it).await == 1
    })
    .await;
    running.stop().await;
    eventually("nobody is at it", || async {
        Postgres::number(pool, at_it).await == 0
    })
    .await;
    Postgres::assert_clean(&of_inbox).await;
    assert_eq!(sandbox.claims_total().await, 10);
}
