//! The whole path: an inbox on the queue, and the rows that its handlers wrote.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use async_trait::async_trait;
use inbox_core::{
    Assignment, BoxError, Capabilities, DedupKey, Deliveries, Delivery, Envelope, IdSource,
    Learned, Needs, Settle, SettleError, SettleToken, Source, SourceError, Verdict,
};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::ledger::{self, Ledger};
use super::process::Process;
use super::rig::{Ability, Rig, Setup};
use super::scene::{Running, Scene, inbox, order, orders, with_notifications};
use super::stage::{QUIET, Stage};
use super::{ensure, ensure_eq};
use crate::testing::Step;
use crate::testing::recorded::{Event, Record, Recorded};

type Done = Result<(), BoxError>;

/// A queue, a ledger, and the handlers' scene.
struct Business<R> {
    stage: Stage<R>,
    ledger: Ledger,
    scene: Scene,
}

impl<R: Rig> Business<R> {
    async fn new(setup: Setup) -> Result<Self, BoxError> {
        Ok(Self {
            stage: Stage::new(setup).await?,
            ledger: Ledger::new().await?,
            scene: Scene::new(),
        })
    }

    fn recorded(&self) -> (Recorded<R::Source>, Record) {
        Recorded::new(self.stage.rig.source())
    }

    /// An inbox that records what it does.
    async fn run(&self) -> Result<(Running, Record), BoxError> {
        let (source, record) = self.recorded();
        let inbox = inbox(&self.ledger.pool, source, &self.scene).on_step(record.step_hook());
        Ok((Running::start(inbox).await?, record))
    }

    async fn until_acked(&self, record: &Record, messages: usize) -> Done {
        let what = format!("{messages} acks");
        let acked = async || Ok(record.acks().len() >= messages);
        let all = self.stage.eventually(&what, acked).await;
        all.map_err(|error| format!("{error}; there are {}", record.acks().len()).into())
    }

    /// Lets ordinary inboxes do what is left, until these messages are billed and the broker has nothing more.
    async fn finish(&self, ids: &[&str]) -> Done {
        let deadline = Instant::now() + self.stage.patience();
        loop {
            let (running, record) = self.run().await?;
            self.until_billed(ids.len()).await?;
            // What is billed already may come again, and nobody knows when.
            tokio::time::sleep(QUIET).await;
            let each = async || Ok(ids.iter().all(|id| is_settled(&record, id)));
            self.stage.eventually("the ack of each", each).await?;
            self.stop(running).await?;
            let is_done = R::lacks(Ability::Count).is_some() || self.stage.rig.left().await? == 0;
            if is_done || Instant::now() > deadline {
                break;
            }
        }
        self.stage.ensure_left(0).await?;
        self.ledger
            .ensure_billed_by("billing", ids.iter().copied())
            .await
    }

    async fn until_billed(&self, messages: usize) -> Done {
        let messages = i64::try_from(messages)?;
        let what = format!("{messages} rows");
        let billed = async || Ok(self.ledger.rows().await? >= messages);
        self.stage.eventually(&what, billed).await
    }

    async fn until_entered(&self, id: &str) -> Done {
        let entered = async || Ok(self.scene.entered(id) > 0);
        self.stage
            .eventually(&format!("`{id}` in its handler"), entered)
            .await
    }

    async fn stop(&self, running: Running) -> Result<crate::Stopped, BoxError> {
        running.stop(self.stage.patience()).await
    }
}

/// It was acked as often as it was delivered, or never came.
fn is_settled(record: &Record, id: &str) -> bool {
    let acks = record
        .acks()
        .iter()
        .filter(|(acked, _)| acked == id)
        .count();
    acks >= record.deliveries(id)
}

