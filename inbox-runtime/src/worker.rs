use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use inbox_core::{Claimed, ConsumerName, InboxDatabase, Layout, MessageId, Session, Verdict};
use smallvec::smallvec;
use sqlx::Pool;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio_util::sync::CancellationToken;

use crate::backoff::{self, RetryPolicy};
use crate::flush::Unflushed;
use crate::gate::Gate;
use crate::group::{Gathered, Group};
use crate::hold::Hold;
use crate::job::{Job, Jobs, Next, Status, Wait, Work};
use crate::monitor::Monitor;
use crate::path::{Admitted, Opened};
use crate::queue::{Queue, WorkerNumber};
use crate::solitude::Solitude;
use crate::testing::{Step, StepHook};

/// How long a worker without work keeps its connection from the pool.
const LINGER: Duration = Duration::from_secs(1);

/// How long resetting a connection may take.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);

/// What all workers of one inbox share.
pub(crate) struct Shared<Db: InboxDatabase> {
    pub(crate) pool: Pool<Db>,
    pub(crate) layout: Arc<Layout<Db>>,
    pub(crate) state: inbox_core::StateMap,
    pub(crate) gate: Arc<Gate<Db>>,
    pub(crate) hold: Hold<Db>,
    pub(crate) concurrency: usize,
    /// The text that begins a transaction of our own bookkeeping.
    pub(crate) begin: Arc<str>,
    pub(crate) claim_wait: Duration,
    pub(crate) commit_wait: Duration,
    pub(crate) longest_hold: Duration,
    /// For how long a message that waits in the database is in the hands of one worker.
    pub(crate) lease: Duration,
    /// How often the database is looked at for messages that are due.
    pub(crate) poll: Duration,
    pub(crate) retry: RetryPolicy,
    pub(crate) broken_after: u32,
    pub(crate) ack_after_flush: bool,
    /// Whether a duplicate with another payload becomes a dead letter.
    pub(crate) keep_collisions: bool,
    /// Whether a session of the server is ours for one transaction only. Others want it after that.
    pub(crate) behind_pooler: bool,
    pub(crate) hook: StepHook,
    pub(crate) monitor: Monitor,
    /// Lets a message run alone.
    pub(crate) solitude: Solitude,
    /// A message was parked.
    pub(crate) parked: Notify,
    /// No new handler starts.
    pub(crate) stop: CancellationToken,
    /// The handlers that still run are dropped.
    pub(crate) cut_off: CancellationToken,
}

/// One worker: a task that owns its connection and runs the handlers itself.
///
/// It is never dropped half-way: shutdown waits for it, and it checks the tokens where it can leave nothing
/// behind.
pub(crate) struct Worker<Db: InboxDatabase> {
    pub(crate) number: WorkerNumber,
    pub(crate) shared: Arc<Shared<Db>>,
    pub(crate) queue: Arc<Queue<Db>>,
    /// Taken from the pool when work comes, kept while there is more, given back when idle.
    pub(crate) session: Option<Session<Db>>,
    /// What comes next.
    pub(crate) ahead: Option<Group<Db>>,
    /// Its claims, where the transaction before could make them.
    pub(crate) ahead_opened: Option<Opened<Db, Vec<Claimed>>>,
    /// Whether the claims of what comes next may share the round trip of the next commit. Not while this message
    /// needs the session again.
    pub(crate) may_look_ahead: bool,
    /// What is done and not acked yet.
    pub(crate) unflushed: Unflushed<Db>,
    /// The right to have handlers run: a share of it, or all where a message runs alone.
    pub(crate) company: Option<OwnedSemaphorePermit>,
    /// Whether that is all of it.
    pub(crate) is_alone: bool,
}

impl<Db: InboxDatabase> Worker<Db> {
    pub(crate) fn new(
        number: WorkerNumber,
        shared: Arc<Shared<Db>>,
        queue: Arc<Queue<Db>>,
    ) -> Self {
        Self {
            number,
            queue,
            session: None,
            ahead: None,
            ahead_opened: None,
            may_look_ahead: false,
            unflushed: Unflushed::new(shared.ack_after_flush),
            company: None,
            is_alone: false,
            shared,
        }
    }

