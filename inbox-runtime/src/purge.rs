//! The task that removes what is older than the retention.

use std::sync::Arc;
use std::time::Duration;

use inbox_core::{ErrorClass, Expiring, InboxDatabase, PurgeBatch, Purged};
use sqlx::pool::PoolConnection;

use crate::backoff;
use crate::connection::ClosedUnlessDone;
use crate::worker::Shared;

/// How long a batch may take before its connection is closed; its statements end earlier.
const BATCH_LIMIT: Duration = Duration::from_secs(60);

/// How long opening a new connection may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// How claims are removed that are older than the retention.
///
/// One batch is one short transaction. Between two of them is a pause, which matters more than the size: without it the
/// claims of new messages are the slower for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PurgePolicy {
    rows: u32,
    pause: Duration,
    interval: Duration,
}

impl Default for PurgePolicy {
    fn default() -> Self {
        Self {
            rows: 5000,
            pause: Duration::from_millis(100),
            interval: Duration::from_secs(60),
        }
    }
}

impl PurgePolicy {
    /// How many rows one transaction removes at most (default 5,000; from 1 to 100,000).
    #[must_use]
    pub const fn rows(mut self, rows: u32) -> Self {
        self.rows = rows;
        self
    }

    /// The pause between two transactions (default 100 ms; from 1 ms to 10 minutes).
    #[must_use]
    pub const fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// The time between two runs, give or take a tenth (default 1 minute; from 1 s to 1 day). The first run comes
    /// a tenth to a fifth of it after the start. A run ends when nothing expired is left, or another process is at it.
    #[must_use]
    pub const fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// What cannot be meant.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !(1..=100_000).contains(&self.rows) {
            problems.push(format!(
                "purge: rows({}) must be between 1 and 100000: one transaction removes so many",
                self.rows
            ));
        }
        for (name, value, shortest, longest) in [
            (
                "pause",
                self.pause,
                Duration::from_millis(1),
                Duration::from_secs(10 * 60),
            ),
            (
                "interval",
                self.interval,
                Duration::from_secs(1),
                Duration::from_secs(24 * 60 * 60),
            ),
        ] {
            if value < shortest || value > longest {
                problems.push(format!(
                    "purge: {name}({value:?}) must be between {shortest:?} and {longest:?}"
                ));
            }
        }
        problems
    }

    fn first_wait(&self) -> Duration {
        self.interval.mul_f64(0.1 + 0.1 * fastrand::f64())
    }

    fn next_wait(&self) -> Duration {
        self.interval.mul_f64(0.9 + 0.2 * fastrand::f64())
    }
}

/// The task: one for each inbox, from start to shutdown.
pub(crate) struct Purge<Db: InboxDatabase> {
    pub(crate) shared: Arc<Shared<Db>>,
    pub(crate) retention: Duration,
    pub(crate) policy: PurgePolicy,
}

/// Why a run ended before it was through.
enum Ended {
    /// The runtime stops.
    Stopping,
    /// The pool has no connection to spare, or a lock could not be had: others have more important things to do.
    Busy,
    Failed(sqlx::Error),
}

