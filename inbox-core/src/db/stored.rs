//! Messages that wait in the database: for their next attempt, or to be replayed.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;

use crate::db::{ClaimKey, Dialect};
use crate::document::InvalidDocument;
use crate::envelope::Envelope;

/// The table of messages that wait in the database.
///
/// A row is pending until it is due, then in the hands of one worker for the time of a lease, and gone when the message is
/// done. A lease is no lock: whoever loses it may still be at work, and then the claim of the message decides.
pub trait MessageStore: Dialect {
    /// Stores a message for another try after `delay`, in the open transaction. A row of its key that waits already, or
    /// is in work, stays as it is.
    fn store_message(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        message: &WaitingMessage<'_>,
        delay: Duration,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// The payload of a message that waits or is in work, if there is one under the key.
    fn waiting_payload(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        key: ClaimKey<'_>,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, sqlx::Error>> + Send;

    /// Leases messages that are due, and those whose lease has run out. Commits by itself.
    fn lease(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        terms: &LeaseTerms<'_>,
    ) -> impl Future<Output = Result<Vec<LeasedMessage>, sqlx::Error>> + Send;

    /// How long until the next message of these consumers is due; `None`: none waits. Zero: one is due now.
    fn next_due(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        consumers: &[&str],
    ) -> impl Future<Output = Result<Option<Duration>, sqlx::Error>> + Send;

    /// Removes messages that are done. A lease that was lost to somebody else is left to them. Commits by itself.
    fn remove(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        leases: &[Lease],
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Ends a lease: the message is due again after `delay`. Commits by itself.
    fn release(
        conn: &mut Self::Connection,
        statements: &Self::Statements,
        lease: &Lease,
        delay: Duration,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
}

/// A message that shall wait.
#[derive(Debug, Clone, Copy)]
pub struct WaitingMessage<'a> {
    /// Consumer and id.
    pub key: ClaimKey<'a>,
    /// The source that delivered it.
    pub source: &'a str,
    /// The message.
    pub envelope: &'a Envelope,
}

/// What is leased, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct LeaseTerms<'a> {
    /// The consumers whose messages are leased; `""` stands for those that go to whoever takes their type.
    pub consumers: &'a [&'a str],
    /// Who leases them, for people who look at the table.
    pub worker: &'a str,
    /// After what time a lease has run out.
    pub duration: Duration,
    /// How many at most.
    pub most: usize,
}

/// A lease of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The row.
    pub row: i64,
    /// What no other lease of it has.
    pub token: String,
}

/// A message in the hands of one worker.
#[derive(Debug)]
pub struct LeasedMessage {
    /// Its lease.
    pub lease: Lease,
    /// The consumer it is for; empty: whoever takes its type.
    pub consumer: String,
    /// The id under which that consumer claims it.
    pub message_id: String,
    /// The source that delivered it first.
    pub source: String,
    /// The message; an error when somebody changed what was stored.
    pub envelope: Result<Envelope, InvalidDocument>,
    /// Its payload as stored.
    pub payload: Bytes,
    /// Whether an earlier lease ran out, so that an attempt may have begun before.
    pub is_taken_over: bool,
}

/// A token for new leases.
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub(crate) fn new_token() -> String {
    format!("{:032x}", fastrand::u128(..))
}

/// What is left of a time span that a database counts in microseconds.
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub(crate) fn remaining(microseconds: i64) -> Duration {
    Duration::from_micros(u64::try_from(microseconds).unwrap_or(0))
}

/// Microseconds, as far as a database counts them.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn microseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