    /// Runs until the runtime stops; answers how many handlers were cut off.
    pub(crate) async fn run(mut self) -> usize {
        let mut cut_off = 0;
        loop {
            let opened = self.ahead_opened.take();
            let mut gathered = match self.ahead.take() {
                Some(group) => Gathered::Group(group),
                None => match self.next_job().await {
                    Some(job) => self.gather(job),
                    None => break,
                },
            };
            if let Gathered::Group(group) = &mut gathered
                && opened.is_none()
            {
                self.linger(group).await;
            }
            self.join().await;
            match gathered {
                Gathered::Group(mut group) => {
                    // A panic in the path itself (a handler's is caught there) must not cost us the worker and, with
                    // it, the deliveries.
                    let running =
                        AssertUnwindSafe(self.run_group(&mut group, opened)).catch_unwind();
                    match running.await {
                        Ok(of_group) => cut_off += of_group,
                        Err(_) => {
                            tracing::error!(
                                "the delivery path panicked; the messages are kept and tried again"
                            );
                            self.session = None;
                            self.may_look_ahead = false;
                            // Each alone from here on: one that makes the path panic again must not do that to the rest.
                            group.reopen();
                            self.set_aside(&mut group, backoff::misconfigured(1));
                        }
                    }
                }
                Gathered::Alone(job) => {
                    cut_off += usize::from(self.pass(job, None, None).await);
                }
                Gathered::Nothing => {}
            }
            // What is claimed already is not kept waiting for somebody who wants to be alone.
            if self.ahead_opened.is_none() {
                self.company = None;
                self.is_alone = false;
            }
        }
        self.rest().await;
        cut_off
    }

    /// Waits for whoever runs alone; a stop ends that, and nothing is started then.
    async fn join(&mut self) {
        if self.company.is_some() {
            return;
        }
        self.company = self.shared.solitude.try_join();
        if self.company.is_some() {
            return;
        }
        // It can take as long as a handler, which may need the connection.
        self.rest().await;
        let stop = self.shared.stop.clone();
        self.company = tokio::select! {
            biased;
            () = stop.cancelled() => None,
            company = self.shared.solitude.join() => company,
        };
    }

    /// Makes durable and acks what is done, and gives the connection back.
    pub(crate) async fn rest(&mut self) {
        self.flush().await;
        self.release().await;
    }

    /// Gives the connection back to the pool; one that cannot be reset in time is closed.
    async fn release(&mut self) {
        if let Some(session) = self.session.take() {
            let _ = tokio::time::timeout(RELEASE_LIMIT, session.release()).await;
        }
    }

    async fn next_job(&mut self) -> Option<Job<Db>> {
        if self.shared.stop.is_cancelled() {
            return None;
        }
        if let Some(job) = self.queue.try_take(self.number) {
            return Some(job);
        }
        // Nothing follows whose commit could flush the ones before.
        self.flush().await;
        if self.session.is_some() {
            let waited = tokio::select! {
                biased;
                () = self.shared.stop.cancelled() => return None,
                job = tokio::time::timeout(LINGER, self.queue.take(self.number)) => job,
            };
            if let Ok(job) = waited {
                return Some(job);
            }
            self.release().await;
        }
        tokio::select! {
            biased;
            () = self.shared.stop.cancelled() => None,
            job = self.queue.take(self.number) => Some(job),
        }
    }

