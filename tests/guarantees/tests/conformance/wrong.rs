//! Adapters that are wrong in one way each: the suite catches them, and says where.

use std::collections::{HashMap, HashSet};
use std::future::pending;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use inbox_runtime::brokers::{MemoryBroker, MemorySource};
use inbox_runtime::testing::conformance::{Ability, Case, Outcome, Rig, Setup, run};
use inbox_runtime::{
    Assignment, BoxError, Capabilities, Deliveries, Delivery, Envelope, Headers, IdSource, Settle,
    SettleError, SettleToken, Source, SourceError, Verdict,
};

const QUEUE: &str = "orders";
const LEASE: Duration = Duration::from_millis(300);

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Nothing,
    AcksAtDelivery,
    NeverAcks,
    DropsHandBacks,
    IgnoresDelays,
    DropsRepetitions,
    LosesOneInTen,
    AcksAllBefore,
    AcksAnotherForWhatIsUnknown,
    IsContentWithAnyToken,
    CountsTokensAnew,
    DeliversTooMuch,
    LosesWhatIsDropped,
    GoesOnAfterStop,
    SettlesNothingAfterStop,
    RepairsPayloads,
    LosesHeaders,
    InventsIds,
    HidesLosses,
    DoesNotCount,
    DoesNotExtend,
    AnswersOnce,
}

const FAULTS: &[Fault] = &[
    Fault::Nothing,
    Fault::AcksAtDelivery,
    Fault::NeverAcks,
    Fault::DropsHandBacks,
    Fault::IgnoresDelays,
    Fault::DropsRepetitions,
    Fault::LosesOneInTen,
    Fault::AcksAllBefore,
    Fault::AcksAnotherForWhatIsUnknown,
    Fault::IsContentWithAnyToken,
    Fault::CountsTokensAnew,
    Fault::DeliversTooMuch,
    Fault::LosesWhatIsDropped,
    Fault::GoesOnAfterStop,
    Fault::SettlesNothingAfterStop,
    Fault::RepairsPayloads,
    Fault::LosesHeaders,
    Fault::InventsIds,
    Fault::HidesLosses,
    Fault::DoesNotCount,
    Fault::DoesNotExtend,
    Fault::AnswersOnce,
];

/// The in-memory broker behind the adapter with `FAULTS[FAULT]`.
struct Wrong<const FAULT: usize> {
    broker: MemoryBroker,
    window: bool,
}

#[async_trait]
impl<const FAULT: usize> Rig for Wrong<FAULT> {
    type Source = WrongSource;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn lacks(ability: Ability) -> Option<&'static str> {
        (ability == Ability::Processes).then_some("the broker lives in one process")
    }

    async fn fresh(setup: Setup) -> Result<Self, BoxError> {
        Ok(Self {
            broker: MemoryBroker::new(),
            window: setup == Setup::ShortWindow,
        })
    }

    fn source(&self) -> WrongSource {
        let mut capabilities = Capabilities::new()
            .longest_delay(Duration::from_secs(60))
            .counts_hand_backs(false);
        if self.window {
            capabilities = capabilities.settle_window(LEASE);
        }
        WrongSource {
            fault: FAULTS[FAULT],
            source: self.broker.source(QUEUE).behave_as(capabilities),
        }
    }

    async fn publish(&self, messages: &[Envelope]) -> Result<(), BoxError> {
        for message in messages {
            self.broker.publish(QUEUE, message.clone());
        }
        Ok(())
    }

    async fn left(&self) -> Result<u64, BoxError> {
        let queue = self.broker.queue_state(QUEUE);
        let left = queue.ready + queue.delayed + queue.outstanding;
        Ok(u64::try_from(left)?)
    }

    async fn cut(&self) -> Result<(), BoxError> {
        self.broker.disconnect(QUEUE);
        Ok(())
    }

    async fn stop(&self) -> Result<(), BoxError> {
        self.broker.fail_open(QUEUE, u32::MAX);
        self.broker.crash();
        Ok(())
    }

    async fn crash(&self) -> Result<(), BoxError> {
        self.stop().await
    }

    async fn start(&self) -> Result<(), BoxError> {
        self.broker.fail_open(QUEUE, 0);
        Ok(())
    }
}

struct WrongSource {
    fault: Fault,
    source: MemorySource,
}

