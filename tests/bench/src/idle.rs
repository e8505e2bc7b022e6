//! How long a single message takes when nothing else is in work: from the moment it is there until it is acked.
//!
//! The framework and the loop written by hand both run the whole time, each on its own channel, and get messages in
//! turn, one at a time, with pauses between.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use inbox_runtime::{
    Assignment, Capabilities, Deliveries, Delivery, Envelope, IdSource, Settle, SettleError,
    SettleToken, Source, SourceError, Verdict,
};
use sqlx::PgPool;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::database::{Database, Path};
use crate::options::Options;
use crate::results::Spread;
use crate::workload::{Work, read};
use crate::{Result, by_hand, framework, progress};

/// As many workers as the framework has out of the box.
const WORKERS: usize = 4;

/// Longer than a worker of the framework keeps a connection that it does not use.
const LONG_PAUSE: Duration = Duration::from_millis(1_500);
const SHORT_PAUSE: Duration = Duration::from_millis(5);

/// Latencies of one kind of pause.
#[derive(Debug)]
pub(crate) struct Table {
    title: String,
    /// By round: by hand, framework.
    rounds: Vec<[Latencies; 2]>,
}

/// Of single messages, in order of size, in microseconds.
#[derive(Debug)]
struct Latencies(Vec<f64>);

impl Latencies {
    fn of(mut micros: Vec<f64>) -> Self {
        micros.sort_by(f64::total_cmp);
        Self(micros)
    }

    /// The smallest that so many hundredths of them do not exceed.
    fn percentile(&self, hundredths: usize) -> f64 {
        let place = (self.0.len() * hundredths).div_ceil(100).max(1) - 1;
        self.0.get(place).copied().unwrap_or(f64::NAN)
    }
}

pub(crate) async fn tables(
    database: &mut Database,
    options: &Options,
    path: Path,
) -> Result<Vec<Table>> {
    let (short, long) = if options.quick { (150, 4) } else { (500, 8) };
    let mut tables = Vec::new();
    for (pause, rounds, messages) in [(SHORT_PAUSE, options.rounds, short), (LONG_PAUSE, 1, long)] {
        let title = format!(
            "Single messages, {}, one every {} ms",
            path.name(),
            pause.as_millis()
        );
        progress::tell(format_args!("{title}"));
        let mut table = Table {
            title,
            rounds: Vec::new(),
        };
        for round in 1..=rounds {
            progress::tell(format_args!("  round {round} of {rounds}"));
            table
                .rounds
                .push(round_of(database, path, pause, messages).await?);
        }
        tables.push(table);
    }
    Ok(tables)
}

async fn round_of(
    database: &mut Database,
    path: Path,
    pause: Duration,
    messages: usize,
) -> Result<[Latencies; 2]> {
    // The first ones find nothing prepared yet, on either side.
    const WARM_UP: usize = 2 * WORKERS;
    database.empty().await?;
    let connections = u32::try_from(WORKERS)? + 1;
    let work = Work::of(2 * (messages + WARM_UP))?;
    let pools = [
        database.pool(path, connections).await?,
        database.pool(path, connections).await?,
    ];
    let (mut by_hand, worker) = Line::new();
    let by_hand_runs = run_by_hand(&pools[0], worker);
    let (mut ours, worker) = Line::new();
    let source = OneByOne::of(worker);
    let inbox = framework::inbox(&pools[1], source, WORKERS, 1)
        .build()
        .await?;
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(inbox.run_until(async {
        let _ = stopped.await;
    }));

    let mut micros = [Vec::new(), Vec::new()];
    let mut done = 0;
    while let [one, other] = work.take_together(2) {
        // Each is as often the first of the two as the second.
        for index in [done % 2, (done + 1) % 2] {
            let pause = if done < WARM_UP { SHORT_PAUSE } else { pause };
            tokio::time::sleep(pause).await;
            let message = if index == 0 { one } else { other }.clone();
            let latency = match index {
                0 => by_hand.send(message).await?,
                _ => ours.send(message).await?,
            };
            if done >= WARM_UP {
                micros[index].push(latency.as_secs_f64() * 1e6);
            }
        }
        done += 1;
    }
    drop(stop);
    running.await?;
    drop(by_hand);
    by_hand_runs.await??;
    for pool in pools {
        pool.close().await;
    }
    database.check(work.count()).await?;
    Ok(micros.map(Latencies::of))
}

/// A way for messages, and the times of their acks.
struct Line {
    messages: UnboundedSender<Envelope>,
    acks: UnboundedReceiver<Instant>,
}

