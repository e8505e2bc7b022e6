//! What a consumer process saw, counted by itself and told to whoever started it.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Counts of one process, or the sum of several. What a killed process had not told yet is missing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) processed: u64,
    pub(crate) duplicates: u64,
    /// Tries that failed and were to be repeated.
    pub(crate) retries: u64,
    pub(crate) redelivered: u64,
}

impl Tally {
    pub(crate) const fn add(&mut self, other: &Self) {
        self.processed += other.processed;
        self.duplicates += other.duplicates;
        self.retries += other.retries;
        self.redelivered += other.redelivered;
    }

    /// What came since an earlier tally of the same process.
    pub(crate) const fn since(&self, earlier: &Self) -> Self {
        Self {
            processed: self.processed - earlier.processed,
            duplicates: self.duplicates - earlier.duplicates,
            retries: self.retries - earlier.retries,
            redelivered: self.redelivered - earlier.redelivered,
        }
    }
}

static PROCESSED: AtomicU64 = AtomicU64::new(0);
static DUPLICATES: AtomicU64 = AtomicU64::new(0);
static RETRIES: AtomicU64 = AtomicU64::new(0);

/// The counts of this process, without its redeliveries.
pub(crate) fn of_this_process() -> Tally {
    Tally {
        processed: PROCESSED.load(Ordering::Relaxed),
        duplicates: DUPLICATES.load(Ordering::Relaxed),
        retries: RETRIES.load(Ordering::Relaxed),
        redelivered: 0,
    }
}

/// Counts by what the runtime says at the end of each attempt.
pub(crate) struct Counting;

impl<S: Subscriber> Layer<S> for Counting {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        event.record(&mut Outcome);
    }
}

struct Outcome;

impl Visit for Outcome {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() != "outcome" {
            return;
        }
        let count = match value {
            "processed" => &PROCESSED,
            "duplicate" => &DUPLICATES,
            "retry" => &RETRIES,
            _ => return,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}
