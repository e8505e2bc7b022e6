use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use inbox_core::{
    Capabilities, ConsumerName, Envelope, Handler, HandlerFuture, HandlerSpec, IdSource,
    InboxDatabase, Incoming, Tx,
};

/// A handler as the path runs it.
pub(crate) struct Registered<Db: InboxDatabase> {
    pub(crate) consumer: ConsumerName,
    pub(crate) spec: HandlerSpec,
    pub(crate) handler: Box<dyn Callable<Db>>,
    /// The text that begins its transactions.
    pub(crate) begin: Arc<str>,
    /// How many messages in a row, without a success between them, used up their attempts.
    exhausted_in_a_row: AtomicU32,
}

impl<Db: InboxDatabase> Registered<Db> {
    pub(crate) fn new(
        consumer: ConsumerName,
        spec: HandlerSpec,
        handler: Box<dyn Callable<Db>>,
        begin: Arc<str>,
    ) -> Self {
        Self {
            consumer,
            spec,
            handler,
            begin,
            exhausted_in_a_row: AtomicU32::new(0),
        }
    }

    /// A message succeeded: the handler works.
    pub(crate) fn note_success(&self) {
        // A plain store for every message would make the workers share a cache line for nothing.
        if self.exhausted_in_a_row.load(Ordering::Relaxed) != 0 {
            self.exhausted_in_a_row.store(0, Ordering::Relaxed);
        }
    }

    /// A message became a dead letter by its failures.
    pub(crate) fn note_exhausted(&self) {
        self.exhausted_in_a_row.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether so many different messages failed in a row that the handler, not the messages, is to blame.
    pub(crate) fn seems_broken(&self, limit: u32) -> bool {
        self.exhausted_in_a_row.load(Ordering::Relaxed) >= limit
    }
}

impl<Db: InboxDatabase> fmt::Debug for Registered<Db> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered")
            .field("spec", &self.spec)
            .finish_non_exhaustive()
    }
}

/// [`Handler`] without its constant, so that handlers of several types fit one list.
pub(crate) trait Callable<Db: InboxDatabase>: Send + Sync {
    fn call<'a>(&'a self, incoming: &'a [Incoming<'_>], tx: &'a mut Tx<Db>) -> HandlerFuture<'a>;
}

impl<H: Handler> Callable<H::Db> for H {
    fn call<'a>(
        &'a self,
        incoming: &'a [Incoming<'_>],
        tx: &'a mut Tx<H::Db>,
    ) -> HandlerFuture<'a> {
        Handler::call(self, incoming, tx)
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
    Handlers(Vec<Arc<Registered<Db>>>),
    /// Nobody, by explicit policy.
    Ignored,
    /// Nobody.
    Unknown {
        reason: String,
    },
}

impl<Db: InboxDatabase> Route<Db> {
    pub(crate) fn destination(&self, envelope: &Envelope) -> Destination<Db> {
        let type_name = envelope.type_name();
        let takes = |handler: &Registered<Db>| {
            handler.spec.on.is_empty()
                || type_name
                    .as_deref()
                    .is_some_and(|name| handler.spec.on.contains(&name))
        };
        let handlers: Vec<_> = self
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
