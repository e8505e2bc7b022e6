//! SQLite: one writer, a file, `BEGIN IMMEDIATE`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, Pool, Row as _, Sqlite};
use sqlx_core::transaction::TransactionManager;

use self::dead_letters::DeadLetterStatements;
use super::dead_letters::{DeadLetterStore as _, holds};
use super::executor::executor_for_tx;
use super::{
    BESIDE_PAYLOAD, Claim, ClaimKey, Claimed, Claims, Counted, Dialect, Done, ErrorClass, Existing,
    Finding, InboxDatabase, Inspection, Interruption, Kept, MigrationError, Requisites, Sealed,
    Statement, TraceOfClaim, driver_text, migrations, next_step, roll_back_all, schema_findings,
    uneven_depth,
};
use crate::dead_letter::FailureText;
use crate::handler::Isolation;
use crate::session::TransactionOptions;
use crate::tables::{Tables, quoted};

mod dead_letters;
mod retention;

const MIGRATIONS: migrations::Published = &[
    (
        1,
        "inbox",
        include_str!("../../../migrations/sqlite/0001_inbox.sql"),
    ),
    (
        2,
        "messages",
        include_str!("../../../migrations/sqlite/0002_messages.sql"),
    ),
];

/// After how many instructions of its virtual machine SQLite asks whether to go on: some microseconds.
const PROGRESS_STEP: i32 = 1000;

mod stored;

type SqliteTransactionManager = <Sqlite as sqlx::Database>::TransactionManager;

executor_for_tx!(Sqlite);

impl super::sealed::Sealed for Sqlite {}

impl Dialect for Sqlite {
    type Statements = SqliteStatements;
}

/// Statement texts of SQLite, resolved at start-up.
#[derive(Debug)]
pub struct SqliteStatements {
    claims: ForMany,
    payload_hashes: ForMany,
    count_claims: ForMany,
    trace: Statement,
    withdraw: Statement,
    dead_letters: DeadLetterStatements,
    record_failure: Statement,
    record_start: Statement,
    forget_start: Statement,
    forget_only_start: Statement,
    stored: stored::StoredStatements,
    claim_wait: Duration,
    retention: retention::RetentionStatements,
}

/// What the hooks of a prepared SQLite session look at.
#[derive(Debug)]
pub struct SqliteGuard {
    /// Set while a COMMIT of ours runs: any other commit on this session is turned into a rollback.
    armed: Arc<AtomicBool>,
    /// Set when the statement that runs on this session shall end.
    interrupted: Arc<AtomicBool>,
    /// The name of the savepoint that proves the transaction, new for each.
    fence: String,
    /// The savepoint of the message in work, where each has one.
    step: Option<String>,
    /// `busy_timeout` as the pool handed the session out, in milliseconds.
    busy_timeout: i64,
    /// The temporary tables, views and triggers that the session had then.
    temporary: Vec<(String, String)>,
    /// Its settings and databases then.
    settings: String,
}

impl SqliteGuard {
    /// How many temporary objects the session has, or an error when a handler changed what cannot be taken back: the
    /// session is closed then.
    fn same_settings(&self, (settings, temporary): (String, i64)) -> Result<i64, sqlx::Error> {
        if settings == self.settings {
            return Ok(temporary);
        }
        Err(sqlx::Error::Protocol(
            "a handler changed the settings or databases of its session (PRAGMA, ATTACH)"
                .to_owned(),
        ))
    }
}

impl InboxDatabase for Sqlite {
    const MAX_CONCURRENCY: Option<usize> = Some(1);
    const ISOLATION_LEVELS: &'static [Isolation] = &[Isolation::ReadCommitted];

    const COMMITS_ASYNCHRONOUSLY: bool = false;

    type Guard = SqliteGuard;

    async fn migrate(conn: &mut SqliteConnection, tables: &Tables) -> Result<(), MigrationError> {
        tables.check()?;
        if let Some(schema) = tables.schema_name() {
            return Err(MigrationError::NoSchemas {
                database: <Self as sqlx::Database>::NAME,
                schema: schema.to_owned(),
            });
        }
        // The migrator takes no lock here: another process could migrate between its look and its statements.
        let mut tx = conn.begin_with("BEGIN IMMEDIATE").await?;
        migrations::migrator(MIGRATIONS, tables, None, quoted)
            .run_direct(None, &mut *tx, false)
            .await?;
        tx.commit().await?;
        Ok(())
    }

