use std::time::Duration;

use bytes::Bytes;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Postgres, Row as _};

use super::PostgresStatements;
use super::pooler::OneSession;
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
    lease: Statement,
    next_due: Statement,
    remove: Statement,
    release: Statement,
}

impl StoredStatements {
    pub(super) fn new(messages: &str) -> Self {
        let after = |parameter: &str| format!("now() + {parameter} * interval '1 microsecond'");
        let part = |condition: &str, order: &str| {
            format!(
                "(SELECT id, status FROM {messages} WHERE {condition} AND consumer_name = ANY ($1) \
                 ORDER BY {order} LIMIT $5 FOR UPDATE SKIP LOCKED)"
            )
        };
        Self {
            waiting_payload: Statement::new(format!(
                "SELECT payload FROM {messages} WHERE message_id = $1 AND consumer_name = $2 AND status <> 'done'"
            )),
            store: Statement::new(format!(
                "INSERT INTO {messages} AS stored (consumer_name, message_id, source, headers, payload, next_attempt_at) \
                 VALUES ($1, $2, $3, $4, $5, {due}) ON CONFLICT (message_id, consumer_name) DO UPDATE SET \
                 status = 'pending', source = excluded.source, headers = excluded.headers, payload = excluded.payload, \
                 next_attempt_at = excluded.next_attempt_at, claimed_at = NULL, claimed_by = NULL, claim_token = NULL \
                 WHERE stored.status = 'done'",
                due = after("$6"),
            )),
            // Two indexes, one question each.
            lease: Statement::new(format!(
                "WITH pending AS {pending}, expired AS {expired}, \
                 due AS (SELECT * FROM expired UNION ALL SELECT * FROM pending LIMIT $5) \
                 UPDATE {messages} AS stored SET status = 'processing', claimed_at = now(), claimed_by = $2, \
                 claim_token = $3 FROM due WHERE stored.id = due.id RETURNING stored.id, stored.consumer_name, \
                 stored.message_id, stored.source, stored.headers, stored.payload, due.status = 'processing'",
                pending = part(
                    "status = 'pending' AND next_attempt_at <= now()",
                    "next_attempt_at"
                ),
                expired = part(
                    "status = 'processing' AND claimed_at < now() - $4 * interval '1 microsecond'",
                    "claimed_at"
                ),
            )),
            next_due: Statement::new(format!(
                "SELECT (extract(epoch FROM next_attempt_at - clock_timestamp()) * 1000000)::bigint FROM {messages} \
                 WHERE status = 'pending' AND consumer_name = ANY ($1) ORDER BY next_attempt_at LIMIT 1"
            )),
            remove: Statement::new(format!(
                "DELETE FROM {messages} AS stored USING unnest($1::bigint[], $2::text[]) AS done (id, token) \
                 WHERE stored.id = done.id AND stored.claim_token = done.token"
            )),
            release: Statement::new(format!(
                "UPDATE {messages} SET status = 'pending', claimed_at = NULL, claimed_by = NULL, claim_token = NULL, \
                 next_attempt_at = {due} WHERE id = $1 AND claim_token = $2",
                due = after("$3"),
            )),
        }
    }
}

impl MessageStore for Postgres {
    async fn store_message(
        conn: &mut PgConnection,
        statements: &PostgresStatements,
        message: &WaitingMessage<'_>,
        delay: Duration,
    ) -> Result<(), sqlx::Error> {
        sqlx::query(statements.stored.store.text())
            .bind(message.key.consumer)
            .bind(message.key.message_id)
            .bind(message.source)
            .bind(message.envelope.to_document())
            .bind(&*message.envelope.payload)
            .bind(microseconds(delay))
            .execute(conn)
            .await?;
        Ok(())
    }

    async fn waiting_payload(
        conn: &mut PgConnection,
        statements: &PostgresStatements,
        key: ClaimKey<'_>,
    ) -> Result<Option<Vec<u8>>, sqlx::Error> {
        sqlx::query_scalar(statements.stored.waiting_payload.text())
            .bind(key.message_id)
            .bind(key.consumer)
            .fetch_optional(conn)
            .await
    }

    async fn lease(
        conn: &mut PgConnection,
        statements: &PostgresStatements,
        terms: &LeaseTerms<'_>,
    ) -> Result<Vec<LeasedMessage>, sqlx::Error> {
        let token = new_token();
        let mut conn = OneSession::of(conn, statements).await?;
        let rows = sqlx::query(statements.stored.lease.text())
            .bind(terms.consumers)
            .bind(terms.worker)
            .bind(&token)
            .bind(microseconds(terms.duration))
            .bind(i64::try_from(terms.most).unwrap_or(i64::MAX))
            .fetch_all(conn.get())
            .await?;
        conn.end().await?;
        rows.iter().map(|row| leased(row, &token)).collect()
    }

    async fn next_due(
        conn: &mut PgConnection,
        statements: &PostgresStatements,
        consumers: &[&str],
    ) -> Result<Option<Duration>, sqlx::Error> {
        let mut conn = OneSession::of(conn, statements).await?;
        let left: Option<i64> = sqlx::query_scalar(statements.stored.next_due.text())
            .bind(consumers)
            .fetch_optional(conn.get())
            .await?;
        conn.end().await?;
        Ok(left.map(remaining))
    }

    async fn remove(
        conn: &mut PgConnection,
        statements: &PostgresStatements,
        leases: &[Lease],
    ) -> Result<(), sqlx::Error> {
        let rows: Vec<i64> = leases.iter().map(|lease| lease.row).collect();
        let tokens: Vec<&str> = leases.iter().map(|lease| lease.token.as_str()).collect();
        let mut conn = OneSession::of(conn, statements).await?;
        sqlx::query(statements.stored.remove.text())
            .bind(rows)
            .bind(tokens)
            .execute(conn.get())
            .await?;
        conn.end().await
    }

    async fn release(
        conn: &mut PgConnection,
        statements: &PostgresStatements,
        lease: &Lease,
        delay: Duration,
    ) -> Result<(), sqlx::Error> {
        let mut conn = OneSession::of(conn, statements).await?;
        sqlx::query(statements.stored.release.text())
            .bind(lease.row)
            .bind(&lease.token)
            .bind(microseconds(delay))
            .execute(conn.get())
            .await?;
        conn.end().await
    }
}

fn leased(row: &PgRow, token: &str) -> Result<LeasedMessage, sqlx::Error> {
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
        is_taken_over: row.try_get(6)?,
    })
}
