//! The ways in which a handler gets its messages. A test that says nothing about them holds in each.
//!
//! `INBOX_TEST_DISPATCH` chooses one for a run of the suite: `alone` (as out of the box with several workers), `shared`
//! (messages that wait share a transaction), `batch` (every handler takes batches) or `flush` (acks after a flush).

use std::ops::RangeInclusive;
use std::slice;
use std::time::Duration;

use inbox_runtime::{
    BatchLimits, CallError, Handler, HandlerFuture, HandlerSpec, InboxBuilder, InboxDatabase,
    Incoming, Requirements, Tx,
};

/// How many messages may share a transaction.
const SHARING: usize = 16;

/// How many messages a batch may have: no more than the smallest prefetch of a test.
const BATCH: usize = 4;

/// How long a batch waits for more: long enough for what a test publishes at once.
const LINGER: Duration = Duration::from_millis(5);

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

    /// How often a failure can be met beside others, before the message is alone.
    const fn failures_beside_others(self) -> usize {
        match self {
            Self::AsBuilt | Self::Alone | Self::Flush => 0,
            Self::Shared => 1,
            // It is halved until one is left.
            Self::Batch => BATCH.ilog2() as usize,
        }
    }
}

/// How many messages one worker may have in a transaction.
#[must_use]
pub fn in_one_transaction() -> RangeInclusive<usize> {
    match Dispatch::of_this_run() {
        Dispatch::AsBuilt | Dispatch::Alone | Dispatch::Flush => 1..=1,
        Dispatch::Shared => 1..=SHARING,
        Dispatch::Batch => 1..=BATCH,
    }
}

/// Whether messages that wait share a transaction whatever the concurrency is.
#[must_use]
pub fn is_shared() -> bool {
    in_one_transaction() != (1..=1)
}

/// Whether PostgreSQL's messages are acked after a flush.
#[must_use]
pub fn acks_after_a_flush() -> bool {
    Dispatch::of_this_run() == Dispatch::Flush
}

/// How often a handler may run for a message that it gets `alone` times where it has its transaction for itself. Beside
/// others it may run again, uncounted, each time that the failure of one is searched in smaller parts.
#[must_use]
pub fn runs(alone: usize) -> RangeInclusive<usize> {
    alone..=alone + Dispatch::of_this_run().failures_beside_others()
}

/// Asserts that a handler ran as often as it may: see [`runs`].
///
/// # Panics
///
/// When it ran less often or more often.
#[track_caller]
pub fn assert_runs(ran: usize, alone: usize, why: &str) {
    let may = runs(alone);
    assert!(may.contains(&ran), "{ran} runs, not {may:?}: {why}");
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
            Dispatch::Shared => self
                .register(handler)
                .messages_per_transaction(SHARING)
                .share_at_once(),
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
pub struct InBatches<H>(pub H);

impl<H: Handler> Handler for InBatches<H> {
    type Db = H::Db;

    const SPEC: HandlerSpec = H::SPEC.batch(BatchLimits::new(BATCH).linger(LINGER));

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
