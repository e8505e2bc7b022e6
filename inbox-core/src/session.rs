use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sqlx::Pool;

use crate::db::stored::WaitingMessage;
use crate::db::{
    ClaimKey, Claimed, Claims, Counted, Done, ErrorClass, Existing, InboxDatabase, PurgeBatch,
    Purged, Sealed, TraceOfClaim, level,
};
use crate::dead_letter::{DeadLetter, ExistingEntry, FailureText};
use crate::error::HandlerError;
use crate::handler::Isolation;
use crate::tx::{OnDrop, Tx, database_error};

/// What a transaction must state when it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactionOptions {
    /// The isolation level.
    pub isolation: Isolation,
    /// How long the claim may wait for a copy that is in work elsewhere.
    pub claim_wait: Duration,
    /// How long the transaction may sit idle before the server ends it: what frees the locks of a process
    /// that the network has cut off.
    pub idle_limit: Duration,
}

/// The statements of one inbox, resolved at start-up and shared by its sessions.
pub struct Layout<Db: InboxDatabase> {
    statements: Db::Statements,
}

impl<Db: InboxDatabase> Layout<Db> {
    /// A layout from what start-up found.
    #[must_use]
    pub const fn new(statements: Db::Statements) -> Self {
        Self { statements }
    }

    /// The statements.
    #[must_use]
    pub const fn statements(&self) -> &Db::Statements {
        &self.statements
    }

    /// The text that begins a transaction with these options; built once, because a worker uses it for every
    /// message.
    #[must_use]
    pub fn begin_text(&self, options: &TransactionOptions) -> Arc<str> {
        Db::begin_text(&self.statements, options).into()
    }

    /// Runs one batch of a purge on a connection of the pool, in a transaction of its own.
    ///
    /// # Errors
    ///
    /// What the database answers. The connection must be closed then, and when this future is dropped.
    pub async fn purge(
        &self,
        conn: &mut Db::Connection,
        batch: &PurgeBatch<'_>,
    ) -> Result<Purged, sqlx::Error> {
        Db::purge(conn, &self.statements, batch).await
    }
}

impl<Db: InboxDatabase> fmt::Debug for Layout<Db> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Layout").field(&self.statements).finish()
    }
}

/// A prepared connection of a worker, from checkout to release: the runtime's side of [`Tx`].
///
/// Only the runtime holds one, a handler sees the [`Tx`] inside. Dropping a session at any point closes its
/// connection, and the server rolls back; [`Session::release`] is the only way back to the pool.
pub struct Session<Db: InboxDatabase> {
    tx: Tx<Db>,
    layout: Arc<Layout<Db>>,
    guard: Db::Guard,
    /// Whether what ran on it was ended already.
    is_interrupted: bool,
}

impl<Db: InboxDatabase> Session<Db> {
    /// Takes a connection from the pool and prepares it.
    ///
    /// # Errors
    ///
    /// What the pool or the database answers.
    pub async fn open(pool: &Pool<Db>, layout: Arc<Layout<Db>>) -> Result<Self, sqlx::Error> {
        let mut tx = Tx::of_worker(pool.acquire().await?);
        let guard = Db::prepare(tx.conn(), pool, &layout.statements).await?;
        Ok(Self {
            tx,
            layout,
            guard,
            is_interrupted: false,
        })
    }

    /// Resets the connection and returns it to the pool; whatever goes wrong closes it.
    pub async fn release(mut self) {
        if Db::reset(self.tx.conn(), &self.layout.statements, &mut self.guard)
            .await
            .is_ok()
        {
            self.tx.set_on_drop(OnDrop::Return);
        }
    }

    /// Closes the connection, after what runs on it was ended on the server, where it would go on otherwise: bounded,
    /// and needed after a statement that was interrupted. Dropping does the same in the background, which a process
    /// that ends does not wait for.
    pub async fn close(mut self) {
        if let Some(interruption) = Db::interrupt(&self.guard) {
            interruption.await;
            self.is_interrupted = true;
        }
    }

    /// Begins a transaction and makes its claims as the first thing in it. Answers in their order.
    ///
    /// # Errors
    ///
    /// What the database answers. The transaction may be open then: [`Session::roll_back`] or drop.
    pub async fn claim(&mut self, claims: &Claims<'_>) -> Result<Vec<Claimed>, sqlx::Error> {
        self.tx.forget_errors();
        Db::claim(
            self.tx.conn(),
            &self.layout.statements,
            &mut self.guard,
            claims,
        )
        .await
    }