pub(super) async fn ack_after_commit<R: Rig>() -> Done {
    let business = Business::<R>::new(Setup::Shared).await?;
    let ids: Vec<String> = (0..10).map(|n| format!("m-{n}")).collect();
    business.stage.rig.publish(&orders(ids.clone())).await?;
    let (running, record) = business.run().await?;
    business.until_acked(&record, ids.len()).await?;
    business.stop(running).await?;
    let events = record.events();
    for id in &ids {
        let committed = events.iter().position(
            |event| matches!(event, Event::Reached { step: Step::AfterCommit, id: of } if of == id),
        );
        let asked = events
            .iter()
            .position(|event| matches!(event, Event::Settling(of) if of.contains(id)));
        ensure!(
            committed.is_some() && committed < asked,
            "`{id}`: the commit is event {committed:?}, its ack event {asked:?}"
        );
        let settles = events
            .iter()
            .filter(|event| matches!(event, Event::Settled { id: of, .. } if of == id));
        ensure_eq!(settles.count(), 1, "settles of `{id}`");
    }
    business.stage.ensure_left(0).await?;
    business.ledger.ensure_billed_by("billing", ids).await
}

pub(super) async fn lost_ack<R: Rig>() -> Done {
    let business = Business::<R>::new(Setup::Shared).await?;
    let ids = ["m-1", "m-2", "m-3"];
    business.stage.rig.publish(&orders(ids)).await?;
    let (source, record) = business.recorded();
    let lossy = LosesAck {
        source,
        message: "m-1",
        lost: Arc::default(),
    };
    let is_lost = Arc::clone(&lossy.lost);
    let running = Running::start(inbox(&business.ledger.pool, lossy, &business.scene)).await?;
    let again = async || Ok(record.acks().iter().any(|(id, _)| id == "m-1"));
    business
        .stage
        .eventually("an ack of `m-1` that arrives", again)
        .await?;
    let others = async || {
        Ok(ids
            .iter()
            .all(|id| record.deliveries(id) > 0 && is_settled_last(&record, id)))
    };
    business
        .stage
        .eventually("acks of the others", others)
        .await?;
    business.stop(running).await?;
    ensure!(is_lost.0.load(Ordering::SeqCst), "no ack was lost");
    ensure_eq!(business.scene.entered("m-1"), 1, "runs of the handler");
    ensure!(
        record.deliveries("m-1") >= 2,
        "its ack was lost, and it did not come again"
    );
    business.stage.ensure_left(0).await?;
    business.ledger.ensure_billed_by("billing", ids).await
}

/// The last delivery of it was acked.
fn is_settled_last(record: &Record, id: &str) -> bool {
    let events = record.events();
    let last = |wanted: &dyn Fn(&Event) -> bool| events.iter().rposition(wanted);
    let delivered = last(&|event| matches!(event, Event::Delivered { id: of, .. } if of == id));
    let acked = last(
        &|event| matches!(event, Event::Settled { id: of, verdict: Verdict::Ack, done: true, .. } if of == id),
    );
    acked > delivered
}

/// Loses the first ack of a message together with its assignment.
struct LosesAck<S> {
    source: S,
    message: &'static str,
    lost: Arc<Lost>,
}

#[derive(Default)]
struct Lost(AtomicBool, Notify);

#[async_trait]
impl<S: Source> Source for LosesAck<S> {
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
        let assignment = self.source.open(prefetch).await?;
        let token = Arc::<Mutex<Option<u64>>>::default();
        Ok(Assignment {
            deliveries: Box::new(LosesAckDeliveries {
                deliveries: assignment.deliveries,
                id_sources: self.source.id_sources(),
                message: self.message,
                token: Arc::clone(&token),
                lost: Arc::clone(&self.lost),
            }),
            settle: Arc::new(LosesAckSettle {
                settle: assignment.settle,
                token,
                lost: Arc::clone(&self.lost),
                is_gone: AtomicBool::new(false),
            }),
        })
    }
}

struct LosesAckDeliveries {
    deliveries: Box<dyn Deliveries>,
    id_sources: Vec<IdSource>,
    message: &'static str,
    token: Arc<Mutex<Option<u64>>>,
    lost: Arc<Lost>,
}

