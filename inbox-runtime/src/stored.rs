//! The intake of messages that wait in the database: parked until their next attempt, or to be replayed.
//!
//! To the rest of the house it is one more source. A lease stands for the delivery, the removal of the row for its ack: when
//! the process ends in between, the lease runs out, the message comes again and is a duplicate where it was done.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use inbox_core::{
    Capabilities, Delivery, Envelope, ErrorClass, FailureText, InboxDatabase, Layout, Lease,
    LeaseTerms, LeasedMessage, MessageId, Settle, SettleError, SettleToken, Verdict,
};
use sqlx::Pool;
use sqlx::pool::PoolConnection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::backoff;
use crate::connection::ClosedUnlessDone;
use crate::job::{Job, Stored};
use crate::queue::Queue;
use crate::route::Route;
use crate::worker::Shared;

/// How long one round may take: a connection of the pool, and a statement.
const ROUND_LIMIT: Duration = Duration::from_secs(10);

/// The shortest pause between two looks that found nothing.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);

/// Leases messages that are due and queues them, never more than `prefetch` at a time.
pub(crate) struct StoredIntake<Db: InboxDatabase> {
    shared: Arc<Shared<Db>>,
    queue: Arc<Queue<Db>>,
    routes: Routes<Db>,
    settle: Arc<Leases<Db>>,
    slots: Arc<Semaphore>,
    prefetch: usize,
    worker: String,
}

/// What a look at the database came to.
enum Round {
    /// As many messages as there may be are in work.
    NoRoom,
    /// To be asked again after the pause.
    Done { pause: Duration },
}

/// By which source a message came first decides how it is routed.
struct Routes<Db: InboxDatabase> {
    known: HashMap<String, Arc<Route<Db>>>,
    /// For sources that the configuration does not have any more.
    any: Route<Db>,
}

