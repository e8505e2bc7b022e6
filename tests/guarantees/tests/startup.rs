//! Everything that is wrong is told before the first message, all of it at once.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use inbox_core::{Assignment, HandlerFuture, Learned, Needs, Source, SourceError};
use inbox_guarantees::dispatch::Serve as _;
use inbox_guarantees::{
    OrderPlaced, Running, TestDatabase, all_acked, bill, eventually, on_each_database, order,
};
use inbox_runtime::brokers::{MemoryBroker, MemorySource};
use inbox_runtime::{
    BuildError, Capabilities, Condition, DedupKey, Handler, HandlerError, HandlerSpec, IdSource,
    Inbox, InboxDatabase, Incoming, MessageId, Requirements, RetryPolicy, State, Tx, inbox_handler,
    migrate,
};
use sqlx::Pool;
use sqlx::migrate::{Migration, MigrationType, Migrator};

#[derive(Clone)]
struct Absent;

/// Written by hand: the attribute refuses this key already.
struct ByDeliveryCount<Db>(PhantomData<fn() -> Db>);

impl<Db: InboxDatabase> Handler for ByDeliveryCount<Db> {
    type Db = Db;
    const SPEC: HandlerSpec = HandlerSpec::new("by_header", "by_delivery_count", file!(), line!())
        .key(DedupKey::Header("x-delivery-count"));

    fn requirements(_needs: &mut Requirements) {}

    fn call<'a>(&'a self, _: &'a [Incoming<'_>], _: &'a mut Tx<Db>) -> HandlerFuture<'a> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// A source whose broker answers questions as the test says; `None`: it cannot be reached.
#[derive(Clone)]
struct Asked {
    source: Arc<MemorySource>,
    answer: Arc<Mutex<Option<Learned>>>,
}

impl Asked {
    fn new(source: MemorySource) -> Self {
        Self {
            source: Arc::new(source),
            answer: Arc::default(),
        }
    }

    fn answers(&self, learned: Learned) {
        *self.answer.lock().unwrap() = Some(learned);
    }
}

