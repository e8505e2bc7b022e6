//! Whatever is dropped, wherever it waits: no pooled connection is in a transaction or has our settings, effect and claim
//! stand or fall together, and what was not done is done by a later run, once.
//!
//! Three ways to drop, since each reaches another part: the operations of a session, at each of their polls, in a
//! runtime that goes on; the whole runtime of an inbox, at each packet between it and its database (MariaDB is
//! asked five times as often: at every fifth); and the future of `run_until`, at every third of those places.

#![allow(clippy::unwrap_used, clippy::expect_used)] // What goes wrong here has to fail the test.

mod inboxes;
mod sessions;

use inbox_guarantees::{Sandbox, TestDatabase};

/// "The effect is stored once" for these, and for nothing else: one dead letter for those that begin with "dead" or
/// "broken".
async fn assert_each_once<Db: TestDatabase>(sandbox: &Sandbox<Db>, ids: &[String]) {
    for id in ids {
        let dead = format!("SELECT count(*) FROM inbox_dead_letters WHERE message_id = '{id}'");
        let found = (
            sandbox.ledger_rows(id).await,
            sandbox.claims(id).await,
            Db::number(&sandbox.pool, &dead).await,
        );
        let is_dead = id.starts_with("dead") || id.starts_with("broken");
        let expected = if is_dead { (0, 0, 1) } else { (1, 1, 0) };
        assert_eq!(
            found, expected,
            "ledger rows, claims and dead letters of {id}"
        );
    }
}

/// Effect and claim stand or fall together, nothing is there twice, and nothing is both processed and dead. One
/// statement each, so that work that goes on meanwhile is seen at one moment.
async fn assert_consistent<Db: TestDatabase>(sandbox: &Sandbox<Db>) {
    for (what, sql) in [
        (
            "bookings without a claim",
            "SELECT count(*) FROM ledger WHERE msg_id NOT IN (SELECT message_id FROM inbox_processed_messages)",
        ),
        (
            "claims without a booking",
            "SELECT count(*) FROM inbox_processed_messages WHERE message_id NOT IN (SELECT msg_id FROM ledger)",
        ),
        (
            "bookings too many",
            "SELECT count(*) - count(DISTINCT msg_id) FROM ledger",
        ),
        (
            "both processed and dead",
            "SELECT count(*) FROM inbox_dead_letters WHERE message_id IN (SELECT message_id FROM inbox_processed_messages)",
        ),
        (
            "difference of balance and bookings",
            "SELECT (SELECT sum(balance) FROM accounts) - (SELECT COALESCE(sum(amount), 0) FROM ledger)",
        ),
    ] {
        assert_eq!(Db::number(&sandbox.pool, sql).await, 0, "{what}");
    }
}
