//! The SQL of dead letters: how they are kept, looked at, replayed and discarded.

use std::future::Future;

use crate::db::{ClaimKey, Dialect};
use crate::dead_letter::{
    DeadLetter, DeadLetterEntry, DeadLetterQuery, ExistingEntry, StoredDeadLetter,
};

/// Where dead letters are kept. What changes an entry runs in a transaction of the caller's.
pub trait DeadLetterStore: Dialect {
    /// Stores a dead letter, or does to the entry that it has already what `existing` says.
    fn store_dead_letter(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        letter: &DeadLetter<'_>,
        existing: ExistingEntry,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// How many entries meet the conditions of a query, on all pages.
    fn count_dead_letters(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        query: &DeadLetterQuery,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// One page of entries, and one more where there is one.
    fn list_dead_letters(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        query: &DeadLetterQuery,
    ) -> impl Future<Output = Result<Vec<DeadLetterEntry>, sqlx::Error>> + Send;

    /// An entry with everything of its message.
    fn read_dead_letter(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        id: i64,
    ) -> impl Future<Output = Result<Option<StoredDeadLetter>, sqlx::Error>> + Send;

    /// An entry without its message, as it is now.
    fn find_dead_letter(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        id: i64,
    ) -> impl Future<Output = Result<Option<DeadLetterEntry>, sqlx::Error>> + Send;

    /// Like [`find_dead_letter`](Self::find_dead_letter), and nobody else changes it before the open transaction ends.
    fn lock_dead_letter(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        id: i64,
    ) -> impl Future<Output = Result<Option<DeadLetterEntry>, sqlx::Error>> + Send;

    /// Another open entry than `id` that holds the message of this key back, if there is one.
    fn dead_letter_beside(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        key: ClaimKey<'_>,
        id: i64,
    ) -> impl Future<Output = Result<Option<i64>, sqlx::Error>> + Send;

    /// Copies an entry's message to those that wait for their next attempt, which is due now. One that is done waits
    /// again; one that waits or is in work is left as it is, and the answer is `false`.
    fn queue_dead_letter(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        id: i64,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// Notes in an entry that it was replayed, now and by whom.
    fn mark_dead_letter_replayed(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        id: i64,
        by: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Forgets the failures and starts counted under a key, so that its message has all its attempts again. Answers whether there
    /// were any.
    fn forget_counted(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        key: ClaimKey<'_>,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// Deletes an entry. Answers whether it was there.
    fn remove_dead_letter(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        id: i64,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;
}

/// What stands before the number of an entry without a consumer in the id under which its message waits.
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub(super) const QUEUED_ID: &str = "dead-letter:";

/// The methods of [`DeadLetterStore`] that bind nothing but the number of an entry, or what a query's builder binds.
///
/// The driver's traits for binding are satisfied by a concrete database alone, so this is a macro and no provided method.
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
macro_rules! dead_letters_by_row {
    ($conn:ty) => {
        async fn count_dead_letters(
            conn: &mut $conn,
            statements: &Self::Statements,
            query: &$crate::dead_letter::DeadLetterQuery,
        ) -> Result<u64, sqlx::Error> {
            let mut sql =
                $crate::db::dead_letters::filtered::<Self>(&statements.dead_letters.count, query);
            let row = sql.build().persistent(false).fetch_one(conn).await?;
            Ok(u64::try_from(sqlx::Row::try_get::<i64, _>(&row, 0)?).unwrap_or_default())
        }

        async fn list_dead_letters(
            conn: &mut $conn,
            statements: &Self::Statements,
            query: &$crate::dead_letter::DeadLetterQuery,
        ) -> Result<Vec<$crate::dead_letter::DeadLetterEntry>, sqlx::Error> {
            let mut sql =
                $crate::db::dead_letters::filtered::<Self>(&statements.dead_letters.list, query);
            $crate::db::dead_letters::paged(&mut sql, query);
            let rows = sql.build().persistent(false).fetch_all(conn).await?;
            rows.iter().map($crate::db::dead_letters::entry).collect()
        }

        async fn read_dead_letter(
            conn: &mut $conn,
            statements: &Self::Statements,
            id: i64,
        ) -> Result<Option<$crate::dead_letter::StoredDeadLetter>, sqlx::Error> {
            let row = sqlx::query(statements.dead_letters.read.text())
                .bind(id)
                .fetch_optional(conn)
                .await?;
            row.as_ref()
                .map($crate::db::dead_letters::stored)
                .transpose()
        }

        async fn find_dead_letter(
            conn: &mut $conn,
            statements: &Self::Statements,
            id: i64,
        ) -> Result<Option<$crate::dead_letter::DeadLetterEntry>, sqlx::Error> {
            let row = sqlx::query(statements.dead_letters.find.text())
                .bind(id)
                .fetch_optional(conn)
                .await?;
            row.as_ref()
                .map($crate::db::dead_letters::entry)
                .transpose()
        }

        async fn remove_dead_letter(
            conn: &mut $conn,
            statements: &Self::Statements,
            id: i64,
        ) -> Result<bool, sqlx::Error> {
            let removed = sqlx::query(statements.dead_letters.remove.text())
                .bind(id)
                .execute(conn)
                .await?;
            Ok(removed.rows_affected() > 0)
        }
    };
}
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub(in crate::db) use dead_letters_by_row;

/// The other methods, where a statement numbers its parameters and compares ids as text.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
macro_rules! dead_letters_by_number {
    ($conn:ty) => {
        async fn store_dead_letter(
            conn: &mut $conn,
            statements: &Self::Statements,
            letter: &$crate::dead_letter::DeadLetter<'_>,
            existing: $crate::dead_letter::ExistingEntry,
        ) -> Result<(), sqlx::Error> {
            let statement = match existing {
                $crate::dead_letter::ExistingEntry::Reopen => &statements.dead_letters.keep,
                $crate::dead_letter::ExistingEntry::Leave => &statements.dead_letters.keep_beside,
            };
            let stored = sqlx::query(statement.text())
                .bind(letter.entry_key())
                .bind(letter.source)
                .bind(letter.consumer)
                .bind(letter.storable_id())
                .bind(letter.storable_type())
                .bind(letter.handler)
                .bind(letter.reason.as_str())
                .bind(letter.text.as_str())
                .bind(i32::try_from(letter.attempts).unwrap_or(i32::MAX))
                .bind(letter.envelope.to_document())
                .bind(&**letter.payload())
                .execute(conn)
                .await?;
            match existing {
                // A trigger that swallows it must not cost the message.
                $crate::dead_letter::ExistingEntry::Reopen if stored.rows_affected() == 0 => {
                    Err(sqlx::Error::RowNotFound)
                }
                _ => Ok(()),
            }
        }

        async fn dead_letter_beside(
            conn: &mut $conn,
            statements: &Self::Statements,
            key: $crate::db::ClaimKey<'_>,
            id: i64,
        ) -> Result<Option<i64>, sqlx::Error> {
            sqlx::query_scalar(statements.dead_letters.beside.text())
                .bind(key.message_id)
                .bind(key.consumer)
                .bind(id)
                .fetch_optional(conn)
                .await
        }

        async fn queue_dead_letter(
            conn: &mut $conn,
            statements: &Self::Statements,
            id: i64,
        ) -> Result<bool, sqlx::Error> {
            let queued = sqlx::query(statements.dead_letters.queue.text())
                .bind(id)
                .execute(conn)
                .await?;
            Ok(queued.rows_affected() > 0)
        }

        async fn mark_dead_letter_replayed(
            conn: &mut $conn,
            statements: &Self::Statements,
            id: i64,
            by: &str,
        ) -> Result<(), sqlx::Error> {
            let marked = sqlx::query(statements.dead_letters.mark.text())
                .bind(id)
                .bind(by)
                .execute(conn)
                .await?;
            match marked.rows_affected() {
                // A trigger that swallows it.
                0 => Err(sqlx::Error::RowNotFound),
                _ => Ok(()),
            }
        }

        async fn forget_counted(
            conn: &mut $conn,
            statements: &Self::Statements,
            key: $crate::db::ClaimKey<'_>,
        ) -> Result<bool, sqlx::Error> {
            let forgotten = sqlx::query(statements.dead_letters.forget_failures.text())
                .bind(key.message_id)
                .bind(key.consumer)
                .execute(conn)
                .await?;
            Ok(forgotten.rows_affected() > 0)
        }
    };
}
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(in crate::db) use dead_letters_by_number;

/// What the databases have in common.
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
mod common {
    use std::time::{Duration, SystemTime};

    use sqlx::{ColumnIndex, Database, Decode, Encode, QueryBuilder, Row, Type};

    use crate::db::storable;
    use crate::dead_letter::{
        DeadLetterEntry, DeadLetterOrder, DeadLetterQuery, DeadLetterReason, DeadLetterState,
        StoredDeadLetter,
    };

    /// `reason` is none of those that stand beside a claim.
    pub(in crate::db) fn holds() -> String {
        format!(
            "reason NOT IN ('{}', '{}')",
            DeadLetterReason::Escaped,
            DeadLetterReason::Collision
        )
    }

    /// The columns of an entry, in the order in which [`entry`] reads them. `time` makes microseconds since 1970 of a
    /// time, as a 64-bit integer; `integer` makes a 64-bit integer of a number, and `text` a text of what is compared as
    /// bytes.
    pub(in crate::db) fn columns(
        time: impl Fn(&str) -> String,
        integer: impl Fn(&str) -> String,
        text: impl Fn(&str) -> String,
    ) -> String {
        [
            "id, source".to_owned(),
            text("consumer_name"),
            text("message_id"),
            "message_type, handler, reason, failure, replayed_by".to_owned(),
            integer("attempts"),
            integer("replays"),
            integer("length(payload)"),
            time("first_failed_at"),
            time("last_failed_at"),
            time("replayed_at"),
        ]
        .join(", ")
    }

    /// An entry from a row that begins with [`columns`].
    pub(in crate::db) fn entry<R: Row>(row: &R) -> Result<DeadLetterEntry, sqlx::Error>
    where
        usize: ColumnIndex<R>,
        String: for<'r> Decode<'r, R::Database> + Type<R::Database>,
        i64: for<'r> Decode<'r, R::Database> + Type<R::Database>,
    {
        let text = |column: usize| row.try_get::<Option<String>, _>(column);
        let number = |column: usize| row.try_get::<i64, _>(column);
        let time = |column: usize| {
            let microseconds = row.try_get::<Option<i64>, _>(column)?;
            Ok::<_, sqlx::Error>(microseconds.map(moment))
        };
        Ok(DeadLetterEntry {
            id: number(0)?,
            source: row.try_get(1)?,
            consumer: text(2)?,
            message_id: text(3)?,
            message_type: text(4)?,
            handler: text(5)?,
            reason: row.try_get(6)?,
            failure: row.try_get(7)?,
            replayed_by: text(8)?,
            attempts: u32::try_from(number(9)?).unwrap_or_default(),
            replays: u32::try_from(number(10)?).unwrap_or_default(),
            payload_bytes: u64::try_from(number(11)?).unwrap_or_default(),
            first_failed_at: time(12)?.unwrap_or(SystemTime::UNIX_EPOCH),
            last_failed_at: time(13)?.unwrap_or(SystemTime::UNIX_EPOCH),
            replayed_at: time(14)?,
        })
    }

    /// An entry with its message, from a row with headers and payload behind [`columns`].
    pub(in crate::db) fn stored<R: Row>(row: &R) -> Result<StoredDeadLetter, sqlx::Error>
    where
        usize: ColumnIndex<R>,
        String: for<'r> Decode<'r, R::Database> + Type<R::Database>,
        Vec<u8>: for<'r> Decode<'r, R::Database> + Type<R::Database>,
        i64: for<'r> Decode<'r, R::Database> + Type<R::Database>,
    {
        Ok(StoredDeadLetter {
            entry: entry(row)?,
            document: row.try_get(15)?,
            payload: row.try_get::<Vec<u8>, _>(16)?.into(),
        })
    }

    fn moment(microseconds: i64) -> SystemTime {
        let distance = Duration::from_micros(microseconds.unsigned_abs());
        let moment = if microseconds < 0 {
            SystemTime::UNIX_EPOCH.checked_sub(distance)
        } else {
            SystemTime::UNIX_EPOCH.checked_add(distance)
        };
        moment.unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// `start`, which ends with the table, and the conditions of a query.
    pub(in crate::db) fn filtered<Db>(start: &str, query: &DeadLetterQuery) -> QueryBuilder<Db>
    where
        Db: Database,
        Db::Arguments: Default,
        String: for<'t> Encode<'t, Db> + Type<Db>,
    {
        let mut sql = QueryBuilder::new(start);
        sql.push(match query.state {
            DeadLetterState::Open => " WHERE replayed_at IS NULL",
            DeadLetterState::Replayed => " WHERE replayed_at IS NOT NULL",
            DeadLetterState::All => " WHERE 1 = 1",
        });
        let reason = query.reason.map(|reason| reason.as_str().to_owned());
        for (column, value) in [
            ("consumer_name", &query.consumer),
            ("source", &query.source),
            ("reason", &reason),
            ("message_type", &query.message_type),
            ("message_id", &query.message_id),
        ] {
            if let Some(value) = value {
                sql.push(" AND ").push(column).push(" = ");
                sql.push_bind(storable(value.as_str().into()).into_owned());
            }
        }
        sql
    }

    /// Adds where a page begins, its order, and its size and one more.
    pub(in crate::db) fn paged<Db>(sql: &mut QueryBuilder<Db>, query: &DeadLetterQuery)
    where
        Db: Database,
        i64: for<'t> Encode<'t, Db> + Type<Db>,
    {
        let (behind, order) = match query.order {
            DeadLetterOrder::NewestFirst => (" AND id < ", " ORDER BY id DESC LIMIT "),
            DeadLetterOrder::OldestFirst => (" AND id > ", " ORDER BY id LIMIT "),
        };
        if let Some(after) = query.after {
            sql.push(behind).push_bind(after);
        }
        sql.push(order).push_bind(i64::from(query.page_size) + 1);
    }
}

#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub(super) use common::{columns, entry, filtered, holds, paged, stored};