    async fn inspect(
        conn: &mut SqliteConnection,
        tables: &Tables,
        requisites: &Requisites,
    ) -> Result<Inspection<Self>, sqlx::Error> {
        let mut findings = Vec::new();
        if let Some(schema) = tables.schema_name() {
            findings.push(Finding::problem(format!(
                "SQLite has no schemas: remove `.schema({schema:?})`"
            )));
        }
        if requisites.behind_pooler {
            findings.push(Finding::problem(
                "SQLite has no poolers: remove `.behind_transaction_pooler()`",
            ));
        }
        let file: Option<String> =
            sqlx::query_scalar("SELECT file FROM pragma_database_list WHERE name = 'main'")
                .fetch_optional(&mut *conn)
                .await?;
        if file.is_none_or(|file| file.is_empty()) {
            findings.push(Finding::problem(
                "the SQLite database is in memory: it is gone with its connection and not shared between the pool's \
                 connections; open a file, for example `sqlite://inbox.db?mode=rwc`",
            ));
        }
        let mut columns: Vec<(String, String)> = Vec::new();
        for table in [
            tables.processed_name(),
            tables.dead_letters_name(),
            tables.attempts_name(),
            tables.messages_name(),
        ] {
            let found: Vec<String> = sqlx::query_scalar("SELECT name FROM pragma_table_info(?1)")
                .bind(table)
                .fetch_all(&mut *conn)
                .await?;
            columns.extend(found.into_iter().map(|column| (table.to_owned(), column)));
        }
        findings.extend(schema_findings(tables, |table| {
            columns
                .iter()
                .filter(|(t, _)| t == table)
                .map(|(_, column)| column.clone())
                .collect()
        }));
        let journal: String = sqlx::query_scalar("PRAGMA journal_mode")
            .fetch_one(&mut *conn)
            .await?;
        if matches!(journal.as_str(), "off" | "memory") {
            findings.push(Finding::warning(format!(
                "journal_mode = {journal}: a crash can corrupt the database after a message was acked; set it to wal"
            )));
        }
        let synchronous: i64 = sqlx::query_scalar("PRAGMA synchronous")
            .fetch_one(&mut *conn)
            .await?;
        if synchronous < 2 {
            let name = if synchronous == 1 { "NORMAL" } else { "OFF" };
            findings.push(Finding::warning(format!(
                "synchronous = {name}: a power cut can lose a commit after its message was acked; set it to FULL"
            )));
        }
        Ok(Inspection {
            findings,
            statements: SqliteStatements::new(tables, requisites.claim_wait),
            // SQLITE_MAX_LENGTH
            largest_payload: (1_000_000_000 - BESIDE_PAYLOAD, "the largest row"),
        })
    }

    async fn prepare(
        conn: &mut SqliteConnection,
        _pool: &Pool<Self>,
        statements: &SqliteStatements,
    ) -> Result<SqliteGuard, sqlx::Error> {
        let busy_timeout: i64 = sqlx::query_scalar("PRAGMA busy_timeout")
            .fetch_one(&mut *conn)
            .await?;
        set_busy_timeout(conn, milliseconds(statements.claim_wait)).await?;
        let temporary = temporary(conn).await?;
        let (settings, _) = state(conn).await?;
        let armed = Arc::new(AtomicBool::new(false));
        let interrupted = Arc::new(AtomicBool::new(false));
        let mut handle = conn.lock_handle().await?;
        handle.set_commit_hook({
            let armed = Arc::clone(&armed);
            move || armed.load(Ordering::Acquire)
        });
        handle.set_progress_handler(PROGRESS_STEP, {
            let interrupted = Arc::clone(&interrupted);
            move || !interrupted.load(Ordering::Acquire)
        });
        Ok(SqliteGuard {
            armed,
            interrupted,
            fence: String::new(),
            step: None,
            busy_timeout,
            temporary,
            settings,
        })
    }

    async fn reset(
        conn: &mut SqliteConnection,
        _statements: &SqliteStatements,
        guard: &mut SqliteGuard,
    ) -> Result<(), sqlx::Error> {
        {
            let mut handle = conn.lock_handle().await?;
            handle.remove_commit_hook();
            handle.remove_progress_handler();
        }
        drop_leftovers(conn, guard).await?;
        guard.same_settings(state(conn).await?)?;
        set_busy_timeout(conn, guard.busy_timeout).await
    }

