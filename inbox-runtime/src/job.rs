use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use inbox_core::{Delivery, Envelope, InboxDatabase, MessageId, Settle, SettleToken, Verdict};
use smallvec::SmallVec;
use tokio::sync::OwnedSemaphorePermit;

use crate::queue::{LaneKey, Queue, Turn};
use crate::route::{Destination, Registered, Route};

/// How long a settle may take before the worker goes on without its answer.
const SETTLE_LIMIT: Duration = Duration::from_secs(10);

/// One delivery on its way through the house: taken from a source, not settled yet.
pub(crate) struct Job<Db: InboxDatabase> {
    pub(crate) envelope: Envelope,
    pub(crate) route: Arc<Route<Db>>,
    pub(crate) work: Work<Db>,
    /// What it is ordered with.
    pub(crate) lane: Option<LaneKey>,
    /// Its turn in the lane, from the queue to the end of the attempt.
    pub(crate) turn: Option<Turn<Db>>,
    /// Whether an attempt may have begun before: then each start is counted, for it may end the process.
    pub(crate) counts_starts: bool,
    /// Whether it shares no transaction any more: one that it shared did not succeed.
    pub(crate) goes_alone: bool,
    /// For whom and under which id it waited in the database, if it did.
    pub(crate) stored: Option<Stored>,
    /// Whether a consumer keeps it, as a dead letter or parked: from then on the broker does not get it back.
    is_kept: bool,
    settle: Arc<dyn Settle>,
    token: Option<SettleToken>,
    received: Instant,
    /// The prefetch slot: given back when the job goes.
    _slot: OwnedSemaphorePermit,
}

/// A message that waited in the database.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    /// `None`: it goes to whoever takes its type.
    pub(crate) consumer: Option<String>,
    /// The id under which the consumer claims it, whatever the configuration says by now.
    pub(crate) id: Option<MessageId>,
    /// Why what was stored is no message any more.
    pub(crate) unreadable: Option<String>,
}

/// Deliveries that are settled together, seldom more than one.
pub(crate) type Jobs<Db> = SmallVec<[Job<Db>; 1]>;

/// What is to be done with a delivery.
#[derive(Debug)]
pub(crate) enum Work<Db: InboxDatabase> {
    /// Run the path once for each consumer.
    Shares(SmallVec<[Share<Db>; 1]>),
    /// Ack it.
    Ignore,
    /// Keep it as a dead letter.
    Unroutable { reason: String, tries: u32 },
}

/// One consumer's part in a delivery.
#[derive(Debug)]
pub(crate) struct Share<Db: InboxDatabase> {
    pub(crate) handler: Arc<Registered<Db>>,
    pub(crate) status: Status,
    /// Runs in this process that ended in a transient database error.
    pub(crate) transient_runs: u32,
    /// Tries that ended without a verdict on the message: an outage, a copy elsewhere.
    pub(crate) uncounted_tries: u32,
    /// What recognises a transaction of this message that its handler may have committed itself: if so, a person
    /// must be told.
    pub(crate) in_doubt: Option<String>,
    /// Whether a start is counted that has not come to its end.
    pub(crate) is_start_counted: bool,
    /// Whether something is counted against it, as far as this process knows: it counted a failure or found a count.
    pub(crate) is_counted: bool,
    /// When its next attempt is due, where it could not be parked until then.
    pub(crate) due: Option<Instant>,
}

impl<Db: InboxDatabase> Share<Db> {
    const fn of(handler: Arc<Registered<Db>>) -> Self {
        Self {
            handler,
            status: Status::Open,
            transient_runs: 0,
            uncounted_tries: 0,
            in_doubt: None,
            is_start_counted: false,
            is_counted: false,
            due: None,
        }
    }
}

/// How far one consumer is with a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Open,
    /// To be tried again.
    Waiting {
        until: Instant,
        why: Wait,
    },
    Done(Outcome),
}

/// What became of a message for one consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Processed,
    Duplicate,
    Dead,
    /// It waits in the database for its next attempt.
    Parked,
}

impl Outcome {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Processed => "processed",
            Self::Duplicate => "duplicate",
            Self::Dead => "dead_letter",
            Self::Parked => "parked",
        }
    }
}

/// Why a message is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// A conflict in the database: soon, from memory.
    Transient,
    /// Its handler failed: after the delay of the retry policy.
    Failure,
    /// Nothing is known against it: a copy in work elsewhere, an outage, an unknown outcome.
    Uncounted,
    /// The worker is stopping.
    Stopping,
}

