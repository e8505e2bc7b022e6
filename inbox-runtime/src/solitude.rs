//! Who may have handlers run at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Lets one message run alone in the process, so that a crash meanwhile is its own and nobody else's.
#[derive(Debug)]
pub(crate) struct Solitude {
    places: Arc<Semaphore>,
    all: u32,
    /// How many wait to be alone.
    wanted: AtomicUsize,
}

impl Solitude {
    /// For so many workers.
    pub(crate) fn new(workers: usize) -> Self {
        let workers = workers.min(Semaphore::MAX_PERMITS);
        Self {
            places: Arc::new(Semaphore::new(workers)),
            all: u32::try_from(workers).unwrap_or(u32::MAX),
            wanted: AtomicUsize::new(0),
        }
    }

    /// Joins unless somebody is alone, or waits to be.
    pub(crate) fn try_join(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.places).try_acquire_owned().ok()
    }

    /// Waits for whoever is alone.
    pub(crate) async fn join(&self) -> Option<OwnedSemaphorePermit> {
        // Never closed.
        Arc::clone(&self.places).acquire_owned().await.ok()
    }

    /// Waits until nobody else has a handler running, and keeps it so. Whoever calls has left before.
    pub(crate) async fn alone(&self) -> Option<OwnedSemaphorePermit> {
        let _wanted = Wanted::count(&self.wanted);
        Arc::clone(&self.places)
            .acquire_many_owned(self.all)
            .await
            .ok()
    }

    /// Whether somebody waits to be alone, so that nobody else should go on without a break.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > 0
    }
}

struct Wanted<'a>(&'a AtomicUsize);

impl<'a> Wanted<'a> {
    fn count(wanted: &'a AtomicUsize) -> Self {
        wanted.fetch_add(1, Ordering::Relaxed);
        Self(wanted)
    }
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
