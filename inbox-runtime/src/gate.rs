use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use inbox_core::{ConsumerName, InboxDatabase, MessageId};

use crate::job::Job;
use crate::queue::Queue;

type Key = (ConsumerName, MessageId);

/// Lets one copy of a message per consumer through at a time, within this process.
///
/// A worker only ever tries: it never waits here, so it can hold nothing while it does. A copy that finds the
/// gate taken is parked with its whole job and comes back to the queue when the holder leaves, which every
/// holder does within its own time limits.
pub(crate) struct Gate<Db: InboxDatabase> {
    taken: Mutex<HashMap<Key, Vec<Job<Db>>>>,
    queue: Arc<Queue<Db>>,
}

impl<Db: InboxDatabase> Gate<Db> {
    pub(crate) fn new(queue: Arc<Queue<Db>>) -> Arc<Self> {
        Arc::new(Self {
            taken: Mutex::default(),
            queue,
        })
    }

    /// Takes the gate if it is free.
    pub(crate) fn try_enter(
        self: &Arc<Self>,
        consumer: &ConsumerName,
        id: &MessageId,
    ) -> Option<Pass<Db>> {
        let key = (consumer.clone(), id.clone());
        match self.lock().entry(key.clone()) {
            Entry::Occupied(_) => None,
            Entry::Vacant(free) => {
                free.insert(Vec::new());
                Some(Pass {
                    gate: Arc::clone(self),
                    key,
                })
            }
        }
    }

    /// Parks a job until the gate is free. Gives it back when that is so already.
    pub(crate) fn park(
        &self,
        consumer: &ConsumerName,
        id: &MessageId,
        mut job: Job<Db>,
    ) -> Option<Job<Db>> {
        // Its lane goes on without it.
        job.turn = None;
        match self.lock().get_mut(&(consumer.clone(), id.clone())) {
            Some(parked) => {
                parked.push(job);
                None
            }
            None => Some(job),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Vec<Job<Db>>>> {
        // Nothing panics while the lock is held.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Db: InboxDatabase> fmt::Debug for Gate<Db> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("taken", &self.lock().len())
            .finish_non_exhaustive()
    }
}

/// The right to work on one message for one consumer; leaving lets the parked copies try.
pub(crate) struct Pass<Db: InboxDatabase> {
    gate: Arc<Gate<Db>>,
    key: Key,
}

impl<Db: InboxDatabase> Drop for Pass<Db> {
    fn drop(&mut self) {
        let parked = self.gate.lock().remove(&self.key).unwrap_or_default();
        for job in parked {
            self.gate.queue.push(job);
        }
    }
}

impl<Db: InboxDatabase> fmt::Debug for Pass<Db> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pass").field(&self.key).finish()
    }
}
