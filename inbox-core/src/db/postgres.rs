//! PostgreSQL 13 and later.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use sqlx::postgres::{PgConnection, PgDatabaseError, PgRow, PgSeverity};
use sqlx::{AssertSqlSafe, Either, Executor as _, Postgres, Row as _};
use sqlx_core::transaction::TransactionManager;

use super::executor::executor_for_tx;
use super::{
    Claim, ClaimKey, Claimed, ErrorClass, Finding, InboxDatabase, Inspection, MigrationError,
    Requisites, Sealed, Statement, TraceOfClaim, driver_text, migrations, roll_back_all,
    schema_findings, uneven_depth,
};
use crate::dead_letter::{DeadLetter, ExistingEntry, FailureText};
use crate::handler::Isolation;
use crate::session::TransactionOptions;
use crate::tables::{Tables, quoted};

const MIGRATIONS: migrations::Published = &[(
    1,
    "inbox",
    include_str!("../../migrations/postgres/0001_inbox.sql"),
)];

/// How soon the server notices that the client of a running statement is gone.
const CONNECTION_CHECK: &str = "500ms";

/// Ends what a handler has left to its session and is no setting.
const DROP_LEFTOVERS: &str = "CLOSE ALL; UNLISTEN *; DISCARD TEMP";

type PgTransactionManager = <Postgres as sqlx::Database>::TransactionManager;

executor_for_tx!(Postgres);

impl super::sealed::Sealed for Postgres {}

/// Statement texts and settings of PostgreSQL, resolved at start-up.
#[derive(Debug)]
pub struct PostgresStatements {
    is_dead: Statement,
    payload_hash: Statement,
    trace: Statement,
    withdraw: Statement,
    dead_letter: Statement,
    dead_letter_beside: Statement,
    record_failure: Statement,
    /// What claim and fence run as prepared statements of the session.
    claim: String,
    fence: String,
    /// Brings back the role that may read the claims, which a handler may have left for a narrower one.
    own_role: String,
    /// States the durability of a commit, which a handler may have changed.
    durable: String,
    /// The text before and after the place of the claim's row.
    forget_failures: (String, String),
    /// Brings a session to the state in which every transaction of ours begins.
    settle_session: String,
    /// Brings a session back to the state in which the pool gave it to us.
    restore_session: String,
    /// The server's own limit on idle transactions, where it has one.
    idle_limit: Option<Duration>,
}

/// What a prepared PostgreSQL session knows besides its connection.
///
/// BEGIN and COMMIT travel in one query with what belongs to them, behind the driver's back. It counts one
/// transaction from [`prepare`](InboxDatabase::prepare) to [`reset`](InboxDatabase::reset), so that a handler's
/// savepoints are savepoints.
#[derive(Debug, Default)]
pub struct PostgresGuard {
    /// Whether a transaction may be open.
    is_open: bool,
    /// Claim and fence as this session has prepared them.
    prepared: Option<Prepared>,
    /// Where the claim's row lies (its `ctid`, digits and punctuation), by which the fence finds it.
    claim_row: String,
}

/// Names of statements that were prepared in SQL. Only so can they share a query with BEGIN and COMMIT; as plain
/// text they would cost more to plan than to run.
#[derive(Debug)]
struct Prepared {
    claim: String,
    fence: String,
}

