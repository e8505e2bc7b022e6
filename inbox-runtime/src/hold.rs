use std::sync::Arc;
use std::time::Instant;

use inbox_core::InboxDatabase;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::job::Job;
use crate::queue::Queue;

/// Keeps jobs until they are due again, and then puts them back into the queue.
///
/// Bounded by the prefetch: a held job keeps its slot. When the runtime stops, everything goes back to the
/// queue at once, to be handed back from there.
#[derive(Debug, Clone)]
pub(crate) struct Hold<Db: InboxDatabase> {
    queue: Arc<Queue<Db>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl<Db: InboxDatabase> Hold<Db> {
    pub(crate) fn new(queue: Arc<Queue<Db>>, stop: CancellationToken) -> Self {
        Self {
            queue,
            tasks: TaskTracker::new(),
            stop,
        }
    }

    pub(crate) fn until(&self, due: Instant, mut job: Job<Db>) {
        // Its lane goes on without it.
        job.turn = None;
        let queue = Arc::clone(&self.queue);
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = tokio::time::sleep_until(due.into()) => {}
                () = stop.cancelled() => {}
            }
            queue.push(job);
        });
    }

    /// Returns when no job is held any more; nothing new may come after this.
    pub(crate) async fn emptied(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}
