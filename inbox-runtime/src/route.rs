use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use inbox_core::{
    Capabilities, ConsumerName, Envelope, HandlerFuture, HandlerOn, HandlerSpec, IdSource,
    InboxDatabase, Incoming, OrderBy, Tx,
};
use smallvec::SmallVec;

use crate::backoff::RetryPolicy;
use crate::monitor::Tally;

/// A handler as the path runs it.
pub(crate) struct Registered<Db: InboxDatabase> {
    pub(crate) consumer: ConsumerName,
    pub(crate) spec: HandlerSpec,
    pub(crate) handler: Box<dyn Callable<Db>>,
    /// The text that begins its transactions.
    pub(crate) begin: Arc<str>,
    /// The same for one that hardly waits for a copy in work elsewhere.
    pub(crate) begin_alone: Arc<str>,
    /// What became of its messages.
    pub(crate) tally: Arc<Tally>,
    /// How long its messages wait after a failure: as it says, else as the builder does.
    pub(crate) retry: RetryPolicy,
    /// How many of its messages may share a transaction.
    sharing: Sharing,
}

impl<Db: InboxDatabase> Registered<Db> {
    pub(crate) fn new(
        consumer: ConsumerName,
        spec: HandlerSpec,
        handler: Box<dyn Callable<Db>>,
        begin: Arc<str>,
        begin_alone: Arc<str>,
        retry: RetryPolicy,
        messages_per_transaction: PerTransaction,
    ) -> Self {
        let sharing = Sharing::new(if spec.own_transaction {
            PerTransaction::ONE
        } else {
            messages_per_transaction
        });
        Self {
            consumer,
            spec,
            handler,
            begin,
            begin_alone,
            tally: Arc::default(),
            retry: retry.of_handler(spec.retry),
            sharing,
        }
    }

    /// Whether it takes messages of a source.
    pub(crate) fn listens_to(&self, source: &str) -> bool {
        self.spec.from.is_empty() || self.spec.from.contains(&source)
    }

    /// How many of its messages may go through one transaction now.
    pub(crate) fn sharing(&self) -> &Sharing {
        &self.sharing
    }
}

impl<Db: InboxDatabase> fmt::Debug for Registered<Db> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered")
            .field("spec", &self.spec)
            .finish_non_exhaustive()
    }
}

/// How many messages may share a transaction at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PerTransaction {
    /// Where messages with the same order key go to the same worker, so that transactions seldom meet.
    pub(crate) ordered: usize,
    pub(crate) unordered: usize,
    /// Before anything is known of how it goes.
    pub(crate) at_first: usize,
}

impl PerTransaction {
    const ONE: Self = Self {
        ordered: 1,
        unordered: 1,
        at_first: 1,
    };

    pub(crate) fn most(self) -> usize {
        self.ordered.max(self.unordered)
    }
}

/// How many messages of a handler may share a transaction: more while that goes well, one after
/// they stood in each other's way, and with a savepoint each after one of them failed.
///
/// What is read and written here is a guess about the future, so nothing depends on the order of the accesses.
#[derive(Debug)]
pub(crate) struct Sharing {
    most: PerTransaction,
    now: AtomicUsize,
    /// Messages to go one at a time before sharing is tried again.
    alone: AtomicUsize,
    /// Messages to be taken back one at a time, should they fail.
    careful: AtomicUsize,
}

impl Sharing {
    /// How many messages go alone after transactions stood in each other's way, which costs a second in a deadlock.
    const AFTER_A_CONFLICT: usize = 2000;
    /// For how many messages a savepoint each costs less than the next failure in a shared transaction would.
    const AFTER_A_FAILURE: usize = 200;

    const fn new(most: PerTransaction) -> Self {
        Self {
            most,
            now: AtomicUsize::new(most.at_first),
            alone: AtomicUsize::new(0),
            careful: AtomicUsize::new(0),
        }
    }

    pub(crate) fn limit(&self, is_ordered: bool) -> usize {
        let most = if is_ordered {
            self.most.ordered
        } else {
            self.most.unordered
        };
        self.now().min(most)
    }

    fn now(&self) -> usize {
        self.now.load(Ordering::Relaxed)
    }

    /// A transaction of so many messages ended, without a failure where several shared it.
    pub(crate) fn note_end(&self, messages: usize, is_quick: bool) {
        if self.most.most() == 1 {
            return;
        }
        let careful = self.careful.load(Ordering::Relaxed);
        if careful > 0 {
            self.careful
                .store(careful.saturating_sub(messages), Ordering::Relaxed);
        }
        let alone = self.alone.load(Ordering::Relaxed);
        if alone > 0 {
            self.alone
                .store(alone.saturating_sub(messages), Ordering::Relaxed);
            return;
        }
        let now = self.now();
        let next = if !is_quick {
            (messages / 2).max(1)
        } else if messages >= now {
            (now * 2).min(self.most.most())
        } else {
            now
        };
        if next != now {
            self.now.store(next, Ordering::Relaxed);
        }
    }

