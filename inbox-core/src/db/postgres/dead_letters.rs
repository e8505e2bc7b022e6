use sqlx::postgres::PgConnection;
use sqlx::{Postgres, Row as _};

use crate::db::dead_letters::{
    DeadLetterStore, QUEUED_ID, columns, entry, filtered, holds, paged, stored,
};
use crate::db::{ClaimKey, Statement};
use crate::dead_letter::{
    DeadLetter, DeadLetterEntry, DeadLetterQuery, ExistingEntry, StoredDeadLetter,
};
use crate::tables::{Tables, quoted};

impl DeadLetterStore for Postgres {
    async fn store_dead_letter(
        conn: &mut PgConnection,
        statements: &Self::Statements,
        letter: &DeadLetter<'_>,
        existing: ExistingEntry,
    ) -> Result<(), sqlx::Error> {
        let statement = match existing {
            ExistingEntry::Reopen => &statements.dead_letters.keep,
            ExistingEntry::Leave => &statements.dead_letters.keep_beside,
        };
        let stored = sqlx::query(statement.text())
            .bind(letter.entry_key())
            .bind(letter.source)
            .bind(letter.consumer)
            .bind(letter.storable_id())
            .bind(letter.storable_type())
            .bind(letter.handler)
            .bind(letter.reason.as_str())
            .bind(letter.text.as_str())
            .bind(i32::try_from(letter.attempts).unwrap_or(i32::MAX))
            .bind(letter.envelope.to_document())
            .bind(&**letter.payload())
            .execute(conn)
            .await?;
        match existing {
            // A trigger that swallows it must not cost the message.
            ExistingEntry::Reopen if stored.rows_affected() == 0 => Err(sqlx::Error::RowNotFound),
            _ => Ok(()),
        }
    }

    async fn count_dead_letters(
        conn: &mut PgConnection,
        statements: &Self::Statements,
        query: &DeadLetterQuery,
    ) -> Result<u64, sqlx::Error> {
        let mut sql = filtered::<Self>(&statements.dead_letters.count, query);
        let row = sql.build().persistent(false).fetch_one(conn).await?;
        Ok(u64::try_from(row.try_get::<i64, _>(0)?).unwrap_or_default())
    }

    async fn list_dead_letters(
        conn: &mut PgConnection,
        statements: &Self::Statements,
        query: &DeadLetterQuery,
    ) -> Result<Vec<DeadLetterEntry>, sqlx::Error> {
        let mut sql = filtered::<Self>(&statements.dead_letters.list, query);
        paged(&mut sql, query);
        let rows = sql.build().persistent(false).fetch_all(conn).await?;
        rows.iter().map(entry).collect()
    }

    async fn read_dead_letter(
        conn: &mut PgConnection,
        statements: &Self::Statements,
        id: i64,
    ) -> Result<Option<StoredDeadLetter>, sqlx::Error> {
        let row = sqlx::query(statements.dead_letters.read.text())
            .bind(id)
            .fetch_optional(conn)
            .await?;
        row.as_ref().map(stored).transpose()
    }

    async fn find_dead_letter(
        conn: &mut PgConnection,
        statements: &Self::Statements,
        id: i64,
    ) -> Result<Option<DeadLetterEntry>, sqlx::Error> {
        let row = sqlx::query(statements.dead_letters.find.text())
            .bind(id)
            .fetch_optional(conn)
            .await?;
        row.as_ref().map(entry).transpose()
    }

    async fn lock_dead_letter(
        conn: &mut PgConnection,
        statements: &Self::Statements,
        id: i64,
    ) -> Result<Option<DeadLetterEntry>, sqlx::Error> {
        let row = sqlx::query(statements.dead_letters.lock.text())
            .bind(id)
            .fetch_optional(conn)
            .await?;
        row.as_ref().map(entry).transpose()
    }

    async fn dead_letter_beside(
        conn: &mut PgConnection,
        statements: &Self::Statements,
        key: ClaimKey<'_>,
        id: i64,
    ) -> Result<Option<i64>, sqlx::Error> {
        sqlx::query_scalar(statements.dead_letters.beside.text())
            .bind(key.message_id)
            .bind(key.consumer)
            .bind(id)
            .fetch_optional(conn)
            .await
    }

    async fn queue_dead_letter(
        conn: &mut PgConnection,
        statements: &Self::Statements,
        id: i64,
    ) -> Result<bool, sqlx::Error> {
        let queued = sqlx::query(statements.dead_letters.queue.text())
            .bind(id)
            .execute(conn)
            .await?;
        Ok(queued.rows_affected() > 0)
    }

