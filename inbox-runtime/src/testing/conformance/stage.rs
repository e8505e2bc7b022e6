use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use inbox_core::{
    Assignment, BoxError, Capabilities, DedupKey, Deliveries, Delivery, IdSource, Settle,
    SettleError, SettleToken, Source, Verdict,
};
use tokio::time::Instant;

use super::rig::{Ability, Rig, Setup};

/// How often a condition is looked at.
const PACE: Duration = Duration::from_millis(20);

/// How long nothing has to come for "nothing comes". Too short on a slow machine, it finds less and fails nothing.
pub(super) const QUIET: Duration = Duration::from_millis(700);

/// A case's queue.
#[derive(Debug)]
pub(super) struct Stage<R> {
    pub(super) rig: R,
}

impl<R: Rig> Stage<R> {
    pub(super) async fn new(setup: Setup) -> Result<Self, BoxError> {
        let rig = R::fresh(setup);
        let rig = tokio::time::timeout(R::PATIENCE.max(Duration::from_secs(60)), rig);
        let rig = rig.await.map_err(|_| "the rig was not ready in time")?;
        Ok(Self { rig: rig? })
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        self.rig.source().capabilities()
    }

    /// How long to wait for what an ended assignment left behind.
    pub(super) fn patience(&self) -> Duration {
        let capabilities = self.capabilities();
        let left_behind = capabilities.lease.or(capabilities.settle_window);
        // A window of half an hour is not what anybody waits for here.
        let left_behind = left_behind.filter(|time| *time < 5 * R::PATIENCE);
        R::PATIENCE + left_behind.unwrap_or_default()
    }

    /// Opens the queue; the broker may not be ready at once.
    pub(super) async fn open(&self, prefetch: usize) -> Result<Opened, BoxError> {
        let source = self.rig.source();
        let prefetch = NonZeroUsize::new(prefetch).unwrap_or(NonZeroUsize::MIN);
        let deadline = Instant::now() + R::PATIENCE;
        let Assignment { deliveries, settle } = loop {
            let opening = tokio::time::timeout(R::PATIENCE, source.open(prefetch));
            match opening
                .await
                .map_err(|_| "the source did not open in time")?
            {
                Ok(assignment) => break assignment,
                Err(error) if Instant::now() > deadline => return Err(error.into()),
                Err(_) => tokio::time::sleep(PACE).await,
            }
        };
        Ok(Opened {
            deliveries,
            settle,
            id_sources: source.id_sources(),
            patience: self.patience(),
        })
    }

    pub(super) async fn eventually(
        &self,
        what: &str,
        mut holds: impl AsyncFnMut() -> Result<bool, BoxError>,
    ) -> Result<(), BoxError> {
        let patience = self.patience();
        let deadline = Instant::now() + patience;
        while !holds().await? {
            if Instant::now() > deadline {
                return Err(format!("not within {patience:?}: {what}").into());
            }
            tokio::time::sleep(PACE).await;
        }
        Ok(())
    }

    /// The broker has so many messages left, as far as it can count. No assignment is open any more.
    pub(super) async fn ensure_left(&self, messages: u64) -> Result<(), BoxError> {
        if R::lacks(Ability::Count).is_some() {
            return Ok(());
        }
        let patience = self.patience();
        let deadline = Instant::now() + patience;
        loop {
            let left = self.rig.left().await?;
            if left == messages {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "the broker has {left} messages left, not {messages}, {patience:?} after the last assignment ended"
                )
                .into());
            }
            tokio::time::sleep(PACE).await;
        }
    }
}

/// An open assignment, used as the runtime uses it.
pub(super) struct Opened {
    deliveries: Box<dyn Deliveries>,
    settle: Arc<dyn Settle>,
    id_sources: Vec<IdSource>,
    patience: Duration,
}

/// A delivery with the id of its message.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) id: String,
    pub(super) delivery: Delivery,
}

