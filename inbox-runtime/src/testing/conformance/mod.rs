//! The suite that every broker adapter must pass.
//!
//! The macro [`suite!`] makes one test of each [`Case`]. It needs a [`Rig`]: how to make a queue, how to publish, and what else can be
//! done to the broker from outside. Handlers bill in a SQLite file, so nothing but the broker has to run. What is asserted
//! are the rows they wrote, the order of events, and what the broker has left.
//!
//! A case that a broker cannot have (a restart of one that lives in the process) is never left out in silence: its test
//! says on the standard error which case does not apply, and why; so does `which_cases_apply` for all of them, and
//! [`run_all`] for a program of your own.
//!
//! What an adapter promises is written at [`Source`](inbox_core::Source). Here is a whole one, for a queue in memory, with
//! its rig:
//!
//! ```
//! use std::collections::{BTreeMap, VecDeque};
//! use std::num::NonZeroUsize;
//! use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
//! use std::sync::{Arc, Mutex};
//!
//! use async_trait::async_trait;
//! use inbox_runtime::testing::conformance::{Ability, Case, Outcome, Rig, Setup, run, suite};
//! use inbox_runtime::{
//!     Assignment, BoxError, Capabilities, Deliveries, Delivery, Envelope, IdSource, Settle,
//!     SettleError, SettleToken, Source, SourceError, Verdict,
//! };
//! use tokio::sync::watch;
//!
//! /// The broker.
//! #[derive(Clone, Default)]
//! struct Tiny {
//!     ready: Arc<Mutex<VecDeque<Envelope>>>,
//!     unsettled: Arc<AtomicU64>,
//!     changed: watch::Sender<()>,
//! }
//!
//! #[async_trait]
//! impl Source for Tiny {
//!     fn system(&self) -> &'static str {
//!         "tiny"
//!     }
//!
//!     fn capabilities(&self) -> Capabilities {
//!         Capabilities::new().counts_hand_backs(false)
//!     }
//!
//!     fn id_sources(&self) -> Vec<IdSource> {
//!         vec![IdSource::Property]
//!     }
//!
//!     async fn open(&self, prefetch: NonZeroUsize) -> Result<Assignment, SourceError> {
//!         let place = Arc::new(Place {
//!             broker: self.clone(),
//!             prefetch: prefetch.get(),
//!             held: Mutex::default(),
//!             stopped: AtomicBool::new(false),
//!         });
//!         let deliveries = Box::new(TinyDeliveries(Arc::clone(&place)));
//!         Ok(Assignment { deliveries, settle: place })
//!     }
//! }
//!
//! /// An assignment: what it was given and has not settled, by the numbers of its tokens.
//! struct Place {
//!     broker: Tiny,
//!     prefetch: usize,
//!     held: Mutex<BTreeMap<u64, Envelope>>,
//!     stopped: AtomicBool,
//! }
//!
//! /// Of the whole process, so that no number means anything to another assignment.
//! static TOKENS: AtomicU64 = AtomicU64::new(0);
//!
//! impl Place {
//!     /// Takes and notes in one step: nothing is lost with a future that waits.
//!     fn take(&self) -> Option<Delivery> {
//!         let mut held = self.held.lock().unwrap();
//!         if held.len() == self.prefetch {
//!             return None;
//!         }
//!         let envelope = self.broker.ready.lock().unwrap().pop_front()?;
//!         let number = TOKENS.fetch_add(1, Ordering::Relaxed);
//!         held.insert(number, envelope.clone());
//!         self.broker.unsettled.fetch_add(1, Ordering::SeqCst);
//!         Some(Delivery::new(envelope, SettleToken::new(number)))
//!     }
//!
//!     fn end(&self, message: Envelope, verdict: Verdict) {
//!         if verdict != Verdict::Ack {
//!             self.broker.ready.lock().unwrap().push_front(message);
//!         }
//!         self.broker.unsettled.fetch_sub(1, Ordering::SeqCst);
//!         self.broker.changed.send_replace(());
//!     }
//! }
//!
//! /// What was not settled comes again.
//! impl Drop for Place {
//!     fn drop(&mut self) {
//!         for (_, message) in std::mem::take(&mut *self.held.lock().unwrap()).into_iter().rev() {
//!             self.end(message, Verdict::HandBack { delay: None });
//!         }
//!     }
//! }
//!
//! struct TinyDeliveries(Arc<Place>);
//!
//! #[async_trait]
//! impl Deliveries for TinyDeliveries {
//!     async fn next(&mut self) -> Result<Option<Delivery>, SourceError> {
//!         let mut changed = self.0.broker.changed.subscribe();
//!         loop {
//!             if self.0.stopped.load(Ordering::SeqCst) {
//!                 return Ok(None);
//!             }
//!             if let Some(delivery) = self.0.take() {
//!                 return Ok(Some(delivery));
//!             }
//!             let _ = changed.changed().await;
//!         }
//!     }
//!
//!     async fn stop(&mut self) {
//!         self.0.stopped.store(true, Ordering::SeqCst);
//!     }
//! }
//!
//! #[async_trait]
//! impl Settle for Place {
//!     async fn settle(&self, verdicts: Vec<(SettleToken, Verdict)>) -> Vec<Result<(), SettleError>> {
//!         let settle = |(token, verdict): (SettleToken, Verdict)| {
//!             let message = self.held.lock().unwrap().remove(&token.number());
//!             self.end(message.ok_or(SettleError::Gone)?, verdict);
//!             Ok(())
//!         };
//!         verdicts.into_iter().map(settle).collect()
//!     }
//! }
//!
//! /// A queue of one case.
//! struct TinyRig(Tiny);
//!
//! #[async_trait]
//! impl Rig for TinyRig {
//!     type Source = Tiny;
//!
//!     fn lacks(ability: Ability) -> Option<&'static str> {
//!         match ability {
//!             Ability::Count => None,
//!             Ability::ShortWindow => Some("the broker waits for a settle for ever"),
//!             _ => Some("the broker lives in the process, without connections"),
//!         }
//!     }
//!
//!     async fn fresh(_setup: Setup) -> Result<Self, BoxError> {
//!         Ok(Self(Tiny::default()))
//!     }
//!
//!     fn source(&self) -> Tiny {
//!         self.0.clone()
//!     }
//!
//!     async fn publish(&self, messages: &[Envelope]) -> Result<(), BoxError> {
//!         self.0.ready.lock().unwrap().extend(messages.iter().cloned());
//!         self.0.changed.send_replace(());
//!         Ok(())
//!     }
//!
//!     async fn left(&self) -> Result<u64, BoxError> {
//!         let ready = self.0.ready.lock().unwrap().len();
//!         Ok(u64::try_from(ready)? + self.0.unsettled.load(Ordering::SeqCst))
//!     }
//! }
//!
//! // One test of each case, where the adapter's tests are.
//! mod tiny {
//!     use super::*;
//!     suite!(TinyRig);
//! }
//!
//! fn main() {
//!     // The same by hand, without the cases that take longest.
//!     for case in Case::ALL {
//!         if matches!(case, Case::SuddenEnd | Case::TenThousand) {
//!             continue;
//!         }
//!         match run::<TinyRig>(*case, module_path!()) {
//!             Outcome::Failed(why) => panic!("{}: {why}", case.name()),
//!             outcome => println!("{}: {outcome:?}", case.name()),
//!         }
//!     }
//! }
//! ```