#[async_trait]
impl Source for WrongSource {
    fn system(&self) -> &'static str {
        "wrong"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.source.capabilities();
        if self.fault == Fault::DoesNotExtend {
            capabilities.lease = capabilities.settle_window.take();
        }
        capabilities
    }

    fn id_sources(&self) -> Vec<IdSource> {
        self.source.id_sources()
    }

    async fn open(&self, prefetch: NonZeroUsize) -> Result<Assignment, SourceError> {
        let prefetch = match self.fault {
            Fault::DeliversTooMuch => prefetch.saturating_add(1),
            _ => prefetch,
        };
        let Assignment { deliveries, settle } = self.source.open(prefetch).await?;
        let shared = Arc::new(Shared {
            fault: self.fault,
            settle,
            known: Mutex::default(),
            renamed: Mutex::default(),
            tokens: AtomicU64::new(0),
            deliveries: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        });
        Ok(Assignment {
            deliveries: Box::new(WrongDeliveries {
                deliveries,
                shared: Arc::clone(&shared),
            }),
            settle: shared,
        })
    }
}

struct Shared {
    fault: Fault,
    settle: Arc<dyn Settle>,
    /// The tokens that are unsettled.
    known: Mutex<HashSet<u64>>,
    /// The broker's tokens by the adapter's own.
    renamed: Mutex<HashMap<u64, u64>>,
    tokens: AtomicU64,
    deliveries: AtomicU64,
    stopped: AtomicBool,
}

impl Shared {
    async fn one(&self, number: u64, verdict: Verdict) -> Result<(), SettleError> {
        let answers = self
            .settle
            .settle(vec![(SettleToken::new(number), verdict)]);
        answers.await.pop().expect("an answer")
    }
}

struct WrongDeliveries {
    deliveries: Box<dyn Deliveries>,
    shared: Arc<Shared>,
}

#[async_trait]
impl Deliveries for WrongDeliveries {
    async fn next(&mut self) -> Result<Option<Delivery>, SourceError> {
        let shared = &self.shared;
        loop {
            let mut delivery = match self.deliveries.next().await {
                Ok(Some(delivery)) => delivery,
                Err(_) if shared.fault == Fault::HidesLosses => pending().await,
                end => return end,
            };
            let number = delivery.token.number();
            shared.known.lock().unwrap().insert(number);
            let count = shared.deliveries.fetch_add(1, Ordering::SeqCst) + 1;
            match shared.fault {
                Fault::AcksAtDelivery => {
                    let _ = shared.one(number, Verdict::Ack).await;
                }
                Fault::LosesOneInTen if count.is_multiple_of(10) => {
                    let _ = shared.one(number, Verdict::Ack).await;
                    continue;
                }
                Fault::DropsRepetitions if delivery.redelivered => {
                    let _ = shared.one(number, Verdict::Ack).await;
                    continue;
                }
                Fault::LosesWhatIsDropped => tokio::task::yield_now().await,
                Fault::CountsTokensAnew => {
                    let own = shared.tokens.fetch_add(1, Ordering::SeqCst) + 1;
                    shared.renamed.lock().unwrap().insert(own, number);
                    delivery.token = SettleToken::new(own);
                }
                Fault::RepairsPayloads => {
                    let text = String::from_utf8_lossy(&delivery.envelope.payload).into_owned();
                    delivery.envelope.payload = text.into();
                }
                Fault::LosesHeaders => delivery.envelope.headers = Headers::new(),
                Fault::InventsIds => {
                    let id = &mut delivery.envelope.id;
                    if id.as_deref().unwrap_or_default().trim().is_empty() {
                        *id = Some(format!("delivery-{count}"));
                    }
                }
                Fault::DoesNotCount => delivery.earlier_deliveries = None,
                _ => {}
            }
            return Ok(Some(delivery));
        }
    }

    async fn stop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        if self.shared.fault != Fault::GoesOnAfterStop {
            self.deliveries.stop().await;
        }
    }
}

