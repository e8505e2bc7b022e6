//! What waits for a worker.
//!
//! Messages with the same order key form a lane, and a lane belongs to one worker at a time. So they run one after
//! another, and two transactions never hold rows that the other's messages of the same key want.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use inbox_core::InboxDatabase;
use tokio::sync::Notify;

use crate::job::Job;

/// A worker by its number.
pub(crate) type WorkerNumber = usize;

/// An order key's hash. Two keys that share one are ordered among each other, which harms nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LaneKey(u64);

/// The jobs that wait, first come first served but for the lanes.
pub(crate) struct Queue<Db: InboxDatabase> {
    state: Mutex<State<Db>>,
    /// Something came, or a lane became free.
    news: Notify,
    hasher: RandomState,
}

struct State<Db: InboxDatabase> {
    ready: VecDeque<Ready<Db>>,
    lanes: HashMap<LaneKey, Lane<Db>>,
    /// For each worker, lanes of its own in which more may wait.
    own: Vec<VecDeque<LaneKey>>,
    waiting: usize,
}

#[expect(
    clippy::large_enum_variant,
    reason = "where it matters, nearly all are jobs"
)]
enum Ready<Db: InboxDatabase> {
    Job(Job<Db>),
    Lane(LaneKey),
}

/// An end of what waits.
#[derive(Debug, Clone, Copy)]
enum End {
    Front,
    Back,
}

impl End {
    fn put<T>(self, waiting: &mut VecDeque<T>, one: T) {
        match self {
            Self::Front => waiting.push_front(one),
            Self::Back => waiting.push_back(one),
        }
    }
}

struct Lane<Db: InboxDatabase> {
    waiting: VecDeque<Job<Db>>,
    /// Whose it is, and how many of its jobs that worker has.
    taken: Option<(WorkerNumber, usize)>,
}

