use std::future::Future;
use std::time::Duration;

use super::Dialect;

/// Removes what is older than the retention, in batches.
pub trait Retention: Dialect {
    /// Runs one batch in one short transaction of its own, which waits for no other session for long.
    ///
    /// It examines at most so many expired rows, the oldest first, and finds them by their time in an index. It
    /// removes those that nothing open needs: no open dead letter and no message that waits in the database. Cutoff
    /// and clock are the database's.
    ///
    /// Only one session at a time runs batches: who does is decided inside the transaction and ends with it.
    ///
    /// # Errors
    ///
    /// What the database answers, or that it was busy. A transaction may be open then, and settings of the session
    /// changed: the connection must be closed. The same goes for a future that was dropped.
    fn purge(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        batch: &PurgeBatch<'_>,
    ) -> impl Future<Output = Result<Purged, sqlx::Error>> + Send;
}

/// What one batch of a purge looks at.
#[derive(Debug, Clone, Copy)]
pub struct PurgeBatch<'a> {
    /// Which rows.
    pub rows: Expiring,
    /// The age at which they expire.
    pub older_than: Duration,
    /// How many rows it examines, and so removes, at most.
    pub limit: u32,
    /// Where the batch before it came to; `None`: it begins with the oldest row.
    pub from: Option<&'a PurgePosition>,
}

/// Rows that expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expiring {
    /// Claims, by the time at which they were made.
    Claims,
    /// Counted failures, by the time of the last one.
    Attempts,
}

/// How far a purge has come: what lies before was examined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurgePosition {
    /// The time of the last row examined, as the database writes it.
    pub(crate) at: String,
    /// How many rows of that very time were examined and kept. They come first again, however many they are.
    pub(crate) kept: i64,
}

impl PurgePosition {
    /// The position after a batch that came to `at` and kept `kept` rows of that time.
    #[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
    pub(crate) fn after(from: Option<&Self>, at: String, kept: i64) -> Self {
        let before = from
            .filter(|from| from.at == at)
            .map_or(0, |from| from.kept);
        Self {
            at,
            kept: before.saturating_add(kept),
        }
    }
}

/// What a batch of a purge did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Purged {
    /// Nothing: another session is at it.
    Elsewhere,
    /// It did its part.
    Rows {
        /// How many expired rows it looked at. Fewer than the limit: there are no more.
        examined: u64,
        /// How many of them it removed; the others are still needed.
        removed: u64,
        /// Where the next batch begins.
        next: Option<PurgePosition>,
    },
}

impl Purged {
    /// A batch that found nothing.
    #[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
    pub(crate) const NOTHING: Self = Self::Rows {
        examined: 0,
        removed: 0,
        next: None,
    };
}

/// How long a batch waits for a lock: whoever holds it has more important things to do.
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub(crate) const LOCK_WAIT: Duration = Duration::from_secs(1);

/// Whether `row`, of a table of claims or attempts, is still needed by something open, as SQL. An entry that names no
/// consumer stands for whoever takes the message when it is replayed.
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub(crate) fn is_needed(row: &str, dead_letters: &str, messages: &str) -> String {
    format!(
        "(EXISTS (SELECT 1 FROM {dead_letters} AS letter WHERE letter.message_id = {row}.message_id \
         AND COALESCE(letter.consumer_name, {row}.consumer_name) = {row}.consumer_name \
         AND letter.replayed_at IS NULL) \
         OR EXISTS (SELECT 1 FROM {messages} AS stored WHERE stored.message_id = {row}.message_id \
         AND stored.consumer_name IN ({row}.consumer_name, '') AND stored.status <> 'done'))"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_one_time_that_are_kept_add_up() {
        let first = PurgePosition::after(None, "1".to_owned(), 3);
        let second = PurgePosition::after(Some(&first), "1".to_owned(), 2);
        assert_eq!(second.kept, 5);
        assert_eq!(
            PurgePosition::after(Some(&second), "2".to_owned(), 1).kept,
            1
        );
    }
}