    fn interrupt(guard: &SqliteGuard) -> Option<Interruption> {
        guard.interrupted.store(true, Ordering::Release);
        None
    }

    fn begin_text(_statements: &SqliteStatements, options: &TransactionOptions) -> String {
        // A handler before may have changed how long this session waits.
        // IMMEDIATE: a transaction that starts as a reader and then writes can fail with SQLITE_BUSY_SNAPSHOT,
        // which no waiting helps.
        format!(
            "PRAGMA busy_timeout = {}; BEGIN IMMEDIATE",
            milliseconds(options.claim_wait)
        )
    }

    async fn claim(
        conn: &mut SqliteConnection,
        statements: &SqliteStatements,
        guard: &mut SqliteGuard,
        claims: &Claims<'_>,
    ) -> Result<Vec<Claimed>, sqlx::Error> {
        guard.step = None;
        // A name that no handler can have chosen: COMMIT and BEGIN, or a rollback, lose it.
        guard.fence = format!("inbox_fence_{:016x}", fastrand::u64(..));
        let begin = format!("{}; SAVEPOINT {}", claims.begin, guard.fence);
        Self::begin(conn, guard, &begin.into()).await?;
        statements.claim(conn, claims.claims).await
    }

    async fn begin(
        conn: &mut SqliteConnection,
        guard: &mut SqliteGuard,
        text: &Arc<str>,
    ) -> Result<(), sqlx::Error> {
        SqliteTransactionManager::begin(conn, Some(driver_text(text))).await?;
        let temporary = guard.same_settings(state(conn).await?)?;
        // Before the first write: a handler's temporary trigger could swallow it.
        if usize::try_from(temporary) != Ok(guard.temporary.len()) {
            drop_leftovers(conn, guard).await?;
        }
        Ok(())
    }

    async fn seal(
        conn: &mut SqliteConnection,
        statements: &SqliteStatements,
        guard: &mut SqliteGuard,
        done: &Done<'_>,
        next: Option<&Claims<'_>>,
    ) -> (Sealed, Option<Result<Vec<Claimed>, sqlx::Error>>) {
        let sealed = statements.seal(conn, guard, done).await;
        match next {
            // Nothing is on the way between us and an embedded database that could be saved.
            Some(next) if matches!(sealed, Sealed::Committed) => (
                sealed,
                Some(Self::claim(conn, statements, guard, next).await),
            ),
            _ => (sealed, None),
        }
    }

    async fn step(conn: &mut SqliteConnection, guard: &mut SqliteGuard) -> Result<(), sqlx::Error> {
        execute(conn, next_step(&mut guard.step)).await
    }

    async fn take_back(
        conn: &mut SqliteConnection,
        statements: &SqliteStatements,
        guard: &mut SqliteGuard,
        key: ClaimKey<'_>,
    ) -> Result<(), sqlx::Error> {
        let step = guard.step.as_deref().unwrap_or_default();
        execute(conn, format!("ROLLBACK TO {step}")).await?;
        // A temporary trigger of a handler is gone with what it did.
        Self::withdraw_claim(conn, statements, key).await
    }

    async fn commit(
        conn: &mut SqliteConnection,
        guard: &mut SqliteGuard,
    ) -> Result<(), sqlx::Error> {
        guard.armed.store(true, Ordering::Release);
        let answer = SqliteTransactionManager::commit(conn).await;
        // Not reached when this future is dropped: the session is closed then.
        guard.armed.store(false, Ordering::Release);
        answer
    }

    async fn roll_back(
        conn: &mut SqliteConnection,
        guard: &mut SqliteGuard,
    ) -> Result<(), sqlx::Error> {
        roll_back_all::<Self>(conn).await?;
        // Here and not with the next BEGIN, so that the failure that led here is counted, on another session.
        guard.same_settings(state(conn).await?)?;
        Ok(())
    }

    fn is_known_rollback(error: &sqlx::Error) -> bool {
        // BUSY and LOCKED leave the transaction open for the rollback that follows, FULL and CONSTRAINT (a
        // deferred foreign key, the commit hook) roll back or leave it open. An I/O error proves nothing.
        matches!(
            result_code(error).map(|code| code & 0xff),
            Some(5 | 6 | 13 | 19)
        )
    }

