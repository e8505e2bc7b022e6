//! What has happened so far in the run on one database.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::tally::Tally;

#[derive(Debug, Default)]
pub(crate) struct Counts(Mutex<Happened>);

#[derive(Debug, Clone, Default)]
pub(crate) struct Happened {
    /// Messages, each once.
    pub(crate) produced: usize,
    /// Confirms of the broker, copies included.
    pub(crate) published: usize,
    /// Processes that were killed, or killed themselves at a step of the path.
    pub(crate) kills: usize,
    /// Processes that a message of theirs ended.
    pub(crate) aborts: usize,
    pub(crate) shutdowns: usize,
    /// Processes that stood still for a while.
    pub(crate) freezes: usize,
    /// Servers that were killed or shut down, and started again.
    pub(crate) restarts: usize,
    pub(crate) server_freezes: usize,
    /// What all processes told.
    pub(crate) tally: Tally,
    /// What no process may do.
    pub(crate) surprises: Vec<String>,
}

impl Counts {
    pub(crate) fn now(&self) -> MutexGuard<'_, Happened> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
