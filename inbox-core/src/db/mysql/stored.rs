use std::time::Duration;

use bytes::Bytes;
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, MySql, Row as _};

use super::session::text_of;
use super::{MySqlStatements, write_hex};
use crate::db::stored::{
    Lease, LeaseTerms, LeasedMessage, MessageStore, WaitingMessage, microseconds, new_token,
    remaining,
};
use crate::db::{ClaimKey, Statement};
use crate::envelope::Envelope;

/// Texts about the table of messages that wait.
#[derive(Debug)]
pub(super) struct StoredStatements {
    store: Statement,
    waiting_payload: Statement,
    /// Before and after the list of consumers.
    lease_expired: (String, String),
    lease_pending: (String, String),
    next_due: (String, String),
    leased: Statement,
    remove: Statement,
    release: Statement,
}

impl StoredStatements {
    pub(super) fn new(messages: &str) -> Self {
        let now = "UTC_TIMESTAMP(6)";
        // One statement that commits by itself: a transaction on a session of the pool would stay open there when this
        // is dropped while it begins.
        let lease = |condition: &str, order: &str| {
            (
                format!(
                    "UPDATE {messages} AS stored JOIN (SELECT id FROM {messages} \
                     WHERE {condition} AND consumer_name IN ("
                ),
                format!(
                    ") ORDER BY {order} LIMIT ? FOR UPDATE SKIP LOCKED) AS due ON due.id = stored.id \
                     SET stored.status = 'processing', stored.claimed_at = {now}, stored.claimed_by = ?, \
                     stored.claim_token = ?"
                ),
            )
        };
        // The status last: the others look at it as it was.
        let again: Vec<String> = [
            ("source", "VALUES(source)"),
            ("headers", "VALUES(headers)"),
            ("payload", "VALUES(payload)"),
            ("next_attempt_at", "VALUES(next_attempt_at)"),
            ("claimed_at", "NULL"),
            ("claimed_by", "NULL"),
            ("claim_token", "NULL"),
            ("status", "'pending'"),
        ]
        .iter()
        .map(|(column, value)| format!("{column} = IF(status = 'done', {value}, {column})"))
        .collect();
        Self {
            waiting_payload: Statement::new(format!(
                "SELECT payload FROM {messages} WHERE message_id = ? AND consumer_name = ? AND status <> 'done'"
            )),
            store: Statement::new(format!(
                "INSERT INTO {messages} (consumer_name, message_id, source, headers, payload, next_attempt_at) \
                 VALUES (?, ?, ?, ?, ?, {now} + INTERVAL ? MICROSECOND) ON DUPLICATE KEY UPDATE {}",
                again.join(", ")
            )),
            lease_expired: lease(
                &format!("status = 'processing' AND claimed_at < {now} - INTERVAL ? MICROSECOND"),
                "claimed_at",
            ),
            // It takes as many values as the other one.
            lease_pending: lease(
                &format!("status = 'pending' AND next_attempt_at <= {now} AND ? IS NOT NULL"),
                "next_attempt_at",
            ),
            next_due: (
                format!(
                    "SELECT TIMESTAMPDIFF(MICROSECOND, {now}, next_attempt_at) FROM {messages} \
                     WHERE status = 'pending' AND consumer_name IN ("
                ),
                ") ORDER BY next_attempt_at LIMIT 1".to_owned(),
            ),
            leased: Statement::new(format!(
                "SELECT id, consumer_name, message_id, source, headers, payload FROM {messages} \
                 WHERE status = 'processing' AND claim_token = ? ORDER BY id"
            )),
            remove: Statement::new(format!(
                "DELETE FROM {messages} WHERE id = ? AND claim_token = ?"
            )),
            release: Statement::new(format!(
                "UPDATE {messages} SET status = 'pending', claimed_at = NULL, claimed_by = NULL, claim_token = NULL, \
                 next_attempt_at = {now} + INTERVAL ? MICROSECOND WHERE id = ? AND claim_token = ?"
            )),
        }
    }
}

