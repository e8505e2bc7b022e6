//! What the guarantee tests share: a database of their own for each test, the ledger that business rows are
//! asserted on, and a running inbox that can be stopped.
//!
//! Servers come from the environment (`tests/run` starts them). A missing one is a failure, never a skip.

#![allow(clippy::unwrap_used, clippy::expect_used)] // What goes wrong here has to fail the test.

pub mod child;
pub mod dispatch;
pub mod kafka;
pub mod nats;
pub mod outage;
pub mod proxy;
pub mod rabbitmq;
pub mod round_trips;
pub mod servers;
pub mod settle_frames;
pub mod tap;

mod roles;
pub mod script;

pub use inbox_runtime::testing::recorded;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use inbox_runtime::brokers::MemoryBroker;
use inbox_runtime::{Envelope, Inbox, InboxDatabase, Stopped};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlPoolOptions, MySqlRow};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection, Executor as _, MySql, Pool, Postgres, Row as _,
    Sqlite,
};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, block_in_place};

use crate::outage::Host;
use crate::proxy::Proxied as _;
use crate::servers::OwnServer;

/// The environment variable `name`, which the test command sets.
///
/// # Panics
///
/// When it is missing: a test without its server has failed.
#[must_use]
pub fn environment(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: run the tests with `tests/run`, which starts the servers")
    })
}

/// A name that no other test uses.
#[must_use]
pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    format!(
        "{prefix}_{}_{}_{number}",
        std::process::id(),
        now.as_nanos() % 1_000_000_000
    )
}

/// A message as the cases have it: an order of `amount` for `account`.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct OrderPlaced {
    /// The account that pays.
    pub account: String,
    /// What it pays.
    pub amount: i64,
}

/// Writes the same module of tests for each database: `$module` is what the module is called, `Db` in it the
/// database.
///
/// ```ignore
/// on_each_database! {
///     #[tokio::test(flavor = "multi_thread")]
///     async fn a_promise() { let sandbox = Db::fresh(5).await; }
/// }
/// ```
#[macro_export]
macro_rules! on_each_database {
    ($($body:tt)*) => {
        mod postgres {
            #[allow(unused_imports)]
            use super::*;
            #[allow(dead_code)]
            type Db = sqlx::Postgres;
            $($body)*
        }
        mod mysql {
            #[allow(unused_imports)]
            use super::*;
            #[allow(dead_code)]
            type Db = sqlx::MySql;
            $($body)*
        }
        mod sqlite {
            #[allow(unused_imports)]
            use super::*;
            #[allow(dead_code)]
            type Db = sqlx::Sqlite;
            $($body)*
        }
    };
}

/// The same for each database that is a server, behind a connection that can be lost.
#[macro_export]
macro_rules! on_each_server {
    ($($body:tt)*) => {
        mod postgres {
            #[allow(unused_imports)]
            use super::*;
            #[allow(dead_code)]
            type Db = sqlx::Postgres;
            $($body)*
        }
        mod mysql {
            #[allow(unused_imports)]
            use super::*;
            #[allow(dead_code)]
            type Db = sqlx::MySql;
            $($body)*
        }
    };
}

/// The handler of the cases for `$db`: one ledger row, and the amount added to the account.
#[macro_export]
macro_rules! bill {
    ($db:ty, $order:expr, $id:expr, $tx:expr) => {{
        let order: &$crate::OrderPlaced = &$order;
        <$db as $crate::TestDatabase>::bill(&mut *$tx, order, $id.as_str()).await?;
    }};
}