    /// Begins a transaction for bookkeeping.
    ///
    /// # Errors
    ///
    /// What the database answers.
    pub async fn begin(&mut self, begin: &Arc<str>) -> Result<(), sqlx::Error> {
        self.tx.forget_errors();
        Db::begin(self.tx.conn(), &mut self.guard, begin).await
    }

    /// The transaction as the handler gets it.
    pub const fn tx(&mut self) -> &mut Tx<Db> {
        &mut self.tx
    }

    /// Ends the transaction of handlers that returned `Ok`, by the fence and COMMIT. Dropping this future leaves
    /// the outcome unknown, like losing the connection. When it is committed, `next` is begun and claimed at once,
    /// in the same round trip where the database allows.
    ///
    /// After anything but [`Sealed::Committed`] and [`Sealed::Refused`] the session is good for nothing: drop it.
    pub async fn seal(
        &mut self,
        done: &Done<'_>,
        next: Option<&Claims<'_>>,
    ) -> (Sealed, Option<Result<Vec<Claimed>, sqlx::Error>>) {
        let answer = Db::seal(
            self.tx.conn(),
            &self.layout.statements,
            &mut self.guard,
            done,
            next,
        )
        .await;
        self.tx.forget_errors();
        answer
    }

    /// Commits a transaction of our own. Dropping this future leaves the outcome unknown, like losing the connection.
    ///
    /// # Errors
    ///
    /// What the database answers; [`InboxDatabase::is_known_rollback`] tells what it means.
    pub async fn commit(&mut self) -> Result<(), sqlx::Error> {
        level::<Db>(self.tx.conn())?;
        Db::commit(self.tx.conn(), &mut self.guard).await
    }

    /// Rolls back whatever is open.
    ///
    /// # Errors
    ///
    /// What the database answers; drop the session then.
    pub async fn roll_back(&mut self) -> Result<(), sqlx::Error> {
        Db::roll_back(self.tx.conn(), &mut self.guard).await
    }

    /// Begins the work on the next message of several, so that it can be taken back alone.
    ///
    /// # Errors
    ///
    /// What the database answers, also when the message before left the transaction unusable.
    pub async fn step(&mut self) -> Result<(), sqlx::Error> {
        level::<Db>(self.tx.conn())?;
        self.tx.forget_errors();
        Db::step(self.tx.conn(), &mut self.guard).await
    }

    /// Takes back what was done since the last step, and the claim of its message.
    ///
    /// # Errors
    ///
    /// What the database answers; the whole transaction must be rolled back then.
    pub async fn take_back(&mut self, key: ClaimKey<'_>) -> Result<(), sqlx::Error> {
        level::<Db>(self.tx.conn())?;
        Db::take_back(
            self.tx.conn(),
            &self.layout.statements,
            &mut self.guard,
            key,
        )
        .await
    }