#[async_trait]
impl Source for Asked {
    fn system(&self) -> &'static str {
        self.source.system()
    }

    fn capabilities(&self) -> Capabilities {
        self.source.capabilities()
    }

    fn id_sources(&self) -> Vec<IdSource> {
        self.source.id_sources()
    }

    async fn learn(&self, needs: &Needs) -> Result<Learned, SourceError> {
        assert_eq!(needs.longest_timeout, Duration::from_secs(30));
        assert_eq!(needs.most_attempts, 5);
        let answer = self.answer.lock().unwrap().clone();
        answer.ok_or_else(|| SourceError::new("nobody is there"))
    }

    async fn open(&self, prefetch: NonZeroUsize) -> Result<Assignment, SourceError> {
        self.source.open(prefetch).await
    }
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
    async fn what_the_broker_alone_knows_is_asked_for_at_the_start_and_again_when_the_source_opens() {
        let sandbox = Db::fresh(5).await;
        let broker = MemoryBroker::new();
        let source = Asked::new(broker.source("orders"));
        let builder = || {
            Inbox::builder(sandbox.pool.clone())
                .source("orders", source.clone())
                .serve(charge::handler())
        };
        let capabilities = || source.source.capabilities();
        let forever = Learned::new(capabilities().redelivery_window(Duration::MAX).redelivery_setting("max_age"));
        let hasty = Learned::new(capabilities().settle_window(Duration::from_secs(20)).settle_setting("ack_wait"));
        let odd = Learned::new(capabilities()).problems(["the stream has no name".to_owned()]);
        let findings = [
            (forever, ["`orders`", "for ever (`max_age`)", "14 days"]),
            (hasty, ["20 seconds (`ack_wait`)", "charge", "30 seconds"]),
            (odd, ["`orders`", "the stream", "no name"]),
        ];
        // A broker that comes later than its consumers is no reason to refuse the start.
        let inbox = builder().build().await.unwrap();
        for (learned, words) in &findings {
            source.answers(learned.clone());
            let refused = builder().build().await.unwrap_err();
            assert_eq!(refused.problems().len(), 1, "{refused}");
            assert_told(&refused, words);
        }

        broker.publish("orders", order("m-1"));
        let monitor = inbox.monitor();
        let running = Running::start(inbox);
        for (learned, words) in &findings {
            source.answers(learned.clone());
            eventually("the monitor tells why it is closed", || async {
                let health = monitor.health();
                matches!(&health.sources[0].1, Condition::Down { error, .. }
                    if words.iter().all(|word| error.contains(word)))
            })
            .await;
        }
        assert_eq!(sandbox.ledger_total().await, 0);
        source.answers(Learned::new(capabilities()));
        all_acked(&broker).await;
        running.stop().await;
        sandbox.assert_stored_once("m-1").await;
    }

    #[inbox_handler(consumer = "billing", on = "OrderPlaced")]
    async fn charge_again(_order: OrderPlaced, _tx: &mut Tx<Db>) -> Result<(), HandlerError> {
        Ok(())
    }

    #[inbox_handler(consumer = "stateful")]
    async fn with_state(_order: OrderPlaced, _tx: &mut Tx<Db>, State(_): State<Absent>) -> Result<(), HandlerError> {
        Ok(())
    }

    #[inbox_handler(consumer = "elsewhere", from = "oders", retry(first = "2s"))]
    async fn from_nowhere(_order: OrderPlaced, _tx: &mut Tx<Db>) -> Result<(), HandlerError> {
        Ok(())
    }

    #[inbox_handler(consumer = "strict", isolation = "serializable")]
    async fn serializable(_order: OrderPlaced, _tx: &mut Tx<Db>) -> Result<(), HandlerError> {
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn two_handlers_of_one_consumer_and_type_are_both_named() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let refused = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .serve(charge::handler())
            .serve(charge_again::handler())
            .build()
            .await
            .unwrap_err();
        assert_eq!(refused.problems().len(), 1, "{refused}");
        assert_told(&refused, &["`billing`", "::charge`", "::charge_again`", "startup.rs:"]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn every_problem_is_told_at_once_with_its_place_and_value() {
        let sandbox = Db::fresh(3).await;
        Db::run(&sandbox.pool, "DROP TABLE inbox_attempts").await;
        Db::run(&sandbox.pool, "ALTER TABLE inbox_dead_letters RENAME COLUMN replayed_at TO was").await;
        let broker = MemoryBroker::new();
        let refused = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders").id_from([IdSource::Header("x-delivery-tag".to_owned()), IdSource::Header("deliveryTag".to_owned())]))
            .source("more", broker.source("more"))
            .source("more", broker.source("more"))
            .source("unnamed", broker.source(""))
            .id_scope("nobody", "x")
            .id_scope("more", "a/b")
            .shared_id_space(["orders", "missing"])
            .serve(charge::handler())
            .serve(charge_again::handler())
            .serve(with_state::handler())
            .serve(from_nowhere::handler())
            .serve(ByDeliveryCount::<Db>(PhantomData))
            .serve(serializable::handler())
            .state(1_u8)
            .state(2_u8)
            .ignore(["OrderPlaced"])
            .concurrency(8)
            .prefetch(0)
            .retry(RetryPolicy::default().first_delay(Duration::from_secs(60)).longest_delay(Duration::from_secs(1)).transient_runs(0))
            .claim_wait(Duration::ZERO)
            .commit_wait(Duration::ZERO)
            .grace(Duration::MAX)
            .longest_hold(Duration::ZERO)
            .broken_after(0)
            .messages_per_transaction(0)
            .build()
            .await
            .unwrap_err();
        let here = "startup.rs:";
        assert_told(&refused, &["two handlers of consumer `billing`", "::charge`", "::charge_again`", here]);
        assert_told(&refused, &["::with_state`", here, "State<", "Absent"]);
        assert_told(&refused, &["::from_nowhere`", here, "`oders`", "`orders`"]);
        assert_told(&refused, &["`by_delivery_count`", here, "`x-delivery-count`"]);
        assert_told(&refused, &["two sources are named `more`"]);
        assert_told(&refused, &["source `unnamed`", "no name"]);
        assert_told(&refused, &["id_scope", "`nobody`"]);
        assert_told(&refused, &["shared_id_space", "`missing`"]);
        assert_told(&refused, &["two values of type `u8`"]);
        assert_told(&refused, &["`OrderPlaced` is ignored", "::charge_again`", here]);
        assert_told(&refused, &["prefetch(0)"]);
        assert_told(&refused, &["at most 3 connections", "need 9"]);
        assert_told(&refused, &["retry delay", "60s", "1s"]);
        assert_told(&refused, &["::from_nowhere`", here, "2s", "builder's longest of 1s"]);
        assert_told(&refused, &["transient_runs(0)"]);
        for limit in ["claim_wait(", "commit_wait(", "grace(", "longest_hold(", "broken_after(", "messages_per_transaction("] {
            assert_told(&refused, &[limit]);
        }
        assert_told(&refused, &["\"inbox_attempts\" does not exist", "migrate"]);
        assert_told(&refused, &["\"inbox_dead_letters\" is older", "replayed_at", "migrate"]);
        assert_told(&refused, &["consumer `stateful` is fed by several sources"]);
        // Told of each source with that name, and by the source as well as by the runtime.
        for words in [["source `more`", "\"a/b\""], ["source `orders`", "`deliveryTag`"]] {
            let told = refused.problems().iter().filter(|problem| words.iter().all(|word| problem.contains(word)));
            assert!(told.count() >= 1, "{words:?} in:\n{refused}");
        }
        if Db::MAX_CONCURRENCY.is_some() {
            assert_told(&refused, &["concurrency(8)", "at most 1"]);
            assert_told(&refused, &["::serializable`", here, "isolation serializable"]);
        }
        // The text holds all of it.
        for problem in refused.problems() {
            assert!(refused.to_string().contains(problem.as_str()));
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_empty_inbox_says_what_is_missing() {
        let sandbox = Db::fresh(10).await;
        let refused = Inbox::builder(sandbox.pool.clone()).build().await.unwrap_err();
        assert_eq!(refused.problems().len(), 2, "{refused}");
        assert_told(&refused, &["no handler", ".register("]);
        assert_told(&refused, &["no source", ".source("]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_source_that_nobody_listens_to_is_told() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let refused = Inbox::builder(sandbox.pool.clone())
            .source("oders", broker.source("oders"))
            .source("orders", broker.source("orders"))
            .serve(from_nowhere::handler())
            .build()
            .await
            .unwrap_err();
        assert_eq!(refused.problems().len(), 1, "{refused}");
        assert_told(&refused, &["`orders`", "no handler listens"]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn names_that_no_dead_letter_could_store_are_refused() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let refused = Inbox::builder(sandbox.pool.clone())
            .source("or\0ders", broker.source("orders"))
            .serve(charge::handler())
            .build()
            .await
            .unwrap_err();
        assert_eq!(refused.problems().len(), 1, "{refused}");
        assert_told(&refused, &["source", "or\\0ders"]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn missing_tables_are_named_and_migrate_on_start_makes_them() {
        let sandbox = Db::fresh(10).await;
        Db::run(
            &sandbox.pool,
            "DROP TABLE inbox_processed_messages; DROP TABLE inbox_dead_letters; DROP TABLE inbox_attempts;
             DROP TABLE inbox_messages; DROP TABLE _inbox_migrations",
        )
        .await;
        let broker = MemoryBroker::new();
        let builder = || {
            Inbox::builder(sandbox.pool.clone())
                .source("orders", broker.source("orders"))
                .serve(charge::handler())
        };
        let refused = builder().build().await.unwrap_err();
        assert_eq!(refused.problems().len(), 4, "{refused}");
        for table in ["inbox_processed_messages", "inbox_dead_letters", "inbox_attempts", "inbox_messages"] {
            assert_told(&refused, &[table, "does not exist", "migrate_on_start"]);
        }
        let running = Running::start(builder().migrate_on_start().build().await.unwrap());
        broker.publish_copies("orders", order("m-1"), 2);
        all_acked(&broker).await;
        running.stop().await;
        sandbox.assert_stored_once("m-1").await;
    }

    /// K9: what is too large to be stored would lose its session each time it comes.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_source_of_messages_that_no_dead_letter_could_hold_is_refused_with_both_sizes() {
        let sandbox = Db::fresh(5).await;
        let broker = MemoryBroker::new();
        let build = |bytes| {
            let capabilities = Capabilities::new().largest_payload(bytes);
            Inbox::builder(sandbox.pool.clone())
                .source("orders", broker.source("orders").behave_as(capabilities))
                .serve(charge::handler())
                .build()
        };
        build(1024 * 1024).await.unwrap();
        let refused = build(8_000_000_000).await.unwrap_err();
        assert_eq!(refused.problems().len(), 1, "{refused}");
        assert_told(&refused, &["`orders`", "8000000000 bytes", "stores at most"]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn migrations_are_idempotent_and_run_from_several_processes_at_once() {
        let sandbox = Db::fresh(10).await;
        migrate(&sandbox.pool).await.unwrap();
        Db::run(
            &sandbox.pool,
            "DROP TABLE inbox_processed_messages; DROP TABLE inbox_dead_letters; DROP TABLE inbox_attempts;
             DROP TABLE inbox_messages; DROP TABLE _inbox_migrations",
        )
        .await;
        for _ in 0..5 {
            let other = sandbox.another_pool(3).await;
            let tasks: Vec<_> = [&sandbox.pool, &other, &sandbox.pool, &other]
                .map(|pool| tokio::spawn(migrate_owned(pool.clone())))
                .into();
            for task in tasks {
                task.await.unwrap().unwrap();
            }
            assert_eq!(Db::number(&sandbox.pool, "SELECT count(*) FROM _inbox_migrations").await, 2);
            assert_eq!(sandbox.claims_total().await, 0);
            other.close().await;
            Db::run(
                &sandbox.pool,
                "DROP TABLE inbox_processed_messages; DROP TABLE inbox_dead_letters; DROP TABLE inbox_attempts;
                 DROP TABLE inbox_messages; DROP TABLE _inbox_migrations",
            )
            .await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn our_migrations_live_beside_the_applications_own() {
        let sandbox = Db::fresh(10).await;
        // With the same version number, before and after ours.
        let application = |version, sql: &'static str| {
            Migrator::with_migrations(vec![Migration::new(
                version,
                "the application's".into(),
                MigrationType::Simple,
                sqlx::SqlSafeStr::into_sql_str(sql),
                false,
            )])
        };
        let first = application(1, "CREATE TABLE theirs (id INTEGER)");
        first.run(&sandbox.pool).await.unwrap();
        migrate(&sandbox.pool).await.unwrap();
        first.run(&sandbox.pool).await.unwrap();
        let ledgers = "SELECT (SELECT count(*) FROM _sqlx_migrations) * 10 + (SELECT count(*) FROM _inbox_migrations)";
        assert_eq!(Db::number(&sandbox.pool, ledgers).await, 12);
        assert_eq!(Db::number(&sandbox.pool, "SELECT count(*) FROM theirs").await, 0);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_failed_migration_says_why_and_keeps_nobody_else_waiting() {
        let sandbox = Db::fresh(10).await;
        let broken = if <Db as sqlx::Database>::NAME == "PostgreSQL" { "'\\x00'" } else { "x'00'" };
        Db::run(&sandbox.pool, &format!("UPDATE _inbox_migrations SET checksum = {broken}")).await;
        let other = sandbox.another_pool(3).await;
        for pool in [&sandbox.pool, &other, &sandbox.pool, &other] {
            let refused = tokio::time::timeout(Duration::from_secs(20), migrate(pool))
                .await
                .expect("a lock of the first failure was left behind")
                .unwrap_err();
            let cause = std::error::Error::source(&refused).map(ToString::to_string).unwrap_or_default();
            assert!(cause.contains("modified"), "{refused}: {cause}");
        }
        let broker = MemoryBroker::new();
        let refused = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .serve(charge::handler())
            .migrate_on_start()
            .build()
            .await
            .unwrap_err();
        assert_told(&refused, &["migrate_on_start", "modified"]);
    }
}

async fn migrate_owned<Db: InboxDatabase>(
    pool: Pool<Db>,
) -> Result<(), inbox_runtime::MigrationError> {
    migrate(&pool).await
}

mod sqlite_only {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_database_in_memory_is_refused_with_the_remedy() {
        for address in [
            "sqlite::memory:",
            "sqlite://",
            "sqlite:file:shared?mode=memory&cache=shared",
        ] {
            let pool = sqlx::sqlite::SqlitePoolOptions::new()
                .max_connections(5)
                .connect(address)
                .await
                .unwrap();
            let broker = MemoryBroker::new();
            let refused = Inbox::builder(pool)
                .source("orders", broker.source("orders"))
                .serve(sqlite::charge::handler())
                .migrate_on_start()
                .build()
                .await
                .unwrap_err();
            assert_told(&refused, &["in memory", "open a file"]);
        }
    }
}

mod mysql_only {
    use super::*;
    use inbox_guarantees::{EventLog, Sandbox};
    use sqlx::MySql;

    async fn refusal(sandbox: &Sandbox<MySql>) -> BuildError {
        let broker = MemoryBroker::new();
        Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .serve(mysql::charge::handler())
            .build()
            .await
            .unwrap_err()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_table_without_transactions_is_refused_with_the_remedy() {
        let sandbox = MySql::fresh(5).await;
        MySql::run(&sandbox.pool, "ALTER TABLE inbox_attempts ENGINE = MyISAM").await;
        let refused = refusal(&sandbox).await;
        assert_told(&refused, &["inbox_attempts", "MyISAM", "ENGINE = InnoDB"]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_table_of_claims_that_cannot_tell_whose_they_are_is_refused() {
        let sandbox = MySql::fresh(5).await;
        let older = "ALTER TABLE inbox_processed_messages DROP COLUMN claim_nonce";
        MySql::run(&sandbox.pool, older).await;
        let refused = refusal(&sandbox).await;
        assert_told(&refused, &["inbox_processed_messages", "claim_nonce"]);
    }

    /// A server that is killed between two statements of a migration leaves it marked as unfinished.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_migration_that_was_cut_off_is_run_again() {
        let sandbox = MySql::fresh(5).await;
        let cut_off = "DROP TABLE inbox_messages; UPDATE _inbox_migrations SET success = FALSE WHERE version = 2";
        MySql::run(&sandbox.pool, cut_off).await;
        migrate(&sandbox.pool).await.unwrap();
        let done = "SELECT count(*) FROM _inbox_migrations WHERE success";
        assert_eq!(MySql::number(&sandbox.pool, done).await, 2);
        let stored = "SELECT count(*) FROM inbox_messages";
        assert_eq!(MySql::number(&sandbox.pool, stored).await, 0);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn commits_that_a_crash_can_lose_are_told_at_the_start() {
        let log = EventLog::of_process();
        let sandbox = MySql::fresh(5).await;
        let flush = "SELECT @@innodb_flush_log_at_trx_commit";
        let flush = MySql::number(&sandbox.pool, flush).await;
        let broker = MemoryBroker::new();
        Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .serve(mysql::charge::handler())
            .build()
            .await
            .unwrap();
        let told = log
            .text()
            .contains(&format!("innodb_flush_log_at_trx_commit = {flush}"));
        assert_eq!(told, flush != 1, "{}", log.text());
    }
}
