//! Claim and effect live in one database, so they are lost and restored together.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use inbox_guarantees::dispatch::Serve as _;
use inbox_guarantees::{
    OrderPlaced, Running, Sandbox, TestDatabase, all_acked, bill, environment, on_each_database,
    order,
};
use inbox_runtime::brokers::MemoryBroker;
use inbox_runtime::{HandlerError, Inbox, MessageId, State, Tx, inbox_handler};
use sqlx::{AssertSqlSafe, Connection as _, MySql, MySqlConnection, Pool, Postgres, Sqlite};

#[derive(Clone, Default)]
struct Entered(Arc<AtomicU32>);

on_each_database! {
    #[inbox_handler(consumer = "billing")]
    async fn charge(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId, State(entered): State<Entered>) -> Result<(), HandlerError> {
        entered.0.fetch_add(1, Ordering::SeqCst);
        bill!(Db, order, id, tx);
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn after_a_restore_a_message_is_processed_again_and_stored_once() {
        let mut sandbox = Db::fresh(10).await;
        let entered = Entered::default();
        let broker = MemoryBroker::new();
        let deliver = async |pool: &sqlx::Pool<Db>, id: &str| {
            let inbox = Inbox::builder(pool.clone())
                .source("orders", broker.source("orders"))
                .serve(charge::handler())
                .state(entered.clone())
                .build()
                .await
                .unwrap();
            let running = Running::start(inbox);
            broker.publish_copies("orders", order(id), 2);
            all_acked(&broker).await;
            running.stop().await;
        };
        deliver(&sandbox.pool, "m-0").await;
        let snapshot = Db::snapshot(&mut sandbox).await;
        deliver(&sandbox.pool, "m-1").await;
        sandbox.assert_stored_once("m-1").await;

        Db::restore(&mut sandbox, &snapshot).await;
        assert_eq!(sandbox.ledger_rows("m-1").await, 0);
        assert_eq!(sandbox.claims("m-1").await, 0);
        for id in ["m-0", "m-1"] {
            deliver(&sandbox.pool, id).await;
            sandbox.assert_stored_once(id).await;
        }
        assert_eq!(sandbox.ledger_total().await, 2);
        assert_eq!(entered.0.load(Ordering::SeqCst), 3, "m-0 once, m-1 before and after the restore");
    }
}

trait Restorable: TestDatabase {
    /// Copies the database and answers the copy's name.
    async fn snapshot(sandbox: &mut Sandbox<Self>) -> String;

    /// Puts the copy in the database's place.
    async fn restore(sandbox: &mut Sandbox<Self>, snapshot: &str);
}

impl Restorable for Postgres {
    async fn snapshot(sandbox: &mut Sandbox<Self>) -> String {
        let name = name_of(sandbox);
        sandbox.pool.close().await;
        let snapshot = format!("{name}_snapshot");
        as_admin(&format!("CREATE DATABASE {snapshot} TEMPLATE {name}")).await;
        reopen(sandbox);
        snapshot
    }

    async fn restore(sandbox: &mut Sandbox<Self>, snapshot: &str) {
        let name = name_of(sandbox);
        sandbox.pool.close().await;
        as_admin(&format!("DROP DATABASE {name}")).await;
        as_admin(&format!(
            "CREATE DATABASE {name} TEMPLATE {snapshot} OWNER inbox"
        ))
        .await;
        reopen(sandbox);
    }
}

fn name_of(sandbox: &Sandbox<Postgres>) -> String {
    let options = sandbox.pool.connect_options();
    options.get_database().expect("a database").to_owned()
}

async fn as_admin(sql: &str) {
    let mut conn = sqlx::PgConnection::connect(&environment("POSTGRES_ADMIN_URL"))
        .await
        .unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut conn)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
}

impl Restorable for MySql {
    async fn snapshot(sandbox: &mut Sandbox<Self>) -> String {
        let options = sandbox.pool.connect_options();
        let name = options.get_database().expect("a database");
        let snapshot = format!("{name}_snapshot");
        copy(&mut sandbox.pool.acquire().await.unwrap(), name, &snapshot).await;
        snapshot
    }

    async fn restore(sandbox: &mut Sandbox<Self>, snapshot: &str) {
        let options = sandbox.pool.connect_options();
        let name = options.get_database().expect("a database");
        // On one connection: a new one would ask for the database that is away.
        let mut conn = sandbox.pool.acquire().await.unwrap();
        run(&mut conn, &format!("DROP DATABASE {name}")).await;
        copy(&mut conn, snapshot, name).await;
        drop(conn);
        // Its sessions have lost the database that they were in.
        sandbox.pool.close().await;
        reopen(sandbox);
    }
}

async fn copy(conn: &mut MySqlConnection, from: &str, to: &str) {
    let tables =
        format!("SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = '{from}'");
    let tables: Vec<String> = sqlx::query_scalar(AssertSqlSafe(tables))
        .fetch_all(&mut *conn)
        .await
        .unwrap();
    let mut copy = format!("CREATE DATABASE {to};");
    for table in tables {
        copy.push_str(&format!(
            "CREATE TABLE {to}.{table} LIKE {from}.{table}; INSERT INTO {to}.{table} SELECT * FROM {from}.{table};"
        ));
    }
    run(conn, &copy).await;
}

async fn run(conn: &mut MySqlConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(conn)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
}

impl Restorable for Sqlite {
    async fn snapshot(sandbox: &mut Sandbox<Self>) -> String {
        let snapshot = format!("{}.snapshot", sandbox.url);
        Self::run(&sandbox.pool, &format!("VACUUM INTO '{snapshot}'")).await;
        snapshot
    }

    async fn restore(sandbox: &mut Sandbox<Self>, snapshot: &str) {
        // The last connection takes the write-ahead log with it.
        sandbox.pool.close().await;
        std::fs::copy(snapshot, &sandbox.url).unwrap();
        reopen(sandbox);
    }
}

fn reopen<Db: TestDatabase>(sandbox: &mut Sandbox<Db>) {
    let options = Clone::clone(&*sandbox.pool.connect_options());
    let pool: Pool<Db> = sandbox.pool.options().clone().connect_lazy_with(options);
    sandbox.pool = pool;
}
