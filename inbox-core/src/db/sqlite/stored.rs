use std::time::Duration;

use bytes::Bytes;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{Row as _, Sqlite};

use super::SqliteStatements;
use crate::db::stored::{
    Lease, LeaseTerms, LeasedMessage, MessageStore, WaitingMessage, new_token, remaining,
};
use crate::db::{ClaimKey, Statement};
use crate::envelope::Envelope;

/// Texts about the table of messages that wait.
#[derive(Debug)]
pub(super) struct StoredStatements {
    store: Statement,
    waiting_payload: Statement,
    any_to_lease: Statement,
    lease_expired: Statement,
    lease_pending: Statement,
    next_due: Statement,
    remove: Statement,
    release: Statement,
}

impl StoredStatements {
    pub(super) fn new(messages: &str) -> Self {
        let moment = |modifier: &str| format!("strftime('%Y-%m-%dT%H:%M:%fZ', 'now'{modifier})");
        let now = moment("");
        let of_consumers = "consumer_name IN (SELECT value FROM json_each(?1))";
        let expired = format!(
            "status = 'processing' AND claimed_at < {} AND {of_consumers}",
            moment(", '-' || ?2 || ' seconds'")
        );
        let pending = format!("status = 'pending' AND next_attempt_at <= {now} AND {of_consumers}");
        let lease = |condition: &str, order: &str| {
            Statement::new(format!(
                "UPDATE {messages} SET status = 'processing', claimed_at = {now}, claimed_by = ?3, claim_token = ?4 \
                 WHERE id IN (SELECT id FROM {messages} WHERE {condition} AND ?2 IS NOT NULL ORDER BY {order} LIMIT ?5) \
                 RETURNING id, consumer_name, message_id, source, headers, payload"
            ))
        };
        Self {
            waiting_payload: Statement::new(format!(
                "SELECT payload FROM {messages} WHERE message_id = ?1 AND consumer_name = ?2 AND status <> 'done'"
            )),
            store: Statement::new(format!(
                "INSERT INTO {messages} AS stored (consumer_name, message_id, source, headers, payload, next_attempt_at) \
                 VALUES (?1, ?2, ?3, ?4, ?5, {due}) ON CONFLICT (message_id, consumer_name) DO UPDATE SET \
                 status = 'pending', source = excluded.source, headers = excluded.headers, payload = excluded.payload, \
                 next_attempt_at = excluded.next_attempt_at, claimed_at = NULL, claimed_by = NULL, claim_token = NULL \
                 WHERE stored.status = 'done'",
                due = moment(", '+' || ?6 || ' seconds'"),
            )),
            // A look that takes no lock: the one writer is not held up by a poll that finds nothing.
            any_to_lease: Statement::new(format!(
                "SELECT EXISTS (SELECT 1 FROM {messages} WHERE {pending}) \
                 OR EXISTS (SELECT 1 FROM {messages} WHERE {expired})"
            )),
            lease_expired: lease(&expired, "claimed_at"),
            lease_pending: lease(&pending, "next_attempt_at"),
            next_due: Statement::new(format!(
                "SELECT CAST((julianday(next_attempt_at) - julianday('now')) * 86400000000 AS INTEGER) FROM {messages} \
                 WHERE status = 'pending' AND {of_consumers} ORDER BY next_attempt_at LIMIT 1"
            )),
            remove: Statement::new(format!(
                "DELETE FROM {messages} WHERE id = ?1 AND claim_token = ?2"
            )),
            release: Statement::new(format!(
                "UPDATE {messages} SET status = 'pending', claimed_at = NULL, claimed_by = NULL, claim_token = NULL, \
                 next_attempt_at = {due} WHERE id = ?1 AND claim_token = ?2",
                due = moment(", '+' || ?3 || ' seconds'"),
            )),
        }
    }
}

