//! Stop or observe the delivery path at each of its numbered steps; prove a broker adapter.
//!
//! A test that wants to know what a crash leaves behind gives the builder a hook that ends the process at one
//! step; a test of the order of events records them ([`recorded`]). Whoever writes an adapter for a broker proves it with
//! [`conformance`].

#[cfg(feature = "conformance")]
#[cfg_attr(docsrs, doc(cfg(feature = "conformance")))]
pub mod conformance;
#[cfg(feature = "testing")]
pub mod recorded;

use std::fmt;
use std::sync::Arc;

/// A point of the delivery path between two things that a crash can separate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Step {
    /// 1: nothing is written, nothing is acked.
    BeforeClaim,
    /// 2: the claim is in the open transaction.
    AfterClaim,
    /// 3: so is the handler's work.
    AfterHandler,
    /// 4: fence and COMMIT are sent next, as one query where the database allows.
    BeforeCommit,
    /// 5: claim and work are durable.
    AfterCommit,
    /// 6: every consumer of the delivery is done; the broker does not know yet.
    BeforeAck,
}

impl Step {
    /// Every step, in the order of the path.
    pub const ALL: [Self; 6] = [
        Self::BeforeClaim,
        Self::AfterClaim,
        Self::AfterHandler,
        Self::BeforeCommit,
        Self::AfterCommit,
        Self::BeforeAck,
    ];
}

type Hook = dyn Fn(Step, &str) + Send + Sync;

/// Called at each step with the message id (at [`Step::BeforeAck`]: of the last consumer).
#[derive(Clone, Default)]
pub(crate) struct StepHook(Option<Arc<Hook>>);

impl StepHook {
    #[cfg(feature = "testing")]
    pub(crate) fn new(hook: impl Fn(Step, &str) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hook)))
    }

    pub(crate) fn reach(&self, step: Step, message_id: &str) {
        if let Some(hook) = &self.0 {
            hook(step, message_id);
        }
    }
}

impl fmt::Debug for StepHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "StepHook(set)"
        } else {
            "StepHook(none)"
        })
    }
}