#[async_trait]
impl Deliveries for LosesAckDeliveries {
    async fn next(&mut self) -> Result<Option<Delivery>, SourceError> {
        let next = tokio::select! {
            biased;
            () = self.lost.1.notified() => {
                return Err(SourceError::new("the connection broke with an ack on its way"));
            }
            next = self.deliveries.next() => next?,
        };
        if let Some(delivery) = &next
            && !self.lost.0.load(Ordering::SeqCst)
            && delivery
                .envelope
                .identify(DedupKey::MessageId, &self.id_sources, None)
                .is_ok_and(|id| id.as_str() == self.message)
        {
            let mut token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
            *token = Some(delivery.token.number());
        }
        Ok(next)
    }

    async fn stop(&mut self) {
        self.deliveries.stop().await;
    }
}

struct LosesAckSettle {
    settle: Arc<dyn Settle>,
    token: Arc<Mutex<Option<u64>>>,
    lost: Arc<Lost>,
    is_gone: AtomicBool,
}

#[async_trait]
impl Settle for LosesAckSettle {
    async fn settle(&self, verdicts: Vec<(SettleToken, Verdict)>) -> Vec<Result<(), SettleError>> {
        let number = *self.token.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |token: &SettleToken| Some(token.number()) == number;
        if verdicts.iter().any(|(token, _)| is_it(token))
            && !self.lost.0.swap(true, Ordering::SeqCst)
        {
            self.is_gone.store(true, Ordering::SeqCst);
            self.lost.1.notify_one();
        }
        if self.is_gone() {
            return verdicts.iter().map(|_| Err(SettleError::Gone)).collect();
        }
        self.settle.settle(verdicts).await
    }

    fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::SeqCst) || self.settle.is_gone()
    }
}

/// How many rows a message has after an end at this step.
fn rows_after(step: Step) -> i64 {
    i64::from(matches!(step, Step::AfterCommit | Step::BeforeAck))
}

pub(super) async fn sudden_end<R: Rig>() -> Done {
    for step in Step::ALL {
        let at_step = |error: BoxError| format!("{step:?}: {error}");
        end_at::<R>(step).await.map_err(at_step)?;
    }
    Ok(())
}

/// An inbox whose tasks, connections and assignment are gone at once when it reaches the step.
async fn end_at<R: Rig>(step: Step) -> Done {
    let business = Business::<R>::new(Setup::Shared).await?;
    let ids = ["m-1", "m-2", "m-3"];
    business.stage.rig.publish(&orders(ids)).await?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let (reached, reaching) = tokio::sync::oneshot::channel::<()>();
    let reached = Mutex::new(Some(reached));
    let (gone, end) = mpsc::channel::<()>();
    let end = Mutex::new(end);
    let hook = move |at: Step, id: &str| {
        if at != step || id != "m-1" {
            return;
        }
        let told = reached
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(told) = told {
            let _ = told.send(());
        }
        // Until the runtime is gone; what unwinds from here on leads nowhere.
        let _ = end.lock().unwrap_or_else(PoisonError::into_inner).recv();
        std::panic::resume_unwind(Box::new("the end of the process"));
    };
    let source = business.stage.rig.source();
    let file = business.ledger.file().to_owned();
    let scene = business.scene.clone();
    let running = runtime.spawn(async move {
        let pool = ledger::open(&file).await?;
        let inbox = inbox(&pool, source, &scene).on_step(hook).build().await?;
        inbox.run_until(std::future::pending()).await;
        Ok::<_, BoxError>(())
    });
    let waiting = tokio::time::timeout(business.stage.patience(), reaching).await;
    let is_running = !running.is_finished();
    runtime.shutdown_background();
    drop(gone);
    ensure!(
        waiting.is_ok_and(|reached| reached.is_ok()) && is_running,
        "the inbox did not come to this step"
    );
    ensure_eq!(
        business.ledger.rows().await?,
        rows_after(step),
        "rows at the end"
    );
    business.finish(&ids).await
}

pub(super) async fn killed<R: Rig>(entry: &str) -> Done {
    for step in Step::ALL {
        let at_step = |error: BoxError| format!("{step:?}: {error}");
        killed_at::<R>(entry, step).await.map_err(at_step)?;
    }
    Ok(())
}