impl MessageStore for Sqlite {
    async fn store_message(
        conn: &mut SqliteConnection,
        statements: &SqliteStatements,
        message: &WaitingMessage<'_>,
        delay: Duration,
    ) -> Result<(), sqlx::Error> {
        sqlx::query(statements.stored.store.text())
            .bind(message.key.consumer)
            .bind(message.key.message_id)
            .bind(message.source)
            .bind(message.envelope.to_document())
            .bind(&*message.envelope.payload)
            .bind(seconds(delay))
            .execute(conn)
            .await?;
        Ok(())
    }

    async fn waiting_payload(
        conn: &mut SqliteConnection,
        statements: &SqliteStatements,
        key: ClaimKey<'_>,
    ) -> Result<Option<Vec<u8>>, sqlx::Error> {
        sqlx::query_scalar(statements.stored.waiting_payload.text())
            .bind(key.message_id)
            .bind(key.consumer)
            .fetch_optional(conn)
            .await
    }

    async fn lease(
        conn: &mut SqliteConnection,
        statements: &SqliteStatements,
        terms: &LeaseTerms<'_>,
    ) -> Result<Vec<LeasedMessage>, sqlx::Error> {
        let consumers = serde_json::json!(terms.consumers).to_string();
        let any: bool = sqlx::query_scalar(statements.stored.any_to_lease.text())
            .bind(&consumers)
            .bind(seconds(terms.duration))
            .fetch_one(&mut *conn)
            .await?;
        let mut leased_messages = Vec::new();
        if !any {
            return Ok(leased_messages);
        }
        let token = new_token();
        for (statement, is_taken_over) in [
            (&statements.stored.lease_expired, true),
            (&statements.stored.lease_pending, false),
        ] {
            let most = terms.most.saturating_sub(leased_messages.len());
            let rows = sqlx::query(statement.text())
                .bind(&consumers)
                .bind(seconds(terms.duration))
                .bind(terms.worker)
                .bind(&token)
                .bind(i64::try_from(most).unwrap_or(i64::MAX))
                .fetch_all(&mut *conn)
                .await?;
            for row in &rows {
                leased_messages.push(leased(row, &token, is_taken_over)?);
            }
        }
        Ok(leased_messages)
    }

    async fn next_due(
        conn: &mut SqliteConnection,
        statements: &SqliteStatements,
        consumers: &[&str],
    ) -> Result<Option<Duration>, sqlx::Error> {
        let left: Option<i64> = sqlx::query_scalar(statements.stored.next_due.text())
            .bind(serde_json::json!(consumers).to_string())
            .fetch_optional(conn)
            .await?;
        Ok(left.map(remaining))
    }

    async fn remove(
        conn: &mut SqliteConnection,
        statements: &SqliteStatements,
        leases: &[Lease],
    ) -> Result<(), sqlx::Error> {
        for lease in leases {
            sqlx::query(statements.stored.remove.text())
                .bind(lease.row)
                .bind(&lease.token)
                .execute(&mut *conn)
                .await?;
        }
        Ok(())
    }

    async fn release(
        conn: &mut SqliteConnection,
        statements: &SqliteStatements,
        lease: &Lease,
        delay: Duration,
    ) -> Result<(), sqlx::Error> {
        sqlx::query(statements.stored.release.text())
            .bind(lease.row)
            .bind(&lease.token)
            .bind(seconds(delay))
            .execute(conn)
            .await?;
        Ok(())
    }
}

/// SQLite counts in milliseconds. As text, because it writes a number of a fraction in its own way.
fn seconds(duration: Duration) -> String {
    format!("{:.3}", duration.as_secs_f64())
}

fn leased(row: &SqliteRow, token: &str, is_taken_over: bool) -> Result<LeasedMessage, sqlx::Error> {
    let document: String = row.try_get(4)?;
    let payload: Vec<u8> = row.try_get(5)?;
    let payload = Bytes::from(payload);
    Ok(LeasedMessage {
        lease: Lease {
            row: row.try_get(0)?,
            token: token.to_owned(),
        },
        consumer: row.try_get(1)?,
        message_id: row.try_get(2)?,
        source: row.try_get(3)?,
        envelope: Envelope::from_document(&document, payload.clone()),
        payload,
        is_taken_over,
    })
}