impl<Db: InboxDatabase> Purge<Db> {
    /// Runs until the runtime stops. A transaction that has begun comes to its end, or its connection is closed.
    pub(crate) async fn run(self) {
        let mut wait = self.policy.first_wait();
        let mut tries = 0;
        while self.has_paused(wait).await {
            wait = match self.purge().await {
                Ok(()) => {
                    tries = 0;
                    self.policy.next_wait()
                }
                Err(Ended::Stopping) => return,
                Err(Ended::Busy) => {
                    tries += 1;
                    let wait = backoff::elsewhere(tries);
                    tracing::debug!(?wait, "the purge lets others go first");
                    wait
                }
                Err(Ended::Failed(error)) => {
                    tries += 1;
                    let wait = backoff::misconfigured(tries);
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        tries,
                        ?wait,
                        "the purge failed and is tried again; until it succeeds the tables grow"
                    );
                    wait
                }
            };
        }
    }

    /// One run: batches until one of each kind has found nothing more.
    async fn purge(&self) -> Result<(), Ended> {
        for rows in [Expiring::Claims, Expiring::Attempts] {
            let (mut examined_in_all, mut removed_in_all, mut batches) = (0, 0, 0_u64);
            let mut from = None;
            loop {
                let batch = PurgeBatch {
                    rows,
                    older_than: self.retention,
                    limit: self.policy.rows,
                    from: from.as_ref(),
                };
                let Purged::Rows {
                    examined,
                    removed,
                    next,
                } = self.batch(&batch).await?
                else {
                    tracing::debug!("another process is purging");
                    return Ok(());
                };
                tracing::trace!(?rows, examined, removed, "purged a batch");
                examined_in_all += examined;
                removed_in_all += removed;
                batches += 1;
                // Not by what was removed: rows that are still needed lie between those that are not.
                if examined < u64::from(self.policy.rows) {
                    break;
                }
                from = next;
                if !self.has_paused(self.policy.pause).await {
                    return Err(Ended::Stopping);
                }
            }
            if examined_in_all > 0 {
                tracing::info!(
                    ?rows,
                    removed = removed_in_all,
                    kept = examined_in_all - removed_in_all,
                    batches,
                    "purged what is older than the retention"
                );
            }
        }
        Ok(())
    }

    async fn batch(&self, batch: &PurgeBatch<'_>) -> Result<Purged, Ended> {
        let mut conn = ClosedUnlessDone::new(self.connection().await?);
        let purging =
            tokio::time::timeout(BATCH_LIMIT, self.shared.layout.purge(&mut conn.conn, batch));
        let answer = tokio::select! {
            biased;
            answer = purging => answer,
            () = self.shared.cut_off.cancelled() => return Err(Ended::Stopping),
        };
        match answer {
            Ok(Ok(purged)) => {
                conn.is_done = true;
                Ok(purged)
            }
            Ok(Err(error)) if Db::classify(&error) == ErrorClass::Transient => Err(Ended::Busy),
            Ok(Err(error)) => Err(Ended::Failed(error)),
            Err(_) => Err(Ended::Failed(sqlx::Error::Io(
                std::io::ErrorKind::TimedOut.into(),
            ))),
        }
    }

    /// A connection of the pool, if it has one to spare: nobody who has a message in hands waits behind this.
    async fn connection(&self) -> Result<PoolConnection<Db>, Ended> {
        let pool = &self.shared.pool;
        if pool.num_idle() == 0 && pool.size() as usize >= Db::pool_size(pool) {
            return Err(Ended::Busy);
        }
        let connecting = tokio::time::timeout(CONNECT_LIMIT, pool.acquire());
        tokio::select! {
            biased;
            () = self.shared.stop.cancelled() => Err(Ended::Stopping),
            connected = connecting => match connected {
                Ok(connected) => connected.map_err(Ended::Failed),
                Err(_) => Err(Ended::Busy),
            },
        }
    }

    /// Waits; whether the runtime goes on.
    async fn has_paused(&self, wait: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.shared.stop.cancelled() => false,
            () = tokio::time::sleep(wait) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_cannot_be_meant_are_named() {
        let policy = PurgePolicy::default();
        assert!(policy.problems().is_empty());
        for (policy, word) in [
            (policy.rows(0), "rows(0)"),
            (policy.rows(100_001), "rows(100001)"),
            (policy.pause(Duration::ZERO), "pause(0ns)"),
            (policy.pause(Duration::MAX), "pause("),
            (policy.interval(Duration::ZERO), "interval(0ns)"),
            (policy.interval(Duration::MAX), "interval("),
        ] {
            let problems = policy.problems();
            assert!(
                problems.len() == 1 && problems[0].contains(word),
                "{problems:?}"
            );
        }
    }

    #[test]
    fn runs_of_many_processes_do_not_come_together() {
        let policy = PurgePolicy::default();
        for _ in 0..200 {
            let (first, next) = (policy.first_wait(), policy.next_wait());
            assert!((6..=12).contains(&first.as_secs()), "{first:?}");
            assert!((54..=66).contains(&next.as_secs()), "{next:?}");
        }
    }
}
