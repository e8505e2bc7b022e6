use std::fmt;
use std::future::Future;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use inbox_core::{InboxDatabase, Source, Verdict};
use sqlx::Pool;
use tokio_util::sync::CancellationToken;

use crate::builder::InboxBuilder;
use crate::checks::Demands;
use crate::intake::Intake;
use crate::job::Job;
use crate::monitor::Monitor;
use crate::purge::Purge;
use crate::queue::Queue;
use crate::route::Route;
use crate::stored::StoredIntake;
use crate::worker::{Shared, Worker};

/// A configured inbox, checked and ready to run.
pub struct Inbox<Db: InboxDatabase> {
    pub(crate) shared: Arc<Shared<Db>>,
    pub(crate) sources: Vec<Routed<Db>>,
    /// For messages that wait in the database and whose source is not known any more.
    pub(crate) any_source: Route<Db>,
    pub(crate) prefetch: NonZeroUsize,
    pub(crate) concurrency: NonZeroUsize,
    pub(crate) grace: Duration,
    pub(crate) purge: Option<Purge<Db>>,
    pub(crate) queue: Arc<Queue<Db>>,
}

impl Stopped {
    async fn hand_back<Db: InboxDatabase>(&mut self, jobs: Vec<Job<Db>>) {
        for mut job in jobs {
            job.settle(Verdict::HandBack { delay: None }).await;
            self.handed_back += 1;
        }
    }
}

/// A source, where its messages go, and what it has to go with.
pub(crate) struct Routed<Db: InboxDatabase> {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) route: Arc<Route<Db>>,
    pub(crate) demands: Demands,
}

/// What a shutdown left undone. Nothing of it is lost: the brokers deliver it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stopped {
    /// Deliveries handed back without having been started, while they waited for another try, or with a transaction
    /// that several shared and whose handler was cut off.
    pub handed_back: usize,
    /// Handlers that were still running at the end of the grace period, and were rolled back.
    pub cut_off: usize,
}

impl<Db: InboxDatabase> Inbox<Db> {
    /// Starts the configuration of an inbox on the database of `pool`.
    ///
    /// The pool stays the application's: workers take a connection while they have messages and return it,
    /// reset, when they idle. It must be large enough for the concurrency and one more.
    ///
    /// On PostgreSQL every message begins with the session as the pool made it: settings and role that a handler
    /// changed are reset to what the pool's connection options and `after_connect` had set. Settings with a dot in
    /// their name (`app.tenant`) are not listed by the server, so give those as connection options
    /// ([`PgConnectOptions::options`](https://docs.rs/sqlx/0.9/sqlx/postgres/struct.PgConnectOptions.html#method.options)),
    /// which survive every reset.
    pub fn builder(pool: Pool<Db>) -> InboxBuilder<Db> {
        InboxBuilder::new(pool)
    }

    /// Looks at what this inbox does, also while it runs.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        self.shared.monitor.clone()
    }

    /// Consumes and processes until `shutdown` completes, then stops gracefully: no new transaction starts, running
    /// ones get the grace period, what was not started is handed back.
    ///
    /// The workers are tasks of their own, so dropping this future cuts nothing in half: it means a shutdown
    /// without grace, which they complete in the background.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Stopped {
        let stop = self.shared.stop.clone();
        let cut_off = self.shared.cut_off.clone();
        let dropped = StopOnDrop {
            stop: stop.clone(),
            cut_off: cut_off.clone(),
        };
        let grace = self.grace;
        // A task of its own, so that the orderly end does not depend on being polled by the caller.
        let running = tokio::spawn(self.run());
        tokio::pin!(running);
        let finished = tokio::select! {
            finished = &mut running => Some(finished),
            () = shutdown => None,
        };
        let finished = match finished {
            Some(finished) => finished,
            None => {
                tracing::info!(?grace, "stopping");
                stop.cancel();
                match tokio::time::timeout(grace, &mut running).await {
                    Ok(finished) => finished,
                    Err(_) => {
                        cut_off.cancel();
                        running.await
                    }
                }
            }
        };
        drop(dropped);
        let stopped = finished.unwrap_or_else(|error| {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "the inbox did not end in an orderly way"
            );
            Stopped::default()
        });
        tracing::info!(
            handed_back = stopped.handed_back,
            cut_off = stopped.cut_off,
            "stopped"
        );
        stopped
    }

    async fn run(self) -> Stopped {
        let queue = self.queue;
        let stored = StoredIntake::new(
            Arc::clone(&self.shared),
            Arc::clone(&queue),
            self.sources.iter().map(|routed| &routed.route),
            self.any_source,
            self.prefetch.get(),
        );
        let stored = tokio::spawn(stored.run());
        let intakes: Vec<_> = self
            .sources
            .into_iter()
            .map(|routed| {
                let intake = Intake {
                    source: routed.source,
                    route: routed.route,
                    demands: routed.demands,
                    prefetch: self.prefetch,
                    queue: Arc::clone(&queue),
                    monitor: self.shared.monitor.clone(),
                    stop: self.shared.stop.clone(),
                };
                tokio::spawn(intake.run())
            })
            .chain([stored])
            .collect();
        let workers: Vec<_> = (0..self.concurrency.get())
            .map(|number| {
                let worker = Worker::new(number, Arc::clone(&self.shared), Arc::clone(&queue));
                tokio::spawn(worker.run())
            })
            .collect();
        let purge = self.purge.map(|purge| tokio::spawn(purge.run()));
        let stop = self.shared.stop.clone();
        let ending = async {
            let mut cut_off = 0;
            for worker in workers {
                match worker.await {
                    Ok(of_worker) => cut_off += of_worker,
                    Err(error) => {
                        tracing::error!(error = &error as &dyn std::error::Error, "a worker died")
                    }
                }
            }
            // Workers end only on a stop. The intakes wait until everything that they took has gone back.
            stop.cancel();
            if let Some(purge) = purge
                && let Err(error) = purge.await
            {
                tracing::error!(error = &error as &dyn std::error::Error, "the purge died");
            }
            self.shared.hold.emptied().await;
            for ended in futures_util::future::join_all(intakes).await {
                if let Err(error) = ended {
                    tracing::error!(error = &error as &dyn std::error::Error, "an intake died");
                }
            }
            cut_off
        };
        tokio::pin!(ending);
        let mut stopped = Stopped::default();
        let mut ended = tokio::select! {
            biased;
            () = stop.cancelled() => None,
            cut_off = &mut ending => Some(cut_off),
        };
        // No worker takes a job any more. What they did not start goes back now, for others to have, not when
        // the last handler here is done.
        while ended.is_none() {
            tokio::select! {
                biased;
                jobs = queue.drained() => stopped.hand_back(jobs).await,
                cut_off = &mut ending => ended = Some(cut_off),
            }
        }
        stopped.cut_off = ended.unwrap_or_default();
        stopped.hand_back(queue.drain()).await;
        stopped
    }
}

impl<Db: InboxDatabase> fmt::Debug for Inbox<Db> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sources: Vec<_> = self.sources.iter().map(|routed| &routed.route).collect();
        f.debug_struct("Inbox")
            .field("concurrency", &self.concurrency)
            .field("prefetch", &self.prefetch)
            .field("purges", &self.purge.is_some())
            .field("sources", &sources)
            .finish_non_exhaustive()
    }
}

/// Dropping `run_until` is a shutdown without grace.
struct StopOnDrop {
    stop: CancellationToken,
    cut_off: CancellationToken,
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.stop.cancel();
        self.cut_off.cancel();
    }
}