async fn killed_at<R: Rig>(entry: &str, step: Step) -> Done {
    let business = Business::<R>::new(Setup::Shared).await?;
    let ids = ["m-1", "m-2", "m-3"];
    business.stage.rig.publish(&orders(ids)).await?;
    let process = Process::start(
        entry,
        &business.stage.rig.address(),
        business.ledger.file(),
        Some(step),
    )?;
    let mut process = process.until_reached(business.stage.patience()).await?;
    process.kill()?;
    ensure_eq!(
        business.ledger.rows().await?,
        rows_after(step),
        "rows at the kill"
    );
    business.finish(&ids).await
}

/// Messages are published until each process has billed some of them, however late it came: what is proven is that
/// everyone takes part, and not that the broker is fair.
pub(super) async fn processes_share<R: Rig>(entry: &str, processes: usize) -> Done {
    const WAVE: usize = 100;
    let business = Business::<R>::new(Setup::SharedLoad).await?;
    let start = || {
        let address = business.stage.rig.address();
        Process::start(entry, &address, business.ledger.file(), None)
    };
    let mut ids: Vec<String> = Vec::new();
    let mut running = Vec::new();
    for _ in 0..processes {
        running.push(start()?);
    }
    publish_until_each_bills(&business, &mut ids, &running, WAVE).await?;

    let before = ids.len();
    publish_wave(&business, &mut ids, WAVE).await?;
    business.until_billed(before + WAVE / 4).await?;
    running.remove(0).kill()?;
    running.push(start()?);
    publish_until_each_bills(&business, &mut ids, &running, WAVE).await?;
    drop(running);
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    business.finish(&ids).await
}

async fn publish_wave<R: Rig>(
    business: &Business<R>,
    ids: &mut Vec<String>,
    messages: usize,
) -> Done {
    let wave: Vec<String> = (ids.len()..ids.len() + messages)
        .map(|n| format!("m-{n}"))
        .collect();
    business.stage.rig.publish(&orders(wave.clone())).await?;
    ids.extend(wave);
    Ok(())
}

async fn publish_until_each_bills<R: Rig>(
    business: &Business<R>,
    ids: &mut Vec<String>,
    running: &[Process],
    wave: usize,
) -> Done {
    let deadline = Instant::now() + business.stage.patience();
    loop {
        publish_wave(business, ids, wave).await?;
        business.until_billed(ids.len()).await?;
        let took_part = business.ledger.processes().await?;
        let idle = running
            .iter()
            .filter(|process| !took_part.contains(&process.id()));
        let idle = idle.count();
        if idle == 0 {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "of {} processes {idle} have billed nothing, and {} messages are billed",
            running.len(),
            ids.len()
        );
    }
}

/// Hides the settle window from the runtime, which otherwise hands back in time.
struct Unaware<S>(S);

#[async_trait]
impl<S: Source> Source for Unaware<S> {
    fn system(&self) -> &'static str {
        self.0.system()
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.0.capabilities();
        capabilities.settle_window = None;
        capabilities
    }

    fn id_sources(&self) -> Vec<IdSource> {
        self.0.id_sources()
    }

    fn problems(&self) -> Vec<String> {
        self.0.problems()
    }

    async fn open(&self, prefetch: NonZeroUsize) -> Result<Assignment, SourceError> {
        self.0.open(prefetch).await
    }
}

pub(super) async fn beyond_the_window<R: Rig>() -> Done {
    let business = Business::<R>::new(Setup::ShortWindow).await?;
    let ids = ["slow-1", "m-2"];
    business.stage.rig.publish(&orders(ids)).await?;
    let (source, record) = business.recorded();
    let running = inbox(&business.ledger.pool, Unaware(source), &business.scene);
    // Room for the second delivery beside what is in work.
    let running = Running::start(running.prefetch(4)).await?;
    business.until_entered("slow-1").await?;
    let again = async || Ok(record.deliveries("slow-1") >= 2);
    business
        .stage
        .eventually("a second delivery of what takes too long", again)
        .await?;
    business.scene.pass(2);
    business.until_billed(2).await?;
    let settled = async || Ok(ids.iter().all(|id| is_settled_last(&record, id)));
    business.stage.eventually("acks of both", settled).await?;
    business.stop(running).await?;
    ensure_eq!(business.scene.entered("slow-1"), 1, "runs of the handler");
    business.stage.ensure_left(0).await?;
    business.ledger.ensure_billed_by("billing", ids).await
}

