//! PostgreSQL 13 and later.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use sqlx::postgres::{PgConnection, PgDatabaseError, PgRow, PgSeverity};
use sqlx::{AssertSqlSafe, Connection as _, Either, Executor as _, Pool, Postgres, Row as _};
use sqlx_core::transaction::TransactionManager;

use self::dead_letters::DeadLetterStatements;
use super::executor::executor_for_tx;
use super::{
    BESIDE_PAYLOAD, Claim, ClaimKey, Claimed, Claims, Counted, Dialect, Done, ErrorClass, Existing,
    Finding, InboxDatabase, Inspection, Interruption, Kept, MigrationError, Requisites, Sealed,
    Statement, TraceOfClaim, driver_text, level, migrations, next_step, roll_back_all,
    schema_findings, uneven_depth,
};
use crate::dead_letter::{DeadLetterReason, FailureText};
use crate::handler::Isolation;
use crate::session::TransactionOptions;
use crate::tables::{Tables, quoted};

mod dead_letters;
mod pooler;
mod retention;

const MIGRATIONS: migrations::Published = &[
    (
        1,
        "inbox",
        include_str!("../../../migrations/postgres/0001_inbox.sql"),
    ),
    (
        2,
        "messages",
        include_str!("../../../migrations/postgres/0002_messages.sql"),
    ),
];

/// How soon the server notices that the client of a running statement is gone.
const CONNECTION_CHECK: &str = "500ms";

/// Ends what a handler has left to its session and is no setting.
const DROP_LEFTOVERS: &str = "CLOSE ALL; UNLISTEN *; DISCARD TEMP";

/// Answers a row, after a while, when the transaction is still open. A prepared one may be so for ever.
const AWAIT_END: &str = "SELECT pg_catalog.pg_sleep(0.02) FROM pg_catalog.pg_locks \
     WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted AND transactionid::text = $1 \
     AND pid IS NOT NULL";

mod stored;

type PgTransactionManager = <Postgres as sqlx::Database>::TransactionManager;

executor_for_tx!(Postgres);

impl super::sealed::Sealed for Postgres {}

impl Dialect for Postgres {
    type Statements = PostgresStatements;
}

/// Statement texts and settings of PostgreSQL, resolved at start-up.
#[derive(Debug)]
pub struct PostgresStatements {
    trace: Statement,
    withdraw: Statement,
    /// The text around id, consumer and nonce that withdraws a claim and answers where it was.
    withdraw_step: (String, &'static str, &'static str),
    dead_letters: DeadLetterStatements,
    record_failure: Statement,
    record_start: Statement,
    forget_start: Statement,
    stored: stored::StoredStatements,
    /// What claim and fence run as prepared statements of the session.
    claim: String,
    claim_many: String,
    fence: String,
    fence_many: String,
    existing: String,
    /// The lock timeout of a session as the pool hands it out.
    lock_timeout: String,
    /// Brings back the role that may read the claims, which a handler may have left for a narrower one.
    own_role: String,
    /// States the durability of a commit, which a handler may have changed.
    durable: String,
    /// States that a commit also waits for all commits before it.
    flushing: String,
    /// The text before and after the place of the claim's row.
    forget_failures: (String, String),
    /// Brings a session to the state in which every transaction of ours begins.
    settle_session: String,
    /// Brings a session back to the state in which the pool gave it to us.
    restore_session: String,
    /// The server's own limit on idle transactions, where it has one.
    idle_limit: Option<Duration>,
    /// Whether each transaction may have another session of the server.
    behind_pooler: bool,
    retention: retention::RetentionStatements,
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
    /// Whether the transaction that settled the session is committed. Until the first query of ours it is not, which
    /// saves a round trip.
    is_settled: bool,
    /// Whether each transaction may have another session of the server: nothing prepared is there in the next one,
    /// unless that began together with the end of this one.
    behind_pooler: bool,
    prepared: Prepared,
    /// Where the claims' rows lie (an array of their `ctid`s, digits and punctuation), by which the fence finds
    /// them.
    claim_rows: String,
    /// The savepoint of the message in work, where each has one.
    step: Option<String>,
}

impl PostgresGuard {
    /// Before a transaction that does not begin with the end of another one.
    fn may_have_moved(&mut self) {
        if self.behind_pooler {
            self.prepared = Prepared::default();
        }
    }
}

/// What a session runs as prepared statements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Query {
    Claim,
    ClaimMany,
    Fence,
    FenceMany,
    Existing,
}

impl Query {
    const ALL: [Self; 5] = [
        Self::Claim,
        Self::ClaimMany,
        Self::Fence,
        Self::FenceMany,
        Self::Existing,
    ];

    /// What has to be there for claims of so many messages, and for their end.
    const fn of_claims(messages: usize) -> &'static [Self] {
        if messages == 1 {
            &[Self::Claim, Self::Fence]
        } else {
            // One of many may be won.
            &[Self::ClaimMany, Self::Fence, Self::FenceMany]
        }
    }

    /// For people who look at the server's log.
    const fn word(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::ClaimMany => "claim_many",
            Self::Fence => "fence",
            Self::FenceMany => "fence_many",
            Self::Existing => "existing",
        }
    }

    /// Qualified, for a search path of a handler may still be in force.
    const fn parameters(self) -> &'static str {
        match self {
            Self::Claim => concat!(
                "pg_catalog.text, pg_catalog.text, pg_catalog.text, ",
                "pg_catalog.text, pg_catalog.text, pg_catalog.text"
            ),
            Self::ClaimMany => concat!(
                "pg_catalog.text[], pg_catalog.text[], pg_catalog.text[], ",
                "pg_catalog.text[], pg_catalog.text[], pg_catalog.text"
            ),
            Self::Fence => "pg_catalog.tid, pg_catalog.text, pg_catalog.text, pg_catalog.text",
            Self::FenceMany => {
                "pg_catalog.tid[], pg_catalog.text[], pg_catalog.text, pg_catalog.text"
            }
            Self::Existing => "pg_catalog.text[], pg_catalog.text, pg_catalog.text",
        }
    }
}

