use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use inbox_core::{Assignment, Capabilities, FailureText, InboxDatabase, Source, SourceError};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::backoff;
use crate::checks::Demands;
use crate::job::Job;
use crate::monitor::{Monitor, Watched};
use crate::queue::Queue;
use crate::route::Route;

/// How long opening a source may take before it counts as failed.
const OPEN_LIMIT: Duration = Duration::from_secs(30);

/// How long a source may take to stop delivering.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// Takes deliveries from one source and queues them, never more than `prefetch` unsettled ones.
pub(crate) struct Intake<Db: InboxDatabase> {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) route: Arc<Route<Db>>,
    pub(crate) demands: Demands,
    pub(crate) prefetch: NonZeroUsize,
    pub(crate) queue: Arc<Queue<Db>>,
    pub(crate) monitor: Monitor,
    pub(crate) stop: CancellationToken,
}

impl<Db: InboxDatabase> Intake<Db> {
    /// Runs until the runtime stops and every delivery taken is settled.
    pub(crate) async fn run(mut self) {
        let mut failures = 0;
        while let Some(assignment) = self.open(&mut failures).await {
            if self.consume(assignment, &mut failures).await {
                break;
            }
        }
    }

    /// Opens the source, however long that takes; `None` when the runtime stops.
    async fn open(&mut self, failures: &mut u32) -> Option<Assignment> {
        loop {
            if *failures > 0 {
                tokio::select! {
                    () = tokio::time::sleep(backoff::reconnect(*failures)) => {}
                    () = self.stop.cancelled() => return None,
                }
            }
            let opened = tokio::select! {
                opened = tokio::time::timeout(OPEN_LIMIT, self.try_open()) => opened,
                () = self.stop.cancelled() => return None,
            };
            *failures = failures.saturating_add(1);
            match opened {
                Ok(Ok((assignment, capabilities))) => {
                    // As the broker is now, whatever was known of it before.
                    if capabilities != self.route.capabilities {
                        self.route = Arc::new(Route {
                            capabilities,
                            ..Route::clone(&self.route)
                        });
                    }
                    tracing::info!(source = %self.route.source, system = self.route.system, "consuming");
                    self.watch(Watched::note_up);
                    return Some(assignment);
                }
                Ok(Err(error)) => {
                    self.note_down(&error);
                    tracing::warn!(
                        source = %self.route.source,
                        system = self.route.system,
                        failures = *failures,
                        error = &error as &dyn std::error::Error,
                        "the source cannot be opened; trying again"
                    );
                }
                Err(_) => {
                    self.watch(|source| source.note_down("it did not open in time"));
                    tracing::warn!(
                        source = %self.route.source,
                        system = self.route.system,
                        failures = *failures,
                        limit = ?OPEN_LIMIT,
                        "the source did not open in time; trying again"
                    );
                }
            }
        }
    }

    /// Opens the source, unless its broker is set up so that messages would be lost or processed twice.
    async fn try_open(&self) -> Result<(Assignment, Capabilities), SourceError> {
        let learned = self.source.learn(&self.demands.needs).await?;
        let problems = self.demands.unmet(&learned);
        if !problems.is_empty() {
            return Err(SourceError::new(problems.join("; ")));
        }
        let assignment = self.source.open(self.prefetch).await?;
        Ok((assignment, learned.capabilities))
    }

    fn note_down(&self, error: &SourceError) {
        let why = FailureText::of_error(error);
        self.watch(|source| source.note_down(why.as_str()));
    }

    fn watch(&self, note: impl FnOnce(&Watched)) {
        if let Some(source) = self.monitor.source(&self.route.source) {
            note(source);
        }
    }

    /// Queues what the assignment delivers until it ends (`false`) or the runtime stops (`true`).
    async fn consume(&self, mut assignment: Assignment, failures: &mut u32) -> bool {
        // Of this assignment alone: what an earlier one left behind is void, and may be held for long.
        let slots = Arc::new(Semaphore::new(self.prefetch.get()));
        loop {
            // Asked also while every slot is taken: that is how a loss is noticed.
            let next = tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                next = assignment.deliveries.next() => next,
            };
            match next {
                Ok(Some(delivery)) => {
                    // It works. One that opens and is lost again at once keeps its back-off.
                    *failures = 0;
                    // A settled delivery may have made room at the broker a moment before its slot is free.
                    let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
                        // Never closed.
                        break;
                    };
                    let job = Job::new(
                        delivery,
                        None,
                        Arc::clone(&self.route),
                        Arc::clone(&assignment.settle),
                        slot,
                        &self.queue,
                    );
                    self.queue.push(job);
                }
                Ok(None) => {
                    self.watch(|source| source.note_down("it ended"));
                    tracing::warn!(source = %self.route.source, "the source ended; opening it again");
                    return false;
                }
                Err(error) => {
                    self.note_down(&error);
                    tracing::warn!(
                        source = %self.route.source,
                        error = &error as &dyn std::error::Error,
                        "the source was lost; opening it again"
                    );
                    return false;
                }
            }
        }
        if tokio::time::timeout(STOP_LIMIT, assignment.deliveries.stop())
            .await
            .is_err()
        {
            tracing::warn!(source = %self.route.source, limit = ?STOP_LIMIT, "the source did not stop in time");
        }
        // The assignment must outlive its deliveries: with it goes the channel that settles them.
        let all = u32::try_from(self.prefetch.get()).unwrap_or(u32::MAX);
        let _settled = slots.acquire_many(all).await;
        true
    }
}