#[async_trait]
impl Settle for Shared {
    async fn settle(&self, verdicts: Vec<(SettleToken, Verdict)>) -> Vec<Result<(), SettleError>> {
        let mut answers = Vec::new();
        for (token, verdict) in verdicts {
            let number = token.number();
            let was_known = self.known.lock().unwrap().remove(&number);
            let is_ack = verdict == Verdict::Ack;
            let answer = match self.fault {
                Fault::AcksAtDelivery => Ok(()),
                Fault::NeverAcks if is_ack => Ok(()),
                Fault::SettlesNothingAfterStop if self.stopped.load(Ordering::SeqCst) => Ok(()),
                Fault::DropsHandBacks => self.one(number, Verdict::Ack).await,
                Fault::IgnoresDelays if !is_ack => {
                    self.one(number, Verdict::HandBack { delay: None }).await
                }
                Fault::AcksAllBefore if is_ack => {
                    let known = self.known.lock().unwrap().clone();
                    for earlier in known.into_iter().filter(|known| *known < number) {
                        let _ = self.one(earlier, Verdict::Ack).await;
                    }
                    self.one(number, verdict).await
                }
                Fault::AcksAnotherForWhatIsUnknown if !was_known => {
                    let oldest = self.known.lock().unwrap().iter().min().copied();
                    match oldest {
                        Some(oldest) => self.one(oldest, Verdict::Ack).await,
                        None => Err(SettleError::Gone),
                    }
                }
                Fault::IsContentWithAnyToken => {
                    let _ = self.one(number, verdict).await;
                    Ok(())
                }
                Fault::CountsTokensAnew => {
                    let renamed = self.renamed.lock().unwrap().remove(&number);
                    match renamed {
                        Some(number) => self.one(number, verdict).await,
                        None => Err(SettleError::Gone),
                    }
                }
                _ => self.one(number, verdict).await,
            };
            answers.push(answer);
        }
        if self.fault == Fault::AnswersOnce {
            answers.truncate(1);
        }
        answers
    }

    fn is_gone(&self) -> bool {
        self.settle.is_gone()
    }
}

/// A test that one fault is caught by cases, and by what they say.
macro_rules! caught {
    ($($name:ident: $fault:ident by $($case:ident $says:literal),+;)+) => {
        $(
            #[test]
            fn $name() {
                const FAULT: usize = Fault::$fault as usize;
                assert_eq!(FAULTS[FAULT], Fault::$fault);
                $(
                    // The same without the fault passes, or is not for this broker.
                    let right = run::<Wrong<0>>(Case::$case, module_path!());
                    assert!(!matches!(right, Outcome::Failed(_)), "{right:?}");
                    match run::<Wrong<FAULT>>(Case::$case, module_path!()) {
                        Outcome::Failed(why) => assert!(why.contains($says), "{why}"),
                        other => panic!("{:?} does not catch {:?}: {other:?}", Case::$case, Fault::$fault),
                    }
                )+
            }
        )+
    };
}

caught! {
    an_ack_at_delivery: AcksAtDelivery by
        Unsettled "`m-2` does not come",
        SuddenEnd "BeforeClaim: not within",
        NoGrace "not within";
    acks_that_are_never_sent: NeverAcks by
        Unsettled "was acked and came again",
        AckAfterCommit "10 acks; there are",
        LostAck "not within",
        FanOut "not within";
    hand_backs_that_are_acks: DropsHandBacks by
        HandedBack "`m-1` does not come",
        Retried "not within",
        Poison "not within",
        Grace "not within";
    delays_that_are_ignored: IgnoresDelays by
        Delayed "what comes while `m-1` waits";
    repetitions_that_are_dropped: DropsRepetitions by
        Unsettled "`m-2` does not come",
        Window "a second delivery of what takes too long";
    lost_messages: LosesOneInTen by
        TwoInboxes "not within",
        TenThousand "another ack";
    acks_of_all_before: AcksAllBefore by
        AnyOrder "Ack of";
    an_unknown_token_that_settles_another: AcksAnotherForWhatIsUnknown by
        SettledOnce "m-2";
    an_unknown_token_that_is_settled: IsContentWithAnyToken by
        SettledOnce "never given out";
    tokens_that_start_again: CountsTokensAnew by
        StaleTokens "does not come";
    more_than_the_prefetch: DeliversTooMuch by
        Prefetch "four of a prefetch of four",
        BackPressure "deliveries while none is settled: 5, not 4";
    a_wait_that_loses_a_delivery: LosesWhatIsDropped by
        DroppedWaits "dropping `next` lost them";
    deliveries_after_a_stop: GoesOnAfterStop by
        Stopped "it was stopped, and";
    acks_that_are_not_sent_after_a_stop: SettlesNothingAfterStop by
        Stopped "were acked after the stop";
    payloads_that_are_repaired: RepairsPayloads by
        Unchanged "the payload of `m-2`";
    headers_that_are_lost: LosesHeaders by
        Unchanged "a header of `m-0`";
    ids_that_are_made_up: InventsIds by
        OddIds "not within";
    losses_that_are_hidden: HidesLosses by
        Cut "the source opened again",
        Restart "not within",
        Crash "not within";
    a_counter_that_is_only_stated: DoesNotCount by
        Counted "earlier deliveries at the first one: None";
    a_lease_that_is_only_stated: DoesNotExtend by
        Lease "was given to another one";
    answers_that_are_missing: AnswersOnce by
        AnyOrder "1 answers to 3 verdicts";
}