    async fn existing(
        conn: &mut SqliteConnection,
        statements: &SqliteStatements,
        _guard: &mut SqliteGuard,
        keys: &[ClaimKey<'_>],
    ) -> Result<Vec<Existing>, sqlx::Error> {
        let mut hashes: HashMap<String, _> = HashMap::with_capacity(keys.len());
        for (statement, keys) in statements.payload_hashes.pieces(keys) {
            for row in by_keys(statement, keys).fetch_all(&mut *conn).await? {
                hashes.insert(row.try_get(0)?, row.try_get(1)?);
            }
        }
        let existing = |key: &ClaimKey<'_>| match hashes.remove(key.message_id) {
            None => Existing::Absent,
            Some(payload_hash) => Existing::Claim { payload_hash },
        };
        Ok(keys.iter().map(existing).collect())
    }

    async fn dismiss(
        conn: &mut SqliteConnection,
        statements: &SqliteStatements,
        guard: &mut SqliteGuard,
        keys: &[ClaimKey<'_>],
        next: Option<&Claims<'_>>,
    ) -> Result<(Vec<Existing>, Option<Result<Vec<Claimed>, sqlx::Error>>), sqlx::Error> {
        let existing = Self::existing(conn, statements, guard, keys).await?;
        Self::roll_back(conn, guard).await?;
        let claimed = match next {
            Some(next) => Some(Self::claim(conn, statements, guard, next).await),
            None => None,
        };
        Ok((existing, claimed))
    }

    async fn flush(
        _conn: &mut SqliteConnection,
        _statements: &SqliteStatements,
        _guard: &mut SqliteGuard,
    ) -> Result<(), sqlx::Error> {
        // Every commit was durable when it was answered.
        Ok(())
    }

    async fn trace(
        conn: &mut SqliteConnection,
        statements: &SqliteStatements,
        key: ClaimKey<'_>,
        mark: Option<&str>,
    ) -> Result<TraceOfClaim, sqlx::Error> {
        let received_at: Option<String> = sqlx::query_scalar(statements.trace.text())
            .bind(key.message_id)
            .bind(key.consumer)
            .fetch_optional(conn)
            .await?;
        Ok(match received_at {
            None => TraceOfClaim::Absent,
            Some(received_at) if mark.is_none_or(|mark| mark == received_at) => TraceOfClaim::Ours,
            Some(_) => TraceOfClaim::Foreign,
        })
    }

    async fn withdraw_claim(
        conn: &mut SqliteConnection,
        statements: &SqliteStatements,
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
        conn: &mut SqliteConnection,
        statements: &SqliteStatements,
        key: ClaimKey<'_>,
        failure: &FailureText,
        ends_start: bool,
    ) -> Result<u32, sqlx::Error> {
        sqlx::query_scalar(statements.record_failure.text())
            .bind(key.message_id)
            .bind(key.consumer)
            .bind(failure.as_str())
            .bind(i32::from(ends_start))
            .fetch_one(conn)
            .await
    }

    async fn record_start(
        conn: &mut SqliteConnection,
        statements: &SqliteStatements,
        key: ClaimKey<'_>,
        below: Option<u32>,
    ) -> Result<Option<Counted>, sqlx::Error> {
        let row: Option<(u32, u32)> = sqlx::query_as(statements.record_start.text())
            .bind(key.message_id)
            .bind(key.consumer)
            .bind(below)
            .fetch_optional(conn)
            .await?;
        Ok(row.map(|(attempts, starts)| Counted::new(attempts, starts)))
    }

    async fn forget_start(
        conn: &mut SqliteConnection,
        statements: &SqliteStatements,
        key: ClaimKey<'_>,
    ) -> Result<(), sqlx::Error> {
        for statement in [&statements.forget_only_start, &statements.forget_start] {
            sqlx::query(statement.text())
                .bind(key.message_id)
                .bind(key.consumer)
                .execute(&mut *conn)
                .await?;
        }
        Ok(())
    }

    fn classify(error: &sqlx::Error) -> ErrorClass {
        match error {
            sqlx::Error::Database(_) => match result_code(error).map(|code| code & 0xff) {
                // SQLITE_BUSY in all its forms, SQLITE_LOCKED
                Some(5 | 6) => ErrorClass::Transient,
                // SQLITE_NOMEM, SQLITE_IOERR, SQLITE_FULL, SQLITE_CANTOPEN
                Some(7 | 10 | 13 | 14) => ErrorClass::Outage,
                _ => ErrorClass::Statement,
            },
            sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed => ErrorClass::Outage,
            sqlx::Error::Io(_) | sqlx::Error::WorkerCrashed => ErrorClass::Lost,
            _ => ErrorClass::Statement,
        }
    }
}

impl SqliteStatements {
    async fn claim(
        &self,
        conn: &mut SqliteConnection,
        claims: &[Claim<'_>],
    ) -> Result<Vec<Claimed>, sqlx::Error> {
        let mut won = HashMap::with_capacity(claims.len());
        for (statement, claims) in self.claims.pieces(claims) {
            let mut query = sqlx::query(statement.text());
            if let [claim, ..] = claims {
                query = query.bind(claim.key.consumer);
            }
            for claim in claims {
                query = query
                    .bind(claim.key.message_id)
                    .bind(claim.message_type.as_deref())
                    .bind(claim.correlation_id.as_deref())
                    .bind(claim.payload_hash.as_bytes());
            }
            for row in query.fetch_all(&mut *conn).await? {
                let claimed = Claimed::Won {
                    counted: Counted::new(row.try_get(2)?, row.try_get(3)?),
                    kept: Kept::of(row.try_get(4)?, row.try_get(5)?),
                    // SQLite has no transaction ids. While this transaction is open nobody else can claim, so the
                    // time of another one's claim is a later one.
                    mark: Some(row.try_get(1)?),
                };
                won.insert(row.try_get::<String, _>(0)?, claimed);
            }
        }
        let claimed = |claim: &Claim<'_>| {
            won.remove(claim.key.message_id)
                .unwrap_or(Claimed::Duplicate)
        };
        Ok(claims.iter().map(claimed).collect())
    }