    async fn mark_dead_letter_replayed(
        conn: &mut PgConnection,
        statements: &Self::Statements,
        id: i64,
        by: &str,
    ) -> Result<(), sqlx::Error> {
        let marked = sqlx::query(statements.dead_letters.mark.text())
            .bind(id)
            .bind(by)
            .execute(conn)
            .await?;
        match marked.rows_affected() {
            // A trigger that swallows it.
            0 => Err(sqlx::Error::RowNotFound),
            _ => Ok(()),
        }
    }

    async fn forget_counted(
        conn: &mut PgConnection,
        statements: &Self::Statements,
        key: ClaimKey<'_>,
    ) -> Result<bool, sqlx::Error> {
        let forgotten = sqlx::query(statements.dead_letters.forget_failures.text())
            .bind(key.message_id)
            .bind(key.consumer)
            .execute(conn)
            .await?;
        Ok(forgotten.rows_affected() > 0)
    }

    async fn remove_dead_letter(
        conn: &mut PgConnection,
        statements: &Self::Statements,
        id: i64,
    ) -> Result<bool, sqlx::Error> {
        let removed = sqlx::query(statements.dead_letters.remove.text())
            .bind(id)
            .execute(conn)
            .await?;
        Ok(removed.rows_affected() > 0)
    }
}

/// Statement texts about dead letters.
#[derive(Debug)]
pub(super) struct DeadLetterStatements {
    keep: Statement,
    keep_beside: Statement,
    /// The texts before the conditions of a query.
    count: String,
    list: String,
    read: Statement,
    find: Statement,
    lock: Statement,
    beside: Statement,
    queue: Statement,
    mark: Statement,
    forget_failures: Statement,
    remove: Statement,
}

impl DeadLetterStatements {
    pub(super) fn new(tables: &Tables, schema: &str) -> Self {
        let qualified = |name: &str| format!("{}.{}", quoted(schema), quoted(name));
        let dead_letters = qualified(tables.dead_letters_name());
        let attempts = qualified(tables.attempts_name());
        let messages = qualified(tables.messages_name());
        let key = "message_id = $1 AND consumer_name = $2";
        let keep = format!(
            "INSERT INTO {dead_letters} AS entry (entry_key, source, consumer_name, message_id, message_type, \
             handler, reason, failure, attempts, headers, payload, first_failed_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, \
             COALESCE((SELECT first_failed_at FROM {attempts} WHERE message_id = $4 AND consumer_name = $3), now())) \
             ON CONFLICT (entry_key) DO UPDATE SET replayed_at = NULL, reason = excluded.reason, \
             failure = excluded.failure, handler = excluded.handler, \
             attempts = greatest(entry.attempts, excluded.attempts), last_failed_at = now()"
        );
        let columns = columns(
            |name| format!("(extract(epoch FROM {name}) * 1000000)::bigint"),
            |number| format!("({number})::bigint"),
            str::to_owned,
        );
        let entry = format!("SELECT {columns} FROM {dead_letters}");
        Self {
            keep_beside: Statement::new(format!("{keep} WHERE entry.replayed_at IS NOT NULL")),
            keep: Statement::new(keep),
            count: format!("SELECT count(*) FROM {dead_letters}"),
            read: Statement::new(format!(
                "SELECT {columns}, headers, payload FROM {dead_letters} WHERE id = $1"
            )),
            find: Statement::new(format!("{entry} WHERE id = $1")),
            lock: Statement::new(format!("{entry} WHERE id = $1 FOR UPDATE")),
            list: entry,
            beside: Statement::new(format!(
                "SELECT id FROM {dead_letters} WHERE {key} AND id <> $3 AND replayed_at IS NULL AND {} \
                 ORDER BY id LIMIT 1",
                holds()
            )),
            queue: Statement::new(format!(
                "INSERT INTO {messages} AS waiting (consumer_name, message_id, source, headers, payload) \
                 SELECT COALESCE(consumer_name, ''), \
                 CASE WHEN consumer_name IS NULL THEN '{QUEUED_ID}' || id ELSE message_id END, \
                 source, headers, payload FROM {dead_letters} WHERE id = $1 \
                 ON CONFLICT (message_id, consumer_name) DO UPDATE SET status = 'pending', \
                 source = excluded.source, headers = excluded.headers, payload = excluded.payload, \
                 next_attempt_at = now(), claimed_at = NULL, claimed_by = NULL, claim_token = NULL \
                 WHERE waiting.status = 'done'"
            )),
            mark: Statement::new(format!(
                "UPDATE {dead_letters} SET replayed_at = now(), replayed_by = $2, replays = replays + 1 WHERE id = $1"
            )),
            forget_failures: Statement::new(format!("DELETE FROM {attempts} WHERE {key}")),
            remove: Statement::new(format!("DELETE FROM {dead_letters} WHERE id = $1")),
        }
    }
}
