//! What an inbox has done, and whether it can do its work now.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use inbox_core::ConsumerName;

use crate::job::Outcome;
use crate::path::{Ending, Why};

/// Counts and health of a running [`Inbox`](crate::Inbox), for metrics and readiness probes.
///
/// Clones look at the same inbox, and can be kept when it runs.
///
/// ```no_run
/// # #[cfg(feature = "postgres")]
/// # async fn run(inbox: inbox_runtime::Inbox<sqlx::Postgres>) {
/// let monitor = inbox.monitor();
/// let running = tokio::spawn(inbox.run_until(std::future::pending()));
/// if monitor.health().is_degraded() {
///     eprintln!("{:?}, {:?}", monitor.health(), monitor.total());
/// }
/// # let _ = running.await;
/// # }
/// ```
#[derive(Clone)]
pub struct Monitor(Arc<State>);

struct State {
    consumers: Vec<(ConsumerName, Arc<Tally>)>,
    unrouted: Tally,
    database: Watched,
    sources: Vec<(String, Watched)>,
    broken_after: u32,
}

/// How often something became of a message, since the inbox was built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Committed by its handler.
    pub processed: u64,
    /// Known already, and acked.
    pub duplicates: u64,
    /// Kept as a dead letter.
    pub dead_letters: u64,
    /// Parked in the database for its next attempt, or found parked.
    pub parked: u64,
    /// A failure of its handler that was counted against it. The only class that leads to dead letters.
    pub failures: u64,
    /// A conflict in the database, tried again within the process. Counts nothing against the message.
    pub conflicts: u64,
    /// A copy of it was in work elsewhere. Counts nothing against the message.
    pub in_progress_elsewhere: u64,
    /// The database or the configuration failed. Counts nothing against the message.
    pub infrastructure: u64,
    /// Nobody knew what became of a COMMIT. Counts nothing against the message.
    pub unknown_commits: u64,
}

/// Whether an inbox can do its work.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// The database.
    pub database: Condition,
    /// Each source by its name.
    pub sources: Vec<(String, Condition)>,
    /// Consumers so many of whose messages failed in a row that they make no more dead letters
    /// ([`broken_after`](crate::InboxBuilder::broken_after)).
    pub broken_consumers: Vec<String>,
}

impl Health {
    /// Whether anything is not as it should be. Nothing is lost meanwhile: what cannot be done now waits.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.database != Condition::Up
            || self
                .sources
                .iter()
                .any(|(_, source)| *source != Condition::Up)
            || !self.broken_consumers.is_empty()
    }
}

/// Whether something outside of the process can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Condition {
    /// Not asked yet, or on the way to it.
    Starting,
    /// It answers.
    Up,
    /// It does not; it is tried again, ever less often, up to every 5 s.
    Down {
        /// For how long.
        since: Duration,
        /// How many tries failed.
        failures: u32,
        /// What the last one answered.
        error: String,
    },
}

impl Monitor {
    pub(crate) fn new(
        consumers: Vec<(ConsumerName, Arc<Tally>)>,
        sources: Vec<String>,
        broken_after: u32,
    ) -> Self {
        Self(Arc::new(State {
            consumers,
            unrouted: Tally::default(),
            database: Watched::default(),
            sources: sources
                .into_iter()
                .map(|name| (name, Watched::default()))
                .collect(),
            broken_after,
        }))
    }

    /// What became of the messages of one consumer, all of its handlers together; `None`: there is none of that name.
    #[must_use]
    pub fn consumer(&self, name: &str) -> Option<Counts> {
        let tallies = self.0.consumers.iter();
        tallies
            .filter(|(consumer, _)| consumer.as_str() == name)
            .map(|(_, tally)| tally.counts())
            .reduce(Counts::plus)
    }

    /// What became of all messages, those that no handler takes included. A message counts once for each consumer.
    #[must_use]
    pub fn total(&self) -> Counts {
        let tallies = self.0.consumers.iter().map(|(_, tally)| tally.counts());
        tallies.fold(self.0.unrouted.counts(), Counts::plus)
    }

    /// Whether the inbox can do its work now.
    #[must_use]
    pub fn health(&self) -> Health {
        let State {
            consumers,
            database,
            sources,
            broken_after,
            ..
        } = &*self.0;
        let mut broken_consumers: Vec<String> = consumers
            .iter()
            .filter(|(_, tally)| tally.seems_broken(*broken_after))
            .map(|(consumer, _)| consumer.as_str().to_owned())
            .collect();
        broken_consumers.dedup();
        Health {
            database: database.condition(),
            sources: sources
                .iter()
                .map(|(name, source)| (name.clone(), source.condition()))
                .collect(),
            broken_consumers,
        }
    }

    pub(crate) fn database(&self) -> &Watched {
        &self.0.database
    }

    pub(crate) fn source(&self, name: &str) -> Option<&Watched> {
        let mut sources = self.0.sources.iter();
        sources
            .find(|(source, _)| source == name)
            .map(|(_, watched)| watched)
    }

    /// A message that no handler takes was kept.
    pub(crate) fn note_unrouted(&self) {
        self.0.unrouted.dead_letters.add();
    }
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitor")
            .field("total", &self.total())
            .field("health", &self.health())
            .finish()
    }
}

impl Counts {
    const fn plus(self, other: Self) -> Self {
        Self {
            processed: self.processed + other.processed,
            duplicates: self.duplicates + other.duplicates,
            dead_letters: self.dead_letters + other.dead_letters,
            parked: self.parked + other.parked,
            failures: self.failures + other.failures,
            conflicts: self.conflicts + other.conflicts,
            in_progress_elsewhere: self.in_progress_elsewhere + other.in_progress_elsewhere,
            infrastructure: self.infrastructure + other.infrastructure,
            unknown_commits: self.unknown_commits + other.unknown_commits,
        }
    }
}