/// The statements that a session has prepared in SQL, by their names. Only so can they share a query with BEGIN and
/// COMMIT; as plain text they would cost more to plan than to run.
#[derive(Debug, Default)]
struct Prepared([Option<String>; Query::ALL.len()]);

impl Prepared {
    fn name(&self, query: Query) -> Result<&str, sqlx::Error> {
        self.0[query as usize].as_deref().ok_or_else(|| {
            sqlx::Error::Protocol("the session has not prepared its statements".to_owned())
        })
    }

    /// Adds a PREPARE for each that is not there yet, under a name that no handler can have chosen. Answers which.
    fn write_missing(
        &mut self,
        text: &mut String,
        statements: &PostgresStatements,
        wanted: &[Query],
    ) -> Vec<Query> {
        let mut missing = Vec::new();
        for query in wanted {
            let name = &mut self.0[*query as usize];
            if name.is_none() {
                let new = format!("inbox_{}_{:016x}", query.word(), fastrand::u64(..));
                let _ = write!(
                    text,
                    "PREPARE {new} ({}) AS {}; ",
                    query.parameters(),
                    statements.query(*query)
                );
                *name = Some(new);
                missing.push(*query);
            }
        }
        missing
    }

    /// Of these it is not known whether they are there: they get new names.
    fn forget(&mut self, queries: &[Query]) {
        for query in queries {
            self.0[*query as usize] = None;
        }
    }
}