/// What to do with a job after a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Ack,
    HandBack { delay: Option<Duration> },
    Hold { until: Instant },
}

impl<Db: InboxDatabase> Job<Db> {
    /// A delivery, and what is known of it if it waited in the database.
    pub(crate) fn new(
        delivery: Delivery,
        stored: Option<Stored>,
        route: Arc<Route<Db>>,
        settle: Arc<dyn Settle>,
        slot: OwnedSemaphorePermit,
        queue: &Queue<Db>,
    ) -> Self {
        let consumer = stored
            .as_ref()
            .and_then(|stored| stored.consumer.as_deref());
        let unreadable = stored
            .as_ref()
            .and_then(|stored| stored.unreadable.as_ref());
        let work = match unreadable {
            Some(reason) => Work::Unroutable {
                reason: reason.clone(),
                tries: 0,
            },
            None => match route.destination(&delivery.envelope, consumer) {
                Destination::Handlers(handlers) => {
                    Work::Shares(handlers.into_iter().map(Share::of).collect())
                }
                // A person wants it to be processed: this is the wrong process for that.
                Destination::Ignored if stored.is_some() => Work::Unroutable {
                    reason: "messages of its type are ignored".to_owned(),
                    tries: 0,
                },
                Destination::Ignored => Work::Ignore,
                Destination::Unknown { reason } => Work::Unroutable { reason, tries: 0 },
            },
        };
        let lane = match &work {
            Work::Shares(shares) => shares
                .iter()
                .find_map(|share| route.order_key(&share.handler.spec, &delivery.envelope))
                .map(|key| queue.lane(&key)),
            Work::Ignore | Work::Unroutable { .. } => None,
        };
        Self {
            envelope: delivery.envelope,
            route,
            work,
            lane,
            turn: None,
            counts_starts: delivery.redelivered
                || delivery
                    .earlier_deliveries
                    .is_some_and(|earlier| earlier > 0),
            goes_alone: false,
            stored,
            is_kept: false,
            settle,
            token: Some(delivery.token),
            received: Instant::now(),
            _slot: slot,
        }
    }

    /// Whether it has an order key, so that no other worker has a message with the same.
    pub(crate) const fn is_ordered(&self) -> bool {
        self.lane.is_some()
    }

    /// Whether it waited in the database for this consumer.
    pub(crate) fn is_stored(&self) -> bool {
        self.stored
            .as_ref()
            .is_some_and(|stored| stored.consumer.is_some())
    }

    /// When it was taken from its source.
    pub(crate) const fn received(&self) -> Instant {
        self.received
    }

    /// What was done for it is in doubt: every consumer's share is tried again.
    pub(crate) fn reopen(&mut self) {
        let Work::Shares(shares) = &mut self.work else {
            return;
        };
        for share in shares {
            share.uncounted_tries = share.uncounted_tries.saturating_add(1);
            share.status = Status::Waiting {
                until: Instant::now(),
                why: Wait::Uncounted,
            };
        }
    }

    /// A consumer is done with it, or waits.
    pub(crate) fn note(&mut self, status: Status) {
        self.is_kept |= matches!(status, Status::Done(Outcome::Dead | Outcome::Parked));
    }

    /// Whether a consumer has it wait in the database: a delay that the broker cannot grant, or not without counting it
    /// against a message that was not to blame, and that is too long for a place in the prefetch.
    pub(crate) fn must_park(
        &self,
        delay: Duration,
        longest_hold: Duration,
        is_to_blame: bool,
    ) -> bool {
        let capabilities = &self.route.capabilities;
        let broker_can_wait = !self.is_kept
            && (is_to_blame || !capabilities.counts_hand_backs)
            && capabilities
                .longest_delay
                .is_some_and(|longest| delay <= longest);
        let outlasts_window = capabilities
            .settle_window
            .is_some_and(|window| self.received.elapsed() + delay >= window / 2);
        !broker_can_wait && (delay > longest_hold || outlasts_window)
    }

    /// Whether the delivery can no longer be settled, so that another copy of it is on its way.
    pub(crate) fn is_void(&self) -> bool {
        match &self.token {
            Some(token) => self.settle.is_void(token),
            None => self.settle.is_gone(),
        }
    }

    /// The handler of a delivery that concerns one consumer alone and was not tried before.
    pub(crate) fn fresh_handler(&self) -> Option<Arc<Registered<Db>>> {
        let Work::Shares(shares) = &self.work else {
            return None;
        };
        let [share] = shares.as_slice() else {
            return None;
        };
        let is_fresh = share.status == Status::Open
            && !self.counts_starts
            && !self.goes_alone
            && share.transient_runs == 0
            && share.uncounted_tries == 0
            && !self.is_void();
        is_fresh.then(|| Arc::clone(&share.handler))
    }

