use std::fmt;
use std::future::{Ready, ready};
use std::ops::{Deref, DerefMut};

use sqlx::Pool;
use sqlx::pool::PoolConnection;
use sqlx_core::transaction::TransactionManager;

use crate::db::{ErrorClass, InboxDatabase, sealed::Sealed};
use crate::error::HandlerError;

/// The transaction that a handler works in: the claim of its message is already in it.
///
/// `&mut Tx<Db>` is an executor of sqlx and dereferences to the connection, so every statement of sqlx works
/// on it. It cannot be committed: the runtime commits when the handler returned `Ok(())`, and rolls back when
/// it returned `Err(..)`, panicked or took too long.
///
/// A unit test makes one with [`Tx::begin`]; it is rolled back when it is dropped.
pub struct Tx<Db: InboxDatabase> {
    conn: PoolConnection<Db>,
    memory: ErrorMemory,
    on_drop: OnDrop,
}

/// What happens to the connection when the `Tx` goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnDrop {
    /// A unit test's: roll back and return it to the pool.
    RollBack,
    /// A worker's: its session is prepared and perhaps in the middle of something. Never back to the pool.
    Close,
    /// A worker's, reset.
    Return,
}

impl<Db: InboxDatabase> Tx<Db> {
    /// Begins a transaction on a connection of `pool`, for calling a handler in a unit test.
    ///
    /// There is no claim in it, and it is rolled back on drop.
    ///
    /// # Errors
    ///
    /// What the pool or the database answers.
    pub async fn begin(pool: &Pool<Db>) -> Result<Self, sqlx::Error> {
        let mut tx = Self {
            conn: pool.acquire().await?,
            memory: ErrorMemory::default(),
            on_drop: OnDrop::RollBack,
        };
        Db::TransactionManager::begin(&mut tx.conn, None).await?;
        Ok(tx)
    }

    /// Begins a savepoint: what is done through it can be rolled back alone.
    ///
    /// ```no_run
    /// # async fn example(tx: &mut inbox_core::Tx<sqlx::Postgres>) -> Result<(), sqlx::Error> {
    /// let mut attempt = tx.savepoint().await?;
    /// match sqlx::query("INSERT INTO receipts (id) VALUES (1)").execute(&mut *attempt).await {
    ///     Ok(_) => attempt.release().await?,
    ///     Err(_) => attempt.rollback().await?,
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// What the database answers.
    pub async fn savepoint(&mut self) -> Result<Savepoint<'_, Db>, sqlx::Error> {
        Db::TransactionManager::begin(&mut self.conn, None).await?;
        Ok(Savepoint {
            tx: self,
            open: true,
        })
    }

    /// Not available: the runtime commits.
    #[doc(hidden)]
    pub fn commit(&mut self) -> Ready<()>
    where
        Self: CommitBelongsToTheRuntime,
    {
        ready(())
    }

    /// Not available: return an error to roll back.
    #[doc(hidden)]
    pub fn rollback(&mut self) -> Ready<()>
    where
        Self: RollbackBelongsToTheRuntime,
    {
        ready(())
    }

    /// A worker's: not begun, and closed on drop until it is reset.
    pub(crate) fn of_worker(conn: PoolConnection<Db>) -> Self {
        Self {
            conn,
            memory: ErrorMemory::default(),
            on_drop: OnDrop::Close,
        }
    }

    pub(crate) const fn set_on_drop(&mut self, on_drop: OnDrop) {
        self.on_drop = on_drop;
    }

    pub(crate) fn conn(&mut self) -> &mut Db::Connection {
        &mut self.conn
    }

    pub(crate) fn forget_errors(&mut self) {
        self.memory.forget();
    }

    pub(crate) const fn last_error(&self) -> Option<&(ErrorClass, String)> {
        self.memory.0.as_ref()
    }

    /// Connection and memory, borrowed side by side.
    pub(crate) fn parts(&mut self) -> (&mut Db::Connection, &mut ErrorMemory) {
        (&mut self.conn, &mut self.memory)
    }
}

impl<Db: InboxDatabase> Drop for Tx<Db> {
    fn drop(&mut self) {
        match self.on_drop {
            OnDrop::RollBack => {
                // Once per level: savepoints can be open that were forgotten. Counted first, because not every
                // driver counts down at once.
                for _ in 0..Db::TransactionManager::get_transaction_depth(&self.conn) {
                    Db::TransactionManager::start_rollback(&mut self.conn);
                }
            }
            OnDrop::Close => self.conn.close_on_drop(),
            OnDrop::Return => {}
        }
    }
}

impl<Db: InboxDatabase> Deref for Tx<Db> {
    type Target = Db::Connection;

