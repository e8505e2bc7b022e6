//! The SQL of each database: one trait, one room per implementation.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use sqlx::{Database, Pool, SqlSafeStr as _};
use sqlx_core::transaction::TransactionManager;

use crate::db::stored::MessageStore;
use crate::dead_letter::FailureText;
use crate::envelope::Envelope;
use crate::session::TransactionOptions;
use crate::tables::Tables;

mod dead_letters;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
mod executor;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
mod migrations;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
mod retention;
#[cfg(feature = "sqlite")]
mod sqlite;
pub(crate) mod stored;

pub use dead_letters::DeadLetterStore;

pub use retention::{Expiring, PurgeBatch, PurgePosition, Purged, Retention};

pub(crate) mod sealed {
    /// A wrong implementation of [`super::InboxDatabase`] would break the guarantee: only ours exist.
    pub trait Sealed {}
}

/// The statements of a database, for the traits that say what is done with them.
pub trait Dialect: Database + sealed::Sealed {
    /// Statement texts and settings as resolved at start-up: every statement names schema and table, so that
    /// no setting of a session can send it elsewhere.
    type Statements: fmt::Debug + Send + Sync + 'static;
}

/// A database that can hold an inbox: the SQL of the claim, the fence and the bookkeeping.
///
/// Everything that differs between databases is behind this trait. The runtime decides the order of the calls;
/// the implementation decides the statements. All times come from the database's clock.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot hold an inbox",
    label = "not an inbox database",
    note = "the databases are `sqlx::Postgres` (feature `postgres`), `sqlx::MySql` (feature `mysql`) and `sqlx::Sqlite` (feature `sqlite`)"
)]
pub trait InboxDatabase: MessageStore + DeadLetterStore + Retention {
    /// How many workers may write at once, where the database itself is the limit.
    const MAX_CONCURRENCY: Option<usize>;

    /// Whether a commit can be answered before it is durable and be flushed later.
    const COMMITS_ASYNCHRONOUSLY: bool;

    /// The isolation levels that it has.
    const ISOLATION_LEVELS: &'static [crate::handler::Isolation];

    /// What a prepared session carries besides its connection.
    type Guard: fmt::Debug + Send + Sync + 'static;

    /// Creates or upgrades the tables, under a ledger of our own.
    fn migrate(
        conn: &mut Self::Connection,
        tables: &Tables,
    ) -> impl Future<Output = Result<(), MigrationError>> + Send;

    /// Looks at the database as a session of the pool sees it: finds the tables, reads the effective settings,
    /// and reports what would break the guarantee.
    fn inspect(
        conn: &mut Self::Connection,
        tables: &Tables,
        requisites: &Requisites,
    ) -> impl Future<Output = Result<Inspection<Self>, sqlx::Error>> + Send;