    /// Runs the path for every consumer of a delivery that is due, then settles the delivery, hands it back,
    /// or keeps it for later. Answers whether a handler was cut off.
    pub(crate) async fn pass(
        &mut self,
        mut job: Job<Db>,
        mut admitted: Option<Admitted<Db>>,
        mut opened: Option<Opened<Db, Claimed>>,
    ) -> bool {
        if job.is_void() {
            // The broker delivers another copy; this one could not be settled.
            self.give_up(opened).await;
            return false;
        }
        let mut cut_off = false;
        let mut at_gate = None;
        // Taken out for the time of the pass, so that the path can read the job while it updates a share.
        let mut work = std::mem::replace(&mut job.work, Work::Ignore);
        match &mut work {
            Work::Ignore => {}
            Work::Unroutable { reason, tries } => {
                if let Err(tried_again_after) = self.keep_unroutable(&job, reason, *tries).await {
                    *tries = tries.saturating_add(1);
                    job.work = work;
                    self.shared
                        .hold
                        .until(Instant::now() + tried_again_after, job);
                    return false;
                }
            }
            Work::Shares(shares) => {
                for share in shares.iter_mut() {
                    match share.status {
                        Status::Done(_) => continue,
                        Status::Waiting { until, .. } if until > Instant::now() => continue,
                        Status::Waiting { .. } | Status::Open => {}
                    }
                    if self.shared.stop.is_cancelled() {
                        self.give_up(opened.take()).await;
                        share.status = Status::Waiting {
                            until: Instant::now(),
                            why: Wait::Stopping,
                        };
                        continue;
                    }
                    // A panic in the path itself (a handler's is caught there) must not cost us the worker
                    // and, with it, the delivery.
                    let answer =
                        AssertUnwindSafe(self.process(&job, share, admitted.take(), opened.take()))
                            .catch_unwind()
                            .await;
                    match answer {
                        Ok(crate::path::Passed::Status(status)) => {
                            share.status = status;
                            job.note(status);
                        }
                        Ok(crate::path::Passed::CutOff) => {
                            cut_off = true;
                            share.status = Status::Waiting {
                                until: Instant::now(),
                                why: Wait::Stopping,
                            };
                        }
                        Ok(crate::path::Passed::GateTaken(id)) => {
                            at_gate = Some((share.handler.consumer.clone(), id));
                        }
                        Err(_) => {
                            self.session = None;
                            share.uncounted_tries = share.uncounted_tries.saturating_add(1);
                            let wait = backoff::misconfigured(share.uncounted_tries);
                            tracing::error!(
                                consumer = %share.handler.consumer,
                                source = %job.route.source,
                                "the delivery path panicked; the message is kept and tried again"
                            );
                            share.status = Status::Waiting {
                                until: Instant::now() + wait,
                                why: Wait::Uncounted,
                            };
                        }
                    }
                }
            }
        }
        job.work = work;
        match at_gate {
            Some((consumer, id)) => self.wait_at_gate(&consumer, &id, job),
            None => self.settle(smallvec![job]).await,
        }
        cut_off
    }

    /// Lets a job wait for the copy of its message that is in work.
    pub(crate) fn wait_at_gate(&self, consumer: &ConsumerName, id: &MessageId, job: Job<Db>) {
        if let Some(job) = self.shared.gate.park(consumer, id, job) {
            // The holder left in between.
            self.shared.hold.until(Instant::now(), job);
        }
    }

    /// Leaves a message alone whose claim may be made already.
    async fn give_up(&mut self, opened: Option<Opened<Db, Claimed>>) {
        if let Some(opened) = opened {
            self.put_back(opened.session).await;
        }
    }
}

impl<Db: InboxDatabase> Shared<Db> {
    /// Settles deliveries, hands them back, or keeps them for later, by what became of them.
    pub(crate) async fn settle(&self, jobs: Jobs<Db>) {
        let mut acked = Jobs::new();
        for mut job in jobs {
            // What is next in its lane need not wait for the broker.
            job.turn = None;
            match job.next(self.longest_hold) {
                Next::Ack => {
                    self.hook.reach(
                        Step::BeforeAck,
                        job.envelope.id.as_deref().unwrap_or_default(),
                    );
                    acked.push(job);
                }
                Next::HandBack { delay } => job.settle(Verdict::HandBack { delay }).await,
                Next::Hold { until } => self.hold.until(until, job),
            }
        }
        Job::ack_all(acked).await;
    }
}
