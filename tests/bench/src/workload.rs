//! What every variant does: the same messages, the same tables, the same two business statements, and the same
//! check afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use inbox_runtime::Envelope;
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, PgConnection, PgPool,
};

use crate::Result;
use crate::stopwatch::Pid;

/// The name under which every variant claims.
pub(crate) const CONSUMER: &str = "bench";

const ACCOUNTS: i64 = 1_000;
const DATABASE: &str = "inbox_bench";
const TABLES: &str = "
    CREATE TABLE accounts (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL);
    CREATE TABLE ledger (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        account BIGINT NOT NULL, amount BIGINT NOT NULL, msg_id TEXT NOT NULL);";

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OrderPlaced {
    pub(crate) account: i64,
    pub(crate) amount: i64,
    /// Brings the payload to the size of an ordinary event.
    pub(crate) note: String,
}

/// The business of one message: a ledger row and a balance.
macro_rules! book {
    ($order:expr, $id:expr, $executor:expr) => {{
        let order: &$crate::workload::OrderPlaced = &$order;
        sqlx::query("INSERT INTO ledger (account, amount, msg_id) VALUES ($1, $2, $3)")
            .bind(order.account)
            .bind(order.amount)
            .bind($id)
            .execute(&mut *$executor)
            .await?;
        sqlx::query("UPDATE accounts SET balance = balance + $1 WHERE id = $2")
            .bind(order.amount)
            .bind(order.account)
            .execute(&mut *$executor)
            .await?;
    }};
}
pub(crate) use book;

/// Messages in memory, and how far they were taken.
#[derive(Debug)]
pub(crate) struct Work {
    messages: Vec<Envelope>,
    taken: AtomicUsize,
}

impl Work {
    /// `count` orders with ids in the form of a UUID, over all accounts.
    pub(crate) fn of(count: usize) -> Result<Arc<Self>> {
        let mut random = fastrand::Rng::new();
        let messages = (0..count)
            .map(|_| {
                let order = OrderPlaced {
                    account: random.i64(0..ACCOUNTS),
                    amount: random.i64(1..1_000),
                    note: "n".repeat(200),
                };
                let id = format!(
                    "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
                    random.u32(..),
                    random.u16(..),
                    random.u16(..0x1000),
                    random.u16(0x8000..0xc000),
                    random.u64(..1 << 48)
                );
                Ok(Envelope::new(serde_json::to_vec(&order)?)
                    .id(id)
                    .message_type("OrderPlaced"))
            })
            .collect::<Result<_>>()?;
        Ok(Arc::new(Self {
            messages,
            taken: AtomicUsize::new(0),
        }))
    }

    pub(crate) fn count(&self) -> usize {
        self.messages.len()
    }

    pub(crate) fn messages(&self) -> &[Envelope] {
        &self.messages
    }

    /// The next message that nobody took.
    pub(crate) fn take(&self) -> Option<&Envelope> {
        self.messages
            .get(self.taken.fetch_add(1, Ordering::Relaxed))
    }
}

/// The id and the decoded payload, for the variants that do this by hand.
pub(crate) fn read(message: &Envelope) -> Result<(&str, OrderPlaced)> {
    let id = message.id.as_deref().ok_or("a message without an id")?;
    Ok((id, serde_json::from_slice(&message.payload)?))
}

/// The database that the benchmark makes for itself.
#[derive(Debug)]
pub(crate) struct Database {
    admin: PgConnection,
    options: PgConnectOptions,
    server: Pid,
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
        let postmaster: String =
            sqlx::query_scalar("SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)")
                .fetch_one(&mut server)
                .await?;
        server.close().await?;
        let database = Self {
            admin: admin.database(DATABASE).connect().await?,
            options,
            server: Pid(postmaster.trim().parse()?),
        };
        let pool = database.pool(1).await?;
        pool.execute(sqlx::raw_sql(TABLES)).await?;
        inbox_runtime::migrate(&pool).await?;
        pool.close().await;
        Ok(database)
    }

    pub(crate) const fn server(&self) -> Pid {
        self.server
    }

    /// A pool with all of its connections open.
    pub(crate) async fn pool(&self, connections: u32) -> Result<PgPool> {
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .connect_with(self.options.clone())
            .await?;
        let mut open = Vec::new();
        for _ in 0..connections {
            open.push(pool.acquire().await?);
        }
        drop(open);
        Ok(pool)
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
        self.admin.execute("CHECKPOINT").await?;
        Ok(())
    }

    /// Exactly once: as many ledger rows, distinct ids and claims as messages, and balances that agree.
    pub(crate) async fn check(&mut self, messages: usize) -> Result<()> {
        let (rows, ids, claims, booked, balances): (i64, i64, i64, i64, i64) = sqlx::query_as(
            "SELECT count(*), count(DISTINCT msg_id), \
             (SELECT count(*) FROM inbox_processed_messages), coalesce(sum(amount), 0)::bigint, \
             (SELECT sum(balance)::bigint FROM accounts) FROM ledger",
        )
        .fetch_one(&mut self.admin)
        .await?;
        let expected = i64::try_from(messages)?;
        if (rows, ids, claims) != (expected, expected, expected) || booked != balances {
            return Err(format!(
                "not exactly once: {expected} messages, {rows} ledger rows, {ids} distinct ids, {claims} claims, \
                 {booked} booked, {balances} in the accounts"
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
