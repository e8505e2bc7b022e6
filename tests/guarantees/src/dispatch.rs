//! The ways in which a handler gets its messages. A test that says nothing about them holds in each.
//!
//! `INBOX_TEST_DISPATCH` chooses one for a run of the suite: `alone` (as out of the box with several workers), `shared`
//! (messages that wait share a transaction), `batch` (every handler takes batches) or `flush` (acks after a flush).

use std::slice;
use std::time::Duration;

use inbox_runtime::{
    BatchLimits, CallError, Handler, HandlerFuture, HandlerSpec, InboxBuilder, InboxDatabase,
    Incoming, Requirements, Tx,
};

/// How many messages a transaction has at most where several share one.
const TOGETHER: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dispatch {
    AsBuilt,
    Alone,
    Shared,
    Batch,
    Flush,
}

impl Dispatch {
    fn of_this_run() -> Self {
        match std::env::var("INBOX_TEST_DISPATCH").as_deref() {
            Err(_) => Self::AsBuilt,
            Ok("alone") => Self::Alone,
            Ok("shared") => Self::Shared,
            Ok("batch") => Self::Batch,
            Ok("flush") => Self::Flush,
            Ok(other) => {
                panic!("INBOX_TEST_DISPATCH={other} is none of alone, shared, batch, flush")
            }
        }
    }
}

/// Registers handlers in the way of dispatch of this run.
pub trait Serve<Db: InboxDatabase> {
    /// Like `register`, with what the way of dispatch needs.
    #[must_use]
    fn serve<H: Handler<Db = Db>>(self, handler: H) -> Self;
}

impl<Db: InboxDatabase> Serve<Db> for InboxBuilder<Db> {
    fn serve<H: Handler<Db = Db>>(self, handler: H) -> Self {
        match Dispatch::of_this_run() {
            Dispatch::Alone => self.register(handler).messages_per_transaction(1),
            Dispatch::Shared => self.register(handler).messages_per_transaction(TOGETHER),
            Dispatch::Batch => self.register(InBatches(handler)),
            Dispatch::Flush if Db::COMMITS_ASYNCHRONOUSLY => {
                self.register(handler).ack_after_flush()
            }
            Dispatch::Flush | Dispatch::AsBuilt => self.register(handler),
        }
    }
}

/// A handler of single messages as one of batches: one after another, and all or none.
#[derive(Debug)]
struct InBatches<H>(H);

impl<H: Handler> Handler for InBatches<H> {
    type Db = H::Db;

    const SPEC: HandlerSpec = H::SPEC.batch(BatchLimits::new(TOGETHER).linger(Duration::ZERO));

    fn requirements(needs: &mut Requirements) {
        H::requirements(needs);
    }

    fn call<'a>(
        &'a self,
        incoming: &'a [Incoming<'_>],
        tx: &'a mut Tx<H::Db>,
    ) -> HandlerFuture<'a> {
        Box::pin(async move {
            for (position, one) in incoming.iter().enumerate() {
                match self.0.call(slice::from_ref(one), tx).await {
                    Err(CallError::Decode(_)) if incoming.len() > 1 => {
                        return Err(CallError::DecodeSome(vec![position]));
                    }
                    answer => answer?,
                }
            }
            Ok(())
        })
    }
}