    /// What is there under keys that could not be claimed, in their order.
    ///
    /// # Errors
    ///
    /// What the database answers.
    pub async fn existing(&mut self, keys: &[ClaimKey<'_>]) -> Result<Vec<Existing>, sqlx::Error> {
        let statements = &self.layout.statements;
        Db::existing(self.tx.conn(), statements, &mut self.guard, keys).await
    }

    /// Ends a transaction that has won no claim: answers what is there under its keys, rolls back, and claims `next`.
    ///
    /// # Errors
    ///
    /// What the database answers; the session must not be used any more.
    pub async fn dismiss(
        &mut self,
        keys: &[ClaimKey<'_>],
        next: Option<&Claims<'_>>,
    ) -> Result<(Vec<Existing>, Option<Result<Vec<Claimed>, sqlx::Error>>), sqlx::Error> {
        let statements = &self.layout.statements;
        Db::dismiss(self.tx.conn(), statements, &mut self.guard, keys, next).await
    }

    /// Waits until everything that was committed before on this session is durable.
    ///
    /// # Errors
    ///
    /// Then nobody knows what is durable; the session must not be used any more.
    pub async fn flush(&mut self) -> Result<(), sqlx::Error> {
        Db::flush(self.tx.conn(), &self.layout.statements, &mut self.guard).await
    }

    /// Whether a claim is committed, outside any transaction.
    ///
    /// # Errors
    ///
    /// What the database answers.
    pub async fn trace(
        &mut self,
        key: ClaimKey<'_>,
        mark: Option<&str>,
    ) -> Result<TraceOfClaim, sqlx::Error> {
        Db::trace(self.tx.conn(), &self.layout.statements, key, mark).await
    }

    /// Deletes the claim that the open transaction made.
    ///
    /// # Errors
    ///
    /// What the database answers.
    pub async fn withdraw_claim(&mut self, key: ClaimKey<'_>) -> Result<(), sqlx::Error> {
        Db::withdraw_claim(self.tx.conn(), &self.layout.statements, key).await
    }

    /// Stores a dead letter in the open transaction.
    ///
    /// # Errors
    ///
    /// What the database answers.
    pub async fn store_dead_letter(
        &mut self,
        letter: &DeadLetter<'_>,
        existing: ExistingEntry,
    ) -> Result<(), sqlx::Error> {
        Db::store_dead_letter(self.tx.conn(), &self.layout.statements, letter, existing).await
    }

    /// Counts a failure in the open transaction.
    ///
    /// # Errors
    ///
    /// What the database answers.
    pub async fn record_failure(
        &mut self,
        key: ClaimKey<'_>,
        failure: &FailureText,
        ends_start: bool,
    ) -> Result<u32, sqlx::Error> {
        let statements = &self.layout.statements;
        Db::record_failure(self.tx.conn(), statements, key, failure, ends_start).await
    }

    /// Counts the start of an attempt in a transaction of its own. With `below`, a message that must be watched alone
    /// is not counted: `None`.
    ///
    /// # Errors
    ///
    /// What the database answers.
    pub async fn record_start(
        &mut self,
        begin: &Arc<str>,
        key: ClaimKey<'_>,
        below: Option<u32>,
    ) -> Result<Option<Counted>, sqlx::Error> {
        self.begin(begin).await?;
        let counted = Db::record_start(self.tx.conn(), &self.layout.statements, key, below).await?;
        self.commit().await?;
        Ok(counted)
    }

    /// Notes in a transaction of its own that a counted start came to an end; nothing at all counts any more against a
    /// message that was processed.
    ///
    /// # Errors
    ///
    /// What the database answers.
    pub async fn forget_start(
        &mut self,
        begin: &Arc<str>,
        key: ClaimKey<'_>,
        is_processed: bool,
    ) -> Result<(), sqlx::Error> {
        self.begin(begin).await?;
        let statements = &self.layout.statements;
        if is_processed {
            Db::forget_counted(self.tx.conn(), statements, key).await?;
        } else {
            Db::forget_start(self.tx.conn(), statements, key).await?;
        }
        self.commit().await
    }

    /// Stores a message in the open transaction, to be tried again after `delay`.
    ///
    /// # Errors
    ///
    /// What the database answers.
    pub async fn store_message(
        &mut self,
        message: &WaitingMessage<'_>,
        delay: Duration,
    ) -> Result<(), sqlx::Error> {
        Db::store_message(self.tx.conn(), &self.layout.statements, message, delay).await
    }

    /// The payload of a message that waits in the database, or is in work from there, under a key.
    ///
    /// # Errors
    ///
    /// What the database answers.
    pub async fn waiting_payload(
        &mut self,
        key: ClaimKey<'_>,
    ) -> Result<Option<Vec<u8>>, sqlx::Error> {
        Db::waiting_payload(self.tx.conn(), &self.layout.statements, key).await
    }

    /// What kind of database error made a handler fail, if one did: found in the source chain of what it
    /// returned, or remembered by [`Tx`] from its last statement.
    #[must_use]
    pub fn cause_of(&self, error: &HandlerError) -> Option<ErrorClass> {
        database_error::<Db>(error, self.tx.last_error())
    }

    /// The text of the error that the last statement through [`Tx`] answered, if it failed.
    #[must_use]
    pub fn last_statement_error(&self) -> Option<&str> {
        self.tx.last_error().map(|(_, text)| text.as_str())
    }
}

impl<Db: InboxDatabase> Drop for Session<Db> {
    fn drop(&mut self) {
        // After a reset there is nothing left that could be interrupted.
        if !self.is_interrupted
            && let Some(interruption) = Db::interrupt(&self.guard)
        {
            sqlx_core::rt::spawn(interruption);
        }
    }
}

impl<Db: InboxDatabase> fmt::Debug for Session<Db> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("guard", &self.guard)
            .finish_non_exhaustive()
    }
}