impl InboxDatabase for Postgres {
    const MAX_CONCURRENCY: Option<usize> = None;
    const ISOLATION_LEVELS: &'static [Isolation] = &[
        Isolation::ReadCommitted,
        Isolation::RepeatableRead,
        Isolation::Serializable,
    ];

    type Statements = PostgresStatements;
    type Guard = PostgresGuard;

    async fn migrate(conn: &mut PgConnection, tables: &Tables) -> Result<(), MigrationError> {
        tables.check()?;
        let migrator = migrations::migrator(MIGRATIONS, tables, tables.schema_name());
        migrator.run_direct(None, conn, false).await?;
        Ok(())
    }

    async fn inspect(
        conn: &mut PgConnection,
        tables: &Tables,
        requisites: &Requisites,
    ) -> Result<Inspection<Self>, sqlx::Error> {
        let schema = resolve_schema(conn, tables).await?;
        let columns: Vec<(String, String)> = sqlx::query_as(
            "SELECT c.relname::text, a.attname::text FROM pg_class c \
             JOIN pg_namespace n ON n.oid = c.relnamespace \
             JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
             WHERE n.nspname = $1 AND c.relkind IN ('r', 'p')",
        )
        .bind(&schema)
        .fetch_all(&mut *conn)
        .await?;
        let mut findings = schema_findings(tables, |table| {
            columns
                .iter()
                .filter(|(t, _)| t == table)
                .map(|(_, column)| column.clone())
                .collect()
        });
        let effective = Effective::read(conn).await?;
        effective.judge(requisites, &mut findings);
        let checks_connection = effective.checks_connection(conn).await;
        if !checks_connection {
            findings.push(Finding::warning(
                "client_connection_check_interval cannot be set (it needs PostgreSQL 14 on Linux): a statement of a \
                 handler that was timed out keeps its locks until it ends by itself; set statement_timeout",
            ));
        }
        let statements = PostgresStatements::new(tables, &schema, &effective, checks_connection);
        Ok(Inspection {
            findings,
            statements,
        })
    }

    async fn prepare(
        conn: &mut PgConnection,
        statements: &PostgresStatements,
    ) -> Result<PostgresGuard, sqlx::Error> {
        // A transaction of its own: what it sets must survive a rollback of the first message's.
        let begin = format!("{}; BEGIN", statements.settle_session);
        PgTransactionManager::begin(conn, Some(driver_text(&begin.into()))).await?;
        run(conn, "COMMIT").await?;
        Ok(PostgresGuard::default())
    }

    async fn reset(
        conn: &mut PgConnection,
        statements: &PostgresStatements,
        guard: &mut PostgresGuard,
    ) -> Result<(), sqlx::Error> {
        let mut text = format!("BEGIN; {}; ", statements.restore_session);
        if let Some(Prepared { claim, fence }) = guard.prepared.take() {
            let _ = write!(text, "DEALLOCATE {claim}; DEALLOCATE {fence}; ");
        }
        // The driver shall count no transaction when the pool gets the connection back, and can be told so only
        // by a rollback.
        text.push_str("COMMIT; BEGIN");
        run(conn, text).await?;
        roll_back_all::<Self>(conn).await
    }

    fn interrupt(_guard: &PostgresGuard) {
        // Closing the connection ends the statement: `client_connection_check_interval` is set.
    }

    fn begin_text(statements: &PostgresStatements, options: &TransactionOptions) -> String {
        let idle = statements
            .idle_limit
            .map_or(options.idle_limit, |own| own.min(options.idle_limit));
        // The settings come before BEGIN and become part of the same transaction: whatever an earlier handler
        // changed in this session is gone before the claim. The rest would take a snapshot before BEGIN.
        format!(
            "{settle}; BEGIN ISOLATION LEVEL {level} READ WRITE; {DROP_LEFTOVERS}; SET LOCAL lock_timeout = {wait}; \
             SET LOCAL idle_in_transaction_session_timeout = {idle}",
            settle = statements.settle_session,
            level = options.isolation.as_sql(),
            wait = milliseconds(options.claim_wait),
            idle = milliseconds(idle),
        )
    }

    async fn claim(
        conn: &mut PgConnection,
        statements: &PostgresStatements,
        guard: &mut PostgresGuard,
        begin: &Arc<str>,
        claim: &Claim<'_>,
    ) -> Result<Claimed, sqlx::Error> {
        let prepared = match &guard.prepared {
            Some(prepared) => prepared,
            None => guard.prepared.insert(statements.prepare(conn).await?),
        };
        let text = claim_text(begin, &prepared.claim, claim);
        guard.is_open = true;
        let row = answer(conn, text).await?;
        let Some(row) = row else {
            return Ok(Claimed::Duplicate);
        };
        guard.claim_row = row.try_get(1)?;
        let attempts = count(row.try_get::<Option<i32>, _>(2)?);
        // A dead letter that was kept under a claim has a counted failure: new messages are spared the look.
        let dead = attempts > 0
            && sqlx::query_scalar(statements.is_dead.text())
                .bind(claim.key.message_id)
                .bind(claim.key.consumer)
                .fetch_one(conn)
                .await?;
        Ok(Claimed::Won {
            attempts,
            dead,
            mark: row.try_get(0)?,
        })
    }

    async fn begin(
        conn: &mut PgConnection,
        guard: &mut PostgresGuard,
        text: &Arc<str>,
    ) -> Result<(), sqlx::Error> {
        guard.is_open = true;
        run(conn, Arc::clone(text)).await
    }

    async fn seal(
        conn: &mut PgConnection,
        statements: &PostgresStatements,
        guard: &mut PostgresGuard,
        _key: ClaimKey<'_>,
        has_failures: bool,
    ) -> Sealed {
        if let Some(depth) = uneven_depth::<Self>(conn) {
            return Sealed::Uneven(depth);
        }
        let Some(prepared) = &guard.prepared else {
            return Sealed::Gone;
        };
        let text = statements.seal_text(&prepared.fence, &guard.claim_row, has_failures);
        // Each statement answers for itself, in order: the number of answers tells which one failed.
        let before_commit = if has_failures { 4 } else { 3 };
        let mut answered = 0;
        let mut answers =
            sqlx::Executor::fetch_many(&mut *conn, sqlx::raw_sql(AssertSqlSafe(text)));
        let error = loop {
            match answers.next().await {
                Some(Ok(Either::Left(_))) => answered += 1,
                Some(Ok(Either::Right(_))) => {}
                Some(Err(error)) => break Some(error),
                None => break None,
            }
        };
        drop(answers);
        let Some(error) = error else {
            guard.is_open = false;
            return Sealed::Committed;
        };
        let from_server = error.as_database_error().is_some();
        match answered {
            // Not even a server that went away ran COMMIT when the proof before it was not answered. Without a
            // word from the server it may have run all of it.
            0 | 1 if from_server => match sqlstate(&error).as_deref() {
                // in_failed_sql_transaction
                Some("25P02") => Sealed::Aborted,
                // division_by_zero: no such row, no proof
                Some("22012") => Sealed::Gone,
                _ => Sealed::Unproven(error),
            },
            n if n < before_commit && from_server => Sealed::Failed(error),
            n if n == before_commit && Self::is_known_rollback(&error) => {
                guard.is_open = false;
                Sealed::Refused(error)
            }
            _ => Sealed::Unknown(error),
        }
    }

    async fn commit(conn: &mut PgConnection, guard: &mut PostgresGuard) -> Result<(), sqlx::Error> {
        run(conn, "COMMIT").await?;
        guard.is_open = false;
        Ok(())
    }

    async fn roll_back(
        conn: &mut PgConnection,
        guard: &mut PostgresGuard,
    ) -> Result<(), sqlx::Error> {
        while PgTransactionManager::get_transaction_depth(conn) > 1 {
            PgTransactionManager::rollback(conn).await?;
        }
        if guard.is_open {
            run(conn, "ROLLBACK").await?;
            guard.is_open = false;
        }
        Ok(())
    }

    fn is_known_rollback(error: &sqlx::Error) -> bool {
        error
            .as_database_error()
            .and_then(|e| e.try_downcast_ref::<PgDatabaseError>())
            .is_some_and(|e| e.severity() == PgSeverity::Error)
    }

    async fn payload_hash(
        conn: &mut PgConnection,
        statements: &PostgresStatements,
        key: ClaimKey<'_>,
    ) -> Result<Option<Option<Vec<u8>>>, sqlx::Error> {
        let row: Option<PgRow> = sqlx::query(statements.payload_hash.text())
            .bind(key.message_id)
            .bind(key.consumer)
            .fetch_optional(conn)
            .await?;
        row.map(|row| row.try_get(0)).transpose()
    }

    async fn trace(
        conn: &mut PgConnection,
        statements: &PostgresStatements,
        key: ClaimKey<'_>,
        mark: Option<&str>,
    ) -> Result<TraceOfClaim, sqlx::Error> {
        // What the handler did to this session (a role without rights) must not hide the claim.
        settle(conn, statements).await?;
        let row = sqlx::query(statements.trace.text())
            .bind(key.message_id)
            .bind(key.consumer)
            .fetch_optional(conn)
            .await?;
        let Some(row) = row else {
            return Ok(TraceOfClaim::Absent);
        };
        let written_by: String = row.try_get(0)?;
        Ok(if mark.is_none_or(|mark| mark == written_by) {
            TraceOfClaim::Ours
        } else {
            TraceOfClaim::Foreign
        })
    }

    async fn withdraw_claim(
        conn: &mut PgConnection,
        statements: &PostgresStatements,
        key: ClaimKey<'_>,
    ) -> Result<(), sqlx::Error> {
        sqlx::query(statements.withdraw.text())
            .bind(key.message_id)
            .bind(key.consumer)
            .execute(conn)
            .await?;
        Ok(())
    }

    async fn store_dead_letter(
        conn: &mut PgConnection,
        statements: &PostgresStatements,
        letter: &DeadLetter<'_>,
        existing: ExistingEntry,
    ) -> Result<(), sqlx::Error> {
        let statement = match existing {
            ExistingEntry::Reopen => &statements.dead_letter,
            ExistingEntry::Leave => &statements.dead_letter_beside,
        };
        sqlx::query(statement.text())
            .bind(letter.entry_key())
            .bind(letter.source)
            .bind(letter.consumer)
            .bind(letter.storable_id())
            .bind(letter.storable_type())
            .bind(letter.handler)
            .bind(letter.reason.as_str())
            .bind(letter.text.as_str())
            .bind(i32::try_from(letter.attempts).unwrap_or(i32::MAX))
            .bind(letter.headers_document())
            .bind(&**letter.payload())
            .execute(conn)
            .await?;
        Ok(())
    }

    async fn record_failure(
        conn: &mut PgConnection,
        statements: &PostgresStatements,
        key: ClaimKey<'_>,
        failure: &FailureText,
    ) -> Result<u32, sqlx::Error> {
        let attempts: i32 = sqlx::query_scalar(statements.record_failure.text())
            .bind(key.message_id)
            .bind(key.consumer)
            .bind(failure.as_str())
            .fetch_one(conn)
            .await?;
        Ok(count(Some(attempts)))
    }

    fn classify(error: &sqlx::Error) -> ErrorClass {
        match error {
            sqlx::Error::Database(_) => match sqlstate(error).as_deref() {
                // serialization_failure, deadlock_detected, lock_not_available
                Some("40001" | "40P01" | "55P03") => ErrorClass::Transient,
                // idle_in_transaction_session_timeout, transaction_timeout, idle_session_timeout: what the
                // message's own slowness does to its connection.
                Some("25P03" | "25P04" | "57P05") => ErrorClass::Lost,
                // admin_shutdown, crash_shutdown, cannot_connect_now, database_dropped; insufficient resources;
                // connection exceptions; read_only_sql_transaction is judged where it happens.
                Some(code)
                    if code.starts_with("57P0")
                        || code.starts_with("53")
                        || code.starts_with("08") =>
                {
                    ErrorClass::Outage
                }
                _ => ErrorClass::Statement,
            },
            sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::Tls(_) => {
                ErrorClass::Outage
            }
            sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => {
                ErrorClass::Lost
            }
            _ => ErrorClass::Statement,
        }
    }
}

