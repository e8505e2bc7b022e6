use sqlx::MySql;
use sqlx::mysql::{MySqlConnection, MySqlRow};

use super::MySqlStatements;
use super::session::text_of;
use crate::db::dead_letters::{
    DeadLetterStore, QUEUED_ID, columns, dead_letters_by_row, entry, holds,
};
use crate::db::{ClaimKey, Statement};
use crate::dead_letter::{DeadLetter, DeadLetterEntry, ExistingEntry};

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
    waiting: Statement,
    queue: Statement,
    mark: Statement,
    forget_failures: Statement,
    remove: Statement,
}

impl DeadLetterStatements {
    /// From the qualified names of the tables.
    pub(super) fn new(dead_letters: &str, attempts: &str, messages: &str) -> Self {
        let key = "message_id = ? AND consumer_name = ?";
        let now = "UTC_TIMESTAMP(6)";
        let keep = |condition: &str| {
            // The time of the replay last: the others look at it as it was.
            let changes: Vec<String> = [
                ("reason", "VALUES(reason)"),
                ("failure", "VALUES(failure)"),
                ("handler", "VALUES(handler)"),
                ("attempts", "GREATEST(attempts, VALUES(attempts))"),
                ("last_failed_at", now),
                ("replayed_at", "NULL"),
            ]
            .iter()
            .map(|(column, value)| format!("{column} = IF({condition}, {value}, {column})"))
            .collect();
            Statement::new(format!(
                "INSERT INTO {dead_letters} (entry_key, source, consumer_name, message_id, message_type, \
                 handler, reason, failure, attempts, headers, payload, first_failed_at) \
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, \
                 COALESCE((SELECT first_failed_at FROM {attempts} WHERE {key}), {now})) \
                 ON DUPLICATE KEY UPDATE {}",
                changes.join(", ")
            ))
        };
        let columns = columns(
            |name| format!("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {name})"),
            |number| format!("CAST({number} AS SIGNED)"),
            // What is compared as bytes has no type of text for the driver.
            |bytes| format!("CONVERT({bytes} USING utf8mb4)"),
        );
        let entry = format!("SELECT {columns} FROM {dead_letters}");
        let find = format!("{entry} WHERE id = ?");
        let queued = format!(
            "COALESCE(letter.consumer_name, ''), \
             IF(letter.consumer_name IS NULL, CONCAT('{QUEUED_ID}', letter.id), letter.message_id)"
        );
        // The status last: the others look at it as it was.
        let again: Vec<String> = [
            ("source", "VALUES(source)"),
            ("headers", "VALUES(headers)"),
            ("payload", "VALUES(payload)"),
            ("next_attempt_at", now),
            ("claimed_at", "NULL"),
            ("claimed_by", "NULL"),
            ("claim_token", "NULL"),
            ("status", "'pending'"),
        ]
        .iter()
        .map(|(column, value)| {
            format!(
                "{messages}.{column} = IF({messages}.status = 'done', {value}, {messages}.{column})"
            )
        })
        .collect();
        Self {
            keep: keep("TRUE"),
            keep_beside: keep("replayed_at IS NOT NULL"),
            count: format!("SELECT CAST(COUNT(*) AS SIGNED) FROM {dead_letters}"),
            read: Statement::new(format!(
                "SELECT {columns}, headers, payload FROM {dead_letters} WHERE id = ?"
            )),
            lock: Statement::new(format!("{find} FOR UPDATE")),
            find: Statement::new(find),
            list: entry,
            beside: Statement::new(format!(
                "SELECT id FROM {dead_letters} WHERE {key} AND id <> ? AND replayed_at IS NULL AND {} \
                 ORDER BY id LIMIT 1",
                holds()
            )),
            // Locking: what waits now, and not when the transaction first looked.
            waiting: Statement::new(format!(
                "SELECT status FROM {messages} WHERE (consumer_name, message_id) = \
                 (SELECT {queued} FROM {dead_letters} AS letter WHERE letter.id = ?) AND status <> 'done' FOR UPDATE"
            )),
            queue: Statement::new(format!(
                "INSERT INTO {messages} (consumer_name, message_id, source, headers, payload) \
                 SELECT {queued}, letter.source, letter.headers, letter.payload FROM {dead_letters} AS letter \
                 WHERE letter.id = ? ON DUPLICATE KEY UPDATE {}",
                again.join(", ")
            )),
            mark: Statement::new(format!(
                "UPDATE {dead_letters} SET replayed_at = {now}, replayed_by = ?, replays = replays + 1 WHERE id = ?"
            )),
            forget_failures: Statement::new(format!("DELETE FROM {attempts} WHERE {key}")),
            remove: Statement::new(format!("DELETE FROM {dead_letters} WHERE id = ?")),
        }
    }
}