mod adapter;
mod cases;
mod ledger;
mod path;
mod process;
mod rig;
mod scene;
mod stage;

use std::fmt;
use std::io::Write as _;

use inbox_core::{BoxError, Capabilities, Source as _};

pub use rig::{Ability, Rig, Setup};

#[doc(inline)]
pub use crate::__conformance_suite as suite;

macro_rules! ensure {
    ($holds:expr, $($text:tt)+) => {
        if !$holds {
            return Err(format!($($text)+).into());
        }
    };
}

macro_rules! ensure_eq {
    ($found:expr, $expected:expr, $($text:tt)+) => {
        match ($found, $expected) {
            (found, expected) => {
                if found != expected {
                    let what = format!($($text)+);
                    return Err(format!("{what}: {found:?}, not {expected:?}").into());
                }
            }
        }
    };
}

use {ensure, ensure_eq};

/// The list of cases as an enum.
macro_rules! case_enum {
    ([] $($case:ident $name:ident $doc:literal;)+) => {
        /// A case of the suite.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Case {
            $(#[doc = $doc] $case,)+
        }

        impl Case {
            /// Every case.
            pub const ALL: &[Self] = &[$(Self::$case),+];

            /// The name of its test.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$case => stringify!($name),)+
                }
            }
        }
    };
}

