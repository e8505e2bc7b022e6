use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use inbox_core::BoxError;
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};

/// The business of a case: a SQLite file with the rows that its handlers wrote.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) pool: SqlitePool,
    file: PathBuf,
    _folder: Folder,
}

/// Deleted with this.
#[derive(Debug)]
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Ledger {
    pub(super) async fn new() -> Result<Self, BoxError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("inbox-conformance-{}-{number}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&folder.0)?;
        let file = folder.0.join("ledger.db");
        let pool = open(&file).await?;
        let tables = "CREATE TABLE ledger (id INTEGER PRIMARY KEY, consumer TEXT NOT NULL, \
                          account TEXT NOT NULL, amount BIGINT NOT NULL, message_id TEXT NOT NULL, \
                          process BIGINT NOT NULL);
                      CREATE TABLE accounts (id TEXT PRIMARY KEY, balance BIGINT NOT NULL);
                      INSERT INTO accounts (id, balance) VALUES ('acc-1', 0)";
        sqlx::raw_sql(tables).execute(&pool).await?;
        crate::migrate(&pool).await?;
        Ok(Self {
            pool,
            file,
            _folder: folder,
        })
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    pub(super) async fn number(&self, sql: &'static str) -> Result<i64, BoxError> {
        Ok(sqlx::query_scalar(sql).fetch_one(&self.pool).await?)
    }

    pub(super) async fn rows(&self) -> Result<i64, BoxError> {
        self.number("SELECT count(*) FROM ledger").await
    }

    /// The processes that billed.
    pub(super) async fn processes(&self) -> Result<Vec<i64>, BoxError> {
        let sql = "SELECT DISTINCT process FROM ledger";
        Ok(sqlx::query_scalar(sql).fetch_all(&self.pool).await?)
    }

    /// The reasons of the dead letters, sorted.
    pub(super) async fn dead_letters(&self) -> Result<Vec<String>, BoxError> {
        let sql = "SELECT reason FROM inbox_dead_letters ORDER BY reason";
        Ok(sqlx::query_scalar(sql).fetch_all(&self.pool).await?)
    }

    /// Each of these messages, and nothing else, was billed, once, by this consumer.
    pub(super) async fn ensure_billed_by(
        &self,
        consumer: &str,
        ids: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<(), BoxError> {
        let expected: BTreeMap<String, i64> = ids.into_iter().map(|id| (id.into(), 1)).collect();
        let billed =
            "SELECT message_id, count(*) FROM ledger WHERE consumer = ? GROUP BY message_id";
        let billed = self.counted(billed, consumer).await?;
        if let Some(difference) = difference(&billed, &expected) {
            return Err(format!("{consumer} billed {difference}").into());
        }
        let claims = "SELECT message_id, count(*) FROM inbox_processed_messages \
                      WHERE consumer_name = ? GROUP BY message_id";
        let claims = self.counted(claims, consumer).await?;
        if let Some(difference) = difference(&claims, &expected) {
            return Err(format!("{consumer} has claimed {difference}").into());
        }
        let sum = self
            .number("SELECT COALESCE(sum(amount), 0) FROM ledger")
            .await?;
        let balance = self.number("SELECT sum(balance) FROM accounts").await?;
        if sum != balance {
            return Err(format!("the rows sum up to {sum}, and the balance is {balance}").into());
        }
        Ok(())
    }

    async fn counted(
        &self,
        sql: &'static str,
        consumer: &str,
    ) -> Result<BTreeMap<String, i64>, BoxError> {
        let rows: Vec<(String, i64)> = sqlx::query_as(sql)
            .bind(consumer)
            .fetch_all(&self.pool)
            .await?;
        Ok(rows.into_iter().collect())
    }
}

/// What is wrong first, in words.
fn difference(found: &BTreeMap<String, i64>, expected: &BTreeMap<String, i64>) -> Option<String> {
    let missing: Vec<_> = expected
        .keys()
        .filter(|id| !found.contains_key(*id))
        .collect();
    if let Some(first) = missing.first() {
        return Some(format!(
            "{} of {} messages, {first:?} is missing",
            found.len(),
            expected.len()
        ));
    }
    let wrong = found.iter().find(|(id, n)| expected.get(*id) != Some(n));
    wrong.map(|(id, n)| match expected.get(id) {
        Some(_) => format!("{id:?} {n} times"),
        None => format!("{id:?}, which it must not"),
    })
}

/// As the documentation of the inbox advises: WAL, `synchronous = FULL`.
pub(super) async fn open(file: &Path) -> Result<SqlitePool, sqlx::Error> {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal);
    SqlitePoolOptions::new()
        .max_connections(5)
        .acquire_timeout(Duration::from_secs(30))
        .connect_with(options)
        .await
}