pub(super) async fn retried<R: Rig>() -> Done {
    let business = Business::<R>::new(Setup::Shared).await?;
    let mut ids: Vec<String> = (0..20).map(|n| format!("m-{n}")).collect();
    ids.insert(0, "later-1".to_owned());
    ids.insert(5, "later-2".to_owned());
    business.stage.rig.publish(&orders(ids.clone())).await?;
    let (running, record) = business.run().await?;
    business.until_billed(ids.len()).await?;
    let settled = async || Ok(ids.iter().all(|id| is_settled_last(&record, id)));
    business.stage.eventually("all acks", settled).await?;
    business.stop(running).await?;
    for id in ["later-1", "later-2"] {
        ensure_eq!(business.scene.entered(id), 2, "runs of `{id}`");
    }
    if business.stage.capabilities().longest_delay.is_none() {
        ensure_eq!(
            record.hand_backs(),
            0,
            "hand-backs to a broker without delays"
        );
    }
    business.stage.ensure_left(0).await?;
    business.ledger.ensure_billed_by("billing", ids).await
}

pub(super) async fn poison<R: Rig>() -> Done {
    let business = Business::<R>::new(Setup::Shared).await?;
    let good: Vec<String> = (0..20).map(|n| format!("m-{n}")).collect();
    let mut messages = orders(good.clone());
    messages.insert(0, order("poison-1"));
    messages.insert(9, order("poison-2"));
    let undecodable = Envelope::new(&b"\xff\xfe no JSON"[..]);
    messages.insert(14, undecodable.id("broken-1").message_type("OrderPlaced"));
    business.stage.rig.publish(&messages).await?;
    let (running, record) = business.run().await?;
    let all =
        async || Ok(record.acks().len() >= messages.len() && record.deliveries("poison-2") > 0);
    business
        .stage
        .eventually("acks of good and bad ones", all)
        .await?;
    let kept = async || Ok(business.ledger.dead_letters().await?.len() >= 3);
    business.stage.eventually("the dead letters", kept).await?;
    business.stop(running).await?;
    ensure_eq!(
        business.ledger.dead_letters().await?,
        ["attempts_exhausted", "attempts_exhausted", "undecodable"],
        "dead letters"
    );
    business.stage.ensure_left(0).await?;
    business.ledger.ensure_billed_by("billing", good).await
}

pub(super) async fn back_pressure<R: Rig>() -> Done {
    let business = Business::<R>::new(Setup::Shared).await?;
    let ids: Vec<String> = (0..12).map(|n| format!("slow-{n}")).collect();
    business.stage.rig.publish(&orders(ids.clone())).await?;
    let (source, record) = business.recorded();
    let running = inbox(&business.ledger.pool, source, &business.scene).prefetch(4);
    let running = Running::start(running).await?;
    let taken = || ids.iter().map(|id| record.deliveries(id)).sum::<usize>();
    let full = async || Ok(taken() >= 4);
    business.stage.eventually("four deliveries", full).await?;
    tokio::time::sleep(QUIET).await;
    ensure_eq!(taken(), 4, "deliveries while none is settled");
    business.scene.pass(ids.len());
    business.until_acked(&record, ids.len()).await?;
    business.stop(running).await?;
    ensure!(
        record.most_outstanding() <= 4,
        "{} deliveries were unsettled at a time",
        record.most_outstanding()
    );
    business.stage.ensure_left(0).await?;
    business.ledger.ensure_billed_by("billing", ids).await
}

