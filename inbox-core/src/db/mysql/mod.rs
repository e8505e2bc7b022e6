//! MariaDB 10.6 and later, MySQL 8.0 and later: InnoDB, and an XA transaction around each message.
//!
//! A handler runs between `XA START` and `XA END`. There the server refuses COMMIT, ROLLBACK, statements that commit
//! implicitly, and, once a deadlock has rolled back, every write: nothing becomes durable but by our `XA COMMIT`.

mod dead_letters;
mod inspect;
mod retention;
mod session;
mod statements;
mod stored;

use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use sqlx::migrate::MigrateError;
use sqlx::mysql::{MySqlConnection, MySqlDatabaseError, MySqlRow};
use sqlx::{AssertSqlSafe, Either, Executor as _, MySql, Pool, Row as _};
use sqlx_core::transaction::TransactionManager;

use self::session::MySqlGuard;
use self::session::{Transaction, garbled, text_of};
use self::statements::MySqlStatements;
use super::dead_letters::DeadLetterStore as _;
use super::executor::executor_for_tx;
use super::{
    BESIDE_PAYLOAD, Claim, ClaimKey, Claimed, Claims, Counted, Dialect, Done, ErrorClass, Existing,
    Finding, InboxDatabase, Inspection, Interruption, Kept, MigrationError, Requisites, Sealed,
    Statement, TraceOfClaim, driver_text, level, migrations, roll_back_all, uneven_depth,
};
use crate::dead_letter::FailureText;
use crate::handler::Isolation;
use crate::session::TransactionOptions;
use crate::tables::Tables;

const MIGRATIONS: migrations::Published = &[
    (
        1,
        "inbox",
        include_str!("../../../migrations/mysql/0001_inbox.sql"),
    ),
    (
        2,
        "messages",
        include_str!("../../../migrations/mysql/0002_messages.sql"),
    ),
];

/// How long a migration waits for another one.
const MIGRATION_WAIT: u64 = 60;

/// How long the look at a claim waits for the transaction that holds it.
const TRACE_WAIT: Duration = Duration::from_secs(5);

const ER_DUP_ENTRY: u16 = 1062;
const ER_LOCK_WAIT_TIMEOUT: u16 = 1205;
const ER_LOCK_DEADLOCK: u16 = 1213;
const ER_XAER_NOTA: u16 = 1397;
const ER_XAER_RMFAIL: u16 = 1399;
const ER_XA_RBROLLBACK: u16 = 1402;
const ER_XA_RBTIMEOUT: u16 = 1613;
const ER_XA_RBDEADLOCK: u16 = 1614;

type MySqlTransactionManager = <MySql as sqlx::Database>::TransactionManager;

executor_for_tx!(MySql);

impl super::sealed::Sealed for MySql {}

impl Dialect for MySql {
    type Statements = MySqlStatements;
}