impl InboxDatabase for Postgres {
    const MAX_CONCURRENCY: Option<usize> = None;
    const ISOLATION_LEVELS: &'static [Isolation] = &[
        Isolation::ReadCommitted,
        Isolation::RepeatableRead,
        Isolation::Serializable,
    ];

    const COMMITS_ASYNCHRONOUSLY: bool = true;

    type Guard = PostgresGuard;

    async fn migrate(conn: &mut PgConnection, tables: &Tables) -> Result<(), MigrationError> {
        tables.check()?;
        let migrator = migrations::migrator(MIGRATIONS, tables, tables.schema_name(), quoted);
        migrator.run_direct(None, conn, false).await?;
        Ok(())
    }

    async fn inspect(
        conn: &mut PgConnection,
        tables: &Tables,
        requisites: &Requisites,
    ) -> Result<Inspection<Self>, sqlx::Error> {
        pooler::check(conn, requisites.behind_pooler).await?;
        // All in one transaction: behind a pooler, what the driver prepares is gone after it.
        let mut tx = conn.begin().await?;
        let schema = resolve_schema(&mut tx, tables).await?;
        let columns: Vec<(String, String)> = sqlx::query_as(
            "SELECT c.relname::text, a.attname::text FROM pg_class c \
             JOIN pg_namespace n ON n.oid = c.relnamespace \
             JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
             WHERE n.nspname = $1 AND c.relkind IN ('r', 'p')",
        )
        .bind(&schema)
        .fetch_all(&mut *tx)
        .await?;
        let effective = Effective::read(&mut tx).await?;
        tx.rollback().await?;
        let mut findings = schema_findings(tables, |table| {
            columns
                .iter()
                .filter(|(t, _)| t == table)
                .map(|(_, column)| column.clone())
                .collect()
        });
        effective.judge(requisites, &mut findings);
        if requisites.behind_pooler {
            findings.extend(pooler::cache_finding(conn));
        }
        let checks_connection = effective.checks_connection(conn).await;
        if !checks_connection {
            findings.push(Finding::warning(
                "client_connection_check_interval cannot be set (it needs PostgreSQL 14 on Linux): a statement of a \
                 handler that was timed out keeps its locks until it ends by itself; set statement_timeout",
            ));
        }
        let mut statements =
            PostgresStatements::new(tables, &schema, &effective, checks_connection);
        statements.behind_pooler = requisites.behind_pooler;
        Ok(Inspection {
            findings,
            statements,
            largest_payload: ((1 << 30) - BESIDE_PAYLOAD, "the largest value of a column"),
        })
    }

    async fn share_sessions(pool: &sqlx::PgPool) -> Result<bool, sqlx::Error> {
        pooler::share_sessions(pool).await
    }

    async fn prepare(
        conn: &mut PgConnection,
        _pool: &Pool<Self>,
        statements: &PostgresStatements,
    ) -> Result<PostgresGuard, sqlx::Error> {
        // A transaction of its own: what it sets must survive a rollback of the first message's.
        let begin = format!("{}; BEGIN", statements.settle_session);
        PgTransactionManager::begin(conn, Some(driver_text(&begin.into()))).await?;
        Ok(PostgresGuard {
            is_open: true,
            behind_pooler: statements.behind_pooler,
            ..PostgresGuard::default()
        })
    }

    async fn reset(
        conn: &mut PgConnection,
        statements: &PostgresStatements,
        guard: &mut PostgresGuard,
    ) -> Result<(), sqlx::Error> {
        level::<Self>(conn)?;
        guard.may_have_moved();
        let mut text = String::with_capacity(512);
        if guard.is_settled {
            text.push_str("BEGIN; ");
        }
        text.extend([&statements.restore_session, "; "]);
        for name in guard.prepared.0.iter_mut().filter_map(Option::take) {
            let _ = write!(text, "DEALLOCATE {name}; ");
        }
        // The driver shall count no transaction when the pool gets the connection back, and can be told so only
        // by a rollback.
        text.push_str("COMMIT; BEGIN");
        run(conn, text).await?;
        roll_back_all::<Self>(conn).await
    }

    fn interrupt(_guard: &PostgresGuard) -> Option<Interruption> {
        // Closing the connection ends the statement: `client_connection_check_interval` is set.
        None
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
        claims: &Claims<'_>,
    ) -> Result<Vec<Claimed>, sqlx::Error> {
        level::<Self>(conn)?;
        guard.may_have_moved();
        let mut text = String::with_capacity(1024);
        let nonce = Nonce::new();
        let preparing = statements.write_claims(&mut text, guard, claims, &nonce);
        guard.is_open = true;
        let answers = Answers::of(conn, text).await;
        preparing.judge(guard, answers.completed);
        match answers.error {
            None => PostgresStatements::judge_claims(guard, claims, &nonce, &answers.rows),
            Some(error) => Err(error),
        }
    }

    async fn begin(
        conn: &mut PgConnection,
        guard: &mut PostgresGuard,
        text: &Arc<str>,
    ) -> Result<(), sqlx::Error> {
        level::<Self>(conn)?;
        guard.may_have_moved();
        let text = if guard.is_settled {
            Arc::clone(text)
        } else {
            format!("COMMIT; {text}").into()
        };
        guard.is_open = true;
        run(conn, text).await?;
        guard.is_settled = true;
        Ok(())
    }

    async fn seal(
        conn: &mut PgConnection,
        statements: &PostgresStatements,
        guard: &mut PostgresGuard,
        done: &Done<'_>,
        next: Option<&Claims<'_>>,
    ) -> (Sealed, Option<Result<Vec<Claimed>, sqlx::Error>>) {
        if let Some(depth) = uneven_depth::<Self>(conn) {
            return (Sealed::Uneven(depth), None);
        }
        let mut text = String::with_capacity(1536);
        let nonce = Nonce::new();
        let Ok(to_commit) = statements.write_seal(&mut text, guard, done, &nonce) else {
            return (Sealed::Gone, None);
        };
        let preparing = next.map(|claims| {
            text.push_str("; ");
            statements.write_claims(&mut text, guard, claims, &nonce)
        });
        let mut answers = Answers::of(conn, text).await;
        if let Some(preparing) = preparing {
            preparing.judge(guard, answers.completed.saturating_sub(to_commit));
        }
        // When a handler leaves a COPY half-read, the driver takes its leftovers for answers to what comes after. The
        // fence's answer, and its place, say that these are ours.
        let is_proven = answers.rows_before.starts_with(&[0, 1])
            && answers.rows.first().and_then(|row| nonce.answer(row)) == Some("1");
        if answers.completed > 1 && !is_proven {
            return (Sealed::Garbled, None);
        }
        if answers.completed < to_commit {
            let sealed = match answers.error {
                Some(error) => statements.not_committed(guard, answers.completed, to_commit, error),
                None => Sealed::Garbled,
            };
            return (sealed, None);
        }
        // COMMIT was answered: whatever comes behind it belongs to what follows.
        guard.is_open = next.is_some();
        let rows = answers.rows.split_off(1);
        let claimed = PostgresStatements::judge_next(guard, next, &nonce, &rows, answers.error);
        (Sealed::Committed, claimed)
    }

    async fn step(conn: &mut PgConnection, guard: &mut PostgresGuard) -> Result<(), sqlx::Error> {
        run(conn, next_step(&mut guard.step)).await
    }

    async fn take_back(
        conn: &mut PgConnection,
        statements: &PostgresStatements,
        guard: &mut PostgresGuard,
        key: ClaimKey<'_>,
    ) -> Result<(), sqlx::Error> {
        let step = guard.step.as_deref().unwrap_or_default();
        let nonce = Nonce::new();
        let mut text = format!("ROLLBACK TO SAVEPOINT {step}; {}; ", statements.own_role);
        let (before, between, after) = &statements.withdraw_step;
        text.push_str(before);
        write_hex(&mut text, key.message_id.as_bytes());
        text.push_str(between);
        write_hex(&mut text, key.consumer.as_bytes());
        text.extend([after, nonce.as_str(), "', ctid)"]);
        let answers = Answers::of(conn, text).await;
        if let Some(error) = answers.error {
            return Err(error);
        }
        let [row] = answers.rows.as_slice() else {
            return Err(garbled());
        };
        // The fence proves the others alone.
        let place = format!("\"{}\"", nonce.answer(row).ok_or_else(garbled)?);
        let mut rest = String::with_capacity(guard.claim_rows.len());
        rest.push('{');
        let places = guard.claim_rows.trim_matches(['{', '}']);
        for other in places.split_inclusive(")\"") {
            let other = other.trim_start_matches(',');
            if other != place {
                if rest.len() > 1 {
                    rest.push(',');
                }
                rest.push_str(other);
            }
        }
        rest.push('}');
        guard.claim_rows = rest;
        Ok(())
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
        level::<Self>(conn)?;
        if !guard.is_settled {
            // With this transaction goes what keeps a handler in its own.
            return Err(sqlx::Error::Protocol(
                "the session could not be settled".to_owned(),
            ));
        }
        if guard.is_open {
            // What follows on this session must get its own answers, and find the prepared statements that driver and
            // session know: a handler can have dropped them.
            let nonce = Nonce::new();
            let mut text = format!("ROLLBACK; SELECT '{}'", nonce.as_str());
            if let Ok(fence) = guard.prepared.name(Query::Fence) {
                text.extend([" WHERE 1 OPERATOR(pg_catalog.=) ", &counted(fence)]);
            }
            let answers = Answers::of(conn, text).await;
            if let Some(error) = answers.error {
                return Err(error);
            }
            if !nonce.is_sole_answer(&answers.rows) {
                return Err(garbled());
            }
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

    async fn existing(
        conn: &mut PgConnection,
        statements: &PostgresStatements,
        guard: &mut PostgresGuard,
        keys: &[ClaimKey<'_>],
    ) -> Result<Vec<Existing>, sqlx::Error> {
        let nonce = Nonce::new();
        let mut text = String::with_capacity(256);
        let preparing = statements.write_existing(&mut text, guard, keys, &nonce)?;
        let answers = Answers::of(conn, text).await;
        preparing.judge(guard, answers.completed);
        match answers.error {
            None => judge_existing(&answers.rows, keys, &nonce),
            Some(error) => Err(error),
        }
    }

    async fn dismiss(
        conn: &mut PgConnection,
        statements: &PostgresStatements,
        guard: &mut PostgresGuard,
        keys: &[ClaimKey<'_>],
        next: Option<&Claims<'_>>,
    ) -> Result<(Vec<Existing>, Option<Result<Vec<Claimed>, sqlx::Error>>), sqlx::Error> {
        level::<Self>(conn)?;
        let nonce = Nonce::new();
        let mut text = String::with_capacity(1536);
        let preparing = statements.write_existing(&mut text, guard, keys, &nonce)?;
        text.push_str("; ROLLBACK");
        let preparing_next = next.map(|claims| {
            text.push_str("; ");
            statements.write_claims(&mut text, guard, claims, &nonce)
        });
        let mut answers = Answers::of(conn, text).await;
        preparing.judge(guard, answers.completed);
        // One answer with a row for each key, and ROLLBACK's.
        let before = preparing.statements;
        let to_roll_back = before + 2;
        if let Some(preparing) = preparing_next {
            preparing.judge(guard, answers.completed.saturating_sub(to_roll_back));
        }
        if answers.rows_before.get(before..to_roll_back) != Some(&[keys.len(), keys.len()]) {
            return Err(answers.error.unwrap_or_else(garbled));
        }
        guard.is_open = next.is_some();
        let rows = answers.rows.split_off(keys.len());
        let existing = judge_existing(&answers.rows, keys, &nonce)?;
        let claimed = PostgresStatements::judge_next(guard, next, &nonce, &rows, answers.error);
        Ok((existing, claimed))
    }

    async fn flush(
        conn: &mut PgConnection,
        statements: &PostgresStatements,
        guard: &mut PostgresGuard,
    ) -> Result<(), sqlx::Error> {
        level::<Self>(conn)?;
        let nonce = Nonce::new();
        // A prepared statement proves that the session is the one that committed: behind a pooler, or after a restart
        // of the server, there is none of its name. A record of the log belongs to a transaction, whose commit waits
        // for everything logged before it.
        let text = format!(
            "{settle}; BEGIN READ WRITE; {durable}SELECT '{nonce}' FROM pg_catalog.pg_logical_emit_message(true, 'inbox', '') \
             WHERE 1 OPERATOR(pg_catalog.=) (1 OPERATOR(pg_catalog./) {counted}); COMMIT",
            settle = statements.settle_session,
            durable = statements.flushing,
            counted = counted(guard.prepared.name(Query::Fence)?),
            nonce = nonce.as_str(),
        );
        guard.is_open = true;
        let answers = Answers::of(conn, text).await;
        if let Some(error) = answers.error {
            return Err(error);
        }
        if !nonce.is_sole_answer(&answers.rows) {
            return Err(garbled());
        }
        guard.is_open = false;
        Ok(())
    }

    async fn trace(
        conn: &mut PgConnection,
        statements: &PostgresStatements,
        key: ClaimKey<'_>,
        mark: Option<&str>,
    ) -> Result<TraceOfClaim, sqlx::Error> {
        // What the handler did to this session (a role without rights) must not hide the claim.
        settle(conn, statements).await?;
        if statements.behind_pooler {
            run(conn, "BEGIN").await?;
        }
        // Closing a connection does not end its transaction at once, and until then its COMMIT may still come.
        while let Some(mark) = mark
            && sqlx::query(AWAIT_END)
                .bind(mark)
                .fetch_optional(&mut *conn)
                .await?
                .is_some()
        {}
        let row = sqlx::query(statements.trace.text())
            .bind(key.message_id)
            .bind(key.consumer)
            .fetch_optional(&mut *conn)
            .await?;
        if statements.behind_pooler {
            run(conn, "COMMIT").await?;
        }
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

    async fn record_failure(
        conn: &mut PgConnection,
        statements: &PostgresStatements,
        key: ClaimKey<'_>,
        failure: &FailureText,
        ends_start: bool,
    ) -> Result<u32, sqlx::Error> {
        let all: i32 = sqlx::query_scalar(statements.record_failure.text())
            .bind(key.message_id)
            .bind(key.consumer)
            .bind(failure.as_str())
            .bind(i32::from(ends_start))
            .fetch_one(conn)
            .await?;
        Ok(count(all))
    }

    async fn record_start(
        conn: &mut PgConnection,
        statements: &PostgresStatements,
        key: ClaimKey<'_>,
        below: Option<u32>,
    ) -> Result<Option<Counted>, sqlx::Error> {
        let row: Option<(i32, i32)> = sqlx::query_as(statements.record_start.text())
            .bind(key.message_id)
            .bind(key.consumer)
            .bind(below.map(|below| i32::try_from(below).unwrap_or(i32::MAX)))
            .fetch_optional(conn)
            .await?;
        Ok(row.map(|(attempts, starts)| Counted::new(count(attempts), count(starts))))
    }

    async fn forget_start(
        conn: &mut PgConnection,
        statements: &PostgresStatements,
        key: ClaimKey<'_>,
    ) -> Result<(), sqlx::Error> {
        sqlx::query(statements.forget_start.text())
            .bind(key.message_id)
            .bind(key.consumer)
            .execute(conn)
            .await?;
        Ok(())
    }

    fn classify(error: &sqlx::Error) -> ErrorClass {
        match error {
            sqlx::Error::Database(_) => match sqlstate(error).as_deref() {
                // serialization_failure, deadlock_detected, lock_not_available
                Some("40001" | "40P01" | "55P03") => ErrorClass::Transient,
                // idle_in_transaction_session_timeout, transaction_timeout, idle_session_timeout: what the
                // message's own slowness does to its connection.
                Some("25P03" | "25P04" | "57P05") => ErrorClass::Lost,
                // configuration_limit_exceeded (temp_file_limit): what this message asks for is too much.
                Some("53400") => ErrorClass::Statement,
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
    const fn query(&self, query: Query) -> &String {
        match query {
            Query::Claim => &self.claim,
            Query::ClaimMany => &self.claim_many,
            Query::Fence => &self.fence,
            Query::FenceMany => &self.fence_many,
            Query::Existing => &self.existing,
        }
    }

    /// Adds the question for what is there under keys of one consumer.
    fn write_existing(
        &self,
        text: &mut String,
        guard: &mut PostgresGuard,
        keys: &[ClaimKey<'_>],
        nonce: &Nonce,
    ) -> Result<Preparing, sqlx::Error> {
        let queries = guard.prepared.write_missing(text, self, &[Query::Existing]);
        let preparing = Preparing {
            statements: queries.len(),
            queries,
            settles: false,
        };
        text.extend(["EXECUTE ", guard.prepared.name(Query::Existing)?, "('"]);
        write_hex_array(text, keys.iter().map(|key| Some(key.message_id.as_bytes())));
        text.push_str("','");
        if let Some(key) = keys.first() {
            write_hex(text, key.consumer.as_bytes());
        }
        text.extend(["','", nonce.as_str(), "')"]);
        Ok(preparing)
    }

    /// Adds fence, durability, the forgetting of failures and COMMIT. Answers how many statements they are.
    fn write_seal(
        &self,
        text: &mut String,
        guard: &PostgresGuard,
        done: &Done<'_>,
        nonce: &Nonce,
    ) -> Result<usize, sqlx::Error> {
        text.extend([&self.own_role, "; EXECUTE "]);
        if let [key] = done.keys {
            let row = guard.claim_rows.trim_matches(['{', '"', '}']);
            text.extend([guard.prepared.name(Query::Fence)?, "('", row, "','"]);
            write_hex(text, key.message_id.as_bytes());
        } else {
            let fence = guard.prepared.name(Query::FenceMany)?;
            text.extend([fence, "('", &guard.claim_rows, "','"]);
            let ids = done.keys.iter().map(|key| Some(key.message_id.as_bytes()));
            write_hex_array(text, ids);
        }
        text.push_str("','");
        if let Some(key) = done.keys.first() {
            write_hex(text, key.consumer.as_bytes());
        }
        text.extend(["','", nonce.as_str(), "'); "]);
        text.push_str(if done.is_durable {
            &self.durable
        } else {
            "SET LOCAL synchronous_commit = off; "
        });
        if done.have_failures {
            let (before, after) = &self.forget_failures;
            text.extend([before.as_str(), &guard.claim_rows, after]);
        }
        text.push_str("COMMIT");
        Ok(if done.have_failures { 5 } else { 4 })
    }

    /// Adds BEGIN and the claims, and before them what the session has not prepared yet.
    ///
    /// Not when the session is taken from the pool: with the tables away it fails, and that is the claim's to tell.
    fn write_claims(
        &self,
        text: &mut String,
        guard: &mut PostgresGuard,
        claims: &Claims<'_>,
        nonce: &Nonce,
    ) -> Preparing {
        let start = text.len();
        let wanted = Query::of_claims(claims.claims.len());
        let queries = guard.prepared.write_missing(text, self, wanted);
        let settles = !guard.is_settled;
        let mut statements = queries.len();
        if settles || !queries.is_empty() {
            // In a transaction of their own: a snapshot before BEGIN would fix the isolation level.
            text.push_str("COMMIT; ");
            statements += 1;
            if !settles {
                // The role of a handler may see no schema.
                text.insert_str(start, &format!("{}; BEGIN; ", self.own_role));
                statements += 2;
            }
        }
        let preparing = Preparing {
            queries,
            statements,
            settles,
        };
        let name = |query| guard.prepared.name(query).unwrap_or_default();
        text.extend([claims.begin, "; EXECUTE "]);
        if let [claim] = claims.claims {
            text.extend([name(Query::Claim), "("]);
            for part in claim_parts(claim) {
                match part {
                    Some(bytes) => {
                        text.push('\'');
                        write_hex(text, bytes);
                        text.push_str("',");
                    }
                    None => text.push_str("NULL,"),
                }
            }
            text.extend(["'", nonce.as_str(), "')"]);
            return preparing;
        }
        text.extend([name(Query::ClaimMany), "("]);
        for part in 0..CLAIM_PARTS {
            text.push('\'');
            write_hex_array(
                text,
                claims.claims.iter().map(|claim| claim_parts(claim)[part]),
            );
            text.push_str("',");
        }
        // Not in the claim: it would be changed between two of them.
        text.extend([
            "'",
            nonce.as_str(),
            "'); SET LOCAL lock_timeout = ",
            &self.lock_timeout,
        ]);
        preparing
    }

    /// What came of the claims behind the end of a transaction: an error of theirs is theirs alone.
    fn judge_next(
        guard: &mut PostgresGuard,
        next: Option<&Claims<'_>>,
        nonce: &Nonce,
        rows: &[PgRow],
        error: Option<sqlx::Error>,
    ) -> Option<Result<Vec<Claimed>, sqlx::Error>> {
        let claims = next?;
        Some(match error {
            Some(error) => Err(error),
            None => Self::judge_claims(guard, claims, nonce, rows),
        })
    }

    /// What the rows of the claims say: one row for each that was won, in their order.
    fn judge_claims(
        guard: &mut PostgresGuard,
        claims: &Claims<'_>,
        nonce: &Nonce,
        rows: &[PgRow],
    ) -> Result<Vec<Claimed>, sqlx::Error> {
        guard.step = None;
        guard.claim_rows.clear();
        guard.claim_rows.push('{');
        let mut answers = Vec::with_capacity(claims.claims.len());
        let mut rows = rows.iter().peekable();
        let mut id = String::with_capacity(128);
        for claim in claims.claims {
            id.clear();
            write_hex(&mut id, claim.key.message_id.as_bytes());
            let Some(row) = rows.peek() else {
                answers.push(Claimed::Duplicate);
                continue;
            };
            let mut parts = nonce.answer(row).ok_or_else(garbled)?.split(' ');
            if parts.next() != Some(&id) {
                answers.push(Claimed::Duplicate);
                continue;
            }
            rows.next();
            let (Some(place), Some(mark), Some(attempts), Some(is_dead), Some(is_parked)) = (
                parts.next(),
                parts.next(),
                parts.next(),
                parts.next(),
                parts.next(),
            ) else {
                return Err(garbled());
            };
            if guard.claim_rows.len() > 1 {
                guard.claim_rows.push(',');
            }
            guard.claim_rows.extend(["\"", place, "\""]);
            let counted = counted_of(attempts).ok_or_else(garbled)?;
            answers.push(Claimed::Won {
                counted,
                kept: Kept::of(is_dead == "1", is_parked == "1"),
                mark: Some(mark.to_owned()),
            });
        }
        guard.claim_rows.push('}');
        match rows.next() {
            None => Ok(answers),
            Some(_) => Err(garbled()),
        }
    }

    /// What became of a transaction whose COMMIT was not answered: each statement before it answers for itself, so
    /// the number of answers tells which one failed.
    fn not_committed(
        &self,
        guard: &mut PostgresGuard,
        answered: usize,
        to_commit: usize,
        error: sqlx::Error,
    ) -> Sealed {
        let from_server = error.as_database_error().is_some();
        match answered {
            // Not even a server that went away ran COMMIT when the proof before it was not answered. Without a
            // word from the server it may have run all of it.
            0 | 1 if from_server => match sqlstate(&error).as_deref() {
                // in_failed_sql_transaction
                Some("25P02") => Sealed::Aborted,
                // division_by_zero: no such row, no proof
                Some("22012") => Sealed::Gone,
                Some(KEPT) => Sealed::Kept,
                // invalid_sql_statement_name: this is another session, so the transaction has ended
                Some("26000") if guard.behind_pooler => Sealed::Gone,
                _ => Sealed::Unproven(error),
            },
            // The claim is in this transaction, so it could write: only its handler can have ended that. The same
            // goes for a statement timeout.
            n if n + 1 < to_commit
                && matches!(sqlstate(&error).as_deref(), Some("25006" | "57014")) =>
            {
                Sealed::Unproven(error)
            }
            n if n + 1 < to_commit && from_server => Sealed::Failed(error),
            n if n + 1 == to_commit && Postgres::is_known_rollback(&error) => {
                guard.is_open = false;
                Sealed::Refused(error)
            }
            _ => Sealed::Unknown(error),
        }
    }

    fn new(tables: &Tables, schema: &str, effective: &Effective, checks_connection: bool) -> Self {
        let qualified = |name: &str| format!("{}.{}", quoted(schema), quoted(name));
        let processed = qualified(tables.processed_name());
        let dead_letters = qualified(tables.dead_letters_name());
        let attempts = qualified(tables.attempts_name());
        let messages = qualified(tables.messages_name());
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
        let same = "kept.message_id OPERATOR(pg_catalog.=) claimed.message_id \
             AND kept.consumer_name OPERATOR(pg_catalog.=) claimed.consumer_name";
        let is_dead = format!(
            "SELECT FROM {dead_letters} AS kept WHERE {same} AND kept.replayed_at IS NULL \
             AND kept.reason OPERATOR(pg_catalog.<>) ALL ('{{{escaped},{collision}}}'::pg_catalog.text[])",
            escaped = DeadLetterReason::Escaped,
            collision = DeadLetterReason::Collision,
        );
        let insert = format!(
            "INSERT INTO {processed} AS claimed (message_id, consumer_name, message_type, correlation_id, payload_hash)"
        );
        // Advisory locks that a handler left to its session would stay for as long as the worker has work.
        let won = format!(
            "ON CONFLICT (message_id, consumer_name) DO NOTHING \
             RETURNING pg_catalog.concat_ws(' ', $6, {id}, claimed.ctid, claimed.xmin, \
             COALESCE((SELECT pg_catalog.concat(counted.attempts, '+', counted.starts) FROM {attempts} AS counted \
             WHERE (counted.message_id, counted.consumer_name) = (claimed.message_id, claimed.consumer_name)), '0+0'), \
             (EXISTS ({is_dead}))::pg_catalog.int4, (EXISTS (SELECT FROM {messages} AS kept WHERE {same} \
             AND kept.status OPERATOR(pg_catalog.<>) 'done'))::pg_catalog.int4, pg_catalog.pg_advisory_unlock_all()",
            id = to_hex("claimed.message_id"),
        );
        // The rows are there, in the versions that this very transaction made; nothing else answers 1. Names are
        // qualified: a handler's search path is still in force.
        //
        // A claim that had to wait for the transaction in which a dead letter was kept did not see that letter: for the
        // claim's snapshot is from before its wait. The fence sees it, and fails in another way (KEPT).
        let fence = |all: &str, places: &str, ids: &str| {
            format!(
                "SELECT pg_catalog.concat_ws(' ', $4, 1 OPERATOR(pg_catalog./) {all}, NULLIF(pg_catalog.substr('', 1, \
                 (0 OPERATOR(pg_catalog.-) pg_catalog.count(*) FILTER (WHERE EXISTS ({is_dead})))::pg_catalog.int4), '')) \
                 FROM {processed} AS claimed WHERE claimed.ctid OPERATOR(pg_catalog.=) {places} \
                 AND claimed.xmin OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id()::pg_catalog.xid \
                 AND {id} OPERATOR(pg_catalog.=) {ids} AND {consumer} OPERATOR(pg_catalog.=) $3",
                id = to_hex("claimed.message_id"),
                consumer = to_hex("claimed.consumer_name"),
            )
        };
        Self {
            // The lock timeout is for the claim alone and ends with it (a duplicate ends the transaction).
            claim: format!(
                "{insert} VALUES ({id}, {consumer}, {message_type}, {correlation_id}, {payload_hash}) {won}, \
                     pg_catalog.set_config('lock_timeout', {lock_timeout}, true))",
                id = from_hex("$1"),
                consumer = from_hex("$2"),
                message_type = from_hex("$3"),
                correlation_id = from_hex("$4"),
                payload_hash = "pg_catalog.decode($5, 'hex')",
                lock_timeout = literal(&effective.lock_timeout),
            ),
            claim_many: format!(
                "{insert} SELECT {id}, {consumer}, {message_type}, {correlation_id}, {payload_hash} \
                     FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3), \
                     pg_catalog.unnest($4), pg_catalog.unnest($5)) AS claim (id, consumer, type, correlation, hash) \
                     ORDER BY claim.id COLLATE pg_catalog.\"C\" {won})",
                id = from_hex("claim.id"),
                consumer = from_hex("claim.consumer"),
                message_type = from_hex("claim.type"),
                correlation_id = from_hex("claim.correlation"),
                payload_hash = "pg_catalog.decode(claim.hash, 'hex')",
            ),
            lock_timeout: literal(&effective.lock_timeout),
            // For one row alone, because the planner takes an array for many and would plan anew each time.
            fence: fence("pg_catalog.count(*)", "$1", "$2"),
            fence_many: fence(
                "(pg_catalog.count(*) OPERATOR(pg_catalog.=) pg_catalog.cardinality($1))::pg_catalog.int4",
                "ANY ($1)",
                "ANY ($2)",
            ),
            existing: format!(
                "SELECT pg_catalog.concat_ws(' ', $3, (claimed.message_id IS NOT NULL)::pg_catalog.int4, \
                     pg_catalog.encode(claimed.payload_hash, 'hex')) \
                     FROM pg_catalog.unnest($1) WITH ORDINALITY AS asked (id, place) \
                     LEFT JOIN {processed} AS claimed ON claimed.message_id OPERATOR(pg_catalog.=) {id} \
                     AND claimed.consumer_name OPERATOR(pg_catalog.=) {consumer} ORDER BY asked.place",
                id = from_hex("asked.id"),
                consumer = from_hex("$2"),
            ),
            own_role: effective.own_role.clone(),
            durable: synchronous_commit(&effective.synchronous_commit),
            flushing: synchronous_commit(match effective.synchronous_commit.as_str() {
                "off" => "on",
                other => other,
            }),
            forget_failures: (
                format!(
                    "DELETE FROM {attempts} AS counted USING {processed} AS claimed \
                     WHERE (counted.message_id, counted.consumer_name) = (claimed.message_id, claimed.consumer_name) \
                     AND claimed.ctid = ANY ('"
                ),
                "'::tid[]); ".to_owned(),
            ),
            trace: Statement::new(format!("SELECT xmin::text FROM {processed} WHERE {key}")),
            withdraw: Statement::new(format!("DELETE FROM {processed} WHERE {key}")),
            withdraw_step: (
                format!(
                    "DELETE FROM {processed} WHERE (message_id, consumer_name) OPERATOR(pg_catalog.=) \
                     (pg_catalog.convert_from(pg_catalog.decode('"
                ),
                "', 'hex'), 'UTF8'::pg_catalog.name), pg_catalog.convert_from(pg_catalog.decode('",
                "', 'hex'), 'UTF8'::pg_catalog.name)) RETURNING pg_catalog.concat_ws(' ', '",
            ),
            dead_letters: DeadLetterStatements::new(tables, schema),
            record_failure: Statement::new(format!(
                "INSERT INTO {attempts} AS counted (message_id, consumer_name, attempts, last_failure) \
                 VALUES ($1, $2, 1, $3) ON CONFLICT (message_id, consumer_name) DO UPDATE SET \
                 attempts = counted.attempts + 1, starts = greatest(counted.starts - $4, 0), last_failed_at = now(), \
                 last_failure = excluded.last_failure RETURNING attempts + starts"
            )),
            record_start: Statement::new(format!(
                "INSERT INTO {attempts} AS counted (message_id, consumer_name, attempts, starts, last_failure) \
                 SELECT $1, $2, 0, 1, '' WHERE $3::integer IS NULL OR $3 > 1 \
                 ON CONFLICT (message_id, consumer_name) DO UPDATE SET starts = counted.starts + 1, last_failed_at = now() \
                 WHERE $3::integer IS NULL OR (counted.starts = 0 AND counted.attempts + 1 < $3) \
                 RETURNING attempts, starts"
            )),
            forget_start: Statement::new(format!(
                "WITH ended AS (DELETE FROM {attempts} WHERE {key} AND attempts = 0 AND starts <= 1) \
                 UPDATE {attempts} SET starts = greatest(starts - 1, 0) WHERE {key} AND (attempts > 0 OR starts > 1)"
            )),
            stored: stored::StoredStatements::new(&messages),
            settle_session,
            restore_session,
            idle_limit: effective.idle_limit,
            behind_pooler: false,
            retention: retention::RetentionStatements::new(
                &processed,
                &attempts,
                &dead_letters,
                &messages,
            ),
        }
    }
}

/// How many prepared statements of this name the session has, as SQL: one, or none.
fn counted(name: &str) -> String {
    format!(
        "(SELECT pg_catalog.count(*) FROM pg_catalog.pg_prepared_statements \
         WHERE name OPERATOR(pg_catalog.=) '{name}')"
    )
}

/// Text that arrives as hex: digits mean the same whatever a handler did to the session's settings, and can be
/// nothing but data.
fn from_hex(value: &str) -> String {
    format!("pg_catalog.convert_from(pg_catalog.decode({value}, 'hex'), 'UTF8'::pg_catalog.name)")
}

fn to_hex(value: &str) -> String {
    format!("pg_catalog.encode(pg_catalog.convert_to({value}, 'UTF8'::pg_catalog.name), 'hex')")
}

fn write_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from_digit(digit.into(), 16).unwrap_or_default());
        }
    }
}

/// An array of at least one text.
fn write_hex_array<'a>(text: &mut String, elements: impl Iterator<Item = Option<&'a [u8]>>) {
    text.push('{');
    for element in elements {
        match element {
            Some(bytes) => {
                text.push('"');
                write_hex(text, bytes);
                text.push_str("\",");
            }
            None => text.push_str("NULL,"),
        }
    }
    text.pop();
    text.push('}');
}

const CLAIM_PARTS: usize = 5;

/// What a claim is made of, in the order of the statements' parameters.
fn claim_parts<'a>(claim: &'a Claim<'_>) -> [Option<&'a [u8]>; CLAIM_PARTS] {
    [
        Some(claim.key.message_id.as_bytes()),
        Some(claim.key.consumer.as_bytes()),
        claim.message_type.as_deref().map(str::as_bytes),
        claim.correlation_id.as_deref().map(str::as_bytes),
        Some(claim.payload_hash.as_bytes()),
    ]
}

fn synchronous_commit(level: &str) -> String {
    format!("SET LOCAL synchronous_commit = {}; ", literal(level))
}

/// What the rows say: one for each key, in their order.
fn judge_existing(
    rows: &[PgRow],
    keys: &[ClaimKey<'_>],
    nonce: &Nonce,
) -> Result<Vec<Existing>, sqlx::Error> {
    if rows.len() != keys.len() {
        return Err(garbled());
    }
    let existing = |row: &PgRow| {
        let told = nonce.answer(row).ok_or_else(garbled)?;
        let (is_there, hash) = told.split_once(' ').unwrap_or((told, ""));
        Ok(match is_there {
            "1" => Existing::Claim {
                payload_hash: (!hash.is_empty()).then(|| bytes_of_hex(hash)),
            },
            "0" => Existing::Absent,
            _ => return Err(garbled()),
        })
    };
    rows.iter().map(existing).collect()
}

fn bytes_of_hex(text: &str) -> Vec<u8> {
    let digit = |digit: &u8| char::from(*digit).to_digit(16).unwrap_or_default() as u8;
    let byte = |pair: &[u8]| pair.iter().fold(0, |byte, next| byte << 4 | digit(next));
    text.as_bytes().chunks(2).map(byte).collect()
}

/// What a text prepares before it comes to its own matter.
#[derive(Debug)]
struct Preparing {
    queries: Vec<Query>,
    /// How many statements that takes.
    statements: usize,
    /// Whether it commits what has settled the session.
    settles: bool,
}

impl Preparing {
    /// Notes how far it came.
    fn judge(&self, guard: &mut PostgresGuard, completed: usize) {
        if completed < self.statements {
            guard.prepared.forget(&self.queries);
        } else if self.settles {
            guard.is_settled = true;
        }
    }
}

/// A word that only the answer to this very text can contain. Answers are one column that begins with it.
struct Nonce([u8; 16]);

impl Nonce {
    fn new() -> Self {
        Self(std::array::from_fn(|_| {
            b"0123456789abcdef"[fastrand::usize(..16)]
        }))
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// What a row says, if it is an answer to this.
    fn answer<'r>(&self, row: &'r PgRow) -> Option<&'r str> {
        let told: &str = row.try_get(0).ok()?;
        let told = told.strip_prefix(self.as_str())?;
        Some(told.strip_prefix(' ').unwrap_or(told))
    }

    /// Whether one row came, and it is an answer to this.
    fn is_sole_answer(&self, rows: &[PgRow]) -> bool {
        matches!(rows, [row] if self.answer(row).is_some())
    }
}

/// substring_error, by which the fence tells of an open dead letter under an id.
const KEPT: &str = "22011";

fn garbled() -> sqlx::Error {
    sqlx::Error::Protocol(
        "the answer belongs to something else: a statement of a handler (COPY) was left half-read"
            .to_owned(),
    )
}

/// The server's answers to a text of several statements.
struct Answers {
    /// How many statements it completed.
    completed: usize,
    rows: Vec<PgRow>,
    /// How many of the rows had come when each statement was completed.
    rows_before: Vec<usize>,
    /// What ended the text early.
    error: Option<sqlx::Error>,
}

impl Answers {
    /// Runs a text of ours to its end.
    async fn of(conn: &mut PgConnection, text: String) -> Self {
        let mut answers = Self {
            completed: 0,
            rows: Vec::new(),
            rows_before: Vec::with_capacity(24),
            error: None,
        };
        let mut stream = sqlx::Executor::fetch_many(conn, sqlx::raw_sql(AssertSqlSafe(text)));
        while let Some(answer) = stream.next().await {
            match answer {
                Ok(Either::Left(_)) => {
                    answers.completed += 1;
                    answers.rows_before.push(answers.rows.len());
                }
                Ok(Either::Right(row)) => answers.rows.push(row),
                Err(error) => {
                    answers.error = Some(error);
                    break;
                }
            }
        }
        answers
    }
}

/// Runs a text of ours that is one query to the server.
async fn run(conn: &mut PgConnection, text: impl Into<Arc<str>>) -> Result<(), sqlx::Error> {
    conn.execute(sqlx::raw_sql(AssertSqlSafe(text.into())))
        .await?;
    Ok(())
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
    let quoted = text.replace('\'', "''");
    if quoted.contains('\\') {
        // The same whatever standard_conforming_strings says.
        format!("E'{}'", quoted.replace('\\', "\\\\"))
    } else {
        format!("'{quoted}'")
    }
}

fn milliseconds(duration: Duration) -> u64 {
    // Zero means "no limit" to the server.
    u64::try_from(duration.as_millis())
        .unwrap_or(u64::MAX)
        .clamp(1, i32::MAX as u64)
}

fn count(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// `attempts+starts`.
fn counted_of(text: &str) -> Option<Counted> {
    let (attempts, starts) = text.split_once('+')?;
    Some(Counted::new(attempts.parse().ok()?, starts.parse().ok()?))
}

fn sqlstate(error: &sqlx::Error) -> Option<std::borrow::Cow<'_, str>> {
    error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code)
}

#[cfg(test)]
mod tests;