pub(super) async fn shut_down<R: Rig>(with_grace: bool) -> Done {
    let business = Business::<R>::new(Setup::Shared).await?;
    let ids: Vec<String> = (0..8).map(|n| format!("slow-{n}")).collect();
    business.stage.rig.publish(&orders(ids.clone())).await?;
    let (source, record) = business.recorded();
    let grace = if with_grace {
        R::PATIENCE
    } else {
        Duration::ZERO
    };
    let running = inbox(&business.ledger.pool, source, &business.scene);
    let running = Running::start(running.prefetch(8).grace(grace)).await?;
    // One is done, another one in work, the others wait.
    business.scene.pass(1);
    business.until_acked(&record, 1).await?;
    let in_work = async || {
        let entered = ids.iter().filter(|id| business.scene.entered(id) > 0);
        Ok(entered.count() >= 2)
    };
    business
        .stage
        .eventually("a second one in its handler", in_work)
        .await?;
    let stopping = tokio::spawn(running.stop(business.stage.patience()));
    if with_grace {
        tokio::time::sleep(Duration::from_millis(100)).await;
        business.scene.pass(1);
    }
    let stopped = stopping.await??;
    let done = if with_grace { 2 } else { 1 };
    ensure_eq!(stopped.cut_off, 2 - done, "handlers that were cut off");
    ensure_eq!(
        business.ledger.rows().await?,
        i64::try_from(done)?,
        "rows at the end of the first inbox"
    );
    ensure_eq!(record.acks().len(), done, "acks of the first inbox");
    business.scene.pass(ids.len());
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    business.finish(&ids).await
}

pub(super) async fn cut<R: Rig>() -> Done {
    let business = Business::<R>::new(Setup::Shared).await?;
    let ids = ["slow-1", "m-2", "m-3"];
    business.stage.rig.publish(&orders(ids)).await?;
    let (running, record) = business.run().await?;
    business.until_entered("slow-1").await?;
    business.stage.rig.cut().await?;
    let again = async || Ok(record.opened().1 >= 2);
    business
        .stage
        .eventually("the source opened again", again)
        .await?;
    business.scene.pass(2);
    business.until_billed(3).await?;
    let settled = async || Ok(ids.iter().all(|id| is_settled_last(&record, id)));
    business.stage.eventually("acks of all", settled).await?;
    business.stop(running).await?;
    ensure_eq!(business.scene.entered("slow-1"), 1, "runs of the handler");
    business.stage.ensure_left(0).await?;
    business.ledger.ensure_billed_by("billing", ids).await
}

pub(super) async fn broker_ends<R: Rig>(in_order: bool) -> Done {
    let business = Business::<R>::new(Setup::OwnBroker).await?;
    let rig = &business.stage.rig;
    rig.publish(&orders(["m-1"])).await?;
    let (running, record) = business.run().await?;
    business.until_acked(&record, 1).await?;
    rig.publish(&orders(["slow-2", "m-3", "m-4"])).await?;
    business.until_entered("slow-2").await?;
    if in_order {
        rig.stop().await?;
    } else {
        rig.crash().await?;
    }
    // The work goes on without the broker.
    business.scene.pass(1);
    business.until_billed(2).await?;
    rig.start().await?;
    rig.publish(&orders(["m-5"])).await?;
    let ids = ["m-1", "slow-2", "m-3", "m-4", "m-5"];
    business.until_billed(ids.len()).await?;
    let settled = async || Ok(ids.iter().all(|id| is_settled_last(&record, id)));
    business.stage.eventually("acks of all", settled).await?;
    business.stop(running).await?;
    ensure_eq!(business.scene.entered("slow-2"), 1, "runs of the handler");
    business.stage.ensure_left(0).await?;
    business.ledger.ensure_billed_by("billing", ids).await
}

pub(super) async fn fan_out<R: Rig>() -> Done {
    let business = Business::<R>::new(Setup::Shared).await?;
    let ids = ["m-1", "torn-2", "m-3", "later-4"];
    business.stage.rig.publish(&orders(ids)).await?;
    let (source, record) = business.recorded();
    let running = inbox(&business.ledger.pool, source, &business.scene);
    let running = Running::start(with_notifications(running)).await?;
    business.until_billed(2 * ids.len()).await?;
    let settled = async || Ok(ids.iter().all(|id| is_settled_last(&record, id)));
    business.stage.eventually("acks of all", settled).await?;
    business.stop(running).await?;
    for id in ids {
        let acks = record.acks();
        let acks = acks.iter().filter(|(acked, _)| acked == id).count();
        ensure_eq!(acks, 1, "acks of `{id}` for both consumers");
    }
    business.stage.ensure_left(0).await?;
    business.ledger.ensure_billed_by("billing", ids).await?;
    business.ledger.ensure_billed_by("notifications", ids).await
}