/// A text with a list of consumers: always the same for one inbox, so that the driver prepares it once.
fn of_consumers((before, after): &(String, String), consumers: &[&str]) -> AssertSqlSafe<String> {
    let mut text = before.clone();
    for (position, consumer) in consumers.iter().enumerate() {
        text.push_str(if position == 0 { "X'" } else { ",X'" });
        write_hex(&mut text, consumer.as_bytes());
        text.push('\'');
    }
    if consumers.is_empty() {
        text.push_str("NULL");
    }
    text.push_str(after);
    AssertSqlSafe(text)
}

impl MessageStore for MySql {
    async fn store_message(
        conn: &mut MySqlConnection,
        statements: &MySqlStatements,
        message: &WaitingMessage<'_>,
        delay: Duration,
    ) -> Result<(), sqlx::Error> {
        sqlx::query(statements.stored.store.text())
            .bind(message.key.consumer.as_bytes())
            .bind(message.key.message_id.as_bytes())
            .bind(message.source)
            .bind(message.envelope.to_document())
            .bind(&*message.envelope.payload)
            .bind(microseconds(delay))
            .execute(conn)
            .await?;
        Ok(())
    }

    async fn waiting_payload(
        conn: &mut MySqlConnection,
        statements: &MySqlStatements,
        key: ClaimKey<'_>,
    ) -> Result<Option<Vec<u8>>, sqlx::Error> {
        sqlx::query_scalar(statements.stored.waiting_payload.text())
            .bind(key.message_id.as_bytes())
            .bind(key.consumer.as_bytes())
            .fetch_optional(conn)
            .await
    }

    async fn lease(
        conn: &mut MySqlConnection,
        statements: &MySqlStatements,
        terms: &LeaseTerms<'_>,
    ) -> Result<Vec<LeasedMessage>, sqlx::Error> {
        let stored = &statements.stored;
        let mut leased_messages = Vec::new();
        for (text, is_taken_over) in [
            (&stored.lease_expired, true),
            (&stored.lease_pending, false),
        ] {
            let token = new_token();
            let most = terms.most.saturating_sub(leased_messages.len());
            let taken = sqlx::query(of_consumers(text, terms.consumers))
                .bind(microseconds(terms.duration))
                .bind(u64::try_from(most).unwrap_or(u64::MAX))
                .bind(terms.worker)
                .bind(&token)
                .execute(&mut *conn)
                .await?;
            if taken.rows_affected() == 0 {
                continue;
            }
            let rows = sqlx::query(stored.leased.text())
                .bind(&token)
                .fetch_all(&mut *conn)
                .await?;
            for row in &rows {
                leased_messages.push(leased(row, &token, is_taken_over)?);
            }
        }
        Ok(leased_messages)
    }

    async fn next_due(
        conn: &mut MySqlConnection,
        statements: &MySqlStatements,
        consumers: &[&str],
    ) -> Result<Option<Duration>, sqlx::Error> {
        let text = of_consumers(&statements.stored.next_due, consumers);
        let left: Option<i64> = sqlx::query_scalar(text).fetch_optional(conn).await?;
        Ok(left.map(remaining))
    }

    async fn remove(
        conn: &mut MySqlConnection,
        statements: &MySqlStatements,
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
        conn: &mut MySqlConnection,
        statements: &MySqlStatements,
        lease: &Lease,
        delay: Duration,
    ) -> Result<(), sqlx::Error> {
        sqlx::query(statements.stored.release.text())
            .bind(microseconds(delay))
            .bind(lease.row)
            .bind(&lease.token)
            .execute(conn)
            .await?;
        Ok(())
    }
}

fn leased(row: &MySqlRow, token: &str, is_taken_over: bool) -> Result<LeasedMessage, sqlx::Error> {
    let document: String = row.try_get(4)?;
    let payload: Vec<u8> = row.try_get(5)?;
    let payload = Bytes::from(payload);
    Ok(LeasedMessage {
        lease: Lease {
            row: row.try_get(0)?,
            token: token.to_owned(),
        },
        consumer: text_of(row, 1)?.unwrap_or_default(),
        message_id: text_of(row, 2)?.unwrap_or_default(),
        source: row.try_get(3)?,
        envelope: Envelope::from_document(&document, payload.clone()),
        payload,
        is_taken_over,
    })
}
