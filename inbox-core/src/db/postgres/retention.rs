use std::fmt::Write as _;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, Postgres, Row as _};

use super::{PostgresStatements, milliseconds};
use crate::db::Statement;
use crate::db::retention::{
    Expiring, LOCK_WAIT, PurgeBatch, PurgePosition, Purged, Retention, is_needed,
};

/// How long a statement of a batch may take.
const STATEMENT_LIMIT: Duration = Duration::from_secs(30);

/// The texts of a purge.
#[derive(Debug)]
pub(super) struct RetentionStatements {
    begin: Statement,
    lead: Statement,
    claims: Statement,
    attempts: Statement,
}

impl RetentionStatements {
    /// From the qualified names of the tables.
    pub(super) fn new(processed: &str, attempts: &str, dead_letters: &str, messages: &str) -> Self {
        let needed = is_needed("old", dead_letters, messages);
        let purge = |table: &str, time: &str| {
            let cutoff = "pg_catalog.now() - $2::bigint * interval '1 millisecond'";
            // The second look at the time is for a row that changed since the first. It is none that an index can
            // answer, or all that has expired would be read for each batch.
            Statement::new(format!(
                "WITH examined AS MATERIALIZED (SELECT old.ctid AS place, old.{time} AS at, {needed} AS is_needed \
                 FROM {table} AS old WHERE old.{time} >= $1::timestamptz AND old.{time} < {cutoff} \
                 ORDER BY old.{time} OFFSET $3 LIMIT $4), \
                 removed AS (DELETE FROM {table} WHERE ctid = ANY (ARRAY (SELECT place FROM examined WHERE NOT is_needed)) \
                 AND {time} + interval '0' < {cutoff} RETURNING 1) \
                 SELECT count(*), (SELECT count(*) FROM removed), max(at)::text, \
                 count(*) FILTER (WHERE is_needed AND at = (SELECT max(at) FROM examined)) FROM examined"
            ))
        };
        // Everything is local to the transaction. The plan does not depend on what the planner knows of the tables: it
        // may not have looked at them yet. A commit that a crash loses leaves claims, which is harmless.
        let mut begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL lock_timeout = {wait}; \
             SET LOCAL statement_timeout = {limit}; SET LOCAL idle_in_transaction_session_timeout = {limit}; \
             SET LOCAL synchronous_commit = off; SET LOCAL datestyle = 'ISO'",
            wait = milliseconds(LOCK_WAIT),
            limit = milliseconds(STATEMENT_LIMIT),
        );
        for plan in ["seqscan", "bitmapscan", "sort"] {
            let _ = write!(begin, "; SET LOCAL enable_{plan} = off");
        }
        Self {
            begin: Statement::new(begin),
            // Of the transaction, not of the session: behind a pooler the latter would leak.
            lead: Statement::new(format!(
                "SELECT pg_catalog.pg_try_advisory_xact_lock({})",
                lock_key(processed)
            )),
            claims: purge(processed, "received_at"),
            attempts: purge(attempts, "last_failed_at"),
        }
    }
}

/// The advisory lock of whoever purges these tables. It belongs to the database, so its name is not part of it.
fn lock_key(processed: &str) -> i64 {
    let digest = Sha256::digest(format!("inbox purge {processed}"));
    digest
        .iter()
        .take(8)
        .fold(0, |key, byte| key << 8 | i64::from(*byte))
}

impl Retention for Postgres {
    async fn purge(
        conn: &mut PgConnection,
        statements: &PostgresStatements,
        batch: &PurgeBatch<'_>,
    ) -> Result<Purged, sqlx::Error> {
        let statements = &statements.retention;
        let statement = match batch.rows {
            Expiring::Claims => &statements.claims,
            Expiring::Attempts => &statements.attempts,
        };
        let mut tx = conn.begin_with(statements.begin.text()).await?;
        // Nothing stays prepared: the next batch can have another session, also another one of the server behind a
        // pooler.
        let leads: bool = sqlx::query_scalar(statements.lead.text())
            .persistent(false)
            .fetch_one(&mut *tx)
            .await?;
        if !leads {
            tx.rollback().await?;
            return Ok(Purged::Elsewhere);
        }
        let older_than = i64::try_from(batch.older_than.as_millis()).unwrap_or(i64::MAX);
        let row = sqlx::query(statement.text())
            .persistent(false)
            .bind(batch.from.map_or("-infinity", |from| from.at.as_str()))
            .bind(older_than)
            .bind(batch.from.map_or(0, |from| from.kept))
            .bind(i64::from(batch.limit))
            .fetch_one(&mut *tx)
            .await?;
        tx.commit().await?;
        let count = |column| {
            row.try_get(column)
                .map(|count: i64| u64::try_from(count).unwrap_or_default())
        };
        let Some(at) = row.try_get::<Option<String>, _>(2)? else {
            return Ok(Purged::NOTHING);
        };
        Ok(Purged::Rows {
            examined: count(0)?,
            removed: count(1)?,
            next: Some(PurgePosition::after(batch.from, at, row.try_get(3)?)),
        })
    }
}