impl Opened {
    /// The next delivery, which has to come.
    pub(super) async fn next(&mut self) -> Result<Taken, BoxError> {
        let next = tokio::time::timeout(self.patience, self.deliveries.next()).await;
        let next = next.map_err(|_| format!("no delivery within {:?}", self.patience))?;
        let delivery = next?.ok_or("the assignment ended instead of delivering")?;
        Ok(self.named(delivery))
    }

    /// The next delivery, if one comes within `time`.
    pub(super) async fn next_within(&mut self, time: Duration) -> Result<Option<Taken>, BoxError> {
        match tokio::time::timeout(time, self.deliveries.next()).await {
            Ok(next) => Ok(next?.map(|delivery| self.named(delivery))),
            Err(_) => Ok(None),
        }
    }

    /// The next delivery, if asking once is enough; the wait is dropped at its first await point.
    pub(super) fn next_at_once(&mut self) -> Result<Option<Taken>, BoxError> {
        match self.deliveries.next().now_or_never() {
            Some(next) => Ok(next?.map(|delivery| self.named(delivery))),
            None => Ok(None),
        }
    }

    pub(super) async fn take(&mut self, deliveries: usize) -> Result<Vec<Taken>, BoxError> {
        let mut taken = Vec::new();
        while taken.len() < deliveries {
            let so_far = taken.len();
            let next = self.next().await;
            taken.push(next.map_err(|error| format!("{so_far} deliveries, then: {error}"))?);
        }
        Ok(taken)
    }

    /// Takes until each of these ids has come, whatever comes besides, in the order in which they came first.
    pub(super) async fn take_ids(&mut self, ids: &[&str]) -> Result<Vec<Taken>, BoxError> {
        let mut taken: Vec<Taken> = Vec::new();
        loop {
            let missing = ids.iter().find(|id| taken.iter().all(|one| one.id != **id));
            let Some(missing) = missing else {
                return Ok(taken);
            };
            let next = self.next().await;
            taken.push(next.map_err(|error| format!("`{missing}` does not come: {error}"))?);
        }
    }

    fn named(&self, delivery: Delivery) -> Taken {
        let id = delivery
            .envelope
            .identify(DedupKey::MessageId, &self.id_sources, None);
        Taken {
            id: id.map(|id| id.to_string()).unwrap_or_default(),
            delivery,
        }
    }

    pub(super) async fn stop(&mut self) -> Result<(), BoxError> {
        let stopped = tokio::time::timeout(self.patience, self.deliveries.stop()).await;
        Ok(stopped.map_err(|_| format!("`stop` did not end within {:?}", self.patience))?)
    }

    pub(super) async fn settle(
        &self,
        verdicts: Vec<(SettleToken, Verdict)>,
    ) -> Result<Vec<Result<(), SettleError>>, BoxError> {
        let asked = verdicts.len();
        let settling = tokio::time::timeout(self.patience, self.settle.settle(verdicts)).await;
        let answers =
            settling.map_err(|_| format!("`settle` did not answer within {:?}", self.patience))?;
        if answers.len() != asked {
            return Err(format!("{} answers to {asked} verdicts", answers.len()).into());
        }
        Ok(answers)
    }

    /// Settles deliveries in one call, each of which has to work.
    pub(super) async fn settle_all(
        &self,
        deliveries: impl IntoIterator<Item = Taken>,
        verdict: Verdict,
    ) -> Result<(), BoxError> {
        let mut ids = Vec::new();
        let mut verdicts = Vec::new();
        for taken in deliveries {
            ids.push(taken.id);
            verdicts.push((taken.delivery.token, verdict));
        }
        for (id, answer) in ids.iter().zip(self.settle(verdicts).await?) {
            answer.map_err(|error| format!("{verdict:?} of `{id}`: {error}"))?;
        }
        Ok(())
    }

    pub(super) async fn ack(&self, taken: Taken) -> Result<(), BoxError> {
        self.settle_all([taken], Verdict::Ack).await
    }
}