    /// Fence, the forgetting of failures and COMMIT.
    async fn seal(
        &self,
        conn: &mut SqliteConnection,
        guard: &mut SqliteGuard,
        done: &Done<'_>,
    ) -> Sealed {
        for (statement, keys) in self.count_claims.pieces(done.keys) {
            let counted = by_keys(statement, keys).fetch_one(&mut *conn).await;
            match counted.and_then(|row| row.try_get::<i64, _>(0)) {
                Ok(counted) if usize::try_from(counted) == Ok(keys.len()) => {}
                Ok(_) => return Sealed::Gone,
                Err(error) => return Sealed::Unproven(error),
            }
        }
        // Not before an answer of the driver's thread: until then it may be busy with the rollback of a savepoint
        // that the handler dropped.
        if let Some(depth) = uneven_depth::<Sqlite>(conn) {
            return Sealed::Uneven(depth);
        }
        // SQLite has no aborted transactions: a swallowed error leaves the transaction as it was before the
        // statement, or rolls all of it back, and then the savepoint is gone.
        match execute(conn, format!("RELEASE {}", guard.fence)).await {
            Ok(()) => {}
            // SQLITE_ERROR, "no such savepoint"
            Err(error) if result_code(&error) == Some(1) => return Sealed::Gone,
            Err(error) => return Sealed::Unproven(error),
        }
        for key in done.keys.iter().filter(|_| done.have_failures) {
            match Sqlite::forget_counted(conn, self, *key).await {
                Ok(_) => {}
                // SQLITE_READONLY: the claim was written, so only its handler can have ended that.
                Err(error) if result_code(&error).map(|code| code & 0xff) == Some(8) => {
                    return Sealed::Unproven(error);
                }
                Err(error) => return Sealed::Failed(error),
            }
        }
        match Sqlite::commit(conn, guard).await {
            Ok(()) => Sealed::Committed,
            Err(error) if Sqlite::is_known_rollback(&error) => Sealed::Refused(error),
            Err(error) => Sealed::Unknown(error),
        }
    }