impl<Db: InboxDatabase> StoredIntake<Db> {
    /// `any` takes the messages of sources that are not among `routes`.
    pub(crate) fn new<'r>(
        shared: Arc<Shared<Db>>,
        queue: Arc<Queue<Db>>,
        routes: impl Iterator<Item = &'r Arc<Route<Db>>>,
        any: Route<Db>,
        prefetch: usize,
    ) -> Self
    where
        Db: 'r,
    {
        // The row itself waits, however long, and nobody counts.
        let capabilities = Capabilities::new()
            .longest_delay(Duration::MAX)
            .counts_hand_backs(false)
            .settle_window(shared.lease);
        let stored = |route: Route<Db>| Route {
            capabilities: capabilities.clone(),
            ..route
        };
        let known = routes
            .map(|route| (route.source.clone(), Arc::new(stored(Route::clone(route)))))
            .collect();
        let settle = Arc::new(Leases {
            pool: shared.pool.clone(),
            layout: Arc::clone(&shared.layout),
            open: Mutex::default(),
            next: AtomicU64::new(0),
            late: Mutex::default(),
        });
        Self {
            routes: Routes {
                known,
                any: stored(any),
            },
            settle,
            slots: Arc::new(Semaphore::new(prefetch)),
            prefetch,
            worker: format!("{}-{:08x}", std::process::id(), fastrand::u32(..)),
            queue,
            shared,
        }
    }

    /// Runs until the runtime stops and every message that was leased is settled.
    pub(crate) async fn run(self) {
        let stop = self.shared.stop.clone();
        let mut failures = 0;
        loop {
            // A lease that is taken at the moment of the stop runs out.
            let round = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                round = tokio::time::timeout(ROUND_LIMIT, self.round()) => round,
            };
            let pause = match round {
                Ok(Ok(Round::NoRoom)) => {
                    failures = 0;
                    self.shared.monitor.database().note_up();
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => break,
                        _slot = self.slots.acquire() => {}
                        () = tokio::time::sleep(self.shared.poll) => {}
                    }
                    continue;
                }
                Ok(Ok(Round::Done { pause })) => {
                    failures = 0;
                    self.shared.monitor.database().note_up();
                    pause
                }
                // Somebody writes for long: SQLite has one writer.
                Ok(Err(error)) if Db::classify(&error) == ErrorClass::Transient => {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        "the messages that wait in the database cannot be leased now"
                    );
                    self.shared.poll
                }
                Ok(Err(error)) => {
                    failures += 1;
                    self.note_down(FailureText::of_error(&error).as_str());
                    tracing::warn!(
                        failures,
                        error = &error as &dyn std::error::Error,
                        "the messages that wait in the database cannot be read; trying again"
                    );
                    backoff::reconnect(failures)
                }
                Err(_) => {
                    failures += 1;
                    self.note_down("it did not answer in time");
                    tracing::warn!(
                        failures,
                        limit = ?ROUND_LIMIT,
                        "the messages that wait in the database were not read in time; trying again"
                    );
                    backoff::reconnect(failures)
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.shared.parked.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        let all = u32::try_from(self.prefetch).unwrap_or(u32::MAX);
        let _settled = self.slots.acquire_many(all).await;
    }

    fn note_down(&self, why: &str) {
        self.shared.monitor.database().note_down(why);
    }

    /// Leases what is due and there is room for.
    async fn round(&self) -> Result<Round, sqlx::Error> {
        let mut room = Vec::new();
        while room.len() < self.prefetch
            && let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned()
        {
            room.push(slot);
        }
        let consumers = self.consumers();
        let statements = self.shared.layout.statements();
        if room.is_empty() {
            // Asked all the same: somebody may want to know whether the database answers.
            let mut conn = self.shared.pool.acquire().await?;
            Db::next_due(&mut conn, statements, &consumers).await?;
            return Ok(Round::NoRoom);
        }
        let terms = LeaseTerms {
            consumers: &consumers,
            worker: &self.worker,
            duration: self.shared.lease,
            most: room.len(),
        };
        // A stop drops this wherever it waits.
        let mut conn = ClosedUnlessDone::new(self.shared.pool.acquire().await?);
        self.settle.settle_late(&mut conn.conn).await?;
        let leased = Db::lease(&mut conn.conn, statements, &terms).await?;
        conn.is_done = true;
        let is_full = leased.len() >= terms.most;
        for message in leased {
            if let Some(slot) = room.pop() {
                self.queue.push(self.job(message, slot));
            }
        }
        if is_full {
            return Ok(Round::Done {
                pause: Duration::ZERO,
            });
        }
        let due = Db::next_due(&mut conn.conn, statements, &consumers).await?;
        let pause = due.map_or(self.shared.poll, |due| {
            due.clamp(SHORTEST_PAUSE, self.shared.poll)
        });
        Ok(Round::Done { pause })
    }

    /// Whose messages there is a handler for, and those that go to whoever takes their type.
    fn consumers(&self) -> Vec<&str> {
        let mut consumers: Vec<&str> = vec![""];
        let routes = self.routes.known.values().map(|route| &**route);
        for handler in routes
            .chain([&self.routes.any])
            .flat_map(|route| &route.handlers)
        {
            let consumer = handler.consumer.as_str();
            if !consumers.contains(&consumer) {
                consumers.push(consumer);
            }
        }
        consumers
    }

    fn job(&self, message: LeasedMessage, slot: OwnedSemaphorePermit) -> Job<Db> {
        let (envelope, unreadable) = match message.envelope {
            Ok(envelope) => (envelope, None),
            Err(error) => (
                Envelope::new(message.payload).id(&message.message_id),
                Some(format!("{error}; row {}", message.lease.row)),
            ),
        };
        let stored = Stored {
            id: (!message.consumer.is_empty())
                .then(|| MessageId::new(&message.message_id).ok())
                .flatten(),
            consumer: (!message.consumer.is_empty()).then_some(message.consumer),
            unreadable,
        };
        let delivery = Delivery::new(envelope, self.settle.add(message.lease))
            .redelivered(message.is_taken_over);
        let route = self.routes.of(&message.source);
        let settle: Arc<dyn Settle> = Arc::clone(&self.settle) as _;
        Job::new(delivery, Some(stored), route, settle, slot, &self.queue)
    }
}