/// The other end of it.
struct WorkersEnd {
    messages: UnboundedReceiver<Envelope>,
    acks: UnboundedSender<Instant>,
}

impl Line {
    fn new() -> (Self, WorkersEnd) {
        let (send_message, messages) = unbounded_channel();
        let (send_ack, acks) = unbounded_channel();
        let line = Self {
            messages: send_message,
            acks,
        };
        let worker = WorkersEnd {
            messages,
            acks: send_ack,
        };
        (line, worker)
    }

    /// How long it took.
    async fn send(&mut self, message: Envelope) -> Result<Duration> {
        let sent = Instant::now();
        self.messages.send(message)?;
        let ack = tokio::time::timeout(Duration::from_secs(10), self.acks.recv()).await;
        let acked = ack?.ok_or("the consumer ended")?;
        Ok(acked - sent)
    }
}

/// The loop written by hand, with the pool for each message.
fn run_by_hand(pool: &PgPool, mut end: WorkersEnd) -> JoinHandle<Result<()>> {
    let pool = pool.clone();
    tokio::spawn(async move {
        while let Some(message) = end.messages.recv().await {
            let (id, order) = read(&message)?;
            by_hand::process(&pool, id, &order).await?;
            end.acks.send(Instant::now())?;
        }
        Ok(())
    })
}

/// The line as a source. It can be opened once.
struct OneByOne {
    messages: Mutex<Option<UnboundedReceiver<Envelope>>>,
    acks: UnboundedSender<Instant>,
}

impl OneByOne {
    fn of(end: WorkersEnd) -> Self {
        Self {
            messages: Mutex::new(Some(end.messages)),
            acks: end.acks,
        }
    }
}

#[async_trait]
impl Source for OneByOne {
    fn system(&self) -> &'static str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
    }

    fn id_sources(&self) -> Vec<IdSource> {
        vec![IdSource::Property]
    }

    async fn open(&self, _prefetch: NonZeroUsize) -> std::result::Result<Assignment, SourceError> {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let messages = messages.take();
        Ok(Assignment {
            deliveries: Box::new(Arriving(
                messages.ok_or_else(|| SourceError::new("it was open already"))?,
            )),
            settle: Arc::new(AckTimes(self.acks.clone())),
        })
    }
}

struct Arriving(UnboundedReceiver<Envelope>);

#[async_trait]
impl Deliveries for Arriving {
    async fn next(&mut self) -> std::result::Result<Option<Delivery>, SourceError> {
        let message = self.0.recv().await;
        let message = message.ok_or_else(|| SourceError::new("nothing more is sent"))?;
        Ok(Some(Delivery::new(message, SettleToken::new(0))))
    }
}

struct AckTimes(UnboundedSender<Instant>);

#[async_trait]
impl Settle for AckTimes {
    async fn settle(
        &self,
        verdicts: Vec<(SettleToken, Verdict)>,
    ) -> Vec<std::result::Result<(), SettleError>> {
        for (_, verdict) in &verdicts {
            // Anything else keeps the ack from coming, which is then the error.
            if *verdict == Verdict::Ack {
                let _ = self.0.send(Instant::now());
            }
        }
        verdicts.iter().map(|_| Ok(())).collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "### {}\n", self.title)?;
        writeln!(
            f,
            "| variant | messages | p50 us | p50 to by hand, min / median / max | p99 us | p99 to by hand, min / median / max |"
        )?;
        writeln!(f, "|---|---|---|---|---|---|")?;
        for (index, name) in ["by hand, pool", "framework"].into_iter().enumerate() {
            let of = |hundredths| {
                Spread::of(
                    self.rounds
                        .iter()
                        .map(|round| round[index].percentile(hundredths)),
                )
            };
            let ratio = |hundredths| {
                Spread::of(self.rounds.iter().map(|round| {
                    round[index].percentile(hundredths) / round[0].percentile(hundredths)
                }))
            };
            writeln!(
                f,
                "| {name} | {} | {:.0} | {} | {:.0} | {} |",
                self.rounds
                    .iter()
                    .map(|round| round[index].0.len())
                    .sum::<usize>(),
                of(50).median,
                ratio(50),
                of(99).median,
                ratio(99),
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let latencies = Latencies::of((1..=200).rev().map(f64::from).collect());
        assert_eq!(latencies.percentile(50), 100.0);
        assert_eq!(latencies.percentile(99), 198.0);
        assert_eq!(Latencies::of(vec![7.0]).percentile(99), 7.0);
    }
}
