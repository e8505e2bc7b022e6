//! What the thread that polls and the tasks that settle share.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

use inbox_core::{Delivery, Envelope, SettleError, SettleToken, SourceError, Verdict};
use tokio::sync::Notify;

use super::window::{Taken, Window};

/// Numbers the deliveries of the whole process, so that a number kept past its assignment means nothing in the next one.
static DELIVERIES: AtomicU64 = AtomicU64::new(1);

#[derive(Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// A delivery is ready, a commit was answered, or the assignment ended.
    news: Notify,
    poller: OnceLock<Thread>,
}

/// The partitions of one member of the group.
#[derive(Default)]
pub(super) struct State {
    pub(super) windows: HashMap<u64, Window>,
    /// What is delivered and not settled: of which window, and at which offset.
    tokens: HashMap<u64, (u64, i64)>,
    /// What nobody has taken yet.
    ready: VecDeque<Delivery>,
    next_window: u64,
    /// Nothing more is to be delivered; what was taken can still be settled.
    pub(super) is_stopping: bool,
    /// Nobody is interested any more.
    pub(super) is_dropped: bool,
    lost: Option<String>,
    /// The thread has ended.
    is_closed: bool,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread that polls is this one.
    pub(super) fn polled_here(&self) {
        let _ = self.poller.set(std::thread::current());
    }

    pub(super) fn wake_poller(&self) {
        if let Some(poller) = self.poller.get() {
            poller.unpark();
        }
    }

    pub(super) fn tell(&self) {
        self.news.notify_waiters();
    }

    /// The next delivery. It is taken in the last step before it is returned, so none is lost with this future.
    pub(super) async fn next(&self) -> Result<Option<Delivery>, SourceError> {
        loop {
            let news = self.news.notified();
            {
                let mut state = self.lock();
                if let Some(why) = &state.lost {
                    return Err(SourceError::new(why.as_str()));
                }
                if state.is_stopping {
                    return Ok(None);
                }
                if let Some(delivery) = state.ready.pop_front() {
                    return Ok(Some(delivery));
                }
            }
            news.await;
        }
    }

    /// Delivers nothing more.
    pub(super) fn stop(&self) {
        self.lock().stop();
        self.wake_poller();
        self.tell();
    }

    pub(super) fn note_dropped(&self) {
        self.lock().is_dropped = true;
        self.wake_poller();
    }

    /// Waits for the commits of what is settled; also for the end of the membership if nothing more is to come.
    pub(super) async fn stopped(&self) {
        self.until(|state| state.is_closed || !state.tokens.is_empty() && state.is_committed())
            .await;
    }

    /// Notes verdicts. What is noted is committed sooner or later, whether or not this future is driven to its end.
    pub(super) async fn settle(
        &self,
        verdicts: &[(SettleToken, Verdict)],
    ) -> Vec<Result<(), SettleError>> {
        let (mut places, is_stopping) = {
            let mut state = self.lock();
            let places: Vec<_> = verdicts
                .iter()
                .map(|(token, verdict)| state.settle(token, *verdict))
                .collect();
            (places, state.is_stopping)
        };
        self.wake_poller();
        if is_stopping {
            // Soon there will be no thread any more that commits, and perhaps no process.
            self.until(|state| {
                state.is_closed || !state.tokens.is_empty() && state.is_committed_for(&places)
            })
            .await;
            let state = self.lock();
            for (place, (_, verdict)) in places.iter_mut().zip(verdicts) {
                if *verdict == Verdict::Ack && !state.is_committed_for(std::slice::from_ref(place))
                {
                    *place = None;
                }
            }
        }
        places
            .into_iter()
            .map(|place| place.map(|_| ()).ok_or(SettleError::Gone))
            .collect()
    }

    async fn until(&self, condition: impl Fn(&State) -> bool) {
        loop {
            let news = self.news.notified();
            if condition(&self.lock()) {
                return;
            }
            news.await;
        }
    }
}

/// What can be told of an assignment that ended.
impl State {
    pub(super) fn is_gone(&self) -> bool {
        self.lost.is_some() || self.is_closed
    }