    /// Whether connections of this pool are seen to share sessions of the server, as they do behind a pooler in
    /// transaction mode. What is not seen may still be so.
    #[must_use]
    fn share_sessions(
        _pool: &Pool<Self>,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send {
        std::future::ready(Ok(false))
    }

    /// Prepares a session that a worker took from `pool`: from here on it can write only inside
    /// transactions of ours.
    fn prepare(
        conn: &mut Self::Connection,
        pool: &Pool<Self>,
        statements: &Self::Statements,
    ) -> impl Future<Output = Result<Self::Guard, sqlx::Error>> + Send;

    /// Undoes what [`InboxDatabase::prepare`] and the handlers did to the session.
    fn reset(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        guard: &mut Self::Guard,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Makes a statement that runs on this session end soon, where closing the connection does not. What is answered
    /// has to run to its end for that, which takes some seconds at most.
    fn interrupt(guard: &Self::Guard) -> Option<Interruption>;

    /// The text that begins a transaction and states everything that it depends on.
    fn begin_text(statements: &Self::Statements, options: &TransactionOptions) -> String;

    /// Begins a transaction and inserts its claims as the first thing in it. Answers in their order.
    fn claim(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        guard: &mut Self::Guard,
        claims: &Claims<'_>,
    ) -> impl Future<Output = Result<Vec<Claimed>, sqlx::Error>> + Send;

    /// Begins a transaction with a text of [`InboxDatabase::begin_text`].
    fn begin(
        conn: &mut Self::Connection,
        guard: &mut Self::Guard,
        text: &Arc<str>,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Ends the transaction of handlers that returned `Ok`: proves, as the last thing before COMMIT, that it is
    /// still the one that made its claims, forgets their counted failures if there are any, and commits. A proof
    /// that fails keeps the COMMIT from happening.
    ///
    /// `next` is claimed as soon as this is committed, and only then: an error of it belongs to it.
    fn seal(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        guard: &mut Self::Guard,
        done: &Done<'_>,
        next: Option<&Claims<'_>>,
    ) -> impl Future<Output = (Sealed, Option<Result<Vec<Claimed>, sqlx::Error>>)> + Send;

    /// Begins the work on the next message of several in the open transaction: from here on it can be
    /// [taken back](InboxDatabase::take_back) alone.
    fn step(
        conn: &mut Self::Connection,
        guard: &mut Self::Guard,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Takes back what was done since the last [`step`](InboxDatabase::step), and the claim of its message.
    fn take_back(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        guard: &mut Self::Guard,
        key: ClaimKey<'_>,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Commits a transaction of our own bookkeeping.
    fn commit(
        conn: &mut Self::Connection,
        guard: &mut Self::Guard,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Rolls back whatever is open, savepoints included.
    fn roll_back(
        conn: &mut Self::Connection,
        guard: &mut Self::Guard,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Whether this error in answer to COMMIT proves that the transaction was rolled back. If not, nobody
    /// knows what became of it.
    fn is_known_rollback(error: &sqlx::Error) -> bool;

    /// What is there under keys that could not be claimed, in their order.
    fn existing(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        guard: &mut Self::Guard,
        keys: &[ClaimKey<'_>],
    ) -> impl Future<Output = Result<Vec<Existing>, sqlx::Error>> + Send;

    /// Ends a transaction that has won no claim: answers what is there under the keys, and rolls back.
    ///
    /// `next` is claimed as soon as that is done, and only then: an error of it belongs to it.
    #[expect(
        clippy::type_complexity,
        reason = "two answers, each of which can fail"
    )]
    fn dismiss(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        guard: &mut Self::Guard,
        keys: &[ClaimKey<'_>],
        next: Option<&Claims<'_>>,
    ) -> impl Future<
        Output = Result<(Vec<Existing>, Option<Result<Vec<Claimed>, sqlx::Error>>), sqlx::Error>,
    > + Send;

    /// Waits until everything that was committed before on this very session is durable. No transaction may be open.
    ///
    /// # Errors
    ///
    /// Then it is not known what is durable, also when another session would answer otherwise.
    fn flush(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        guard: &mut Self::Guard,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Whether a claim is committed, and whether by the transaction that left `mark`.
    fn trace(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        key: ClaimKey<'_>,
        mark: Option<&str>,
    ) -> impl Future<Output = Result<TraceOfClaim, sqlx::Error>> + Send;

    /// Deletes the claim that the open transaction made, so that a dead letter leaves none.
    fn withdraw_claim(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        key: ClaimKey<'_>,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Counts a failure and answers what is counted, this one included. With `ends_start` it is the end of a start
    /// that was counted.
    fn record_failure(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        key: ClaimKey<'_>,
        failure: &FailureText,
        ends_start: bool,
    ) -> impl Future<Output = Result<u32, sqlx::Error>> + Send;

    /// Counts the start of an attempt, in the open transaction, and answers what is counted, this start included.
    ///
    /// With `below`, a message of which a start is counted already, or whose starts and failures would reach that
    /// number, is not counted: `None`.
    fn record_start(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        key: ClaimKey<'_>,
        below: Option<u32>,
    ) -> impl Future<Output = Result<Option<Counted>, sqlx::Error>> + Send;

    /// A start that was counted came to an end, in the open transaction.
    fn forget_start(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        key: ClaimKey<'_>,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// What kind of error this is, by its code and never by its text.
    fn classify(error: &sqlx::Error) -> ErrorClass;

    /// The highest number of connections that the pool opens.
    #[must_use]
    fn pool_size(pool: &Pool<Self>) -> usize {
        usize::try_from(pool.options().get_max_connections()).unwrap_or(usize::MAX)
    }
}

/// Ends what runs on a session, from outside.
pub type Interruption = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The key of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimKey<'a> {
    /// The consumer's name.
    pub consumer: &'a str,
    /// The message's id.
    pub message_id: &'a str,
}

/// A claim to insert.
#[derive(Debug)]
pub struct Claim<'a> {
    pub(crate) key: ClaimKey<'a>,
    pub(crate) message_type: Option<Cow<'a, str>>,
    pub(crate) correlation_id: Option<Cow<'a, str>>,
    pub(crate) payload_hash: PayloadHash,
}

impl<'a> Claim<'a> {
    /// The claim of a consumer on a message.
    #[must_use]
    pub fn new(key: ClaimKey<'a>, envelope: &'a Envelope) -> Self {
        Self {
            key,
            message_type: envelope.type_name().map(storable),
            correlation_id: envelope
                .correlation_id
                .as_deref()
                .map(|id| storable(Cow::Borrowed(id))),
            payload_hash: PayloadHash::of(&envelope.payload),
        }
    }

    /// The key.
    #[must_use]
    pub const fn key(&self) -> ClaimKey<'a> {
        self.key
    }

    /// The hash of the payload.
    #[must_use]
    pub const fn payload_hash(&self) -> &PayloadHash {
        &self.payload_hash
    }
}

/// Text for people in a form that every database takes: an id is refused instead, never changed.
fn storable(text: Cow<'_, str>) -> Cow<'_, str> {
    if FailureText::takes(&text) {
        text
    } else {
        Cow::Owned(FailureText::new(text).as_str().to_owned())
    }
}

/// The claims of one transaction.
#[derive(Debug, Clone, Copy)]
pub struct Claims<'a> {
    /// The text that begins the transaction, of [`InboxDatabase::begin_text`].
    pub begin: &'a Arc<str>,
    /// What is claimed in it: at least one message, all of one consumer, of different ids and in the order of
    /// their bytes, so that two sessions never wait for each other.
    pub claims: &'a [Claim<'a>],
}

/// What the handlers of a transaction are done with.
#[derive(Debug, Clone, Copy)]
pub struct Done<'a> {
    /// The claims that the transaction has won.
    pub keys: &'a [ClaimKey<'a>],
    /// Whether anything is counted against any of them.
    pub have_failures: bool,
    /// Whether the commit is answered when it is durable, or before ([`InboxDatabase::flush`] comes later).
    pub is_durable: bool,
}

/// What is there under a key that could not be claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Existing {
    /// Nothing: a purge came in between, or something swallows claims.
    Absent,
    /// The claim of a message that was processed.
    Claim {
        /// The hash of its payload, where it was stored.
        payload_hash: Option<Vec<u8>>,
    },
}

/// The SHA-256 of a payload behind one byte that names the algorithm, so that another one can follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayloadHash([u8; 33]);

impl PayloadHash {
    const SHA_256: u8 = 1;

    /// The hash of a payload.
    #[must_use]
    pub fn of(payload: &[u8]) -> Self {
        let mut bytes = [Self::SHA_256; 33];
        let (_, digest) = bytes.split_at_mut(1);
        digest.copy_from_slice(&Sha256::digest(payload));
        Self(bytes)
    }

    /// Algorithm and digest, as stored.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether the stored hash is of the same algorithm and says that the payload was another one.
    #[must_use]
    pub fn contradicts(&self, stored: Option<&[u8]>) -> bool {
        stored.is_some_and(|stored| stored.first() == self.0.first() && stored != self.0)
    }
}

/// The answer to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Claimed {
    /// The message is ours to process.
    Won {
        /// What is counted against it so far.
        counted: Counted,
        /// Whether this consumer keeps the message elsewhere, as far as the claim can see.
        kept: Option<Kept>,
        /// What [`InboxDatabase::trace`] recognises this transaction by.
        mark: Option<String>,
    },
    /// The message was processed before, if its claim is there: [`InboxDatabase::existing`] tells. Without that
    /// look, "no row" may be the answer to something else, or the doing of a trigger.
    Duplicate,
}

/// What is counted against a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counted {
    /// Its failures.
    pub attempts: u32,
    /// Starts of an attempt that nobody saw end: each may have ended its process.
    pub starts: u32,
}

impl Counted {
    /// So many failures and starts.
    #[must_use]
    pub const fn new(attempts: u32, starts: u32) -> Self {
        Self { attempts, starts }
    }