impl PostgresStatements {
    /// Prepares claim and fence in a session.
    ///
    /// Not when the session is taken from the pool: with the tables away it fails, and that is the claim's to tell.
    async fn prepare(&self, conn: &mut PgConnection) -> Result<Prepared, sqlx::Error> {
        // Names that no handler can have chosen.
        let nonce = fastrand::u64(..);
        let prepared = Prepared {
            claim: format!("inbox_claim_{nonce:016x}"),
            fence: format!("inbox_fence_{nonce:016x}"),
        };
        let text = format!(
            "PREPARE {} (text, text, text, text, text) AS {}; PREPARE {} (tid) AS {}",
            prepared.claim, self.claim, prepared.fence, self.fence
        );
        run(conn, text).await?;
        Ok(prepared)
    }

    /// Fence, durability, the forgetting of failures and COMMIT as one query.
    fn seal_text(&self, fence: &str, claim_row: &str, has_failures: bool) -> String {
        let mut text = String::with_capacity(384);
        text.extend([&self.own_role, "; EXECUTE ", fence, "('", claim_row]);
        text.extend(["'); ", &self.durable]);
        if has_failures {
            let (before, after) = &self.forget_failures;
            text.extend([before, claim_row, after]);
        }
        text.push_str("COMMIT");
        text
    }