    /// Acks deliveries, each once, in one call for each assignment.
    pub(crate) async fn ack_all(jobs: Jobs<Db>) {
        let mut jobs = jobs.into_iter().peekable();
        while let Some(mut first) = jobs.next() {
            let Some(token) = first.token.take() else {
                continue;
            };
            let mut verdicts = vec![(token, Verdict::Ack)];
            // Their slots must not be free before the answer.
            let mut acked = Vec::new();
            while let Some(mut job) = jobs.next_if(|job| Arc::ptr_eq(&job.settle, &first.settle)) {
                verdicts.extend(job.token.take().map(|token| (token, Verdict::Ack)));
                acked.push(job);
            }
            first.send(verdicts).await;
        }
    }

    /// Settles the delivery, once. A failure is no error of the message: it comes again and is a duplicate.
    pub(crate) async fn settle(&mut self, verdict: Verdict) {
        let Some(token) = self.token.take() else {
            return;
        };
        self.send(vec![(token, verdict)]).await;
    }

    /// Sends verdicts to the assignment of this delivery.
    async fn send(&self, verdicts: Vec<(SettleToken, Verdict)>) {
        let asked = verdicts.len();
        let settling = self.settle.settle(verdicts);
        let answers = tokio::time::timeout(SETTLE_LIMIT, settling)
            .await
            .unwrap_or_default();
        let answered = answers.len();
        for answer in answers {
            match answer {
                Ok(()) => tracing::trace!(source = %self.route.source, "settled"),
                Err(error) => tracing::warn!(
                    source = %self.route.source,
                    error = &error as &dyn std::error::Error,
                    "a delivery was not settled; it will come again"
                ),
            }
        }
        if answered < asked {
            tracing::warn!(
                source = %self.route.source,
                deliveries = asked - answered,
                "the broker did not answer the settle; the deliveries may come again"
            );
        }
    }

    /// Decides from what became of each consumer's share.
    ///
    /// The broker gets a delivery back only when that costs nothing: it can delay, no consumer keeps the message
    /// (a redelivery would have to find that out again), and it does not count a hand-back that is not the message's
    /// fault. Everything else is held here and re-entered from memory.
    pub(crate) fn next(&self, longest_hold: Duration) -> Next {
        let Work::Shares(shares) = &self.work else {
            return Next::Ack;
        };
        let waiting: Vec<(Instant, Wait)> = shares
            .iter()
            .filter_map(|share| match share.status {
                Status::Done(_) => None,
                Status::Open => Some((Instant::now(), Wait::Uncounted)),
                Status::Waiting { until, why } => Some((until, why)),
            })
            .collect();
        let Some(until) = waiting.iter().map(|(until, _)| *until).min() else {
            return Next::Ack;
        };
        if waiting.iter().any(|(_, why)| *why == Wait::Stopping) {
            return Next::HandBack { delay: None };
        }
        let delay = until.saturating_duration_since(Instant::now());
        let capabilities = &self.route.capabilities;
        // What is in doubt is known here alone, and so is that a counted start came to its end, and how long to wait.
        let is_known_here_alone = shares
            .iter()
            .any(|share| share.in_doubt.is_some() || share.is_start_counted || share.due.is_some());
        let broker_may_wait = !self.is_kept
            && !is_known_here_alone
            && capabilities
                .longest_delay
                .is_some_and(|longest| delay <= longest)
            && waiting.iter().all(|(_, why)| match why {
                Wait::Failure => true,
                Wait::Uncounted => !capabilities.counts_hand_backs,
                Wait::Transient | Wait::Stopping => false,
            });
        if broker_may_wait {
            return Next::HandBack { delay: Some(delay) };
        }
        // Half the window: the next pass needs time too.
        let window = capabilities.settle_window.map(|window| window / 2);
        if window.is_some_and(|window| self.received.elapsed() >= window) {
            return Next::HandBack { delay: None };
        }
        let left = window.map_or(longest_hold, |window| {
            longest_hold.min(window - self.received.elapsed())
        });
        Next::Hold {
            until: Instant::now() + delay.min(left),
        }
    }
}

impl<Db: InboxDatabase> fmt::Debug for Job<Db> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("source", &self.route.source)
            .field("work", &self.work)
            .finish_non_exhaustive()
    }
}
