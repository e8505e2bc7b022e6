//! The inbox works under any name that the database allows, and sends no statement with one that it does not.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use inbox_guarantees::dispatch::Serve as _;
use inbox_guarantees::{
    OrderPlaced, Running, TestDatabase, all_acked, bill, on_each_database, order, unique,
};
use inbox_runtime::brokers::MemoryBroker;
use inbox_runtime::{
    Envelope, HandlerError, Inbox, MessageId, MigrationError, RetryPolicy, Tables, Tx,
    inbox_handler, migrate_tables,
};
use sqlx::Pool;

on_each_database! {
    #[inbox_handler(consumer = "billing", max_attempts = 2)]
    pub(super) async fn charge(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        if id.as_str() == "fails" {
            return Err("as always".into());
        }
        Ok(())
    }

    /// Migrates twice, processes, deduplicates, counts a failure and keeps dead letters under these names.
    pub(super) async fn used(tables: Tables, qualified: impl Fn(&str) -> String) {
        let sandbox = Db::fresh(10).await;
        // What the names could be confused with must stay untouched.
        Db::run(
            &sandbox.pool,
            "DROP TABLE inbox_processed_messages; DROP TABLE inbox_dead_letters; DROP TABLE inbox_attempts;
             DROP TABLE inbox_messages; DROP TABLE _inbox_migrations",
        )
        .await;
        migrate_tables(&sandbox.pool, &tables).await.unwrap();
        migrate_tables(&sandbox.pool, &tables).await.unwrap();
        let broker = MemoryBroker::new();
        let inbox = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .serve(charge::handler())
            .retry(RetryPolicy::default().first_delay(Duration::from_millis(20)))
            .tables(tables.clone())
            .migrate_on_start()
            .build()
            .await
            .unwrap();
        let running = Running::start(inbox);
        broker.publish_copies("orders", order("m-1"), 2);
        broker.publish("orders", order("fails"));
        broker.publish("orders", Envelope::new("no JSON").id("undecodable"));
        broker.publish("orders", Envelope::new("no id"));
        all_acked(&broker).await;
        running.stop().await;

        let count = |table: &str| {
            let sql = format!("SELECT count(*) FROM {}", qualified(table));
            let pool = sandbox.pool.clone();
            async move { Db::number(&pool, &sql).await }
        };
        assert_eq!(sandbox.ledger_total().await, 1);
        assert_eq!(sandbox.balance("acc-1").await, 100);
        assert_eq!(count(tables.processed_name()).await, 1);
        assert_eq!(count(tables.dead_letters_name()).await, 3);
        // Of the failing one and the undecodable one: each dead letter with an id has a counted failure.
        assert_eq!(count(tables.attempts_name()).await, 2);
        assert_eq!(count(tables.messages_name()).await, 0);
        assert_eq!(count(tables.migrations_name()).await, 2);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_reserved_word_is_a_name() {
        let tables = Tables::default().processed("order").dead_letters("select").attempts("table").messages("from").migrations("user");
        used(tables, quoted::<Db>).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn blanks_capitals_dashes_and_letters_of_any_alphabet_are_a_name() {
        let tables = Tables::default()
            .processed("In Box")
            .dead_letters("größte-Post")
            .attempts("Versuche %s $1 ?1")
            .messages("\u{2026}wartet")
            .migrations("In Box 2");
        used(tables, quoted::<Db>).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn names_that_cannot_be_used_are_refused_before_any_statement() {
        // Nothing listens there: a statement would be another error, and later.
        let nowhere: Pool<Db> = unreachable_pool::<Db>();
        let bad = ["x\"; DROP TABLE y; --", "", " ", &"a".repeat(200), "a;b", "a\0b", "a'b", "a\\b"];
        for name in bad {
            for tables in [
                Tables::default().processed(name),
                Tables::default().dead_letters(name),
                Tables::default().attempts(name),
                Tables::default().messages(name),
                Tables::default().migrations(name),
                Tables::default().schema(name),
            ] {
                let refused = migrate_tables(&nowhere, &tables).await.unwrap_err();
                assert!(matches!(refused, MigrationError::Names(_)), "{name:?}: {refused}");
                let broker = MemoryBroker::new();
                let refused = Inbox::builder(nowhere.clone())
                    .source("orders", broker.source("orders"))
                    .serve(charge::handler())
                    .tables(tables)
                    .migrate_on_start()
                    .build()
                    .await
                    .unwrap_err();
                assert_eq!(refused.problems().len(), 1, "{refused}");
                assert!(refused.to_string().contains(&format!("{name:?}")), "{name:?}: {refused}");
            }
        }
        let twice = Tables::default().processed("inbox").attempts("INBOX");
        let refused = migrate_tables(&nowhere, &twice).await.unwrap_err();
        assert!(matches!(refused, MigrationError::Names(_)), "{refused}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_handler_can_have_tables_of_the_default_names_of_its_own() {
        let sandbox = Db::fresh(10).await;
        let tables = Tables::default().processed("mine").dead_letters("mine_dead").attempts("mine_attempts").messages("mine_messages").migrations("mine_migrations");
        migrate_tables(&sandbox.pool, &tables).await.unwrap();
        let broker = MemoryBroker::new();
        let inbox = |tables| {
            Inbox::builder(sandbox.pool.clone())
                .source("orders", broker.source("orders"))
                .serve(charge::handler())
                .tables(tables)
                .build()
        };
        // One inbox after the other, each with tables of its own: they know nothing of each other.
        for tables in [tables, Tables::default()] {
            broker.publish("orders", order("m-1"));
            let running = Running::start(inbox(tables).await.unwrap());
            all_acked(&broker).await;
            running.stop().await;
        }
        assert_eq!(sandbox.ledger_rows("m-1").await, 2);
        assert_eq!(sandbox.claims("m-1").await, 1);
        assert_eq!(Db::number(&sandbox.pool, "SELECT count(*) FROM mine").await, 1);
    }
}

fn quoted<Db: TestDatabase>(name: &str) -> String {
    format!("{quote}{name}{quote}", quote = Db::QUOTE)
}

trait Unreachable: TestDatabase {
    const NOWHERE: &'static str;
}

impl Unreachable for sqlx::Postgres {
    const NOWHERE: &'static str = "postgres://nobody@127.0.0.1:1/nothing";
}

impl Unreachable for sqlx::MySql {
    const NOWHERE: &'static str = "mysql://nobody@127.0.0.1:1/nothing";
}

impl Unreachable for sqlx::Sqlite {
    const NOWHERE: &'static str = "sqlite:///nonexistent/folder/inbox.db";
}

fn unreachable_pool<Db: Unreachable>() -> Pool<Db> {
    sqlx::pool::PoolOptions::new()
        .max_connections(9)
        .acquire_timeout(Duration::from_secs(1))
        .connect_lazy(Db::NOWHERE)
        .unwrap()
}

mod schemas {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_schema_is_made_and_used() {
        let tables = Tables::default().schema("my-app").processed("inbox");
        postgres::used(tables, |table| format!("\"my-app\".\"{table}\"")).await;
    }

    /// There a schema is a database, beside the one of the test.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_database_beside_the_own_is_made_and_used() {
        let name = unique("my-app");
        let tables = Tables::default().schema(&name).processed("inbox");
        mysql::used(tables, |table| format!("`{name}`.`{table}`")).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_database_without_schemas_says_so() {
        let sandbox = <sqlx::Sqlite as TestDatabase>::fresh(5).await;
        let tables = Tables::default().schema("my-app");
        let refused = migrate_tables(&sandbox.pool, &tables).await.unwrap_err();
        assert!(
            refused.to_string().contains("SQLite has no schemas"),
            "{refused}"
        );
        let broker = MemoryBroker::new();
        let refused = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .serve(sqlite::charge::handler())
            .tables(tables)
            .build()
            .await
            .unwrap_err();
        assert_eq!(refused.problems().len(), 1, "{refused}");
        assert!(refused.to_string().contains("\"my-app\""), "{refused}");
    }
}