    fn new(tables: &Tables, claim_wait: Duration) -> Self {
        // With the schema: a handler's temporary table of the same name would be found first.
        let qualified = |name: &str| format!("main.{}", quoted(name));
        let processed = qualified(tables.processed_name());
        let dead_letters = qualified(tables.dead_letters_name());
        let attempts = qualified(tables.attempts_name());
        let messages = qualified(tables.messages_name());
        let key = "message_id = ?1 AND consumer_name = ?2";
        // RETURNING knows the row by its table alone.
        let claimed = quoted(tables.processed_name());
        let same = format!(
            "kept.message_id = {claimed}.message_id AND kept.consumer_name = {claimed}.consumer_name"
        );
        let now = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')";
        Self {
            claims: ForMany::new(|rows| {
                let parameters = |at: usize| {
                    let [id, kind, correlation, hash] =
                        std::array::from_fn(|part| 2 + 4 * at + part);
                    format!("(?{id}, ?1, ?{kind}, ?{correlation}, ?{hash})")
                };
                format!(
                    "INSERT INTO {processed} (message_id, consumer_name, message_type, correlation_id, payload_hash) \
                     VALUES {values} ON CONFLICT (message_id, consumer_name) DO NOTHING RETURNING message_id, received_at, \
                     COALESCE((SELECT attempts FROM {attempts} AS kept WHERE {same}), 0), \
                     COALESCE((SELECT starts FROM {attempts} AS kept WHERE {same}), 0), \
                     EXISTS (SELECT 1 FROM {dead_letters} AS kept WHERE {same} AND replayed_at IS NULL AND {holds}), \
                     EXISTS (SELECT 1 FROM {messages} AS kept WHERE {same} AND status <> 'done')",
                    values = listed(rows, parameters),
                    holds = holds()
                )
            }),
            payload_hashes: ForMany::new(|keys| {
                format!(
                    "SELECT message_id, payload_hash FROM {processed} WHERE {}",
                    of_keys(keys)
                )
            }),
            count_claims: ForMany::new(|keys| {
                format!("SELECT count(*) FROM {processed} WHERE {}", of_keys(keys))
            }),
            trace: Statement::new(format!("SELECT received_at FROM {processed} WHERE {key}")),
            withdraw: Statement::new(format!("DELETE FROM {processed} WHERE {key}")),
            dead_letters: DeadLetterStatements::new(tables),
            record_failure: Statement::new(format!(
                "INSERT INTO {attempts} AS counted (message_id, consumer_name, attempts, last_failure) \
                 VALUES (?1, ?2, 1, ?3) ON CONFLICT (message_id, consumer_name) DO UPDATE SET \
                 attempts = counted.attempts + 1, starts = max(counted.starts - ?4, 0), last_failed_at = {now}, \
                 last_failure = excluded.last_failure RETURNING attempts + starts"
            )),
            record_start: Statement::new(format!(
                "INSERT INTO {attempts} AS counted (message_id, consumer_name, attempts, starts, last_failure) \
                 SELECT ?1, ?2, 0, 1, '' WHERE ?3 IS NULL OR ?3 > 1 \
                 ON CONFLICT (message_id, consumer_name) DO UPDATE SET starts = counted.starts + 1, \
                 last_failed_at = {now} WHERE ?3 IS NULL OR (counted.starts = 0 AND counted.attempts + 1 < ?3) \
                 RETURNING attempts, starts"
            )),
            forget_start: Statement::new(format!(
                "UPDATE {attempts} SET starts = max(starts - 1, 0) WHERE {key}"
            )),
            forget_only_start: Statement::new(format!(
                "DELETE FROM {attempts} WHERE {key} AND attempts = 0 AND starts <= 1"
            )),
            stored: stored::StoredStatements::new(&messages),
            claim_wait,
            retention: retention::RetentionStatements::new(
                &processed,
                &attempts,
                &dead_letters,
                &messages,
            ),
        }
    }
}

/// A statement for each of some numbers of rows: many rows are asked for by a few of them, and all of them stay
/// prepared.
#[derive(Debug)]
struct ForMany([(usize, Statement); 4]);

impl ForMany {
    fn new(text: impl Fn(usize) -> String) -> Self {
        Self([64, 16, 4, 1].map(|rows| (rows, Statement::new(text(rows)))))
    }

    /// The rows in pieces, each with its statement.
    fn pieces<'a, T>(
        &'a self,
        mut rows: &'a [T],
    ) -> impl Iterator<Item = (&'a Statement, &'a [T])> {
        std::iter::from_fn(move || {
            let (size, statement) = self.0.iter().find(|(size, _)| *size <= rows.len())?;
            let (piece, rest) = rows.split_at(*size);
            rows = rest;
            Some((statement, piece))
        })
    }
}

