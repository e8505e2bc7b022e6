//! SQLite: a file on disk, in WAL mode, with every commit waiting for the disk.

use std::time::Duration;

use inbox_runtime::{Batch, HandlerError, Inbox, MessageId, Tx, inbox_handler};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Executor as _, Sqlite, SqlitePool};
use tempfile::TempDir;

use crate::messages::in_time;
use crate::options::Options;
use crate::preloaded::Preloaded;
use crate::results::Table;
use crate::stopwatch::{Stopwatch, Taken};
use crate::workload::{ACCOUNTS, CONSUMER, OrderPlaced, Work, book, read};
use crate::{Result, framework};

const TABLES: &str = "
    CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL);
    CREATE TABLE ledger (id INTEGER PRIMARY KEY, account INTEGER NOT NULL, amount INTEGER NOT NULL, msg_id TEXT NOT NULL);";

#[derive(Debug, Clone, Copy)]
enum Variant {
    ByHand,
    /// With so many messages in a transaction.
    Framework(usize),
    /// With a handler of batches.
    Batches,
}

/// One worker, as SQLite has one writer.
pub(crate) async fn table(options: &Options) -> Result<Table> {
    let mut messages = 200;
    for _ in 0..2 {
        messages = run(Variant::ByHand, messages)
            .await?
            .messages_in(options.seconds);
    }
    let variants = [
        (
            Variant::ByHand,
            "by hand, pool, one message per transaction",
        ),
        (
            Variant::Framework(1),
            "framework, one message per transaction",
        ),
        (
            Variant::Framework(framework::SHARED),
            "framework, shared transactions",
        ),
        (Variant::Batches, "framework, batch handler, 100"),
    ];
    Table::of(
        "SQLite, synchronous = FULL".to_owned(),
        options.rounds,
        &variants,
        async |variant| run(variant, messages).await,
    )
    .await
}

/// One variant over new messages and a new file, checked.
async fn run(variant: Variant, messages: usize) -> Result<Taken> {
    let folder = tempfile::Builder::new().prefix("inbox-bench").tempdir()?;
    let pool = pool(&folder).await?;
    let work = Work::of(messages)?;
    let taken = in_time(async {
        match variant {
            Variant::ByHand => by_hand(&pool, &work).await,
            Variant::Framework(_) | Variant::Batches => {
                let source = Preloaded::new(&work);
                let acks = source.acks();
                let builder = Inbox::builder(pool.clone()).source("orders", source);
                let builder = match variant {
                    Variant::Framework(together) => builder
                        .register(charge::handler())
                        .messages_per_transaction(together),
                    _ => builder.register(post::handler()),
                };
                let inbox = builder.build().await?;
                framework::run(inbox, &work, None, acks.all()).await
            }
        }
    })
    .await?;
    check(&pool, taken.messages).await?;
    pool.close().await;
    Ok(taken)
}

async fn pool(folder: &TempDir) -> Result<SqlitePool> {
    let file = SqliteConnectOptions::new()
        .filename(folder.path().join("bench.sqlite"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(Duration::from_secs(5));
    let pool = SqlitePoolOptions::new()
        .max_connections(2)
        .connect_with(file)
        .await?;
    pool.execute(TABLES).await?;
    sqlx::query(
        "WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < $1) \
         INSERT INTO accounts SELECT n, 0 FROM numbers",
    )
    .bind(ACCOUNTS)
    .execute(&pool)
    .await?;
    inbox_runtime::migrate(&pool).await?;
    Ok(pool)
}

#[inbox_handler(consumer = "bench")]
async fn charge(
    order: OrderPlaced,
    tx: &mut Tx<Sqlite>,
    id: MessageId,
) -> std::result::Result<(), HandlerError> {
    book!(order, id.as_str(), tx);
    Ok(())
}

/// Two statements for all messages: SQLite takes a list as a JSON array.
#[inbox_handler(consumer = "bench", batch(max = 100))]
async fn post(
    orders: Batch<OrderPlaced>,
    tx: &mut Tx<Sqlite>,
) -> std::result::Result<(), HandlerError> {
    let rows: Vec<(i64, i64, &str)> = orders
        .iter()
        .map(|order| (order.account, order.amount, order.id().as_str()))
        .collect();
    let rows = serde_json::to_string(&rows).map_err(HandlerError::new)?;
    sqlx::query(
        "INSERT INTO ledger (account, amount, msg_id) \
         SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each($1)",
    )
    .bind(&rows)
    .execute(&mut *tx)
    .await?;
    sqlx::query(
        "UPDATE accounts SET balance = balance + due.amount FROM \
         (SELECT value ->> 0 AS account, sum(value ->> 1) AS amount FROM json_each($1) GROUP BY 1) AS due \
         WHERE accounts.id = due.account",
    )
    .bind(&rows)
    .execute(&mut *tx)
    .await?;
    Ok(())
}

async fn by_hand(pool: &SqlitePool, work: &std::sync::Arc<Work>) -> Result<Taken> {
    let stopwatch = Stopwatch::start(None)?;
    let (pool, worked) = (pool.clone(), std::sync::Arc::clone(work));
    tokio::spawn(async move {
        while let Some(message) = worked.take() {
            let (id, order) = read(message)?;
            let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
            let claimed = sqlx::query(
                "INSERT INTO inbox_processed_messages (message_id, consumer_name) VALUES ($1, $2) \
                 ON CONFLICT DO NOTHING",
            )
            .bind(id)
            .bind(CONSUMER)
            .execute(&mut *tx)
            .await?;
            if claimed.rows_affected() == 1 {
                book!(order, id, tx);
                tx.commit().await?;
            } else {
                tx.rollback().await?;
            }
        }
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    })
    .await??;
    stopwatch.stop(work.count())
}

/// Exactly once, as on PostgreSQL.
async fn check(pool: &SqlitePool, messages: usize) -> Result<()> {
    let (rows, ids, claims, booked, balances): (i64, i64, i64, i64, i64) = sqlx::query_as(
        "SELECT count(*), count(DISTINCT msg_id), (SELECT count(*) FROM inbox_processed_messages), \
         coalesce(sum(amount), 0), (SELECT sum(balance) FROM accounts) FROM ledger",
    )
    .fetch_one(pool)
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