    /// A shared transaction failed: a message of it does, or two transactions stood in each other's way.
    pub(crate) fn note_failure(&self, is_conflict: bool) {
        if is_conflict {
            self.alone
                .fetch_max(Self::AFTER_A_CONFLICT, Ordering::Relaxed);
            self.now.store(1, Ordering::Relaxed);
        } else {
            self.careful.store(Self::AFTER_A_FAILURE, Ordering::Relaxed);
        }
    }

    /// Whether messages failed so recently that each gets a savepoint.
    pub(crate) fn is_careful(&self) -> bool {
        self.careful.load(Ordering::Relaxed) > 0
    }
}

/// [`HandlerOn`] without its constant, so that handlers of several types fit one list.
pub(crate) trait Callable<Db: InboxDatabase>: Send + Sync {
    fn call<'a>(&'a self, incoming: &'a [Incoming<'_>], tx: &'a mut Tx<Db>) -> HandlerFuture<'a>;
}

impl<H: HandlerOn<Db>, Db: InboxDatabase> Callable<Db> for H {
    fn call<'a>(&'a self, incoming: &'a [Incoming<'_>], tx: &'a mut Tx<Db>) -> HandlerFuture<'a> {
        HandlerOn::call(self, incoming, tx)
    }
}

/// A source as the path sees it, with the handlers that listen to it.
pub(crate) struct Route<Db: InboxDatabase> {
    pub(crate) source: String,
    pub(crate) system: &'static str,
    pub(crate) capabilities: Capabilities,
    pub(crate) id_sources: Vec<IdSource>,
    pub(crate) id_scope: Option<String>,
    pub(crate) handlers: Vec<Arc<Registered<Db>>>,
    /// Types that are acked without a handler.
    pub(crate) ignored: Arc<BTreeSet<String>>,
}

impl<Db: InboxDatabase> Clone for Route<Db> {
    fn clone(&self) -> Self {
        Self {
            source: self.source.clone(),
            system: self.system,
            capabilities: self.capabilities.clone(),
            id_sources: self.id_sources.clone(),
            id_scope: self.id_scope.clone(),
            handlers: self.handlers.clone(),
            ignored: Arc::clone(&self.ignored),
        }
    }
}

impl<Db: InboxDatabase> fmt::Debug for Route<Db> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route")
            .field("source", &self.source)
            .field("handlers", &self.handlers)
            .finish_non_exhaustive()
    }
}

/// Who takes a message.
#[derive(Debug)]
pub(crate) enum Destination<Db: InboxDatabase> {
    Handlers(SmallVec<[Arc<Registered<Db>>; 2]>),
    /// Nobody, by explicit policy.
    Ignored,
    /// Nobody.
    Unknown {
        reason: String,
    },
}

impl<Db: InboxDatabase> Route<Db> {
    /// The value that orders a message among others, for a handler.
    pub(crate) fn order_key<'e>(
        &self,
        spec: &HandlerSpec,
        envelope: &'e Envelope,
    ) -> Option<Cow<'e, str>> {
        let by_source = self.capabilities.orders_by_key.then_some(OrderBy::Key);
        envelope.order_key(spec.order_by.or(by_source)?)
    }

    /// Who takes a message: one consumer, or all that listen to its source.
    pub(crate) fn destination(
        &self,
        envelope: &Envelope,
        consumer: Option<&str>,
    ) -> Destination<Db> {
        let type_name = envelope.type_name();
        let takes = |handler: &Registered<Db>| {
            let is_meant = match consumer {
                Some(consumer) => handler.consumer.as_str() == consumer,
                None => handler.listens_to(&self.source),
            };
            is_meant
                && (handler.spec.on.is_empty()
                    || type_name
                        .as_deref()
                        .is_some_and(|name| handler.spec.on.contains(&name)))
        };
        let handlers: SmallVec<_> = self
            .handlers
            .iter()
            .filter(|handler| takes(handler))
            .cloned()
            .collect();
        if !handlers.is_empty() {
            return Destination::Handlers(handlers);
        }
        match type_name {
            Some(name) if self.ignored.contains(&*name) => Destination::Ignored,
            Some(name) => Destination::Unknown { reason: format!("no handler takes messages of type {name:?}") },
            None => Destination::Unknown {
                reason: "the message has no type, and every handler of its source names the types that it takes"
                    .to_owned(),
            },
        }
    }
}