    fn new(tables: &Tables, schema: &str, effective: &Effective, checks_connection: bool) -> Self {
        let qualified = |name: &str| format!("{}.{}", quoted(schema), quoted(name));
        let processed = qualified(tables.processed_name());
        let dead_letters = qualified(tables.dead_letters_name());
        let attempts = qualified(tables.attempts_name());
        let key = "message_id = $1 AND consumer_name = $2";

        let restored = restore(effective);
        let mut settle_session = format!("{restored}; SET default_transaction_read_only = on");
        if checks_connection {
            let _ = write!(
                settle_session,
                "; SET client_connection_check_interval = '{CONNECTION_CHECK}'"
            );
        }
        // Prepared statements stay, the driver knows them.
        let restore_session = format!(
            "{restored}; {DROP_LEFTOVERS}; SELECT pg_advisory_unlock_all(); DISCARD SEQUENCES"
        );
        let keep_dead_letter = format!(
            "INSERT INTO {dead_letters} AS entry (entry_key, source, consumer_name, message_id, message_type, \
                 handler, reason, failure, attempts, headers, payload, first_failed_at) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, \
                 COALESCE((SELECT first_failed_at FROM {attempts} WHERE message_id = $4 AND consumer_name = $3), now()))"
        );
        Self {
            // The lock timeout is for the claim alone and ends with it (a duplicate ends the transaction).
            // Advisory locks that a handler left to its session would stay for as long as the worker has work.
            claim: format!(
                "INSERT INTO {processed} (message_id, consumer_name, message_type, correlation_id, payload_hash) \
                 VALUES ({id}, {consumer}, {message_type}, {correlation_id}, decode($5, 'hex')) \
                 ON CONFLICT (message_id, consumer_name) DO NOTHING \
                 RETURNING xmin::text, ctid::text, \
                 (SELECT attempts FROM {attempts} WHERE message_id = {id} AND consumer_name = {consumer}), \
                 set_config('lock_timeout', '{lock_timeout}', true), pg_advisory_unlock_all()",
                id = from_hex(1),
                consumer = from_hex(2),
                message_type = from_hex(3),
                correlation_id = from_hex(4),
                lock_timeout = effective.lock_timeout,
            ),
            is_dead: Statement::new(format!(
                "SELECT EXISTS (SELECT 1 FROM {dead_letters} WHERE {key} AND replayed_at IS NULL)"
            )),
            // The row is there, in the version that this very transaction made; nothing else answers 1.
            fence: format!(
                "SELECT 1 / count(*) FROM {processed} WHERE ctid = $1 AND xmin = pg_current_xact_id()::xid"
            ),
            own_role: effective.own_role.clone(),
            durable: format!(
                "SET LOCAL synchronous_commit = {}; ",
                literal(&effective.synchronous_commit)
            ),
            forget_failures: (
                format!(
                    "DELETE FROM {attempts} AS counted USING {processed} AS claimed \
                     WHERE (counted.message_id, counted.consumer_name) = (claimed.message_id, claimed.consumer_name) \
                     AND claimed.ctid = '"
                ),
                "'; ".to_owned(),
            ),
            payload_hash: Statement::new(format!(
                "SELECT payload_hash FROM {processed} WHERE {key}"
            )),
            trace: Statement::new(format!("SELECT xmin::text FROM {processed} WHERE {key}")),
            withdraw: Statement::new(format!("DELETE FROM {processed} WHERE {key}")),
            dead_letter: Statement::new(format!(
                "{keep_dead_letter} \
                 ON CONFLICT (entry_key) DO UPDATE SET replayed_at = NULL, reason = excluded.reason, \
                 failure = excluded.failure, handler = excluded.handler, \
                 attempts = greatest(entry.attempts, excluded.attempts), last_failed_at = now()"
            )),
            dead_letter_beside: Statement::new(format!(
                "{keep_dead_letter} ON CONFLICT (entry_key) DO NOTHING"
            )),
            record_failure: Statement::new(format!(
                "INSERT INTO {attempts} AS counted (message_id, consumer_name, attempts, last_failure) \
                 VALUES ($1, $2, 1, $3) ON CONFLICT (message_id, consumer_name) DO UPDATE SET \
                 attempts = counted.attempts + 1, last_failed_at = now(), last_failure = excluded.last_failure \
                 RETURNING attempts"
            )),
            settle_session,
            restore_session,
            idle_limit: effective.idle_limit,
        }
    }
}