impl DeadLetterStore for MySql {
    dead_letters_by_row!(MySqlConnection);

    async fn store_dead_letter(
        conn: &mut MySqlConnection,
        statements: &MySqlStatements,
        letter: &DeadLetter<'_>,
        existing: ExistingEntry,
    ) -> Result<(), sqlx::Error> {
        let statement = match existing {
            ExistingEntry::Reopen => &statements.dead_letters.keep,
            ExistingEntry::Leave => &statements.dead_letters.keep_beside,
        };
        let id = letter.storable_id().map(String::into_bytes);
        let consumer = letter.consumer.map(str::as_bytes);
        let stored = sqlx::query(statement.text())
            .bind(letter.entry_key())
            .bind(letter.source)
            .bind(consumer)
            .bind(&id)
            .bind(letter.storable_type())
            .bind(letter.handler)
            .bind(letter.reason.as_str())
            .bind(letter.text.as_str())
            .bind(i32::try_from(letter.attempts).unwrap_or(i32::MAX))
            .bind(letter.envelope.to_document())
            .bind(&**letter.payload())
            .bind(&id)
            .bind(consumer)
            .execute(conn)
            .await?;
        match existing {
            ExistingEntry::Reopen if stored.rows_affected() == 0 => Err(sqlx::Error::RowNotFound),
            _ => Ok(()),
        }
    }

    async fn lock_dead_letter(
        conn: &mut MySqlConnection,
        statements: &MySqlStatements,
        id: i64,
    ) -> Result<Option<DeadLetterEntry>, sqlx::Error> {
        let row = sqlx::query(statements.dead_letters.lock.text())
            .bind(id)
            .fetch_optional(conn)
            .await?;
        row.as_ref().map(entry).transpose()
    }

    async fn dead_letter_beside(
        conn: &mut MySqlConnection,
        statements: &MySqlStatements,
        key: ClaimKey<'_>,
        id: i64,
    ) -> Result<Option<i64>, sqlx::Error> {
        sqlx::query_scalar(statements.dead_letters.beside.text())
            .bind(key.message_id.as_bytes())
            .bind(key.consumer.as_bytes())
            .bind(id)
            .fetch_optional(conn)
            .await
    }

    async fn queue_dead_letter(
        conn: &mut MySqlConnection,
        statements: &MySqlStatements,
        id: i64,
    ) -> Result<bool, sqlx::Error> {
        let waiting: Option<MySqlRow> = sqlx::query(statements.dead_letters.waiting.text())
            .bind(id)
            .fetch_optional(&mut *conn)
            .await?;
        if waiting.map(|row| text_of(&row, 0)).transpose()?.is_some() {
            return Ok(false);
        }
        let queued = sqlx::query(statements.dead_letters.queue.text())
            .bind(id)
            .execute(conn)
            .await?;
        Ok(queued.rows_affected() > 0)
    }

    async fn mark_dead_letter_replayed(
        conn: &mut MySqlConnection,
        statements: &MySqlStatements,
        id: i64,
        by: &str,
    ) -> Result<(), sqlx::Error> {
        let marked = sqlx::query(statements.dead_letters.mark.text())
            .bind(by)
            .bind(id)
            .execute(conn)
            .await?;
        match marked.rows_affected() {
            0 => Err(sqlx::Error::RowNotFound),
            _ => Ok(()),
        }
    }

    async fn forget_counted(
        conn: &mut MySqlConnection,
        statements: &MySqlStatements,
        key: ClaimKey<'_>,
    ) -> Result<bool, sqlx::Error> {
        let forgotten = sqlx::query(statements.dead_letters.forget_failures.text())
            .bind(key.message_id.as_bytes())
            .bind(key.consumer.as_bytes())
            .execute(conn)
            .await?;
        Ok(forgotten.rows_affected() > 0)
    }
}