pub(super) async fn odd_ids<R: Rig>() -> Done {
    let business = Business::<R>::new(Setup::Shared).await?;
    let long = "x".repeat(255);
    let odd = [
        "m-1",
        "M-1",
        "m-1.",
        "m 1",
        "grüße-☃",
        "a'b\"c\\d",
        "%00",
        "--",
        "0",
        "{\"id\":1}",
        &long,
    ];
    let mut messages = orders(odd);
    // Of different payloads: not every broker carries blank ids, and without one the payload tells them apart.
    let anonymous = |amount: u32| {
        Envelope::new(format!(r#"{{"account":"acc-1","amount":{amount}}}"#))
            .message_type("OrderPlaced")
    };
    messages.insert(3, anonymous(7));
    messages.push(anonymous(8).id(""));
    messages.push(anonymous(9).id("   "));
    business.stage.rig.publish(&messages).await?;
    let (running, record) = business.run().await?;
    let kept = async || Ok(business.ledger.dead_letters().await?.len() >= 3);
    business
        .stage
        .eventually("dead letters of what has no id", kept)
        .await?;
    business.until_billed(odd.len()).await?;
    business.until_acked(&record, messages.len()).await?;
    business.stop(running).await?;
    ensure_eq!(
        business.ledger.dead_letters().await?,
        ["invalid_id", "invalid_id", "invalid_id"],
        "dead letters"
    );
    business.stage.ensure_left(0).await?;
    business.ledger.ensure_billed_by("billing", odd).await
}

pub(super) async fn two_inboxes<R: Rig>() -> Done {
    let business = Business::<R>::new(Setup::Shared).await?;
    let ids: Vec<String> = (0..200).map(|n| format!("m-{n}")).collect();
    let (one, first) = business.run().await?;
    let (other, second) = business.run().await?;
    business.stage.rig.publish(&orders(ids.clone())).await?;
    // The producer repeats itself.
    business
        .stage
        .rig
        .publish(&orders(ids[50..150].to_vec()))
        .await?;
    business.until_billed(ids.len()).await?;
    let all = async || Ok(first.acks().len() + second.acks().len() >= ids.len() + 100);
    business.stage.eventually("all acks", all).await?;
    business.stop(one).await?;
    business.stop(other).await?;
    business.stage.ensure_left(0).await?;
    business.ledger.ensure_billed_by("billing", ids).await
}

pub(super) async fn ten_thousand<R: Rig>() -> Done {
    const ALL: usize = 10_000;
    const DUPLICATES: usize = 3_000;
    let business = Business::<R>::new(Setup::Shared).await?;
    let ids: Vec<String> = (0..ALL - DUPLICATES).map(|n| format!("m-{n}")).collect();
    let mut messages = orders(ids.clone());
    let mut random = fastrand::Rng::with_seed(30);
    for _ in 0..DUPLICATES {
        let copy = messages[random.usize(..messages.len())].clone();
        let place = random.usize(..=messages.len());
        messages.insert(place, copy);
    }
    business.stage.rig.publish(&messages).await?;
    let (source, record) = business.recorded();
    let inbox = inbox(&business.ledger.pool, source, &business.scene).messages_per_transaction(16);
    let running = Running::start(inbox.prefetch(64)).await?;
    let mut acks = 0;
    // As long as it goes on; how fast is not asked here.
    while acks < ALL {
        let before = acks;
        let more = async || Ok(record.acks().len() > before);
        let what = format!("another ack after {before} of {ALL}");
        business.stage.eventually(&what, more).await?;
        acks = record.acks().len();
    }
    business.stop(running).await?;
    business.stage.ensure_left(0).await?;
    business.ledger.ensure_billed_by("billing", ids).await
}