    fn deref(&self) -> &Self::Target {
        &self.conn
    }
}

impl<Db: InboxDatabase> DerefMut for Tx<Db> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.conn
    }
}

impl<Db: InboxDatabase> fmt::Debug for Tx<Db> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx")
            .field("database", &Db::NAME)
            .finish_non_exhaustive()
    }
}

/// The error of the last statement that went through [`Tx`] as an executor.
///
/// Wrappers such as `anyhow::Error` can hide a database error so that it is found in no source chain; what a
/// failed handler's last statement answered is then known from here.
#[derive(Debug, Default)]
pub(crate) struct ErrorMemory(Option<(ErrorClass, String)>);

impl ErrorMemory {
    pub(crate) fn forget(&mut self) {
        self.0 = None;
    }

    #[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
    pub(crate) fn note<Db: InboxDatabase>(&mut self, error: &sqlx::Error) {
        self.0 = Some((Db::classify(error), error.to_string()));
    }
}

/// A savepoint in a handler's transaction; rolled back on drop unless it was released.
///
/// Dereferences to the [`Tx`], so `&mut *savepoint` is an executor.
pub struct Savepoint<'t, Db: InboxDatabase> {
    tx: &'t mut Tx<Db>,
    open: bool,
}

impl<Db: InboxDatabase> Savepoint<'_, Db> {
    /// Keeps what was done since the savepoint, as part of the handler's transaction.
    ///
    /// # Errors
    ///
    /// What the database answers.
    pub async fn release(mut self) -> Result<(), sqlx::Error> {
        Db::TransactionManager::commit(&mut self.tx.conn).await?;
        self.open = false;
        Ok(())
    }

    /// Undoes what was done since the savepoint.
    ///
    /// # Errors
    ///
    /// What the database answers.
    pub async fn rollback(mut self) -> Result<(), sqlx::Error> {
        Db::TransactionManager::rollback(&mut self.tx.conn).await?;
        self.open = false;
        Ok(())
    }
}

impl<Db: InboxDatabase> Drop for Savepoint<'_, Db> {
    fn drop(&mut self) {
        if self.open {
            Db::TransactionManager::start_rollback(&mut self.tx.conn);
        }
    }
}

impl<Db: InboxDatabase> Deref for Savepoint<'_, Db> {
    type Target = Tx<Db>;

    fn deref(&self) -> &Tx<Db> {
        self.tx
    }
}

impl<Db: InboxDatabase> DerefMut for Savepoint<'_, Db> {
    fn deref_mut(&mut self) -> &mut Tx<Db> {
        self.tx
    }
}

impl<Db: InboxDatabase> fmt::Debug for Savepoint<'_, Db> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Savepoint")
            .field("open", &self.open)
            .finish_non_exhaustive()
    }
}

/// The type of a handler's second parameter, behind its `&mut`.
#[diagnostic::on_unimplemented(
    message = "the second parameter of an inbox handler must be `&mut Tx<DB>`, found `&mut {Self}`",
    label = "not an inbox transaction",
    note = "write `&mut Tx<Postgres>`, `&mut Tx<MySql>` or `&mut Tx<Sqlite>`; it is an executor of sqlx and dereferences to the connection",
    note = "statements run through anything else are not rolled back together with the claim"
)]
pub trait HandlerTx: Sized + Sealed {
    /// The database.
    type Db: InboxDatabase;

    /// The runtime's transaction as the type that the handler names.
    fn lend(tx: &mut Tx<Self::Db>) -> &mut Self;
}

impl<Db: InboxDatabase> Sealed for Tx<Db> {}

impl<Db: InboxDatabase> HandlerTx for Tx<Db> {
    type Db = Db;

    fn lend(tx: &mut Tx<Self::Db>) -> &mut Self {
        tx
    }
}

/// Implemented by nothing.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "the inbox runtime commits this transaction, not the handler",
    label = "remove this call; return `Ok(())` to commit, `Err(..)` to roll back"
)]
pub trait CommitBelongsToTheRuntime {}

/// Implemented by nothing.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "the inbox runtime ends this transaction, not the handler",
    label = "to roll back, return `Err(..)`"
)]
pub trait RollbackBelongsToTheRuntime {}

/// The database error in the chain of what a handler returned, or else the one that `Tx` remembers.
pub(crate) fn database_error<Db: InboxDatabase>(
    error: &HandlerError,
    remembered: Option<&(ErrorClass, String)>,
) -> Option<ErrorClass> {
    crate::error::chain(error)
        .find_map(|e| e.downcast_ref::<sqlx::Error>())
        .map(Db::classify)
        .or_else(|| remembered.map(|(class, _)| *class))
}