impl<Db: InboxDatabase> Routes<Db> {
    fn of(&self, source: &str) -> Arc<Route<Db>> {
        match self.known.get(source) {
            Some(route) => Arc::clone(route),
            None => Arc::new(Route {
                source: source.to_owned(),
                ..self.any.clone()
            }),
        }
    }
}

/// The leases of messages that are not settled yet.
struct Leases<Db: InboxDatabase> {
    pool: Pool<Db>,
    layout: Arc<Layout<Db>>,
    open: Mutex<HashMap<u64, Lease>>,
    next: AtomicU64,
    /// What could not be settled when it was asked for, and is tried again.
    late: Mutex<Vec<(Lease, Settled)>>,
}

/// How a lease ends.
#[derive(Debug, Clone, Copy)]
enum Settled {
    Removed,
    Released { delay: Duration },
}

impl<Db: InboxDatabase> Leases<Db> {
    fn add(&self, lease: Lease) -> SettleToken {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(number, lease);
        SettleToken::new(number)
    }

    fn take(&self, token: &SettleToken) -> Option<Lease> {
        self.open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&token.number())
    }

    /// What is late may have to wait for its lease to run out otherwise.
    async fn settle_late(&self, conn: &mut Db::Connection) -> Result<(), sqlx::Error> {
        while let Some((lease, settled)) = self.pop_late() {
            let statements = self.layout.statements();
            let answer = match settled {
                Settled::Removed => {
                    Db::remove(conn, statements, std::slice::from_ref(&lease)).await
                }
                Settled::Released { delay } => Db::release(conn, statements, &lease, delay).await,
            };
            if let Err(error) = answer {
                self.note_late(lease, settled);
                return Err(error);
            }
        }
        Ok(())
    }

    fn note_late(&self, lease: Lease, settled: Settled) {
        self.late
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((lease, settled));
    }

    fn pop_late(&self) -> Option<(Lease, Settled)> {
        self.late
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop()
    }

    async fn connection(&self) -> Result<PoolConnection<Db>, SettleError> {
        self.pool.acquire().await.map_err(failed)
    }

    async fn remove(&self, leases: &[Lease]) -> Result<(), SettleError> {
        let mut conn = self.connection().await?;
        Db::remove(&mut conn, self.layout.statements(), leases)
            .await
            .map_err(failed)
    }

    async fn release(&self, lease: &Lease, delay: Duration) -> Result<(), SettleError> {
        let mut conn = self.connection().await?;
        Db::release(&mut conn, self.layout.statements(), lease, delay)
            .await
            .map_err(failed)
    }
}

#[async_trait]
impl<Db: InboxDatabase> Settle for Leases<Db> {
    async fn settle(&self, verdicts: Vec<(SettleToken, Verdict)>) -> Vec<Result<(), SettleError>> {
        let mut answers = Vec::with_capacity(verdicts.len());
        let mut done = Vec::new();
        for (token, verdict) in verdicts {
            let Some(lease) = self.take(&token) else {
                answers.push(Err(SettleError::Gone));
                continue;
            };
            match verdict {
                Verdict::HandBack { delay } => {
                    let delay = delay.unwrap_or_default();
                    let answer = self.release(&lease, delay).await;
                    if answer.is_err() {
                        self.note_late(lease, Settled::Released { delay });
                    }
                    answers.push(answer);
                }
                // An ack, and nothing else is left.
                _ => {
                    done.push((answers.len(), lease));
                    answers.push(Ok(()));
                }
            }
        }
        if done.is_empty() {
            return answers;
        }
        let (positions, leases): (Vec<_>, Vec<_>) = done.into_iter().unzip();
        if let Err(error) = self.remove(&leases).await {
            let error = Arc::new(error);
            for lease in leases {
                self.note_late(lease, Settled::Removed);
            }
            for position in positions {
                answers[position] = Err(SettleError::Failed(Arc::clone(&error).into()));
            }
        }
        answers
    }
}

fn failed(error: sqlx::Error) -> SettleError {
    SettleError::Failed(error.into())
}