/// What became of the messages of one handler.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    processed: Count,
    duplicates: Count,
    dead_letters: Count,
    parked: Count,
    failures: Count,
    conflicts: Count,
    in_progress_elsewhere: Count,
    infrastructure: Count,
    unknown_commits: Count,
    /// How many messages in a row, without a success between them, used up their attempts.
    exhausted_in_a_row: AtomicU32,
}

#[derive(Debug, Default)]
struct Count(AtomicU64);

impl Count {
    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Tally {
    /// An attempt came to its end.
    pub(crate) fn note(&self, ending: Ending) {
        let count = match ending {
            Ending::Done(Outcome::Processed) => &self.processed,
            Ending::Done(Outcome::Duplicate) => &self.duplicates,
            Ending::Done(Outcome::Dead) => &self.dead_letters,
            Ending::Done(Outcome::Parked) => &self.parked,
            Ending::Transient => &self.conflicts,
            Ending::Uncounted { why, .. } => match why {
                Why::Infrastructure => &self.infrastructure,
                Why::Elsewhere => &self.in_progress_elsewhere,
                Why::UnknownCommit => &self.unknown_commits,
            },
            Ending::InDoubt | Ending::Unparked { .. } => &self.infrastructure,
            // Counted where the failure is.
            Ending::Failed { .. } => return,
            Ending::Stopping | Ending::CutOff => return,
        };
        count.add();
    }

    /// A failure was counted against a message.
    pub(crate) fn note_failure(&self) {
        self.failures.add();
    }

    /// A message succeeded: the handler works.
    pub(crate) fn note_success(&self) {
        // A plain store for every message would make the workers share a cache line for nothing.
        if self.exhausted_in_a_row.load(Ordering::Relaxed) != 0 {
            self.exhausted_in_a_row.store(0, Ordering::Relaxed);
        }
    }

    /// A message became a dead letter by its failures.
    pub(crate) fn note_exhausted(&self) {
        self.exhausted_in_a_row.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether so many different messages failed in a row that the handler, not the messages, is to blame.
    pub(crate) fn seems_broken(&self, limit: u32) -> bool {
        self.exhausted_in_a_row.load(Ordering::Relaxed) >= limit
    }

    fn counts(&self) -> Counts {
        Counts {
            processed: self.processed.read(),
            duplicates: self.duplicates.read(),
            dead_letters: self.dead_letters.read(),
            parked: self.parked.read(),
            failures: self.failures.read(),
            conflicts: self.conflicts.read(),
            in_progress_elsewhere: self.in_progress_elsewhere.read(),
            infrastructure: self.infrastructure.read(),
            unknown_commits: self.unknown_commits.read(),
        }
    }
}

/// Something outside of the process that is tried again until it answers.
#[derive(Debug, Default)]
pub(crate) struct Watched(Mutex<Seen>);

#[derive(Debug, Default)]
enum Seen {
    #[default]
    Nothing,
    Up,
    Down {
        since: Instant,
        failures: u32,
        error: String,
    },
}

impl Watched {
    /// It answered.
    pub(crate) fn note_up(&self) {
        let mut seen = self.lock();
        if !matches!(*seen, Seen::Up) {
            *seen = Seen::Up;
        }
    }

    /// It did not answer, or broke off.
    pub(crate) fn note_down(&self, why: impl fmt::Display) {
        let mut seen = self.lock();
        let (since, before) = match &*seen {
            Seen::Down {
                since, failures, ..
            } => (*since, *failures),
            Seen::Nothing | Seen::Up => (Instant::now(), 0),
        };
        *seen = Seen::Down {
            since,
            failures: before.saturating_add(1),
            error: why.to_string(),
        };
    }

    fn condition(&self) -> Condition {
        match &*self.lock() {
            Seen::Nothing => Condition::Starting,
            Seen::Up => Condition::Up,
            Seen::Down {
                since,
                failures,
                error,
            } => Condition::Down {
                since: since.elapsed(),
                failures: *failures,
                error: error.clone(),
            },
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        // Nothing panics while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_down_tells_since_when_and_how_often_it_was_tried() {
        let watched = Watched::default();
        assert_eq!(watched.condition(), Condition::Starting);
        watched.note_down("first");
        watched.note_down("second");
        assert!(matches!(
            watched.condition(),
            Condition::Down { failures: 2, error, .. } if error == "second"
        ));
        watched.note_up();
        assert_eq!(watched.condition(), Condition::Up);
    }

    #[test]
    fn handlers_of_one_consumer_are_counted_together() {
        let consumer = |name| ConsumerName::new(name).unwrap();
        let tallies = [Arc::new(Tally::default()), Arc::new(Tally::default())];
        let consumers = tallies
            .iter()
            .map(|tally| (consumer("billing"), Arc::clone(tally)))
            .collect();
        let monitor = Monitor::new(consumers, vec!["orders".to_owned()], 2);
        for tally in &tallies {
            tally.note(Ending::Done(Outcome::Processed));
            tally.note_failure();
        }
        monitor.note_unrouted();
        let counts = monitor.consumer("billing").unwrap();
        assert_eq!((counts.processed, counts.failures), (2, 2));
        assert_eq!(monitor.total().dead_letters, 1);
        assert_eq!(monitor.consumer("other"), None);
        assert!(monitor.health().is_degraded(), "nothing was reached yet");
    }
}