crate::__conformance_cases! { [case_enum] }

impl Case {
    /// Why it does not apply; `None`: it does.
    fn exception<R: Rig>(self, capabilities: &Capabilities) -> Option<String> {
        let needed = match self {
            Self::Lease | Self::Window => Some(Ability::ShortWindow),
            Self::Killed | Self::Processes | Self::FourProcesses => Some(Ability::Processes),
            Self::Cut => Some(Ability::Cut),
            Self::Restart => Some(Ability::Restart),
            Self::Crash => Some(Ability::Crash),
            _ => None,
        };
        if let Some(reason) = needed.and_then(R::lacks) {
            return Some(reason.to_owned());
        }
        let missing = match self {
            Self::Delayed if capabilities.longest_delay.is_none() => "no native delays",
            Self::Counted if !capabilities.counts_deliveries => "no counter of deliveries",
            Self::Lease if capabilities.lease.is_none() => "no lease that the adapter extends",
            Self::Window if capabilities.settle_window.is_none() => "no settle window",
            _ => return None,
        };
        Some(format!("its source states {missing}"))
    }

    async fn run<R: Rig>(self, entry: &str) -> Result<(), BoxError> {
        match self {
            Self::Unchanged => adapter::arrives_unchanged::<R>().await,
            Self::Unsettled => adapter::unsettled_comes_again::<R>().await,
            Self::AnyOrder => adapter::any_order::<R>().await,
            Self::SettledOnce => adapter::settled_once::<R>().await,
            Self::StaleTokens => adapter::stale_tokens::<R>().await,
            Self::HandedBack => adapter::handed_back::<R>().await,
            Self::Delayed => adapter::handed_back_with_a_delay::<R>().await,
            Self::Counted => adapter::counted::<R>().await,
            Self::Prefetch => adapter::within_the_prefetch::<R>().await,
            Self::DroppedWaits => adapter::dropped_waits::<R>().await,
            Self::Stopped => adapter::stopped::<R>().await,
            Self::Lease => adapter::kept_beyond_its_lease::<R>().await,
            Self::AckAfterCommit => path::ack_after_commit::<R>().await,
            Self::LostAck => path::lost_ack::<R>().await,
            Self::SuddenEnd => path::sudden_end::<R>().await,
            Self::Killed => path::killed::<R>(entry).await,
            Self::Processes => path::processes_share::<R>(entry, 2).await,
            Self::FourProcesses => path::processes_share::<R>(entry, 4).await,
            Self::Window => path::beyond_the_window::<R>().await,
            Self::Retried => path::retried::<R>().await,
            Self::Poison => path::poison::<R>().await,
            Self::BackPressure => path::back_pressure::<R>().await,
            Self::Grace => path::shut_down::<R>(true).await,
            Self::NoGrace => path::shut_down::<R>(false).await,
            Self::Cut => path::cut::<R>().await,
            Self::Restart => path::broker_ends::<R>(true).await,
            Self::Crash => path::broker_ends::<R>(false).await,
            Self::FanOut => path::fan_out::<R>().await,
            Self::OddIds => path::odd_ids::<R>().await,
            Self::TwoInboxes => path::two_inboxes::<R>().await,
            Self::TenThousand => path::ten_thousand::<R>().await,
        }
    }
}

/// What became of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The adapter does what it promises.
    Passed,
    /// There is nothing to prove here, for this reason.
    DoesNotApply(String),
    /// It does not.
    Failed(String),
}

/// What became of each case.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The messaging system.
    pub system: String,
    /// The cases, in their order.
    pub outcomes: Vec<(Case, Outcome)>,
}

impl Report {
    /// Whether no case failed.
    #[must_use]
    pub fn is_passed(&self) -> bool {
        let failed = |(_, outcome): &(Case, Outcome)| matches!(outcome, Outcome::Failed(_));
        !self.outcomes.iter().any(failed)
    }
}

/// A table in Markdown.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| case | {} |\n|---|---|", self.system)?;
        for (case, outcome) in &self.outcomes {
            match outcome {
                Outcome::Passed => writeln!(f, "| {} | passed |", case.name())?,
                Outcome::DoesNotApply(why) => {
                    writeln!(f, "| {} | does not apply: {why} |", case.name())?;
                }
                Outcome::Failed(why) => writeln!(f, "| {} | FAILED: {why} |", case.name())?,
            }
        }
        Ok(())
    }
}