/// Parameter `n` of a statement, text that arrives as hex: digits mean the same whatever a handler did to the
/// session's settings, and can be nothing but data.
fn from_hex(n: usize) -> String {
    format!("convert_from(decode(${n}, 'hex'), 'UTF8')")
}

/// BEGIN and the claim as one query.
fn claim_text(begin: &str, statement: &str, claim: &Claim<'_>) -> String {
    let mut text = String::with_capacity(begin.len() + 512);
    text.extend([begin, "; EXECUTE ", statement, "("]);
    for part in [
        Some(claim.key.message_id.as_bytes()),
        Some(claim.key.consumer.as_bytes()),
        claim.message_type.as_deref().map(str::as_bytes),
        claim.correlation_id.as_deref().map(str::as_bytes),
        Some(claim.payload_hash.as_bytes()),
    ] {
        match part {
            Some(bytes) => {
                text.push('\'');
                for byte in bytes {
                    let _ = write!(text, "{byte:02x}");
                }
                text.push_str("',");
            }
            None => text.push_str("NULL,"),
        }
    }
    text.pop();
    text.push(')');
    text
}

/// Runs a text of ours that is one query to the server.
async fn run(conn: &mut PgConnection, text: impl Into<Arc<str>>) -> Result<(), sqlx::Error> {
    conn.execute(sqlx::raw_sql(AssertSqlSafe(text.into())))
        .await?;
    Ok(())
}