/// m-1 of the cases: type OrderPlaced, 100 for acc-1.
#[must_use]
pub fn order(id: &str) -> Envelope {
    Envelope::new(r#"{"account":"acc-1","amount":100}"#)
        .id(id)
        .message_type("OrderPlaced")
}

/// As many workers as `wanted`, or as the database can have.
#[must_use]
pub fn workers<Db: InboxDatabase>(wanted: usize) -> usize {
    Db::MAX_CONCURRENCY.map_or(wanted, |most| wanted.min(most))
}

/// SQL with the placeholders `$1`, `$2`, .. in their order, as the database writes them.
#[must_use]
pub fn with_placeholders<Db: TestDatabase>(sql: &str) -> AssertSqlSafe<String> {
    AssertSqlSafe(if Db::NUMBERS_PLACEHOLDERS {
        sql.to_owned()
    } else {
        (1..=9).fold(sql.to_owned(), |sql, number| {
            sql.replace(&format!("${number}"), "?")
        })
    })
}

/// The body of [`TestDatabase::bill`]: only a concrete database can run a query.
macro_rules! bill_on {
    ($conn:expr, $order:expr, $id:expr) => {{
        let row = "INSERT INTO ledger (account, amount, msg_id) VALUES ($1, $2, $3)";
        sqlx::query(with_placeholders::<Self>(row))
            .bind(&$order.account)
            .bind($order.amount)
            .bind($id)
            .execute(&mut *$conn)
            .await?;
        let sum = "UPDATE accounts SET balance = balance + $1 WHERE id = $2";
        sqlx::query(with_placeholders::<Self>(sum))
            .bind($order.amount)
            .bind(&$order.account)
            .execute(&mut *$conn)
            .await?;
        Ok(())
    }};
}

/// A database that tests can make anew.
pub trait TestDatabase: InboxDatabase {
    /// Whether placeholders are `$1`, `$2`, .. instead of `?`.
    const NUMBERS_PLACEHOLDERS: bool = true;

    /// Whether a handler's ROLLBACK is refused, so that its transaction goes on as if nothing had been asked.
    const REFUSES_ROLLBACK: bool = false;

    /// What stands around a name.
    const QUOTE: char = '"';

    /// The time in so many seconds, as an expression for a column of ours.
    fn in_seconds(seconds: i64) -> String;

    /// An empty database with the ledger and the inbox tables, and a pool of `connections` on it.
    fn fresh(connections: u32) -> impl Future<Output = Sandbox<Self>> + Send;

    /// The same on a server of its own, or in a folder of its own.
    fn alone(connections: u32) -> impl Future<Output = (Host, Sandbox<Self>)> + Send;

    /// The same on the shared server, and how it is reached through a proxy; SQLite: in a folder of its own.
    fn behind_a_proxy(
        connections: u32,
    ) -> impl Future<
        Output = (
            Host,
            Sandbox<Self>,
            <Self::Connection as Connection>::Options,
        ),
    > + Send;

    /// The handler of the cases: one ledger row, and the amount added to the account.
    fn bill(
        conn: &mut Self::Connection,
        order: &OrderPlaced,
        id: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Runs SQL outside any inbox.
    fn run(pool: &Pool<Self>, sql: &str) -> impl Future<Output = ()> + Send;

    /// The one integer that a query answers (NULL: 0).
    fn number(pool: &Pool<Self>, sql: &str) -> impl Future<Output = i64> + Send;

    /// The first column of every row, as text.
    fn texts(pool: &Pool<Self>, sql: &str) -> impl Future<Output = Vec<String>> + Send;

    /// The first column of every row, as bytes.
    fn bytes(pool: &Pool<Self>, sql: &str) -> impl Future<Output = Vec<Vec<u8>>> + Send;

    /// "The pool is clean": each of its connections is outside any transaction, can write, and has the settings of a
    /// new one.
    ///
    /// # Panics
    ///
    /// When it is not so.
    fn assert_clean(pool: &Pool<Self>) -> impl Future<Output = ()> + Send;
}

/// A database of one test.
#[derive(Debug)]
pub struct Sandbox<Db: TestDatabase> {
    /// Connections to it.
    pub pool: Pool<Db>,
    /// Its address, for other processes.
    pub url: String,
    clean_up: CleanUp,
}

#[derive(Debug)]
enum CleanUp {
    /// PostgreSQL, MariaDB: gone when the server is thrown away after the run; databases are small.
    Nothing,
    /// SQLite: the folder that holds the file.
    Folder(PathBuf),
}

impl Drop for CleanUp {
    fn drop(&mut self) {
        if let Self::Folder(folder) = self {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

const LEDGER: &str = "
    CREATE TABLE accounts (id VARCHAR(255) PRIMARY KEY, balance BIGINT NOT NULL);
    INSERT INTO accounts (id, balance) VALUES ('acc-1', 0), ('acc-2', 0);";

impl<Db: TestDatabase> Sandbox<Db> {
    /// Another pool on the same database, as another process has it.
    ///
    /// # Panics
    ///
    /// When the database does not answer.
    pub async fn another_pool(&self, connections: u32) -> Pool<Db> {
        let options = self.pool.connect_options();
        sqlx::pool::PoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(Duration::from_secs(5))
            .connect_with(Clone::clone(&*options))
            .await
            .expect("no connection to the test database")
    }

    /// Ledger rows of one message.
    pub async fn ledger_rows(&self, id: &str) -> i64 {
        Db::number(
            &self.pool,
            &format!("SELECT count(*) FROM ledger WHERE msg_id = '{id}'"),
        )
        .await
    }

    /// All ledger rows.
    pub async fn ledger_total(&self) -> i64 {
        Db::number(&self.pool, "SELECT count(*) FROM ledger").await
    }

    /// The balance of an account.
    pub async fn balance(&self, account: &str) -> i64 {
        Db::number(
            &self.pool,
            &format!("SELECT balance FROM accounts WHERE id = '{account}'"),
        )
        .await
    }

    /// Claims of one message, whoever made them.
    pub async fn claims(&self, id: &str) -> i64 {
        let sql =
            format!("SELECT count(*) FROM inbox_processed_messages WHERE message_id = '{id}'");
        Db::number(&self.pool, &sql).await
    }

    /// All claims.
    pub async fn claims_total(&self) -> i64 {
        Db::number(&self.pool, "SELECT count(*) FROM inbox_processed_messages").await
    }

    /// Reasons of all dead letters, oldest first.
    pub async fn dead_letters(&self) -> Vec<String> {
        Db::texts(
            &self.pool,
            "SELECT reason FROM inbox_dead_letters ORDER BY id",
        )
        .await
    }

    /// The failure texts of all dead letters, oldest first.
    pub async fn dead_letter_texts(&self) -> Vec<String> {
        Db::texts(
            &self.pool,
            "SELECT failure FROM inbox_dead_letters ORDER BY id",
        )
        .await
    }

    /// Counted failures of one message.
    pub async fn attempts(&self, id: &str) -> i64 {
        Db::number(
            &self.pool,
            &format!("SELECT sum(attempts) FROM inbox_attempts WHERE message_id = '{id}'"),
        )
        .await
    }

    /// "The effect is stored once": one ledger row, one claim, and the balance moved by it once.
    ///
    /// # Panics
    ///
    /// When it is not so.
    pub async fn assert_stored_once(&self, id: &str) {
        assert_eq!(self.ledger_rows(id).await, 1, "ledger rows of {id}");
        assert_eq!(self.claims(id).await, 1, "claims of {id}");
        let sum = Db::number(
            &self.pool,
            "SELECT sum(amount) FROM ledger WHERE account = 'acc-1'",
        )
        .await;
        assert_eq!(
            self.balance("acc-1").await,
            sum,
            "balance and ledger disagree"
        );
    }
}

impl Sandbox<Postgres> {
    /// An empty database on the server with these addresses.
    ///
    /// # Panics
    ///
    /// When the server does not make it.
    pub async fn on_server(admin: &str, app: &str, connections: u32) -> Self {
        let admin: PgConnectOptions = admin.parse().expect("the administrator's address is none");
        let app: PgConnectOptions = app.parse().expect("the application's address is none");
        let name = unique("t");
        let create = format!("CREATE DATABASE {name} OWNER {}", app.get_username());
        let mut conn = admin.connect().await.expect("PostgreSQL does not answer");
        conn.execute(sqlx::raw_sql(AssertSqlSafe(create)))
            .await
            .expect("no test database");
        let options = app.database(&name);
        let url = options.to_url_lossy().to_string();
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(Duration::from_secs(5))
            .connect_with(options)
            .await
            .expect("no connection to the test database");
        let ledger = "CREATE TABLE ledger (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, \
                      account TEXT NOT NULL, amount BIGINT NOT NULL, msg_id TEXT NOT NULL);";
        Postgres::run(&pool, &format!("{ledger}{LEDGER}")).await;
        inbox_runtime::migrate(&pool).await.expect("migrations");
        Self {
            pool,
            url,
            clean_up: CleanUp::Nothing,
        }
    }
}

/// What a session has that a new one has not: the lock of a statement before, statements of ours, settings.
const LEFT_OPEN: &str = "
    SELECT 'an open transaction' FROM pg_locks
        WHERE pid = pg_backend_pid() AND relation = 'accounts'::regclass AND mode = 'RowExclusiveLock'
    UNION ALL SELECT name FROM pg_prepared_statements WHERE name LIKE 'inbox%'
    UNION ALL SELECT concat(name, ' = ', setting) FROM pg_settings
        WHERE source = 'session' AND setting IS DISTINCT FROM reset_val";

impl TestDatabase for Postgres {
    fn in_seconds(seconds: i64) -> String {
        format!("now() + interval '{seconds} seconds'")
    }

    async fn fresh(connections: u32) -> Sandbox<Self> {
        let (admin, app) = (
            environment("POSTGRES_ADMIN_URL"),
            environment("POSTGRES_URL"),
        );
        Sandbox::on_server(&admin, &app, connections).await
    }

    async fn alone(connections: u32) -> (Host, Sandbox<Self>) {
        let server = block_in_place(|| OwnServer::start("postgres"));
        let (admin, app) = (server.url("POSTGRES_ADMIN_URL"), server.url("POSTGRES_URL"));
        let sandbox = Sandbox::on_server(&admin, &app, connections).await;
        (Host::Server(server), sandbox)
    }

    async fn behind_a_proxy(connections: u32) -> (Host, Sandbox<Self>, PgConnectOptions) {
        let sandbox = Self::fresh(connections).await;
        let (proxy, options) = Self::proxy_to(&sandbox).await;
        (Host::Proxy(proxy), sandbox, options)
    }

    async fn bill(
        conn: &mut PgConnection,
        order: &OrderPlaced,
        id: &str,
    ) -> Result<(), sqlx::Error> {
        bill_on!(conn, order, id)
    }

    async fn run(pool: &Pool<Self>, sql: &str) {
        pool.execute(sqlx::raw_sql(AssertSqlSafe(sql)))
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    async fn number(pool: &Pool<Self>, sql: &str) -> i64 {
        let sql = format!("SELECT COALESCE(({sql}), 0)::bigint");
        sqlx::query_scalar(AssertSqlSafe(sql.as_str()))
            .fetch_one(pool)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    async fn texts(pool: &Pool<Self>, sql: &str) -> Vec<String> {
        sqlx::query_scalar(AssertSqlSafe(sql))
            .fetch_all(pool)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    async fn bytes(pool: &Pool<Self>, sql: &str) -> Vec<Vec<u8>> {
        sqlx::query_scalar(AssertSqlSafe(sql))
            .fetch_all(pool)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    async fn assert_clean(pool: &Pool<Self>) {
        let mut all = Vec::new();
        for _ in 0..pool.size() {
            let mut conn = pool.acquire().await.expect("a connection");
            // Autocommitted outside a transaction, refused in a read-only session.
            conn.execute("UPDATE accounts SET balance = balance")
                .await
                .expect("a connection that can write");
            let left: Vec<String> = sqlx::query_scalar(LEFT_OPEN)
                .fetch_all(&mut *conn)
                .await
                .expect("what is open, prepared and set");
            assert_eq!(left, [""; 0], "left on a pooled connection");
            all.push(conn);
        }
        drop(all);
        let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                    AND state LIKE 'idle in transaction%'";
        eventually("no transaction open on the server", || async {
            Self::number(pool, open).await == 0
        })
        .await;
    }
}

impl Sandbox<Postgres> {
    /// Sets a setting for every new session of this database, and replaces the pool.
    ///
    /// # Panics
    ///
    /// When the server does not take it.
    pub async fn set(&mut self, setting: &str, value: &str) {
        let admin: PgConnectOptions = environment("POSTGRES_ADMIN_URL")
            .parse()
            .expect("POSTGRES_ADMIN_URL is no address");
        let options = PgConnectOptions::clone(&self.pool.connect_options());
        let name = options.get_database().expect("a database of its own");
        let alter = format!("ALTER DATABASE {name} SET {setting} = '{value}'");
        let mut conn = admin.connect().await.expect("PostgreSQL does not answer");
        conn.execute(sqlx::raw_sql(AssertSqlSafe(alter.as_str())))
            .await
            .unwrap_or_else(|error| panic!("{alter}: {error}"));
        let replaced = self.pool.options().clone().connect_lazy_with(options);
        std::mem::replace(&mut self.pool, replaced).close().await;
    }
}

impl TestDatabase for Sqlite {
    fn in_seconds(seconds: i64) -> String {
        format!("strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '{seconds:+} seconds')")
    }

    async fn fresh(connections: u32) -> Sandbox<Self> {
        let folder = std::env::temp_dir().join(unique("inbox"));
        Sandbox::in_folder(&folder, folder.clone(), connections).await
    }

    async fn alone(connections: u32) -> (Host, Sandbox<Self>) {
        let around = std::env::temp_dir().join(unique("inbox"));
        let folder = around.join("volume");
        let sandbox = Sandbox::in_folder(&folder, around, connections).await;
        let writer = tokio::sync::Mutex::default();
        (Host::Folder { folder, writer }, sandbox)
    }

    async fn behind_a_proxy(connections: u32) -> (Host, Sandbox<Self>, SqliteConnectOptions) {
        let (host, sandbox) = Self::alone(connections).await;
        let options = SqliteConnectOptions::clone(&sandbox.pool.connect_options());
        (host, sandbox, options)
    }

    async fn bill(
        conn: &mut SqliteConnection,
        order: &OrderPlaced,
        id: &str,
    ) -> Result<(), sqlx::Error> {
        bill_on!(conn, order, id)
    }

    async fn run(pool: &Pool<Self>, sql: &str) {
        pool.execute(sqlx::raw_sql(AssertSqlSafe(sql)))
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    async fn number(pool: &Pool<Self>, sql: &str) -> i64 {
        let sql = format!("SELECT COALESCE(({sql}), 0)");
        sqlx::query_scalar(AssertSqlSafe(sql.as_str()))
            .fetch_one(pool)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    async fn texts(pool: &Pool<Self>, sql: &str) -> Vec<String> {
        sqlx::query_scalar(AssertSqlSafe(sql))
            .fetch_all(pool)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    async fn bytes(pool: &Pool<Self>, sql: &str) -> Vec<Vec<u8>> {
        sqlx::query_scalar(AssertSqlSafe(sql))
            .fetch_all(pool)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    async fn assert_clean(pool: &Pool<Self>) {
        async fn busy_timeout(conn: &mut SqliteConnection) -> i64 {
            let timeout = sqlx::query_scalar("PRAGMA busy_timeout");
            timeout.fetch_one(conn).await.expect("the timeout")
        }
        let mut new = pool
            .connect_options()
            .connect()
            .await
            .expect("a connection");
        let new = busy_timeout(&mut new).await;
        let mut all = Vec::new();
        for _ in 0..pool.size() {
            let mut conn = pool.acquire().await.expect("a connection");
            // BEGIN fails in a transaction, and a commit hook of ours would refuse the COMMIT.
            conn.execute(sqlx::raw_sql(
                "BEGIN IMMEDIATE; UPDATE accounts SET balance = balance; COMMIT",
            ))
            .await
            .expect("a connection outside any transaction, that can write");
            assert_eq!(
                busy_timeout(&mut conn).await,
                new,
                "busy_timeout of a pooled connection"
            );
            all.push(conn);
        }
    }
}

impl Sandbox<Sqlite> {
    /// An empty database in a new folder, which goes with `around`.
    async fn in_folder(folder: &Path, around: PathBuf, connections: u32) -> Self {
        std::fs::create_dir_all(folder).expect("no folder for the test database");
        let file = folder.join("test.db");
        let pool = sqlite_pool(&file, connections).await;
        let ledger = "CREATE TABLE ledger (id INTEGER PRIMARY KEY, \
                      account TEXT NOT NULL, amount BIGINT NOT NULL, msg_id TEXT NOT NULL);";
        Sqlite::run(&pool, &format!("{ledger}{LEDGER}")).await;
        inbox_runtime::migrate(&pool).await.expect("migrations");
        Self {
            pool,
            url: file.display().to_string(),
            clean_up: CleanUp::Folder(around),
        }
    }
}

/// A pool on a SQLite file as the documentation advises: WAL, synchronous = FULL.
///
/// # Panics
///
/// When the file cannot be opened.
pub async fn sqlite_pool(file: &Path, connections: u32) -> Pool<Sqlite> {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal);
    SqlitePoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(Duration::from_secs(5))
        .connect_with(options)
        .await
        .expect("no connection to the test database")
}

impl Sandbox<MySql> {
    /// An empty database on the server with this address.
    ///
    /// # Panics
    ///
    /// When the server does not make it.
    pub async fn on_mysql_server(address: &str, connections: u32) -> Self {
        let server: MySqlConnectOptions = address.parse().expect("the server's address is none");
        let name = unique("t");
        let create = format!("CREATE DATABASE {name}");
        let mut conn = server.connect().await.expect("MariaDB does not answer");
        conn.execute(sqlx::raw_sql(AssertSqlSafe(create)))
            .await
            .expect("no test database");
        let options = server.database(&name);
        let url = options.to_url_lossy().to_string();
        let pool = mysql_pool(options, connections).await;
        let ledger = "CREATE TABLE ledger (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, \
                      account VARCHAR(255) NOT NULL, amount BIGINT NOT NULL, msg_id VARBINARY(255) NOT NULL);";
        MySql::run(&pool, &format!("{ledger}{LEDGER}")).await;
        inbox_runtime::migrate(&pool).await.expect("migrations");
        Self {
            pool,
            url,
            clean_up: CleanUp::Nothing,
        }
    }
}

/// A pool on a database of MariaDB.
///
/// # Panics
///
/// When the server does not answer.
pub async fn mysql_pool(options: MySqlConnectOptions, connections: u32) -> Pool<MySql> {
    MySqlPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(Duration::from_secs(5))
        .connect_with(options)
        .await
        .expect("no connection to the test database")
}

impl TestDatabase for MySql {
    const NUMBERS_PLACEHOLDERS: bool = false;
    const REFUSES_ROLLBACK: bool = true;
    const QUOTE: char = '`';

    fn in_seconds(seconds: i64) -> String {
        format!("UTC_TIMESTAMP(6) + INTERVAL {seconds} SECOND")
    }

    async fn fresh(connections: u32) -> Sandbox<Self> {
        Sandbox::on_mysql_server(&environment("MYSQL_URL"), connections).await
    }

    async fn alone(connections: u32) -> (Host, Sandbox<Self>) {
        let server = block_in_place(|| OwnServer::start("mysql"));
        let sandbox = Sandbox::on_mysql_server(&server.url("MYSQL_URL"), connections).await;
        (Host::Server(server), sandbox)
    }

    async fn behind_a_proxy(connections: u32) -> (Host, Sandbox<Self>, MySqlConnectOptions) {
        let sandbox = Self::fresh(connections).await;
        let (proxy, options) = Self::proxy_to(&sandbox).await;
        (Host::Proxy(proxy), sandbox, options)
    }

    async fn bill(
        conn: &mut MySqlConnection,
        order: &OrderPlaced,
        id: &str,
    ) -> Result<(), sqlx::Error> {
        bill_on!(conn, order, id)
    }

    async fn run(pool: &Pool<Self>, sql: &str) {
        pool.execute(sqlx::raw_sql(AssertSqlSafe(sql)))
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    async fn number(pool: &Pool<Self>, sql: &str) -> i64 {
        let sql = format!("SELECT CAST(COALESCE(({sql}), 0) AS SIGNED)");
        sqlx::query_scalar(AssertSqlSafe(sql.as_str()))
            .fetch_one(pool)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    async fn texts(pool: &Pool<Self>, sql: &str) -> Vec<String> {
        let texts = Self::bytes(pool, sql).await.into_iter();
        texts
            .map(|text| String::from_utf8(text).expect("no text"))
            .collect()
    }

    async fn bytes(pool: &Pool<Self>, sql: &str) -> Vec<Vec<u8>> {
        // As text of the protocol, whatever the type is.
        let rows: Vec<MySqlRow> = pool
            .fetch_all(sqlx::raw_sql(AssertSqlSafe(sql)))
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
        rows.iter()
            .map(|row| row.try_get_unchecked(0))
            .collect::<Result<_, _>>()
            .unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    async fn assert_clean(pool: &Pool<Self>) {
        let mut all = Vec::new();
        for _ in 0..pool.size() {
            let mut conn = pool.acquire().await.expect("a connection");
            // Committed by itself outside a transaction.
            conn.execute("UPDATE accounts SET balance = balance")
                .await
                .expect("a connection that can write");
            let state: String = sqlx::query_scalar(
                "SELECT CONCAT_WS(' ', @@in_transaction, @@autocommit, @@tx_read_only)",
            )
            .fetch_one(&mut *conn)
            .await
            .expect("the session's state");
            assert_eq!(state, "0 ON OFF", "a pooled connection is in a transaction");
            all.push(conn);
        }
        drop(all);
        // An open transaction holds on to the tables that it has read or written. The server's own list of transactions
        // is a copy that gets old while one looks at it often.
        let mut conn = pool.acquire().await.expect("a connection");
        let mut is_free = false;
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        while !is_free {
            assert!(
                tokio::time::Instant::now() < deadline,
                "a transaction is open on the server"
            );
            is_free = conn
                .execute(sqlx::raw_sql(
                    "LOCK TABLES accounts WRITE, ledger WRITE, inbox_processed_messages WRITE, \
                     inbox_attempts WRITE, inbox_dead_letters WRITE WAIT 1",
                ))
                .await
                .is_ok();
        }
        conn.execute("UNLOCK TABLES").await.expect("free tables");
    }
}

/// An inbox that runs in the background until it is stopped.
#[derive(Debug)]
pub struct Running {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Stopped>,
}

impl Running {
    /// Starts an inbox.
    #[must_use]
    pub fn start<Db: InboxDatabase>(inbox: Inbox<Db>) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(inbox.run_until(async {
            let _ = stopped.await;
        }));
        Self {
            stop: Some(stop),
            task,
        }
    }

    /// Stops it and waits for its end.
    ///
    /// # Panics
    ///
    /// When it does not end within a minute.
    pub async fn stop(mut self) -> Stopped {
        drop(self.stop.take());
        tokio::time::timeout(Duration::from_secs(60), self.task)
            .await
            .expect("the inbox did not stop")
            .expect("the inbox panicked")
    }
}

/// Waits until `condition` holds, for at most a minute.
///
/// # Panics
///
/// When it does not come to hold.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while !condition().await {
        assert!(
            tokio::time::Instant::now() < deadline,
            "not within a minute: {what}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until everything that the in-memory broker has is acked.
///
/// # Panics
///
/// When that takes more than a minute.
pub async fn all_acked(broker: &MemoryBroker) {
    tokio::time::timeout(Duration::from_secs(60), broker.until_idle())
        .await
        .expect("the broker did not become idle");
}

/// Collects the events of this test's thread and those it spawns, as lines of text.
///
/// One test per process can have it; use it in a test binary of its own or compare by unique ids.
#[derive(Debug, Default)]
pub struct EventLog(Mutex<Vec<u8>>);

impl EventLog {
    /// Everything logged so far.
    ///
    /// # Panics
    ///
    /// Never in practice: the log's lock is not poisoned by readers.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }

    /// The log of this process, installed as the global subscriber at the first call.
    #[must_use]
    pub fn of_process() -> &'static Self {
        static LOG: std::sync::OnceLock<&'static EventLog> = std::sync::OnceLock::new();
        LOG.get_or_init(|| {
            let log: &'static Self = Box::leak(Box::default());
            let _ = tracing_subscriber::fmt()
                .with_env_filter("warn,inbox_runtime=trace,inbox_core=trace")
                .with_ansi(false)
                .with_writer(move || Writer(log))
                .try_init();
            log
        })
    }
}

struct Writer(&'static EventLog);

impl std::io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if std::env::var_os("INBOX_TEST_LOG").is_some() {
            eprint!("{}", String::from_utf8_lossy(bytes));
        }
        self.0
            .0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<Db: TestDatabase> Sandbox<Db> {
    /// The folder or database stays until this goes.
    pub fn keep(&mut self) {
        self.clean_up = CleanUp::Nothing;
    }
}
