//! A source that writes down what goes through it.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use async_trait::async_trait;
use inbox_core::{
    Assignment, Capabilities, DedupKey, Deliveries, Delivery, IdSource, Learned, Needs, Settle,
    SettleError, SettleToken, Source, SourceError, Verdict,
};

use super::Step;

/// What happened at a source, in order.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// The runtime tried to open it; whether that worked.
    Opened(bool),
    /// A delivery was taken.
    Delivered {
        /// The message.
        id: String,
        /// The broker's flag.
        redelivered: bool,
    },
    /// The path reached a step with a message ([`Record::step_hook`]).
    Reached {
        /// The step.
        step: Step,
        /// The message.
        id: String,
    },
    /// Settles of these messages are asked for; the broker may replace their deliveries before it answers.
    Settling(Vec<String>),
    /// A delivery was settled.
    Settled {
        /// The message.
        id: String,
        /// What was asked.
        verdict: Verdict,
        /// When it was asked.
        at: Instant,
        /// Whether the assignment took it.
        done: bool,
    },
}

/// The events of a [`Recorded`] source; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Record(Arc<Mutex<Vec<Event>>>);

impl Record {
    fn lock(&self) -> MutexGuard<'_, Vec<Event>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, event: Event) {
        self.lock().push(event);
    }

    /// A hook for [`InboxBuilder::on_step`](crate::InboxBuilder::on_step) that writes the steps down among the other events.
    pub fn step_hook(&self) -> impl Fn(Step, &str) + Send + Sync + 'static {
        let record = self.clone();
        move |step, id| {
            record.add(Event::Reached {
                step,
                id: id.to_owned(),
            });
        }
    }

    /// Everything so far.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.lock().clone()
    }

    /// Tries to open the source, and how many of them worked.
    #[must_use]
    pub fn opened(&self) -> (usize, usize) {
        let events = self.lock();
        let tries = events.iter().filter_map(|event| match event {
            Event::Opened(done) => Some(*done),
            _ => None,
        });
        tries.fold((0, 0), |(tries, done), worked| {
            (tries + 1, done + usize::from(worked))
        })
    }

    /// How often the message was delivered.
    #[must_use]
    pub fn deliveries(&self, message: &str) -> usize {
        self.lock()
            .iter()
            .filter(|event| matches!(event, Event::Delivered { id, .. } if id == message))
            .count()
    }

    /// How many deliveries had the broker's flag of an earlier one.
    #[must_use]
    pub fn redelivered(&self) -> usize {
        let is_redelivery =
            |event: &&Event| matches!(event, Event::Delivered { redelivered, .. } if *redelivered);
        self.lock().iter().filter(is_redelivery).count()
    }

    /// The messages whose acks the assignment took, in order, and when.
    #[must_use]
    pub fn acks(&self) -> Vec<(String, Instant)> {
        self.lock()
            .iter()
            .filter_map(|event| match event {
                Event::Settled {
                    id,
                    verdict: Verdict::Ack,
                    at,
                    done: true,
                } => Some((id.clone(), *at)),
                _ => None,
            })
            .collect()
    }

    /// Settles that were not acks.
    #[must_use]
    pub fn hand_backs(&self) -> usize {
        self.lock()
            .iter()
            .filter(
                |event| matches!(event, Event::Settled { verdict, .. } if *verdict != Verdict::Ack),
            )
            .count()
    }

    /// The messages whose settle came too late for their assignment, in order.
    #[must_use]
    pub fn void_settles(&self) -> Vec<String> {
        self.lock()
            .iter()
            .filter_map(|event| match event {
                Event::Settled {
                    id, done: false, ..
                } => Some(id.clone()),
                _ => None,
            })
            .collect()
    }

    /// The most deliveries that were unsettled at a time since the source was opened last.
    #[must_use]
    pub fn most_outstanding(&self) -> usize {
        let (mut now, mut most) = (0_usize, 0);
        for event in self.lock().iter() {
            match event {
                Event::Opened(_) => (now, most) = (0, 0),
                Event::Delivered { .. } => now += 1,
                Event::Settling(deliveries) => now = now.saturating_sub(deliveries.len()),
                Event::Reached { .. } | Event::Settled { .. } => {}
            }
            most = most.max(now);
        }
        most
    }
}

