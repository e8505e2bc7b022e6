use std::time::Instant;

use inbox_core::InboxDatabase;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::job::Job;

/// Keeps jobs until they are due again, and then puts them back into the queue.
///
/// Bounded by the prefetch: a held job keeps its slot. When the runtime stops, everything goes back to the
/// queue at once, to be handed back from there.
#[derive(Debug, Clone)]
pub(crate) struct Hold<Db: InboxDatabase> {
    queue: async_channel::Sender<Job<Db>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl<Db: InboxDatabase> Hold<Db> {
    pub(crate) fn new(queue: async_channel::Sender<Job<Db>>, stop: CancellationToken) -> Self {
        Self {
            queue,
            tasks: TaskTracker::new(),
            stop,
        }
    }

    pub(crate) fn until(&self, due: Instant, job: Job<Db>) {
        let queue = self.queue.clone();
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = tokio::time::sleep_until(due.into()) => {}
                () = stop.cancelled() => {}
            }
            let _ = queue.try_send(job);
        });
    }

    /// Returns when no job is held any more; nothing new may come after this.
    pub(crate) async fn emptied(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}
