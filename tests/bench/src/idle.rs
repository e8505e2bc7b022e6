//! How long a single message takes when nothing else is in work: from the moment it is there until it is acked.
//!
//! The framework and the loop written by hand both run the whole time, each on its own channel, and get messages in
//! turn, one at a time, with pauses between.

use std::fmt;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use async_channel::{Receiver, Sender};
use async_trait::async_trait;
use inbox_runtime::{
    Assignment, Capabilities, Deliveries, Delivery, Envelope, IdSource, Settle, SettleError,
    SettleToken, Source, SourceError, Verdict,
};
use sqlx::PgPool;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::database::{Database, Path};
use crate::options::Options;
use crate::results::Spread;
use crate::workload::{Work, read};
use crate::{Result, by_hand, framework};

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
    let (short, long) = if options.quick { (200, 4) } else { (500, 12) };
    let mut tables = Vec::new();
    for (pause, rounds, messages) in [(SHORT_PAUSE, options.rounds, short), (LONG_PAUSE, 1, long)] {
        let title = format!(
            "Single messages, {}, one every {} ms",
            path.name(),
            pause.as_millis()
        );
        eprintln!("{title}");
        let mut table = Table {
            title,
            rounds: Vec::new(),
        };
        for round in 1..=rounds {
            eprintln!("  round {round} of {rounds}");
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
    let mut by_hand = ByHand::start(&pools[0]);
    let (ours, source) = Line::new();
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
                0 => by_hand.line.send(message).await?,
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
    by_hand.end().await?;
    for pool in pools {
        pool.close().await;
    }
    database.check(work.count()).await?;
    Ok(micros.map(Latencies::of))
}

/// Messages that wait for a worker, and the times of their acks.
struct Line {
    messages: Sender<Envelope>,
    acks: Receiver<Instant>,
}

/// The workers' end of it.
#[derive(Clone)]
struct WorkersEnd {
    messages: Receiver<Envelope>,
    acks: Sender<Instant>,
}

impl Line {
    fn new() -> (Self, WorkersEnd) {
        let (send_message, messages) = async_channel::unbounded();
        let (send_ack, acks) = async_channel::unbounded();
        let line = Self {
            messages: send_message,
            acks,
        };
        let workers = WorkersEnd {
            messages,
            acks: send_ack,
        };
        (line, workers)
    }

    /// How long it took.
    async fn send(&self, message: Envelope) -> Result<Duration> {
        let sent = Instant::now();
        self.messages.send(message).await?;
        let acked = tokio::time::timeout(Duration::from_secs(10), self.acks.recv()).await??;
        Ok(acked - sent)
    }
}

/// The loop written by hand, with the pool for each message.
struct ByHand {
    line: Line,
    workers: JoinSet<Result<()>>,
}

impl ByHand {
    fn start(pool: &PgPool) -> Self {
        let (line, end) = Line::new();
        let mut workers = JoinSet::new();
        for _ in 0..WORKERS {
            let (pool, end) = (pool.clone(), end.clone());
            workers.spawn(async move {
                while let Ok(message) = end.messages.recv().await {
                    let (id, order) = read(&message)?;
                    by_hand::process(&pool, id, &order).await?;
                    end.acks.send(Instant::now()).await?;
                }
                Ok(())
            });
        }
        Self { line, workers }
    }

    async fn end(&mut self) -> Result<()> {
        self.line.messages.close();
        while let Some(ended) = self.workers.join_next().await {
            ended??;
        }
        Ok(())
    }
}

#[async_trait]
impl Source for WorkersEnd {
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
        Ok(Assignment {
            deliveries: Box::new(self.clone()),
            settle: std::sync::Arc::new(self.clone()),
        })
    }
}

#[async_trait]
impl Deliveries for WorkersEnd {
    async fn next(&mut self) -> std::result::Result<Option<Delivery>, SourceError> {
        let message = self.messages.recv().await;
        let message = message.map_err(|_| SourceError::new("nothing more is sent"))?;
        Ok(Some(Delivery::new(message, SettleToken::new(0))))
    }
}

#[async_trait]
impl Settle for WorkersEnd {
    async fn settle(
        &self,
        verdicts: Vec<(SettleToken, Verdict)>,
    ) -> Vec<std::result::Result<(), SettleError>> {
        for (_, verdict) in &verdicts {
            // Anything else keeps the ack from coming, which is then the error.
            if *verdict == Verdict::Ack {
                let _ = self.acks.try_send(Instant::now());
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
