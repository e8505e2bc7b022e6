use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection as _, Row as _, Sqlite};

use super::{SqliteStatements, milliseconds, set_busy_timeout};
use crate::db::Statement;
use crate::db::retention::{
    Expiring, LOCK_WAIT, PurgeBatch, PurgePosition, Purged, Retention, is_needed,
};

/// The time at which a row expires, given its age.
const CUTOFF: &str = "SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?1)";

/// The texts of a purge.
#[derive(Debug)]
pub(super) struct RetentionStatements {
    claims: PurgeStatements,
    attempts: PurgeStatements,
}

#[derive(Debug)]
struct PurgeStatements {
    examine: Statement,
    remove: Statement,
}

impl PurgeStatements {
    fn new(table: &str, time: &str, needed: &str) -> Self {
        let examined = format!(
            "SELECT old.message_id, old.consumer_name, old.{time} AS at, {needed} AS is_needed FROM {table} AS old \
             WHERE old.{time} >= ?1 AND old.{time} < ?2 ORDER BY old.{time} LIMIT ?4 OFFSET ?3"
        );
        Self {
            examine: Statement::new(format!(
                "WITH examined AS MATERIALIZED ({examined}) SELECT count(*), max(at), \
                 count(*) FILTER (WHERE is_needed AND at = (SELECT max(at) FROM examined)) FROM examined"
            )),
            remove: Statement::new(format!(
                "DELETE FROM {table} WHERE (message_id, consumer_name) IN \
                 (SELECT message_id, consumer_name FROM ({examined}) WHERE NOT is_needed)"
            )),
        }
    }
}

impl RetentionStatements {
    /// From the qualified names of the tables.
    pub(super) fn new(processed: &str, attempts: &str, dead_letters: &str, messages: &str) -> Self {
        let needed = is_needed("old", dead_letters, messages);
        Self {
            claims: PurgeStatements::new(processed, "received_at", &needed),
            attempts: PurgeStatements::new(attempts, "last_failed_at", &needed),
        }
    }
}

impl Retention for Sqlite {
    async fn purge(
        conn: &mut SqliteConnection,
        statements: &SqliteStatements,
        batch: &PurgeBatch<'_>,
    ) -> Result<Purged, sqlx::Error> {
        let statements = match batch.rows {
            Expiring::Claims => &statements.retention.claims,
            Expiring::Attempts => &statements.retention.attempts,
        };
        let busy_timeout: i64 = sqlx::query_scalar("PRAGMA busy_timeout")
            .fetch_one(&mut *conn)
            .await?;
        set_busy_timeout(conn, milliseconds(LOCK_WAIT)).await?;
        // One writer at a time: whoever has begun leads.
        let mut tx = conn.begin_with("BEGIN IMMEDIATE").await?;
        // Looked at once, so that both statements mean the same rows.
        let cutoff: String = sqlx::query_scalar(CUTOFF)
            .bind(format!("-{:.3} seconds", batch.older_than.as_secs_f64()))
            .fetch_one(&mut *tx)
            .await?;
        let from = batch.from.map_or("", |from| from.at.as_str());
        let kept = batch.from.map_or(0, |from| from.kept);
        let row = sqlx::query(statements.examine.text())
            .bind(from)
            .bind(&cutoff)
            .bind(kept)
            .bind(batch.limit)
            .fetch_one(&mut *tx)
            .await?;
        let examined: i64 = row.try_get(0)?;
        let at: Option<String> = row.try_get(1)?;
        let kept_last: i64 = row.try_get(2)?;
        let removed = sqlx::query(statements.remove.text())
            .bind(from)
            .bind(&cutoff)
            .bind(kept)
            .bind(batch.limit)
            .execute(&mut *tx)
            .await?
            .rows_affected();
        tx.commit().await?;
        set_busy_timeout(conn, busy_timeout).await?;
        let Some(at) = at else {
            return Ok(Purged::NOTHING);
        };
        Ok(Purged::Rows {
            examined: u64::try_from(examined).unwrap_or_default(),
            removed,
            next: Some(PurgePosition::after(batch.from, at, kept_last)),
        })
    }
}

#[cfg(test)]
mod tests {
    use sqlx::AssertSqlSafe;

    use super::*;
    use crate::db::InboxDatabase as _;
    use crate::tables::Tables;

    async fn plan(conn: &mut SqliteConnection, statement: &Statement) -> Vec<String> {
        let text = format!("EXPLAIN QUERY PLAN {}", statement.0);
        let rows = sqlx::query(AssertSqlSafe(text))
            .bind("")
            .bind("2")
            .bind(0)
            .bind(10)
            .fetch_all(conn)
            .await
            .unwrap();
        rows.iter().map(|row| row.get(3)).collect()
    }

    /// Whatever the database knows of its tables: its planner looks at them only when told to (ANALYZE).
    #[tokio::test]
    async fn expired_rows_are_found_by_the_index_on_their_time() {
        let mut conn = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        let tables = Tables::default();
        Sqlite::migrate(&mut conn, &tables).await.unwrap();
        let statements = SqliteStatements::new(&tables, LOCK_WAIT).retention;
        for (of, index) in [
            (
                &statements.claims,
                "inbox_processed_messages_received_at (received_at>? AND received_at<?)",
            ),
            (
                &statements.attempts,
                "inbox_attempts_last_failed_at (last_failed_at>? AND last_failed_at<?)",
            ),
        ] {
            for statement in [&of.examine, &of.remove] {
                let plan = plan(&mut conn, statement).await;
                assert!(plan.iter().any(|step| step.contains(index)), "{plan:#?}");
                for step in &plan {
                    // The rows examined may be, which are few.
                    let is_whole = step.strip_prefix("SCAN ").is_some_and(|what| {
                        !what.starts_with("examined") && !what.starts_with('(')
                    });
                    let sorts = step.contains("TEMP B-TREE");
                    assert!(!is_whole && !sorts, "{step} in {plan:#?}");
                }
            }
        }
    }
}