/// Runs a text of ours to its end, and answers the row of its last statement.
async fn answer(conn: &mut PgConnection, text: String) -> Result<Option<PgRow>, sqlx::Error> {
    let mut answers = sqlx::Executor::fetch_many(conn, sqlx::raw_sql(AssertSqlSafe(text)));
    let mut row = None;
    while let Some(answer) = answers.next().await {
        if let Either::Right(found) = answer? {
            row = Some(found);
        }
    }
    Ok(row)
}

/// Brings a session to the state in which every transaction of ours begins.
async fn settle(
    conn: &mut PgConnection,
    statements: &PostgresStatements,
) -> Result<(), sqlx::Error> {
    run(conn, statements.settle_session.as_str()).await
}

/// Brings settings and role back to what they were when the pool handed the session out.
///
/// Only a superuser can have changed the user of its session, and looking users up costs.
fn restore(effective: &Effective) -> String {
    let user = if effective.is_superuser {
        "SET SESSION AUTHORIZATION DEFAULT; "
    } else {
        ""
    };
    format!(
        "RESET ALL; {user}{}{}",
        effective.own_role, effective.own_settings
    )
}

/// The settings of a session as the pool hands it out.
struct Effective {
    synchronous_commit: String,
    fsync: String,
    lock_timeout: String,
    idle_limit: Option<Duration>,
    prepared_transactions: i64,
    in_recovery: bool,
    version: i64,
    encoding: String,
    is_superuser: bool,
    /// The statement that brings back the role that the application's pool sets on its sessions, or none.
    own_role: String,
    /// `; SET a = b; ..` for what the application's pool sets on its sessions.
    own_settings: String,
}

impl Effective {
    async fn read(conn: &mut PgConnection) -> Result<Self, sqlx::Error> {
        let row = sqlx::query(
            "SELECT current_setting('synchronous_commit'), current_setting('fsync'), current_setting('lock_timeout'), \
             (SELECT setting::bigint FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'), \
             current_setting('max_prepared_transactions')::bigint, pg_is_in_recovery(), \
             current_setting('server_version_num')::bigint, current_setting('role'), current_setting('server_encoding'), \
             (SELECT rolsuper FROM pg_roles WHERE rolname = session_user)",
        )
        .fetch_one(&mut *conn)
        .await?;
        let own: Vec<(String, String)> =
            sqlx::query_as("SELECT name, current_setting(name) FROM pg_settings WHERE source = 'session' ORDER BY name")
                .fetch_all(&mut *conn)
                .await?;
        let mut own_settings = String::new();
        for (name, value) in own {
            if is_list_setting(&name) {
                // The value is a list of quoted names already.
                let _ = write!(
                    own_settings,
                    "; SET {} = {}",
                    quoted(&name),
                    if value.is_empty() { "''" } else { &value }
                );
            } else {
                let _ = write!(
                    own_settings,
                    "; SET {} = {}",
                    setting_name(&name),
                    literal(&value)
                );
            }
        }
        let role: String = row.try_get(7)?;
        let own_role = if role == "none" {
            "RESET ROLE".to_owned()
        } else {
            format!("SET ROLE {}", quoted(&role))
        };
        let idle: i64 = row.try_get(3)?;
        Ok(Self {
            synchronous_commit: row.try_get(0)?,
            fsync: row.try_get(1)?,
            lock_timeout: row.try_get(2)?,
            idle_limit: u64::try_from(idle)
                .ok()
                .filter(|ms| *ms > 0)
                .map(Duration::from_millis),
            prepared_transactions: row.try_get(4)?,
            in_recovery: row.try_get(5)?,
            version: row.try_get(6)?,
            encoding: row.try_get(8)?,
            is_superuser: row.try_get(9)?,
            own_role,
            own_settings,
        })
    }