impl InboxDatabase for MySql {
    const MAX_CONCURRENCY: Option<usize> = None;
    const ISOLATION_LEVELS: &'static [Isolation] = &[
        Isolation::ReadCommitted,
        Isolation::RepeatableRead,
        Isolation::Serializable,
    ];

    const COMMITS_ASYNCHRONOUSLY: bool = false;

    type Guard = MySqlGuard;

    async fn migrate(conn: &mut MySqlConnection, tables: &Tables) -> Result<(), MigrationError> {
        tables.check()?;
        let Some(database) = inspect::database(conn, tables).await? else {
            return Err(MigrationError::NoDatabase);
        };
        // One lock for each ledger. The migrator's own lock does not hold on MariaDB.
        let lock = format!("inbox migrations of {}", tables.migrations_name());
        let mut lock = lock.chars().take(40).collect::<String>();
        let _ = write!(lock, " {:08x}", checksum(&database));
        let held: Option<i64> = sqlx::query_scalar("SELECT CAST(GET_LOCK(?, ?) AS SIGNED)")
            .bind(&lock)
            .bind(MIGRATION_WAIT)
            .fetch_one(&mut *conn)
            .await?;
        if held != Some(1) {
            return Err(MigrateError::Execute(sqlx::Error::Protocol(format!(
                "another process has been migrating the inbox tables of {database:?} for {MIGRATION_WAIT} s"
            )))
            .into());
        }
        let migrated = migrate_locked(conn, tables, &database).await;
        sqlx::query("DO RELEASE_LOCK(?)")
            .bind(&lock)
            .execute(conn)
            .await?;
        migrated
    }

    async fn inspect(
        conn: &mut MySqlConnection,
        tables: &Tables,
        requisites: &Requisites,
    ) -> Result<Inspection<Self>, sqlx::Error> {
        let flavour = inspect::flavour(conn).await?;
        let mut findings = Vec::new();
        let database = inspect::database(conn, tables).await?;
        match &database {
            Some(database) => {
                inspect::judge_tables(conn, tables, database, &mut findings).await?;
            }
            None => findings.push(Finding::problem(
                "the pool's connections have no database: name one in their address, or with `.schema(..)`",
            )),
        }
        findings.extend(inspect::judge_server(conn, flavour, requisites).await?);
        let database = database.unwrap_or_default();
        Ok(Inspection {
            findings,
            statements: MySqlStatements::new(tables, &database, flavour),
            largest_payload: (
                inspect::packet(conn).await?.saturating_sub(BESIDE_PAYLOAD),
                "max_allowed_packet",
            ),
        })
    }

    async fn prepare(
        conn: &mut MySqlConnection,
        pool: &Pool<Self>,
        statements: &MySqlStatements,
    ) -> Result<MySqlGuard, sqlx::Error> {
        let guard = MySqlGuard::of(conn, pool, statements.flavour).await?;
        let begin = format!("{}; START TRANSACTION", guard.settling_text());
        MySqlTransactionManager::begin(conn, Some(driver_text(&begin.into()))).await?;
        // The driver goes on counting it.
        run(conn, "COMMIT").await?;
        Ok(guard)
    }

    async fn reset(
        conn: &mut MySqlConnection,
        _statements: &MySqlStatements,
        guard: &mut MySqlGuard,
    ) -> Result<(), sqlx::Error> {
        Self::roll_back(conn, guard).await?;
        guard.restore(conn).await?;
        // What the driver takes for a transaction was none.
        roll_back_all::<Self>(conn).await
    }

    fn interrupt(guard: &MySqlGuard) -> Option<Interruption> {
        guard.interrupt()
    }

    fn begin_text(statements: &MySqlStatements, options: &TransactionOptions) -> String {
        let idle = seconds(options.idle_limit);
        let limits = if statements.flavour.is_mariadb {
            // The second one ends the statement of a process that is gone.
            let own = |name: &str| format!("IF(@@{name} = 0, {idle}, LEAST(@@{name}, {idle}))");
            format!(
                "idle_transaction_timeout = {}, max_statement_time = {}",
                own("idle_transaction_timeout"),
                own("max_statement_time"),
            )
        } else {
            format!("wait_timeout = LEAST(@@wait_timeout, {idle})")
        };
        format!(
            "SET SESSION innodb_lock_wait_timeout = {wait}, {limits}; \
             SET SESSION TRANSACTION ISOLATION LEVEL {level}, READ WRITE; {drop_temporary}",
            wait = seconds(options.claim_wait),
            level = options.isolation.as_sql(),
            drop_temporary = statements.drop_temporary,
        )
    }

    async fn claim(
        conn: &mut MySqlConnection,
        statements: &MySqlStatements,
        guard: &mut MySqlGuard,
        claims: &Claims<'_>,
    ) -> Result<Vec<Claimed>, sqlx::Error> {
        Self::begin(conn, guard, claims.begin).await?;
        let transaction = guard.transaction.ok_or_else(garbled)?;
        // One by one, in the order of their ids: one that is refused does not undo the others.
        let mut are_won = Vec::with_capacity(claims.claims.len());
        for claim in claims.claims {
            are_won.push(statements.claim(conn, claim, transaction).await?);
        }
        let lock_wait = format!(
            "SET SESSION innodb_lock_wait_timeout = {}",
            guard.own_lock_wait
        );
        run(conn, lock_wait).await?;
        // After all claims: a snapshot from before one of them would not show what it waited for.
        let mut answers = Vec::with_capacity(claims.claims.len());
        for (claim, is_won) in claims.claims.iter().zip(are_won) {
            answers.push(if is_won {
                statements.won(conn, claim.key, transaction).await?
            } else {
                Claimed::Duplicate
            });
        }
        Ok(answers)
    }

    async fn begin(
        conn: &mut MySqlConnection,
        guard: &mut MySqlGuard,
        text: &Arc<str>,
    ) -> Result<(), sqlx::Error> {
        level::<Self>(conn)?;
        let transaction = Transaction::new();
        let query = format!(
            "{}; {text}{}{}; XA START {}",
            guard.settling_text(),
            guard.state_query(transaction.nonce),
            guard.variables_query(),
            transaction.name()
        );
        guard.step = None;
        guard.transaction = Some(transaction);
        let answers = Answers::of(conn, query).await;
        if let Some(error) = answers.error {
            return Err(error);
        }
        guard.judge_state(answers.rows.first(), transaction.nonce)?;
        MySqlGuard::forget_variables(conn, answers.rows.get(1..).unwrap_or_default()).await
    }

    async fn seal(
        conn: &mut MySqlConnection,
        statements: &MySqlStatements,
        guard: &mut MySqlGuard,
        done: &Done<'_>,
        next: Option<&Claims<'_>>,
    ) -> (Sealed, Option<Result<Vec<Claimed>, sqlx::Error>>) {
        let sealed = statements.seal(conn, guard, done).await;
        match next {
            Some(next) if matches!(sealed, Sealed::Committed) => (
                sealed,
                Some(Self::claim(conn, statements, guard, next).await),
            ),
            _ => (sealed, None),
        }
    }

    async fn step(conn: &mut MySqlConnection, guard: &mut MySqlGuard) -> Result<(), sqlx::Error> {
        let step = guard
            .step
            .get_or_insert_with(|| format!("inbox_step_{:016x}", fastrand::u64(..)));
        // It takes the place of the one before.
        run(conn, format!("SAVEPOINT {step}")).await
    }

    async fn take_back(
        conn: &mut MySqlConnection,
        statements: &MySqlStatements,
        guard: &mut MySqlGuard,
        key: ClaimKey<'_>,
    ) -> Result<(), sqlx::Error> {
        let step = guard.step.as_deref().unwrap_or_default();
        run(conn, format!("ROLLBACK TO SAVEPOINT {step}")).await?;
        Self::withdraw_claim(conn, statements, key).await
    }

    async fn commit(conn: &mut MySqlConnection, guard: &mut MySqlGuard) -> Result<(), sqlx::Error> {
        let name = guard.transaction.ok_or_else(garbled)?.name();
        run(conn, format!("XA END {name}")).await?;
        guard.is_committing = true;
        run(conn, format!("XA COMMIT {name} ONE PHASE")).await?;
        // Not reached when this future is dropped: the session is closed then.
        guard.is_committing = false;
        guard.transaction = None;
        Ok(())
    }

    async fn roll_back(
        conn: &mut MySqlConnection,
        guard: &mut MySqlGuard,
    ) -> Result<(), sqlx::Error> {
        while MySqlTransactionManager::get_transaction_depth(conn) > 1 {
            MySqlTransactionManager::rollback(conn).await?;
        }
        level::<Self>(conn)?;
        let Some(transaction) = guard.transaction else {
            return Ok(());
        };
        let name = transaction.name();
        // Refused after a deadlock, and where it has ended already.
        match run(conn, format!("XA END {name}")).await {
            Err(error) if number(&error).is_none() => return Err(error),
            _ => {}
        }
        run(conn, format!("XA ROLLBACK {name}")).await?;
        guard.transaction = None;
        guard.is_committing = false;
        // Here and not with the next BEGIN, so that the failure that led here is counted, on another session.
        guard.same_state(conn).await
    }

    fn is_known_rollback(error: &sqlx::Error) -> bool {
        // NOTA and RMFAIL: there is no transaction of that name that could be committed.
        matches!(
            number(error),
            Some(
                ER_LOCK_DEADLOCK
                    | ER_XAER_NOTA
                    | ER_XAER_RMFAIL
                    | ER_XA_RBROLLBACK
                    | ER_XA_RBTIMEOUT
                    | ER_XA_RBDEADLOCK
            )
        )
    }

    async fn existing(
        conn: &mut MySqlConnection,
        statements: &MySqlStatements,
        _guard: &mut MySqlGuard,
        keys: &[ClaimKey<'_>],
    ) -> Result<Vec<Existing>, sqlx::Error> {
        let mut existing = Vec::with_capacity(keys.len());
        for key in keys {
            let row: Option<MySqlRow> = sqlx::query(statements.payload_hash.text())
                .bind(key.message_id.as_bytes())
                .bind(key.consumer.as_bytes())
                .fetch_optional(&mut *conn)
                .await?;
            existing.push(match row {
                None => Existing::Absent,
                Some(row) => Existing::Claim {
                    payload_hash: row.try_get(0)?,
                },
            });
        }
        Ok(existing)
    }

    async fn dismiss(
        conn: &mut MySqlConnection,
        statements: &MySqlStatements,
        guard: &mut MySqlGuard,
        keys: &[ClaimKey<'_>],
        next: Option<&Claims<'_>>,
    ) -> Result<(Vec<Existing>, Option<Result<Vec<Claimed>, sqlx::Error>>), sqlx::Error> {
        // A refused claim holds a lock on the existing one until the rollback.
        let existing = Self::existing(conn, statements, guard, keys).await?;
        Self::roll_back(conn, guard).await?;
        let claimed = match next {
            Some(next) => Some(Self::claim(conn, statements, guard, next).await),
            None => None,
        };
        Ok((existing, claimed))
    }

    async fn flush(
        _conn: &mut MySqlConnection,
        _statements: &MySqlStatements,
        _guard: &mut MySqlGuard,
    ) -> Result<(), sqlx::Error> {
        // Every commit was as durable as it gets when it was answered.
        Ok(())
    }

    async fn trace(
        conn: &mut MySqlConnection,
        statements: &MySqlStatements,
        key: ClaimKey<'_>,
        mark: Option<&str>,
    ) -> Result<TraceOfClaim, sqlx::Error> {
        // A handler may have switched it off: the lock would stay.
        let settings = format!(
            "SET SESSION autocommit = 1, innodb_lock_wait_timeout = {}",
            seconds(TRACE_WAIT)
        );
        run(conn, settings).await?;
        let row: Option<MySqlRow> = sqlx::query(statements.trace.text())
            .bind(key.message_id.as_bytes())
            .bind(key.consumer.as_bytes())
            .fetch_optional(conn)
            .await?;
        let Some(row) = row else {
            return Ok(TraceOfClaim::Absent);
        };
        let nonce: Option<u64> = row.try_get(0)?;
        let is_ours = mark.is_none_or(|mark| nonce.is_some_and(|nonce| nonce.to_string() == mark));
        Ok(if is_ours {
            TraceOfClaim::Ours
        } else {
            TraceOfClaim::Foreign
        })
    }

    async fn withdraw_claim(
        conn: &mut MySqlConnection,
        statements: &MySqlStatements,
        key: ClaimKey<'_>,
    ) -> Result<(), sqlx::Error> {
        statements.of_key(conn, &statements.withdraw, key).await
    }

    async fn record_failure(
        conn: &mut MySqlConnection,
        statements: &MySqlStatements,
        key: ClaimKey<'_>,
        failure: &FailureText,
        ends_start: bool,
    ) -> Result<u32, sqlx::Error> {
        sqlx::query(statements.record_failure.text())
            .bind(key.message_id.as_bytes())
            .bind(key.consumer.as_bytes())
            .bind(failure.as_str())
            .bind(i32::from(ends_start))
            .execute(&mut *conn)
            .await?;
        Ok(statements.counted(conn, key).await?.all())
    }

    async fn record_start(
        conn: &mut MySqlConnection,
        statements: &MySqlStatements,
        key: ClaimKey<'_>,
        below: Option<u32>,
    ) -> Result<Option<Counted>, sqlx::Error> {
        statements
            .of_key(conn, &statements.note_attempt, key)
            .await?;
        let counted = statements.counted(conn, key).await?;
        let is_watched = below
            .is_some_and(|below| counted.starts > 0 || counted.attempts.saturating_add(1) >= below);
        if is_watched {
            statements
                .of_key(conn, &statements.forget_uncounted, key)
                .await?;
            return Ok(None);
        }
        statements
            .of_key(conn, &statements.record_start, key)
            .await?;
        Ok(Some(Counted::new(
            counted.attempts,
            counted.starts.saturating_add(1),
        )))
    }

    async fn forget_start(
        conn: &mut MySqlConnection,
        statements: &MySqlStatements,
        key: ClaimKey<'_>,
    ) -> Result<(), sqlx::Error> {
        for statement in [&statements.forget_only_start, &statements.forget_start] {
            statements.of_key(conn, statement, key).await?;
        }
        Ok(())
    }

    fn classify(error: &sqlx::Error) -> ErrorClass {
        match error {
            sqlx::Error::Database(_) => number(error).map_or(ErrorClass::Statement, class_of),
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

impl MySqlStatements {
    /// Inserts a claim: `false` where it is there already.
    async fn claim(
        &self,
        conn: &mut MySqlConnection,
        claim: &Claim<'_>,
        transaction: Transaction,
    ) -> Result<bool, sqlx::Error> {
        let inserted = sqlx::query(self.claim.text())
            .bind(claim.key.message_id.as_bytes())
            .bind(claim.key.consumer.as_bytes())
            .bind(claim.message_type.as_deref())
            .bind(claim.correlation_id.as_deref())
            .bind(claim.payload_hash.as_bytes())
            .bind(transaction.nonce)
            .execute(conn)
            .await;
        match inserted {
            Ok(inserted) => Ok(inserted.rows_affected() == 1),
            // A failed statement does not abort the transaction.
            Err(error) if number(&error) == Some(ER_DUP_ENTRY) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn won(
        &self,
        conn: &mut MySqlConnection,
        key: ClaimKey<'_>,
        transaction: Transaction,
    ) -> Result<Claimed, sqlx::Error> {
        let history = sqlx::query(self.history.text())
            .bind(key.message_id.as_bytes())
            .bind(key.consumer.as_bytes())
            .bind(key.message_id.as_bytes())
            .bind(key.consumer.as_bytes())
            .bind(key.message_id.as_bytes())
            .bind(key.consumer.as_bytes())
            .bind(key.message_id.as_bytes())
            .bind(key.consumer.as_bytes())
            .fetch_one(conn)
            .await?;
        let number = |column: usize| history.try_get::<i64, _>(column);
        Ok(Claimed::Won {
            counted: Counted::new(count(number(0)?), count(number(1)?)),
            kept: Kept::of(number(2)? == 1, number(3)? == 1),
            mark: Some(transaction.mark()),
        })
    }

    /// What is counted, of a row that is there.
    async fn counted(
        &self,
        conn: &mut MySqlConnection,
        key: ClaimKey<'_>,
    ) -> Result<Counted, sqlx::Error> {
        let (attempts, starts): (i64, i64) = sqlx::query_as(self.counted.text())
            .bind(key.message_id.as_bytes())
            .bind(key.consumer.as_bytes())
            .fetch_one(conn)
            .await?;
        Ok(Counted::new(count(attempts), count(starts)))
    }

    /// Runs a statement that needs a key and nothing else.
    async fn of_key(
        &self,
        conn: &mut MySqlConnection,
        statement: &Statement,
        key: ClaimKey<'_>,
    ) -> Result<(), sqlx::Error> {
        sqlx::query(statement.text())
            .bind(key.message_id.as_bytes())
            .bind(key.consumer.as_bytes())
            .execute(conn)
            .await?;
        Ok(())
    }

    /// Proof, the forgetting of failures, `XA END` as the fence, and `XA COMMIT`.
    async fn seal(
        &self,
        conn: &mut MySqlConnection,
        guard: &mut MySqlGuard,
        done: &Done<'_>,
    ) -> Sealed {
        let Some(transaction) = guard.transaction else {
            return Sealed::Gone;
        };
        let proven = match self.count_claims(conn, transaction, done.keys).await {
            Ok(proven) => proven,
            Err(sealed) => return sealed,
        };
        // Not before an answer: until then the rollback of a savepoint may be under way.
        if let Some(depth) = uneven_depth::<MySql>(conn) {
            return Sealed::Uneven(depth);
        }
        if proven != done.keys.len() {
            return self.why_unproven(conn, transaction).await;
        }
        for key in done.keys.iter().filter(|_| done.have_failures) {
            if let Err(error) = MySql::forget_counted(conn, self, *key).await {
                return Sealed::Failed(error);
            }
        }
        guard.is_committing = true;
        let sealed = self.commit(conn, transaction).await;
        if matches!(sealed, Sealed::Committed) {
            guard.transaction = None;
        }
        if !matches!(sealed, Sealed::Unknown(_)) {
            guard.is_committing = false;
        }
        sealed
    }

    /// How many of the claims are there as this transaction made them.
    async fn count_claims(
        &self,
        conn: &mut MySqlConnection,
        transaction: Transaction,
        keys: &[ClaimKey<'_>],
    ) -> Result<usize, Sealed> {
        let nonce = fastrand::u64(..);
        let mut text = format!(
            "SELECT '{nonce:016x}', COUNT(*) FROM {} WHERE claim_nonce = {} AND consumer_name = X'",
            self.processed, transaction.nonce
        );
        if let Some(key) = keys.first() {
            write_hex(&mut text, key.consumer.as_bytes());
        }
        text.push_str("' AND message_id IN (");
        for (position, key) in keys.iter().enumerate() {
            text.push_str(if position == 0 { "X'" } else { ",X'" });
            write_hex(&mut text, key.message_id.as_bytes());
            text.push('\'');
        }
        text.push(')');
        let answers = Answers::of(conn, text).await;
        if let Some(error) = answers.error {
            return Err(refused_end(error));
        }
        // A query that a handler dropped half-way can leave its answers for those who come after it.
        let [row] = answers.rows.as_slice() else {
            return Err(Sealed::Garbled);
        };
        let column = |column| text_of(row, column).ok().flatten().unwrap_or_default();
        if column(0) != format!("{nonce:016x}") {
            return Err(Sealed::Garbled);
        }
        column(1).parse().map_err(|_| Sealed::Garbled)
    }

    /// A transaction that can only be rolled back has none of its rows.
    async fn why_unproven(&self, conn: &mut MySqlConnection, transaction: Transaction) -> Sealed {
        match run(conn, format!("XA END {}", transaction.name())).await {
            Ok(()) => Sealed::Gone,
            Err(error) => refused_end(error),
        }
    }

    /// The fence, and COMMIT behind it in the same round trip: an error in one statement is the last answer.
    async fn commit(&self, conn: &mut MySqlConnection, transaction: Transaction) -> Sealed {
        let name = transaction.name();
        // No time limit of a statement may end a COMMIT. MySQL has none that could.
        let limit = if self.flavour.is_mariadb {
            "SET SESSION max_statement_time = 0"
        } else {
            "DO 0"
        };
        let text = format!("{limit}; XA END {name}; XA COMMIT {name} ONE PHASE");
        let answers = Answers::of(conn, text).await;
        match (answers.completed, answers.error) {
            (3, None) => Sealed::Committed,
            (_, None) => Sealed::Garbled,
            // Without a word from the server it may have run all of it.
            (_, Some(error)) if number(&error).is_none() => Sealed::Unknown(error),
            (0, Some(error)) => Sealed::Failed(error),
            (1, Some(error)) => refused_end(error),
            (_, Some(error)) if MySql::is_known_rollback(&error) => Sealed::Refused(error),
            (_, Some(error)) => Sealed::Unknown(error),
        }
    }
}

/// What it means that a transaction could be neither read nor ended.
fn refused_end(error: sqlx::Error) -> Sealed {
    match number(&error) {
        // It can only be rolled back.
        Some(ER_XAER_RMFAIL | ER_XA_RBROLLBACK | ER_XA_RBTIMEOUT | ER_XA_RBDEADLOCK) => {
            Sealed::Aborted
        }
        Some(ER_XAER_NOTA) => Sealed::Gone,
        _ => Sealed::Unproven(error),
    }
}

/// The server's own lock has to be held.
async fn migrate_locked(
    conn: &mut MySqlConnection,
    tables: &Tables,
    database: &str,
) -> Result<(), MigrationError> {
    let ledger = tables.migrations_name();
    let has_ledger: i64 = sqlx::query_scalar(
        "SELECT CAST(COUNT(*) AS SIGNED) FROM information_schema.TABLES \
         WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?",
    )
    .bind(database)
    .bind(ledger)
    .fetch_one(&mut *conn)
    .await?;
    if has_ledger > 0 {
        // A crash in the middle of a migration leaves it so. Every statement of ours can be run again.
        let forget = format!(
            "DELETE FROM {}.{} WHERE success = FALSE",
            backquoted(database),
            backquoted(ledger)
        );
        run(conn, forget).await?;
    }
    let mut migrator = migrations::migrator(MIGRATIONS, tables, tables.schema_name(), backquoted);
    migrator.set_locking(false);
    migrator.run_direct(None, conn, false).await?;
    Ok(())
}

/// The product and version of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flavour {
    is_mariadb: bool,
    version: (u32, u32),
    /// Whether it lists the user variables of a session.
    has_user_variables: bool,
}

impl Flavour {
    fn of_version(text: &str) -> Self {
        let is_mariadb = text.contains("MariaDB");
        // What a server behind some proxies says before its own version.
        let text = text
            .strip_prefix("5.5.5-")
            .filter(|_| is_mariadb)
            .unwrap_or(text);
        let mut numbers = text
            .split(|c: char| !c.is_ascii_digit())
            .map(|number| number.parse().unwrap_or(0));
        Self {
            is_mariadb,
            version: (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)),
            has_user_variables: false,
        }
    }

    fn is_supported(self) -> bool {
        self.version >= if self.is_mariadb { (10, 6) } else { (8, 0) }
    }

    fn has_new_names(self) -> bool {
        !self.is_mariadb || self.version >= (11, 1)
    }

    fn isolation(self) -> &'static str {
        if self.has_new_names() {
            "transaction_isolation"
        } else {
            "tx_isolation"
        }
    }

    fn read_only(self) -> &'static str {
        if self.has_new_names() {
            "transaction_read_only"
        } else {
            "tx_read_only"
        }
    }
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let product = if self.is_mariadb { "MariaDB" } else { "MySQL" };
        write!(f, "{product} {}.{}", self.version.0, self.version.1)
    }
}

/// What the server answered to a text of several statements, as far as it came.
struct Answers {
    rows: Vec<MySqlRow>,
    /// How many statements were done.
    completed: usize,
    error: Option<sqlx::Error>,
}

impl Answers {
    async fn of(conn: &mut MySqlConnection, text: String) -> Self {
        let mut answers = Self {
            rows: Vec::new(),
            completed: 0,
            error: None,
        };
        let mut stream = conn.fetch_many(sqlx::raw_sql(AssertSqlSafe(text)));
        while let Some(answer) = stream.next().await {
            match answer {
                Ok(Either::Left(_)) => answers.completed += 1,
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

/// What kind of error has this number.
const fn class_of(number: u16) -> ErrorClass {
    match number {
        // Also: a row changed since it was read, not waiting for a lock was asked for (MySQL).
        ER_LOCK_DEADLOCK | ER_LOCK_WAIT_TIMEOUT | ER_XA_RBROLLBACK | ER_XA_RBTIMEOUT
        | ER_XA_RBDEADLOCK | 1020 | 3572 => ErrorClass::Transient,
        // Too many connections, of all or of a user; shutdown; out of memory, of disk, of threads, of locks; a cluster
        // that is not ready. Not 1038: a statement that sorts more than its session's sort_buffer_size does so each time.
        1040 | 1203 | 1226 | 1053 | 1077 | 1079 | 1021 | 1037 | 1041 | 1114 | 1135 | 1206
        | 1047 => ErrorClass::Outage,
        // A connection that was killed, aborted, or closed because it was idle.
        1152 | 1158..=1161 | 1184 | 1927 | 3169 | 4031 => ErrorClass::Lost,
        _ => ErrorClass::Statement,
    }
}

/// The number of a server's error.
fn number(error: &sqlx::Error) -> Option<u16> {
    error
        .as_database_error()
        .and_then(|error| error.try_downcast_ref::<MySqlDatabaseError>())
        .map(MySqlDatabaseError::number)
}

/// Runs a text of names and numbers of ours, unprepared.
async fn run(conn: &mut MySqlConnection, text: impl Into<Arc<str>>) -> Result<(), sqlx::Error> {
    conn.execute(sqlx::raw_sql(AssertSqlSafe(text.into())))
        .await?;
    Ok(())
}

fn backquoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

fn write_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
}

/// Whole seconds, at least one: the server knows no fractions, and zero means something else.
fn seconds(duration: Duration) -> u64 {
    let whole = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    whole.clamp(1, 1_073_741_824)
}

fn count(attempts: i64) -> u32 {
    u32::try_from(attempts).unwrap_or(0)
}

/// FNV-1a, for the name of a lock.
fn checksum(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_tells_the_product() {
        let mariadb = Flavour::of_version("10.11.19-MariaDB-0+deb12u1");
        assert_eq!(mariadb.to_string(), "MariaDB 10.11");
        assert!(mariadb.is_supported());
        assert!(!Flavour::of_version("5.5.5-10.5.8-MariaDB").is_supported());
        assert!(Flavour::of_version("8.0.36-28").is_supported());
        assert!(!Flavour::of_version("5.7.44-log").is_supported());
    }

    #[test]
    fn times_are_rounded_up_to_whole_seconds() {
        assert_eq!(seconds(Duration::ZERO), 1);
        assert_eq!(seconds(Duration::from_millis(300)), 1);
        assert_eq!(seconds(Duration::from_millis(5001)), 6);
    }

    #[test]
    fn settings_are_written_so_that_any_value_survives() {
        assert_eq!(literal(r"a'b\c"), r"'a''b\\c'");
        assert_eq!(backquoted("In `Box`"), "`In ``Box```");
    }
}
