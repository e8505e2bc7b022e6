//! A source that costs next to nothing: it hands out what is in memory, and counts the acks.

use std::future::pending;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use inbox_runtime::{
    Assignment, Capabilities, Deliveries, Delivery, IdSource, Settle, SettleError, SettleToken,
    Source, SourceError, Verdict,
};
use tokio::sync::Notify;

use crate::workload::Work;

pub(crate) struct Preloaded {
    work: Arc<Work>,
    acks: Arc<Acks>,
}

impl Preloaded {
    pub(crate) fn new(work: &Arc<Work>) -> Self {
        Self {
            work: Arc::clone(work),
            acks: Arc::new(Acks::of(work.count())),
        }
    }

    pub(crate) fn acks(&self) -> Arc<Acks> {
        Arc::clone(&self.acks)
    }
}

/// How many acks are still to come.
#[derive(Debug)]
pub(crate) struct Acks {
    messages: usize,
    missing: AtomicUsize,
    first: Notify,
    all: Notify,
}

impl Acks {
    pub(crate) fn of(messages: usize) -> Self {
        Self {
            messages,
            missing: AtomicUsize::new(messages),
            first: Notify::new(),
            all: Notify::new(),
        }
    }

    pub(crate) fn one(&self) {
        let missing = self.missing.fetch_sub(1, Ordering::Relaxed);
        if missing == self.messages {
            self.first.notify_one();
        }
        if missing == 1 {
            self.all.notify_one();
        }
    }

    /// One is there. For one caller, as is [`all`](Self::all).
    pub(crate) async fn first(&self) {
        self.first.notified().await;
    }

    pub(crate) async fn all(&self) {
        self.all.notified().await;
    }
}

#[async_trait]
impl Source for Preloaded {
    fn system(&self) -> &'static str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
    }

    fn id_sources(&self) -> Vec<IdSource> {
        vec![IdSource::Property]
    }

    async fn open(&self, _prefetch: NonZeroUsize) -> Result<Assignment, SourceError> {
        Ok(Assignment {
            deliveries: Box::new(InOrder(Arc::clone(&self.work))),
            settle: Arc::clone(&self.acks) as Arc<dyn Settle>,
        })
    }
}

struct InOrder(Arc<Work>);

#[async_trait]
impl Deliveries for InOrder {
    async fn next(&mut self) -> Result<Option<Delivery>, SourceError> {
        match self.0.take() {
            Some(message) => Ok(Some(Delivery::new(message.clone(), SettleToken::new(0)))),
            None => pending().await,
        }
    }
}

#[async_trait]
impl Settle for Acks {
    async fn settle(&self, verdicts: Vec<(SettleToken, Verdict)>) -> Vec<Result<(), SettleError>> {
        for (_, verdict) in &verdicts {
            // Anything else would be a message that was not processed: the run then never ends, and says so.
            if *verdict == Verdict::Ack {
                self.one();
            }
        }
        verdicts.iter().map(|_| Ok(())).collect()
    }
}
