//! Deliveries that are done in the database and not acked yet, because their commits may not be durable.
//!
//! With [`ack_after_flush`](crate::InboxBuilder::ack_after_flush) a commit does not wait for the disk while more
//! messages wait; the next one that does makes all before it durable, and then all are acked. A crash in between takes
//! back effect and claim alike, and the redelivery does both again. That holds for the session that committed and no
//! other: a new one may be on a server that has recovered without those commits.

use std::time::{Duration, Instant};

use inbox_core::InboxDatabase;

use crate::job::{Job, Jobs, Next};
use crate::path::limited;
use crate::worker::Worker;

/// How many deliveries may wait for a flush.
const MOST: usize = 64;

/// How long a delivery waits while others follow.
const LONGEST: Duration = Duration::from_millis(50);

/// The deliveries of one worker that wait for a flush of its session.
pub(crate) struct Unflushed<Db: InboxDatabase> {
    is_on: bool,
    jobs: Vec<Job<Db>>,
    /// When the first commit, or duplicate, that may not be durable was answered; `None`: all are.
    since: Option<Instant>,
}

impl<Db: InboxDatabase> Unflushed<Db> {
    pub(crate) const fn new(is_on: bool) -> Self {
        Self {
            is_on,
            jobs: Vec::new(),
            since: None,
        }
    }

    /// Whether the commit of so many messages more has to wait for the disk.
    pub(crate) fn must_be_durable(&self, messages: usize, goes_on: bool) -> bool {
        !self.is_on
            || !goes_on
            || self.jobs.len() + messages >= MOST
            || self.since.is_some_and(|since| since.elapsed() >= LONGEST)
    }

    /// A commit was answered. A durable one makes everything durable that this session saw before.
    pub(crate) fn note_commit(&mut self, is_durable: bool) {
        if is_durable {
            self.since = None;
        } else {
            self.since.get_or_insert_with(Instant::now);
        }
    }

    /// A claim met another one, which may not be durable yet.
    pub(crate) fn note_duplicate(&mut self) {
        if self.is_on {
            self.since.get_or_insert_with(Instant::now);
        }
    }
}

impl<Db: InboxDatabase> Worker<Db> {
    /// Settles deliveries; those to be acked wait for their flush.
    pub(crate) async fn settle(&mut self, jobs: Jobs<Db>) {
        if !self.unflushed.is_on {
            return self.shared.settle(jobs).await;
        }
        let (done, undecided): (Jobs<Db>, Jobs<Db>) = jobs
            .into_iter()
            .partition(|job| job.next(self.shared.longest_hold) == Next::Ack);
        self.shared.settle(undecided).await;
        self.unflushed.jobs.extend(done);
        for job in &mut self.unflushed.jobs {
            job.turn = None;
        }
        if self.unflushed.since.is_none() {
            let durable = std::mem::take(&mut self.unflushed.jobs);
            self.shared.settle(durable.into()).await;
        }
    }

    /// Makes durable what is not, and acks it.
    pub(crate) async fn flush(&mut self) {
        if self.unflushed.since.is_none() {
            return;
        }
        if let Some(mut session) = self.session.take() {
            let flushing = limited(self.shared.commit_wait, "the flush", session.flush());
            match flushing.await {
                Ok(()) => {
                    self.session = Some(session);
                    self.unflushed.note_commit(true);
                    self.settle(Jobs::new()).await;
                    return;
                }
                Err(fault) => tracing::warn!(
                    error = fault.text().as_str(),
                    "the flush failed; what was not acked yet is tried again"
                ),
            }
        }
        self.lose_unflushed().await;
    }

    /// The session that committed is gone, and with it the way to know that its commits are durable: their messages
    /// are tried again, and are duplicates where they are.
    pub(crate) async fn lose_unflushed(&mut self) {
        self.unflushed.since = None;
        let mut jobs = std::mem::take(&mut self.unflushed.jobs);
        if jobs.is_empty() {
            return;
        }
        tracing::warn!(
            deliveries = jobs.len(),
            "the session was lost before its commits were flushed; their messages are tried again"
        );
        for job in &mut jobs {
            job.reopen();
        }
        self.shared.settle(jobs.into()).await;
    }
}