/// A source whose events are recorded.
#[derive(Debug)]
pub struct Recorded<S> {
    source: S,
    record: Record,
}

impl<S: Source> Recorded<S> {
    /// Records `source`.
    #[must_use]
    pub fn new(source: S) -> (Self, Record) {
        let record = Record::default();
        let recorded = Self {
            source,
            record: record.clone(),
        };
        (recorded, record)
    }
}

#[async_trait]
impl<S: Source> Source for Recorded<S> {
    fn system(&self) -> &'static str {
        self.source.system()
    }

    fn capabilities(&self) -> Capabilities {
        self.source.capabilities()
    }

    fn id_sources(&self) -> Vec<IdSource> {
        self.source.id_sources()
    }

    fn problems(&self) -> Vec<String> {
        self.source.problems()
    }

    async fn learn(&self, needs: &Needs) -> Result<Learned, SourceError> {
        self.source.learn(needs).await
    }

    async fn open(&self, prefetch: NonZeroUsize) -> Result<Assignment, SourceError> {
        let opened = self.source.open(prefetch).await;
        self.record.add(Event::Opened(opened.is_ok()));
        let assignment = opened?;
        let names = Names::default();
        Ok(Assignment {
            deliveries: Box::new(RecordedDeliveries {
                deliveries: assignment.deliveries,
                id_sources: self.source.id_sources(),
                names: Arc::clone(&names),
                record: self.record.clone(),
            }),
            settle: Arc::new(RecordedSettle {
                settle: assignment.settle,
                names,
                record: self.record.clone(),
            }),
        })
    }
}

/// Which message a token belongs to.
type Names = Arc<Mutex<HashMap<u64, String>>>;

struct RecordedDeliveries {
    deliveries: Box<dyn Deliveries>,
    id_sources: Vec<IdSource>,
    names: Names,
    record: Record,
}

#[async_trait]
impl Deliveries for RecordedDeliveries {
    async fn next(&mut self) -> Result<Option<Delivery>, SourceError> {
        let next = self.deliveries.next().await?;
        if let Some(delivery) = &next {
            let id = delivery
                .envelope
                .identify(DedupKey::MessageId, &self.id_sources, None);
            let id = id.map(|id| id.to_string()).unwrap_or_default();
            self.names
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(delivery.token.number(), id.clone());
            self.record.add(Event::Delivered {
                id,
                redelivered: delivery.redelivered,
            });
        }
        Ok(next)
    }

    async fn stop(&mut self) {
        self.deliveries.stop().await;
    }
}

struct RecordedSettle {
    settle: Arc<dyn Settle>,
    names: Names,
    record: Record,
}

#[async_trait]
impl Settle for RecordedSettle {
    async fn settle(&self, verdicts: Vec<(SettleToken, Verdict)>) -> Vec<Result<(), SettleError>> {
        let asked: Vec<_> = {
            let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
            verdicts
                .iter()
                .map(|(token, verdict)| {
                    let id = names.get(&token.number()).cloned().unwrap_or_default();
                    (id, *verdict, Instant::now())
                })
                .collect()
        };
        let ids = asked.iter().map(|(id, ..)| id.clone()).collect();
        self.record.add(Event::Settling(ids));
        let answers = self.settle.settle(verdicts).await;
        for ((id, verdict, at), answer) in asked.into_iter().zip(&answers) {
            self.record.add(Event::Settled {
                id,
                verdict,
                at,
                done: answer.is_ok(),
            });
        }
        answers
    }

    fn is_gone(&self) -> bool {
        self.settle.is_gone()
    }

    fn is_void(&self, token: &SettleToken) -> bool {
        self.settle.is_void(token)
    }
}
