use std::fmt::Write as _;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, MySql, Row as _};

use super::session::text_of;
use super::{MySqlStatements, garbled, run, seconds, write_hex};
use crate::db::Statement;
use crate::db::retention::{
    Expiring, LOCK_WAIT, PurgeBatch, PurgePosition, Purged, Retention, is_needed,
};
use crate::db::stored::microseconds;

/// How long a statement of a batch may take: it goes on when the client is gone, and keeps its locks.
const STATEMENT_LIMIT: Duration = Duration::from_secs(30);

/// How many rows one statement removes: its text names each of them.
const AT_ONCE: usize = 5_000;

/// Before any time that a table can hold.
const EVER: &str = "1000-01-01";

/// The texts of a purge.
#[derive(Debug)]
pub(super) struct RetentionStatements {
    lock: String,
    claims: PurgeStatements,
    attempts: PurgeStatements,
}

#[derive(Debug)]
struct PurgeStatements {
    examine: Statement,
    /// Around the keys of the rows and the cutoff.
    remove: (String, String),
}

impl PurgeStatements {
    fn new(table: &str, time: &str, needed: &str) -> Self {
        Self {
            examine: Statement::new(format!(
                "SELECT old.message_id, old.consumer_name, CAST(old.{time} AS CHAR), CAST({needed} AS SIGNED) \
                 FROM {table} AS old WHERE old.{time} >= ? AND old.{time} < ? ORDER BY old.{time} LIMIT ? OFFSET ?"
            )),
            // The second look at the time is for a row that changed since the first.
            remove: (
                format!("DELETE FROM {table} WHERE (message_id, consumer_name) IN ("),
                format!(") AND {time} < "),
            ),
        }
    }
}

impl RetentionStatements {
    /// From the qualified names of the tables.
    pub(super) fn new(processed: &str, attempts: &str, dead_letters: &str, messages: &str) -> Self {
        let needed = is_needed("old", dead_letters, messages);
        let digest = Sha256::digest(processed);
        let mut lock = "inbox_purge_".to_owned();
        write_hex(&mut lock, digest.get(..16).unwrap_or_default());
        Self {
            lock,
            claims: PurgeStatements::new(processed, "received_at", &needed),
            attempts: PurgeStatements::new(attempts, "last_failed_at", &needed),
        }
    }
}

impl Retention for MySql {
    async fn purge(
        conn: &mut MySqlConnection,
        statements: &MySqlStatements,
        batch: &PurgeBatch<'_>,
    ) -> Result<Purged, sqlx::Error> {
        let lock = &statements.retention.lock;
        // MySQL can limit no statement that writes.
        let (limit, own_limit) = if statements.flavour.is_mariadb {
            let limit = format!(", max_statement_time = {}", seconds(STATEMENT_LIMIT));
            (limit, ", @@max_statement_time")
        } else {
            (String::new(), "")
        };
        // Of the session, which is closed after an error: there are none of a transaction.
        let row = conn
            .fetch_one(sqlx::raw_sql(AssertSqlSafe(format!(
                "SELECT GET_LOCK('{lock}', 0), @@innodb_lock_wait_timeout{own_limit}"
            ))))
            .await?;
        if text_of(&row, 0)?.as_deref() != Some("1") {
            return Ok(Purged::Elsewhere);
        }
        let lock_wait = text_of(&row, 1)?.ok_or_else(garbled)?;
        let mut restore = format!("SET SESSION innodb_lock_wait_timeout = {lock_wait}");
        if !limit.is_empty() {
            let own_limit = text_of(&row, 2)?.ok_or_else(garbled)?;
            let _ = write!(restore, ", max_statement_time = {own_limit}");
        }
        let purged = batch_of(conn, statements, batch, &limit).await?;
        // Once for each time that the session took it, or it would stay with the pool's connection.
        let _ = write!(restore, "; DO RELEASE_LOCK('{lock}')");
        run(conn, restore).await?;
        Ok(purged)
    }
}

async fn batch_of(
    conn: &mut MySqlConnection,
    statements: &MySqlStatements,
    batch: &PurgeBatch<'_>,
    limit: &str,
) -> Result<Purged, sqlx::Error> {
    let statements = match batch.rows {
        Expiring::Claims => &statements.retention.claims,
        Expiring::Attempts => &statements.retention.attempts,
    };
    let begin = format!(
        "SET SESSION innodb_lock_wait_timeout = {}{limit}; SET TRANSACTION ISOLATION LEVEL READ COMMITTED; \
         START TRANSACTION",
        seconds(LOCK_WAIT)
    );
    let mut tx = conn.begin_with(AssertSqlSafe(begin)).await?;
    // Looked at once, so that all statements mean the same rows.
    let cutoff: String =
        sqlx::query_scalar("SELECT CAST(UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND AS CHAR)")
            .bind(microseconds(batch.older_than))
            .fetch_one(&mut *tx)
            .await?;
    let rows: Vec<MySqlRow> = sqlx::query(statements.examine.text())
        .bind(batch.from.map_or(EVER, |from| from.at.as_str()))
        .bind(&cutoff)
        .bind(batch.limit)
        .bind(batch.from.map_or(0, |from| from.kept))
        .fetch_all(&mut *tx)
        .await?;
    let mut expired = Vec::with_capacity(rows.len());
    let mut times = Vec::with_capacity(rows.len());
    for row in &rows {
        let is_needed = row.try_get::<i64, _>(3)? != 0;
        let time: String = row.try_get(2)?;
        if !is_needed {
            expired.push((row.try_get::<Vec<u8>, _>(0)?, row.try_get::<Vec<u8>, _>(1)?));
        }
        times.push((time, is_needed));
    }
    let mut removed = 0;
    for keys in expired.chunks(AT_ONCE) {
        let (before, after) = &statements.remove;
        let mut text = before.clone();
        for (position, (id, consumer)) in keys.iter().enumerate() {
            text.push_str(if position == 0 { "(X'" } else { ",(X'" });
            write_hex(&mut text, id);
            text.push_str("',X'");
            write_hex(&mut text, consumer);
            text.push_str("')");
        }
        let _ = write!(text, "{after}'{cutoff}'");
        removed += tx
            .execute(sqlx::raw_sql(AssertSqlSafe(text)))
            .await?
            .rows_affected();
    }
    tx.commit().await?;
    let Some((at, _)) = times.last() else {
        return Ok(Purged::NOTHING);
    };
    let kept = times
        .iter()
        .filter(|(time, is_needed)| time == at && *is_needed);
    let kept = i64::try_from(kept.count()).unwrap_or(i64::MAX);
    Ok(Purged::Rows {
        examined: u64::try_from(rows.len()).unwrap_or(u64::MAX),
        removed,
        next: Some(PurgePosition::after(batch.from, at.clone(), kept)),
    })
}