    /// Both together.
    #[must_use]
    pub const fn all(self) -> u32 {
        self.attempts.saturating_add(self.starts)
    }
}

/// Where a consumer keeps a message that it could not process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kept {
    /// As an open dead letter.
    Dead,
    /// Parked for its next attempt.
    Parked,
}

impl Kept {
    /// What there is, the more final first.
    #[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
    pub(crate) fn of(is_dead: bool, is_parked: bool) -> Option<Self> {
        if is_dead {
            Some(Self::Dead)
        } else {
            is_parked.then_some(Self::Parked)
        }
    }
}

/// What became of the transaction of a handler that returned `Ok`.
#[derive(Debug)]
#[non_exhaustive]
pub enum Sealed {
    /// Claim and effect are durable.
    Committed,
    /// A failed statement had aborted it: COMMIT would have rolled back, and said nothing.
    Aborted,
    /// The claim is not in the open transaction: the handler had ended the one that made it, or removed it.
    Gone,
    /// A dead letter was kept under an id of it while its claim waited for that one's: nothing is committed, and the next
    /// claim finds the letter.
    Kept,
    /// The driver counts this many levels instead of one: the handler forgot a savepoint, and what it did since
    /// would be lost with it.
    Uneven(usize),
    /// The answer was to something else that the handler had left unread. The claim tells what was committed.
    Garbled,
    /// The proof itself failed; nothing is committed.
    Unproven(sqlx::Error),
    /// A statement of our own failed after the proof; nothing is committed.
    Failed(sqlx::Error),
    /// The database refused to commit and rolled back: a deferred constraint, a conflict.
    Refused(sqlx::Error),
    /// The connection was lost while COMMIT could have been under way: nobody knows.
    Unknown(sqlx::Error),
}