    fn judge(&self, requisites: &Requisites, findings: &mut Vec<Finding>) {
        if self.version < 130_000 {
            findings.push(Finding::problem(format!(
                "the server's version is {}: PostgreSQL 13 or later is needed",
                self.version
            )));
        }
        if self.encoding != "UTF8" {
            findings.push(Finding::problem(format!(
                "the database's encoding is {}: ids and types are any Unicode text, so it must be UTF8",
                self.encoding
            )));
        }
        if self.in_recovery {
            findings.push(Finding::problem(
                "the server is a standby in recovery: connect the pool to the primary, the claim is a write",
            ));
        }
        if matches!(self.synchronous_commit.as_str(), "off") {
            findings.push(Finding::warning(
                "synchronous_commit = off: a crash of the server can lose a commit after its message was acked; \
                 set it to on",
            ));
        }
        if self.fsync == "off" {
            findings.push(Finding::warning(
                "fsync = off: a power cut can lose a commit after its message was acked; set it to on",
            ));
        }
        if self.prepared_transactions > 0 {
            findings.push(Finding::warning(format!(
                "max_prepared_transactions = {}: a handler that runs PREPARE TRANSACTION keeps its claim locked; \
                 set it to 0 unless something else needs it",
                self.prepared_transactions
            )));
        }
        if let Some(limit) = self
            .idle_limit
            .filter(|limit| *limit < requisites.longest_handler)
        {
            findings.push(Finding::warning(format!(
                "idle_in_transaction_session_timeout = {} ms is shorter than the longest handler timeout of {} ms: \
                 a handler that waits for something else than the database is cut off earlier",
                limit.as_millis(),
                requisites.longest_handler.as_millis()
            )));
        }
    }

    /// Whether the server can notice a client that left while a statement runs.
    async fn checks_connection(&self, conn: &mut PgConnection) -> bool {
        if self.version < 140_000 {
            return false;
        }
        let set = format!(
            "BEGIN; SET LOCAL client_connection_check_interval = '{CONNECTION_CHECK}'; ROLLBACK"
        );
        let supported = conn
            .execute(sqlx::raw_sql(AssertSqlSafe(set)))
            .await
            .is_ok();
        if !supported {
            // The failed text left the session in an aborted transaction that the driver does not know of.
            let _ = conn.execute(sqlx::raw_sql("ROLLBACK")).await;
        }
        supported
    }
}

/// The schema that holds the tables: the one asked for, else where the session's search path finds them, else
/// where the search path would create them.
async fn resolve_schema(conn: &mut PgConnection, tables: &Tables) -> Result<String, sqlx::Error> {
    if let Some(schema) = tables.schema_name() {
        return Ok(schema.to_owned());
    }
    let found: Option<String> = sqlx::query_scalar(
        "SELECT COALESCE((SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.oid = to_regclass($1)), current_schema()::text)",
    )
    .bind(quoted(tables.processed_name()))
    .fetch_one(conn)
    .await?;
    Ok(found.unwrap_or_else(|| "public".to_owned()))
}

/// Settings whose value is a list of names, which a quoted literal would turn into one name.
fn is_list_setting(name: &str) -> bool {
    matches!(
        name,
        "search_path"
            | "DateStyle"
            | "local_preload_libraries"
            | "session_preload_libraries"
            | "temp_tablespaces"
    )
}

/// A setting's name for SET: an extension's has a dot between two names.
fn setting_name(name: &str) -> String {
    name.split('.').map(quoted).collect::<Vec<_>>().join(".")
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn milliseconds(duration: Duration) -> u64 {
    // Zero means "no limit" to the server.
    u64::try_from(duration.as_millis())
        .unwrap_or(u64::MAX)
        .clamp(1, i32::MAX as u64)
}

fn count(attempts: Option<i32>) -> u32 {
    attempts.and_then(|n| u32::try_from(n).ok()).unwrap_or(0)
}

fn sqlstate(error: &sqlx::Error) -> Option<std::borrow::Cow<'_, str>> {
    error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code)
}
