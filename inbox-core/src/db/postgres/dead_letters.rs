use sqlx::Postgres;
use sqlx::postgres::PgConnection;

use crate::db::Statement;
use crate::db::dead_letters::{
    DeadLetterStore, QUEUED_ID, columns, dead_letters_by_number, dead_letters_by_row, entry, holds,
};
use crate::dead_letter::DeadLetterEntry;
use crate::tables::{Tables, quoted};

impl DeadLetterStore for Postgres {
    dead_letters_by_row!(PgConnection);
    dead_letters_by_number!(PgConnection);

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