/// What is known of a claim after its transaction was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceOfClaim {
    /// No committed claim is visible. While a COMMIT may be in flight, this proves nothing.
    Absent,
    /// The claim is committed, by the transaction in question as far as the database can tell.
    Ours,
    /// The claim is committed, by another transaction.
    Foreign,
}

/// What kind of error a database reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorClass {
    /// A conflict with another transaction: the same work can succeed in a new transaction.
    Transient,
    /// The server says that it is not available, or no connection could be had.
    Outage,
    /// The connection broke: an outage, or what this message did to it.
    Lost,
    /// The statement itself is at fault.
    Statement,
}

/// What the runtime will ask of the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requisites {
    /// How long a claim may wait for a copy in work elsewhere.
    pub claim_wait: Duration,
    /// The longest time limit of a handler.
    pub longest_handler: Duration,
    /// Whether a pooler may give each transaction another session of the server.
    pub behind_pooler: bool,
}

/// What a message may have beside its payload in the same statement, in bytes.
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub(crate) const BESIDE_PAYLOAD: u64 = 1024 * 1024;

/// What a look at the database found.
#[derive(Debug)]
pub struct Inspection<Db: InboxDatabase> {
    /// Findings, in the order in which they were made.
    pub findings: Vec<Finding>,
    /// Statements for the tables as they are.
    pub statements: Db::Statements,
    /// The largest payload that can be stored beside its properties and headers, in bytes, and what limits it.
    pub largest_payload: (u64, &'static str),
}

/// One thing that start-up should tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Whether the runtime may start in spite of it.
    pub severity: Severity,
    /// The setting or table by name, its value, and the remedy.
    pub text: String,
}

impl Finding {
    /// What is wrong when a pooler hands sessions around and nobody said so.
    pub const SHARED_SESSIONS: &str = "the pool's connections share sessions of the server: a pooler in transaction \
         mode stands between. Connect directly, or in session mode; or add `.behind_transaction_pooler()`, whose \
         documentation says what the pooler needs (dead letters: `open_behind_transaction_pooler`)";

    /// Something that weakens the guarantee in a way that the operator may have chosen.
    pub fn warning(text: impl Into<String>) -> Self {
        Self {
            severity: Severity::Warning,
            text: text.into(),
        }
    }

    /// Something that makes the guarantee impossible.
    pub fn problem(text: impl Into<String>) -> Self {
        Self {
            severity: Severity::Problem,
            text: text.into(),
        }
    }
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// Told, and started anyway.
    Warning,
    /// Not started.
    Problem,
}

/// Why the tables could not be created or upgraded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrationError {
    /// A table or schema name cannot be used.
    #[error(transparent)]
    Names(#[from] crate::tables::InvalidTableNames),
    /// The database has no schemas.
    #[error("{database} has no schemas: remove `.schema({schema:?})`")]
    NoSchemas {
        /// The database.
        database: &'static str,
        /// The schema asked for.
        schema: String,
    },
    /// The connection has no database, and none was asked for.
    #[error(
        "the connection has no database for the inbox tables: name one in its address, or with `.schema(..)`"
    )]
    NoDatabase,
    /// The migration failed.
    #[error("the inbox tables could not be migrated")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// No connection, or a query failed.
    #[error("the inbox tables could not be migrated")]
    Database(#[from] sqlx::Error),
}

/// A statement's text, built once from checked names. Cheap to hand to the driver, which keys its prepared
/// statements by the text.
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
#[derive(Debug)]
pub(crate) struct Statement(Arc<str>);

#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
impl Statement {
    pub(crate) fn new(text: String) -> Self {
        Self(text.into())
    }

    pub(crate) fn text(&self) -> sqlx::AssertSqlSafe<Arc<str>> {
        sqlx::AssertSqlSafe(Arc::clone(&self.0))
    }
}