impl<Db: InboxDatabase> Queue<Db> {
    pub(crate) fn new(workers: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                ready: VecDeque::new(),
                lanes: HashMap::new(),
                own: (0..workers).map(|_| VecDeque::new()).collect(),
                waiting: 0,
            }),
            news: Notify::new(),
            hasher: RandomState::new(),
        })
    }

    /// The lane of an order key.
    pub(crate) fn lane(&self, order_key: &str) -> LaneKey {
        LaneKey(self.hasher.hash_one(order_key))
    }

    /// Adds a job. Unbounded, but never fuller than the sources' prefetch allows.
    pub(crate) fn push(&self, mut job: Job<Db>) {
        // Back in the queue, it is in nobody's hands.
        job.turn = None;
        let mut state = self.lock();
        state.waiting += 1;
        match job.lane {
            None => state.ready.push_back(Ready::Job(job)),
            Some(key) => state.put_into_lane(key, job, End::Back),
        }
        drop(state);
        self.news.notify_one();
    }

    /// Puts a job back to where it was taken from, in front of all that waits, for whoever is the first to come. Of
    /// several, the last one goes back first.
    pub(crate) fn give_back(&self, mut job: Job<Db>) {
        let turn = job.turn.take();
        let mut state = self.lock();
        state.waiting += 1;
        match job.lane {
            None => state.ready.push_front(Ready::Job(job)),
            // Its worker still has it, so that nobody can come in between.
            Some(key) => state.put_into_lane(key, job, End::Front),
        }
        drop(state);
        if let Some(mut turn) = turn {
            turn.then = End::Front;
        }
        self.news.notify_one();
    }

    /// The next job that this worker may have, if one waits.
    pub(crate) fn try_take(self: &Arc<Self>, worker: WorkerNumber) -> Option<Job<Db>> {
        let mut state = self.lock();
        let mut job = state.take(worker)?;
        let more = !state.ready.is_empty();
        drop(state);
        if more {
            // A notice tells one worker of one job; this passes it on to the next.
            self.news.notify_one();
        }
        job.turn = job.lane.map(|lane| Turn {
            queue: Arc::clone(self),
            lane,
            then: End::Back,
        });
        Some(job)
    }

    /// The next job, as soon as there is one. Loses nothing when it is dropped.
    pub(crate) async fn take(self: &Arc<Self>, worker: WorkerNumber) -> Job<Db> {
        loop {
            if let Some(job) = self.try_take(worker) {
                return job;
            }
            self.news.notified().await;
        }
    }

    /// Empties the queue, for the end.
    pub(crate) fn drain(&self) -> Vec<Job<Db>> {
        let mut state = self.lock();
        let mut drained = Vec::with_capacity(state.waiting);
        for ready in std::mem::take(&mut state.ready) {
            match ready {
                Ready::Job(job) => drained.push(job),
                Ready::Lane(_) => {}
            }
        }
        for lane in state.lanes.values_mut() {
            drained.extend(lane.waiting.drain(..));
        }
        state.lanes.retain(|_, lane| lane.taken.is_some());
        state.waiting = 0;
        drained
    }

    /// [`drain`](Self::drain), as soon as that gives something.
    pub(crate) async fn drained(&self) -> Vec<Job<Db>> {
        loop {
            let drained = self.drain();
            if !drained.is_empty() {
                return drained;
            }
            self.news.notified().await;
        }
    }

    /// How many jobs wait.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().waiting
    }

    /// A worker is done with one job of a lane, which goes to this end if it is free.
    fn leave(&self, key: LaneKey, then: End) {
        let mut state = self.lock();
        let is_free_for_others = state.leave(key, then);
        drop(state);
        if is_free_for_others {
            self.news.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<Db>> {
        // Nothing panics while the lock is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Db: InboxDatabase> State<Db> {
    fn put_into_lane(&mut self, key: LaneKey, job: Job<Db>, end: End) {
        let lane = self.lanes.entry(key).or_insert_with(|| Lane {
            waiting: VecDeque::new(),
            taken: None,
        });
        end.put(&mut lane.waiting, job);
        if lane.waiting.len() > 1 {
            // It is listed already.
            return;
        }
        match lane.taken {
            None => end.put(&mut self.ready, Ready::Lane(key)),
            Some((worker, _)) => self.list_as_own(worker, key),
        }
    }

    fn list_as_own(&mut self, worker: WorkerNumber, key: LaneKey) {
        if let Some(own) = self.own.get_mut(worker) {
            own.push_back(key);
        }
    }

    /// What is free for all comes first: a lane with many messages must not keep its worker from the others'.
    fn take(&mut self, worker: WorkerNumber) -> Option<Job<Db>> {
        let job = match self.ready.pop_front() {
            Some(Ready::Job(job)) => Some(job),
            Some(Ready::Lane(key)) => self.take_from_lane(worker, key),
            None => self.take_from_own(worker),
        }?;
        self.waiting = self.waiting.saturating_sub(1);
        Some(job)
    }

    fn take_from_own(&mut self, worker: WorkerNumber) -> Option<Job<Db>> {
        loop {
            let key = self.own.get_mut(worker)?.pop_front()?;
            // It may have become another's since it was listed.
            let is_own = self
                .lanes
                .get(&key)
                .and_then(|lane| lane.taken)
                .is_some_and(|(owner, _)| owner == worker);
            if is_own && let Some(job) = self.take_from_lane(worker, key) {
                return Some(job);
            }
        }
    }

    fn take_from_lane(&mut self, worker: WorkerNumber, key: LaneKey) -> Option<Job<Db>> {
        let lane = self.lanes.get_mut(&key)?;
        let job = lane.waiting.pop_front()?;
        let (_, jobs) = lane.taken.unwrap_or((worker, 0));
        lane.taken = Some((worker, jobs + 1));
        if !lane.waiting.is_empty() {
            self.list_as_own(worker, key);
        }
        Some(job)
    }

    /// Answers whether the lane became free and has more.
    fn leave(&mut self, key: LaneKey, then: End) -> bool {
        let Some(lane) = self.lanes.get_mut(&key) else {
            return false;
        };
        lane.taken = match lane.taken {
            Some((worker, jobs)) if jobs > 1 => Some((worker, jobs - 1)),
            _ => None,
        };
        if lane.taken.is_some() {
            return false;
        }
        if lane.waiting.is_empty() {
            self.lanes.remove(&key);
            return false;
        }
        for own in &mut self.own {
            own.retain(|own| *own != key);
        }
        then.put(&mut self.ready, Ready::Lane(key));
        true
    }
}

impl<Db: InboxDatabase> fmt::Debug for Queue<Db> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Queue")
            .field("waiting", &state.waiting)
            .field("lanes", &state.lanes.len())
            .finish_non_exhaustive()
    }
}

/// A job's place in its lane: while a worker holds it, no other worker gets a job of that lane.
pub(crate) struct Turn<Db: InboxDatabase> {
    queue: Arc<Queue<Db>>,
    lane: LaneKey,
    /// Where the lane goes when this was the last turn.
    then: End,
}

impl<Db: InboxDatabase> Drop for Turn<Db> {
    fn drop(&mut self) {
        self.queue.leave(self.lane, self.then);
    }
}

impl<Db: InboxDatabase> fmt::Debug for Turn<Db> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Turn").field(&self.lane).finish()
    }
}