/// Runs one case. `entry` is the path of the module in which [`suite!`] stands (`module_path!()`): processes of their own
/// begin at its test `consumer_process`.
///
/// Makes a tokio runtime of its own, and must not be called within one.
#[must_use]
pub fn run<R: Rig>(case: Case, entry: &str) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return Outcome::Failed(format!("no runtime: {error}")),
    };
    let outcome = runtime.block_on(async {
        match exception::<R>(case).await {
            Err(error) => Outcome::Failed(error.to_string()),
            Ok(Some(why)) => Outcome::DoesNotApply(why),
            Ok(None) => match case.run::<R>(entry).await {
                Ok(()) => Outcome::Passed,
                Err(error) => Outcome::Failed(with_causes(&*error)),
            },
        }
    });
    // A failed case leaves behind what may never end.
    runtime.shutdown_background();
    outcome
}

/// Why a case does not apply, by the rig and by what its source states.
async fn exception<R: Rig>(case: Case) -> Result<Option<String>, BoxError> {
    let setup = match case {
        Case::Lease | Case::Window if R::lacks(Ability::ShortWindow).is_none() => {
            Setup::ShortWindow
        }
        Case::Delayed | Case::Counted => Setup::Shared,
        _ => return Ok(case.exception::<R>(&Capabilities::new())),
    };
    let rig = R::fresh(setup).await?;
    Ok(case.exception::<R>(&rig.source().capabilities()))
}

/// Runs every case, one after another. `entry` as for [`run`].
#[must_use]
pub fn run_all<R: Rig>(entry: &str) -> Report {
    let outcomes = Case::ALL.iter().map(|case| (*case, run::<R>(*case, entry)));
    Report {
        system: name_of::<R>(),
        outcomes: outcomes.collect(),
    }
}

/// The rig's own name, without its path.
fn name_of<R>() -> String {
    let name = std::any::type_name::<R>();
    let is_path = |part: &&str| part.contains("::");
    let parts = name.split_inclusive(['<', ',', ' ']);
    parts
        .map(|part| {
            if is_path(&part) {
                part.rsplit("::").next().unwrap_or(part)
            } else {
                part
            }
        })
        .collect()
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Says a line where no test program keeps it to itself.
fn say(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// The body of a test of [`suite!`].
///
/// # Panics
///
/// When the case fails.
#[doc(hidden)]
#[track_caller]
pub fn test<R: Rig>(case: Case, entry: &str) {
    match run::<R>(case, entry) {
        Outcome::Passed => {}
        Outcome::DoesNotApply(why) => {
            say(&format!(
                "{}: {} does not apply: {why}",
                name_of::<R>(),
                case.name()
            ));
        }
        Outcome::Failed(why) => panic!("{}: {}: {why}", name_of::<R>(), case.name()),
    }
}

/// The body of the test `which_cases_apply` of [`suite!`].
///
/// # Panics
///
/// When the rig cannot be asked.
#[doc(hidden)]
pub fn tell<R: Rig>() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    let told = runtime.map_err(BoxError::from).and_then(|runtime| {
        runtime.block_on(async {
            let mut told = String::new();
            for case in Case::ALL {
                let applies = match exception::<R>(*case).await? {
                    None => "applies".to_owned(),
                    Some(why) => format!("does not apply: {why}"),
                };
                told.push_str(&format!("| {} | {applies} |\n", case.name()));
            }
            if let Some(why) = R::lacks(Ability::Count) {
                told.push_str(&format!("What the broker has left is not counted: {why}\n"));
            }
            Ok(told)
        })
    });
    match told {
        Ok(told) => say(&format!("| case | {} |\n|---|---|\n{told}", name_of::<R>())),
        Err(error) => panic!("{}: {error}", name_of::<R>()),
    }
}

/// The body of the test `consumer_process` of [`suite!`].
///
/// # Panics
///
/// When the process cannot consume.
#[doc(hidden)]
pub fn consumer_process<R: Rig>() {
    if let Err(error) = process::consume::<R>() {
        panic!("{}: {}", name_of::<R>(), with_causes(&*error));
    }
}
