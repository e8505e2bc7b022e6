//! The PostgreSQL database that the benchmark makes for itself: its tables, its pools, and the check after each run.

use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, PgConnection, PgPool,
};

use crate::Result;
use crate::network::DelayProxy;
use crate::results::Spread;
use crate::stopwatch::Pid;
use crate::workload::ACCOUNTS;

const DATABASE: &str = "inbox_bench";
const TABLES: &str = "
    CREATE TABLE accounts (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL);
    CREATE TABLE ledger (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        account BIGINT NOT NULL, amount BIGINT NOT NULL, msg_id TEXT NOT NULL);";

/// How the clients reach the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Path {
    Direct,
    /// Through the proxy.
    Delayed,
}

impl Path {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Direct => "loopback",
            Self::Delayed => "0.25 ms more each way",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Database {
    admin: PgConnection,
    options: PgConnectOptions,
    proxy: DelayProxy,
    server: Pid,
    version: String,
}

impl Database {
    /// Makes it anew on the server that `tests/services env` names.
    pub(crate) async fn create() -> Result<Self> {
        let options = address("POSTGRES_URL")?.database(DATABASE);
        let admin = address("POSTGRES_ADMIN_URL")?;
        let mut server = admin.connect().await?;
        let owner = options.get_username();
        for sql in [
            format!("DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)"),
            format!("CREATE DATABASE {DATABASE} OWNER {owner}"),
        ] {
            server.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await?;
        }
        let (postmaster, version): (String, String) = sqlx::query_as(
            "SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1), current_setting('server_version')",
        )
        .fetch_one(&mut server)
        .await?;
        server.close().await?;
        let database = Self {
            admin: admin.database(DATABASE).connect().await?,
            proxy: DelayProxy::to(options.get_host(), options.get_port()).await?,
            options,
            server: Pid(postmaster.trim().parse()?),
            version,
        };
        let pool = database.pool(Path::Direct, 1).await?;
        pool.execute(sqlx::raw_sql(TABLES)).await?;
        inbox_runtime::migrate(&pool).await?;
        pool.close().await;
        Ok(database)
    }

    pub(crate) const fn server(&self) -> Pid {
        self.server
    }

    pub(crate) fn version(&self) -> &str {
        self.version.split(' ').next().unwrap_or_default()
    }

    /// Where a client connects to.
    pub(crate) fn place(&self, path: Path) -> PgConnectOptions {
        match path {
            Path::Direct => self.options.clone(),
            Path::Delayed => self
                .options
                .clone()
                .host("127.0.0.1")
                .port(self.proxy.port()),
        }
    }

    /// A pool with all of its connections open.
    pub(crate) async fn pool(&self, path: Path, connections: u32) -> Result<PgPool> {
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .connect_with(self.place(path))
            .await?;
        let mut open = Vec::new();
        for _ in 0..connections {
            open.push(pool.acquire().await?);
        }
        drop(open);
        Ok(pool)
    }

    /// What the shortest question takes: the median of some hundred.
    pub(crate) async fn round_trip(&self, path: Path) -> Result<Duration> {
        let mut conn = self.place(path).connect().await?;
        let mut times = Vec::new();
        for _ in 0..500 {
            let started = Instant::now();
            conn.execute("SELECT 1").await?;
            times.push(started.elapsed().as_secs_f64());
        }
        conn.close().await?;
        Ok(Duration::from_secs_f64(
            Spread::of(times.into_iter()).median,
        ))
    }

    /// Brings the tables to where every run begins, with nothing left to write for the server.
    pub(crate) async fn empty(&mut self) -> Result<()> {
        let fill = format!(
            "TRUNCATE ledger, accounts, inbox_processed_messages, inbox_attempts, inbox_dead_letters; \
             INSERT INTO accounts SELECT n, 0 FROM generate_series(0, {ACCOUNTS} - 1) n"
        );
        self.admin
            .execute(sqlx::raw_sql(AssertSqlSafe(fill)))
            .await?;
        self.admin.execute("VACUUM ANALYZE accounts").await?;
        self.checkpoint().await
    }

    /// Has the server write what it would else write later.
    pub(crate) async fn checkpoint(&mut self) -> Result<()> {
        self.admin.execute("CHECKPOINT").await?;
        Ok(())
    }

    /// Exactly once: as many ledger rows, distinct ids and claims as messages, and balances that agree.
    pub(crate) async fn check(&mut self, messages: usize) -> Result<()> {
        let (rows, ids, claims, failed, booked, balances): (i64, i64, i64, i64, i64, i64) =
            sqlx::query_as(
                "SELECT count(*), count(DISTINCT msg_id), \
             (SELECT count(*) FROM inbox_processed_messages), (SELECT count(*) FROM inbox_dead_letters), \
             coalesce(sum(amount), 0)::bigint, (SELECT sum(balance)::bigint FROM accounts) FROM ledger",
            )
            .fetch_one(&mut self.admin)
            .await?;
        let expected = i64::try_from(messages)?;
        if (rows, ids, claims, failed) != (expected, expected, expected, 0) || booked != balances {
            return Err(format!(
                "not exactly once: {expected} messages, {rows} ledger rows, {ids} distinct ids, {claims} claims, \
                 {failed} dead letters, {booked} booked, {balances} in the accounts"
            )
            .into());
        }
        Ok(())
    }
}

fn address(name: &str) -> Result<PgConnectOptions> {
    let url = std::env::var(name)
        .map_err(|_| format!("{name} is not set: run `tests/bench/run`, which starts a server"))?;
    Ok(url.parse()?)
}