/// What is said of each of so many rows, with `,` between them.
fn listed(rows: usize, one: impl Fn(usize) -> String) -> String {
    (0..rows).map(one).collect::<Vec<_>>().join(", ")
}

/// The claims with so many keys of one consumer, as [`by_keys`] binds them.
fn of_keys(keys: usize) -> String {
    let ids = listed(keys, |at| format!("?{}", 2 + at));
    format!("consumer_name = ?1 AND message_id IN ({ids})")
}

fn by_keys<'q>(
    statement: &Statement,
    keys: &'q [ClaimKey<'q>],
) -> sqlx::query::Query<'q, Sqlite, sqlx::sqlite::SqliteArguments> {
    let consumer = keys.first().map(|key| key.consumer);
    let query = sqlx::query(statement.text()).bind(consumer);
    keys.iter()
        .fold(query, |query, key| query.bind(key.message_id))
}

async fn set_busy_timeout(
    conn: &mut SqliteConnection,
    milliseconds: i64,
) -> Result<(), sqlx::Error> {
    execute(conn, format!("PRAGMA busy_timeout = {milliseconds}")).await
}

/// Temporary tables, views and triggers; what SQLite makes for itself goes with them.
macro_rules! of_temporary {
    ($what:literal) => {
        concat!(
            "SELECT ",
            $what,
            " FROM temp.sqlite_schema WHERE type <> 'index' AND name NOT LIKE 'sqlite!_%' ESCAPE '!'"
        )
    };
}

/// What a handler can change for those who come after it on its connection: databases and settings, which SQLite has no
/// way to take all back, and how many temporary objects there are.
const STATE: &str = concat!(
    "SELECT (SELECT group_concat(name || '=' || file) FROM pragma_database_list WHERE name <> 'temp') \
     || ',' || (SELECT * FROM pragma_foreign_keys) \
     || ',' || (SELECT * FROM pragma_recursive_triggers) \
     || ',' || (SELECT * FROM pragma_ignore_check_constraints) \
     || ',' || (SELECT * FROM pragma_query_only) \
     || ',' || (SELECT * FROM pragma_locking_mode) \
     || ',' || (SELECT * FROM pragma_read_uncommitted) \
     || ',' || (SELECT * FROM pragma_reverse_unordered_selects) \
     || ',' || (SELECT * FROM pragma_trusted_schema) \
     || ',' || (SELECT * FROM pragma_legacy_alter_table) \
     || ',' || (SELECT * FROM pragma_writable_schema) \
     || ',' || (SELECT * FROM pragma_automatic_index) \
     || ',' || (SELECT * FROM pragma_cell_size_check) \
     || ',' || (SELECT * FROM pragma_secure_delete) \
     || ',' || (SELECT * FROM pragma_synchronous), (",
    of_temporary!("count(*)"),
    ")"
);

async fn state(conn: &mut SqliteConnection) -> Result<(String, i64), sqlx::Error> {
    sqlx::query_as(STATE).fetch_one(conn).await
}

async fn temporary(conn: &mut SqliteConnection) -> Result<Vec<(String, String)>, sqlx::Error> {
    sqlx::query_as(of_temporary!("type, name"))
        .fetch_all(conn)
        .await
}

/// Drops the temporary objects that handlers left: they are found before the tables of their names.
async fn drop_leftovers(
    conn: &mut SqliteConnection,
    guard: &SqliteGuard,
) -> Result<(), sqlx::Error> {
    for left in temporary(conn).await? {
        if !guard.temporary.contains(&left) {
            let (kind, name) = left;
            execute(
                conn,
                format!("DROP {kind} IF EXISTS temp.{}", quoted(&name)),
            )
            .await?;
        }
    }
    Ok(())
}

fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Runs a text made of names and numbers of ours, unprepared.
async fn execute(conn: &mut SqliteConnection, text: String) -> Result<(), sqlx::Error> {
    conn.execute(sqlx::raw_sql(AssertSqlSafe(text))).await?;
    Ok(())
}

/// SQLite's extended result code.
fn result_code(error: &sqlx::Error) -> Option<i32> {
    error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code)
        .and_then(|code| code.parse().ok())
}
