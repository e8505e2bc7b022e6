//! Consumer processes, and their deaths.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use inbox_guarantees::child::Consumer;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::consume::Duty;
use crate::counts::Counts;
use crate::tally::Tally;

/// How a process ends. Each `after` counts from its start.
#[derive(Debug, Clone, Copy)]
enum Ending {
    /// By SIGKILL.
    Kill { after: Duration },
    /// By SIGKILL of its own, at a step of the path; after a long time anyway.
    AtStep { step: u32 },
    /// In an orderly way.
    ShutDown { after: Duration },
    /// It stands still for a while, and goes on until it is killed.
    Freeze { after: Duration, time: Duration },
}

impl Ending {
    /// The longest life of a process that waits for a step.
    const LONGEST: Duration = Duration::from_secs(8);

    fn random(rng: &mut Rng) -> Self {
        let mut within = |least, most| Duration::from_millis(rng.u64(least..most));
        let after = within(150, 4_000);
        let time = within(300, 3_000);
        match rng.u32(..100) {
            0..40 => Self::Kill { after },
            40..75 => Self::AtStep {
                step: rng.u32(1..400),
            },
            75..90 => Self::ShutDown { after },
            _ => Self::Freeze { after, time },
        }
    }
}

/// Starts processes with the same duty.
#[derive(Clone)]
pub(crate) struct Fleet {
    program: PathBuf,
    duty: Duty,
    counts: Arc<Counts>,
    /// Whether messages may end a process.
    killers: bool,
}

/// A process, and what it has told.
struct Member {
    consumer: Consumer,
    told: Tally,
}

impl Fleet {
    pub(crate) fn new(duty: Duty, counts: Arc<Counts>, killers: bool) -> Self {
        Self {
            program: std::env::current_exe().expect("this program has no path"),
            duty,
            counts,
            killers,
        }
    }

    /// Where its processes log to.
    pub(crate) fn log_file(&self) -> &Path {
        &self.duty.log_file
    }

    /// Lets one process after another live and die, until `end`.
    pub(crate) async fn live_and_die(self, mut rng: Rng, mut end: watch::Receiver<bool>) {
        while !*end.borrow() {
            let ending = Ending::random(&mut rng);
            let dies_at = match ending {
                Ending::AtStep { step } => Some(step),
                _ => None,
            };
            let mut member = self.start(rng.u64(..), dies_at);
            let until = Instant::now()
                + match ending {
                    Ending::Kill { after }
                    | Ending::ShutDown { after }
                    | Ending::Freeze { after, .. } => after,
                    Ending::AtStep { .. } => Ending::LONGEST,
                };
            if self.until(&mut member, until, &mut end).await.is_dead() {
                self.bury(member, dies_at.is_some()).await;
            } else {
                match ending {
                    Ending::ShutDown { .. } => self.shut_down(member).await,
                    Ending::Freeze { time, .. } => {
                        self.counts.now().freezes += 1;
                        member.consumer.pause();
                        tokio::time::sleep(time).await;
                        member.consumer.resume();
                        // What it held may have gone to others meanwhile.
                        let until = Instant::now() + Duration::from_millis(rng.u64(0..1_500));
                        if self.until(&mut member, until, &mut end).await.is_dead() {
                            self.bury(member, false).await;
                        } else {
                            self.kill(member).await;
                        }
                    }
                    Ending::Kill { .. } | Ending::AtStep { .. } => self.kill(member).await,
                }
            }
            tokio::time::sleep(Duration::from_millis(rng.u64(0..300))).await;
        }
    }

    /// Lets a process live until `end`, then stops it in an orderly way. Another one takes its place when a message
    /// ends it.
    pub(crate) async fn live(self, mut end: watch::Receiver<bool>) {
        let far = Instant::now() + Duration::from_secs(365 * 24 * 3600);
        loop {
            let mut member = self.start(fastrand::u64(..), None);
            if self.until(&mut member, far, &mut end).await.is_dead() {
                self.bury(member, false).await;
            } else {
                return self.shut_down(member).await;
            }
        }
    }

    fn start(&self, seed: u64, dies_at: Option<u32>) -> Member {
        let duty = Duty {
            seed,
            dies_at,
            ..self.duty.clone()
        };
        Member {
            consumer: Consumer::start(&self.program, &duty),
            told: Tally::default(),
        }
    }

    /// Hears a process until it is dead, or until a moment, or until `end`.
    async fn until(
        &self,
        member: &mut Member,
        moment: Instant,
        end: &mut watch::Receiver<bool>,
    ) -> Heard {
        loop {
            tokio::select! {
                line = member.consumer.next_line() => match line {
                    Some(line) => self.hear(&mut member.told, &line),
                    None => return Heard::TheLast,
                },
                () = tokio::time::sleep_until(moment) => return Heard::Enough,
                _ = end.wait_for(|end| *end) => return Heard::Enough,
            }
        }
    }

    fn hear(&self, told: &mut Tally, line: &str) {
        if let Ok(tally) = serde_json::from_str::<Tally>(line) {
            self.counts.now().tally.add(&tally.since(told));
            *told = tally;
        }
    }

    async fn kill(&self, member: Member) {
        self.counts.now().kills += 1;
        member.consumer.kill().await;
    }

    async fn shut_down(&self, mut member: Member) {
        self.counts.now().shutdowns += 1;
        for line in member.consumer.stop().await {
            self.hear(&mut member.told, &line);
        }
    }

    /// After a death that nobody ordered from outside.
    async fn bury(&self, mut member: Member, may_kill_itself: bool) {
        let (status, said) = member.consumer.ended().await;
        for line in said {
            self.hear(&mut member.told, &line);
        }
        let mut counts = self.counts.now();
        match status.signal() {
            Some(9) if may_kill_itself => counts.kills += 1,
            Some(6) if self.killers => counts.aborts += 1,
            _ => counts
                .surprises
                .push(format!("a consumer process ended with {status}")),
        }
    }
}

/// Why nothing more is heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    TheLast,
    Enough,
}

impl Heard {
    fn is_dead(self) -> bool {
        self == Self::TheLast
    }
}