/// The text that makes a savepoint for the next message, in place of the one of the message before.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn next_step(step: &mut Option<String>) -> String {
    if let Some(last) = step {
        return format!("RELEASE SAVEPOINT {last}; SAVEPOINT {last}");
    }
    let first = format!("inbox_step_{:016x}", fastrand::u64(..));
    format!("SAVEPOINT {}", step.insert(first))
}

/// Undoes the transaction and its savepoints, as far as the driver counts them.
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub(crate) async fn roll_back_all<Db: InboxDatabase>(
    conn: &mut Db::Connection,
) -> Result<(), sqlx::Error> {
    while Db::TransactionManager::get_transaction_depth(conn) > 0 {
        Db::TransactionManager::rollback(conn).await?;
    }
    Ok(())
}

/// How many levels the driver counts, when it is not the one of the transaction itself: a COMMIT would release a
/// savepoint then, or do nothing.
pub(crate) fn uneven_depth<Db: InboxDatabase>(conn: &Db::Connection) -> Option<usize> {
    let depth = Db::TransactionManager::get_transaction_depth(conn);
    (depth != 1).then_some(depth)
}

/// An error unless the driver counts the one transaction that it was told of. A savepoint of a handler that failed can
/// have left it at another depth, and then it would take a savepoint for a transaction.
pub(crate) fn level<Db: InboxDatabase>(conn: &Db::Connection) -> Result<(), sqlx::Error> {
    match uneven_depth::<Db>(conn) {
        None => Ok(()),
        Some(depth) => Err(sqlx::Error::Protocol(format!(
            "the driver is at transaction depth {depth} instead of 1"
        ))),
    }
}

/// A text for the driver. Safe: ours are built from checked names and numbers.
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub(crate) fn driver_text(text: &Arc<str>) -> sqlx::SqlStr {
    sqlx::AssertSqlSafe(Arc::clone(text)).into_sql_str()
}

/// The columns that this version needs, by the role of their table.
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub(crate) const REQUIRED_COLUMNS: [(&str, &[&str]); 4] = [
    (
        "processed",
        &[
            "message_id",
            "consumer_name",
            "received_at",
            "message_type",
            "correlation_id",
            "payload_hash",
        ],
    ),
    (
        "dead_letters",
        &[
            "id",
            "entry_key",
            "source",
            "consumer_name",
            "message_id",
            "message_type",
            "handler",
            "reason",
            "failure",
            "attempts",
            "headers",
            "payload",
            "first_failed_at",
            "last_failed_at",
            "replayed_at",
            "replayed_by",
            "replays",
        ],
    ),
    (
        "attempts",
        &[
            "message_id",
            "consumer_name",
            "attempts",
            "first_failed_at",
            "last_failed_at",
            "last_failure",
            "starts",
        ],
    ),
    (
        "messages",
        &[
            "id",
            "consumer_name",
            "message_id",
            "source",
            "status",
            "headers",
            "payload",
            "stored_at",
            "next_attempt_at",
            "claimed_at",
            "claimed_by",
            "claim_token",
        ],
    ),
];

/// Compares the columns found with the ones needed.
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub(crate) fn schema_findings(
    tables: &Tables,
    columns_of: impl Fn(&str) -> Vec<String>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (role, needed) in REQUIRED_COLUMNS {
        let table = match role {
            "processed" => tables.processed_name(),
            "dead_letters" => tables.dead_letters_name(),
            "messages" => tables.messages_name(),
            _ => tables.attempts_name(),
        };
        let found = columns_of(table);
        if found.is_empty() {
            findings.push(Finding::problem(format!(
                "the table {table:?} does not exist; run `inbox_runtime::migrate(&pool)` or add `.migrate_on_start()`"
            )));
            continue;
        }
        let missing: Vec<_> = needed
            .iter()
            .filter(|column| !found.iter().any(|f| f == *column))
            .copied()
            .collect();
        if !missing.is_empty() {
            findings.push(Finding::problem(format!(
                "the table {table:?} is older than this version: it has no column {}; run `inbox_runtime::migrate(&pool)` or add `.migrate_on_start()`",
                missing.join(", ")
            )));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_of_another_algorithm_contradict_nothing() {
        let hash = PayloadHash::of(b"a");
        assert!(!hash.contradicts(None));
        assert!(!hash.contradicts(Some(hash.as_bytes())));
        assert!(hash.contradicts(Some(PayloadHash::of(b"b").as_bytes())));
        let mut newer = PayloadHash::of(b"b").as_bytes().to_vec();
        newer[0] = 2;
        assert!(!hash.contradicts(Some(&newer)));
    }
}