    /// Whether the delivery is not worth starting: it was revoked, or is about to be. What is not started need not be
    /// waited for.
    pub(super) fn is_void(&mut self, token: &SettleToken) -> bool {
        let Some((window, offset)) = self.tokens.get(&token.number()).copied() else {
            return true;
        };
        let Some(window) = self.windows.get_mut(&window) else {
            return true;
        };
        if window.is_leaving {
            window.settle(offset, Verdict::HandBack { delay: None });
            self.tokens.remove(&token.number());
            return true;
        }
        false
    }

    pub(super) fn note_lost(&mut self, why: String) {
        self.lost.get_or_insert(why);
        self.windows.clear();
        self.tokens.clear();
        self.ready.clear();
    }

    pub(super) fn note_closed(&mut self) {
        self.is_closed = true;
        self.tokens.clear();
        self.ready.clear();
    }

    pub(super) const fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    fn stop(&mut self) {
        self.is_stopping = true;
        let ready = std::mem::take(&mut self.ready);
        for delivery in ready {
            self.settle(&delivery.token, Verdict::HandBack { delay: None });
        }
    }

    fn settle(&mut self, token: &SettleToken, verdict: Verdict) -> Option<(u64, i64)> {
        let place = self.tokens.remove(&token.number())?;
        self.windows.get_mut(&place.0)?.settle(place.1, verdict);
        Some(place)
    }

    /// How many deliveries are unsettled, whether somebody has taken them or not.
    pub(super) fn unsettled(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn is_committed(&self) -> bool {
        self.windows
            .values()
            .all(|window| window.to_commit().is_none())
    }

    fn is_committed_for(&self, places: &[Option<(u64, i64)>]) -> bool {
        places.iter().flatten().all(|(window, offset)| {
            self.windows
                .get(window)
                .is_none_or(|window| window.is_settled(*offset))
        })
    }

    /// A partition was assigned.
    pub(super) fn open_window(&mut self, topic: &str, partition: i32) -> u64 {
        self.next_window += 1;
        let window = Window::new(topic.into(), partition);
        self.windows.insert(self.next_window, window);
        self.next_window
    }

    pub(super) fn window_of(&self, topic: &str, partition: i32) -> Option<u64> {
        self.windows
            .iter()
            .find(|(_, window)| *window.topic == *topic && window.partition == partition)
            .map(|(number, _)| *number)
    }

    /// Nothing more of these partitions is delivered; what is in work may end.
    pub(super) fn leave(&mut self, windows: &[u64]) {
        for number in windows {
            if let Some(window) = self.windows.get_mut(number) {
                window.is_leaving = true;
            }
        }
        let ready = std::mem::take(&mut self.ready);
        for delivery in ready {
            if !self.is_void(&delivery.token) {
                self.ready.push_back(delivery);
            }
        }
    }

    /// The partitions belong to somebody else: their deliveries can no longer be settled.
    pub(super) fn give_up(&mut self, windows: &[u64]) {
        self.windows.retain(|number, _| !windows.contains(number));
        self.tokens
            .retain(|_, (number, _)| !windows.contains(number));
        let tokens = &self.tokens;
        self.ready
            .retain(|delivery| tokens.contains_key(&delivery.token.number()));
    }

    /// Whether a record that came is to be delivered.
    pub(super) fn deliver(
        &mut self,
        window: u64,
        offset: i64,
        envelope: Option<Envelope>,
        doubtful: usize,
    ) {
        let Some(place) = self.windows.get_mut(&window) else {
            return;
        };
        // Once it is given up, whoever gets it reads what is not committed.
        if place.is_leaving || self.is_stopping {
            return;
        }
        let redelivered = match place.take(offset, doubtful) {
            Taken::New { in_doubt } => in_doubt,
            Taken::Again => true,
            Taken::Known => return,
        };
        let Some(envelope) = envelope else {
            place.settle(offset, Verdict::Ack);
            return;
        };
        let number = DELIVERIES.fetch_add(1, Ordering::Relaxed);
        self.tokens.insert(number, (window, offset));
        self.ready
            .push_back(Delivery::new(envelope, SettleToken::new(number)).redelivered(redelivered));
    }
}

/// What keeps the membership alive: both halves of the assignment hold it.
pub(super) struct Membership(pub(super) Arc<Shared>);

impl Drop for Membership {
    fn drop(&mut self) {
        self.0.note_dropped();
    }
}
