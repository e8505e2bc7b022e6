//! Messages per second of the framework in per-message mode beside the same work written by hand, on one PostgreSQL.
//!
//! `tests/bench/run` starts a server of its own that waits for the disk, runs this, and stops the server:
//!
//! ```text
//! tests/bench/run [--seconds 3] [--rounds 5] [--concurrency 1,4,16] [--memory-broker]
//! ```
//!
//! In each round every variant processes the same number of new messages (what the first one does in about
//! `--seconds`), one variant after the other, beginning with another one each round. A ratio is computed inside its
//! round against `by hand, pool`, so what else happens on the machine falls on both; the table has the smallest, the
//! median and the largest of them. After each run the tables must show exactly one effect per message.
//!
//! Ratios compare; messages per second are for orientation and belong to one machine.

mod by_hand;
mod framework;
mod options;
mod report;
mod stopwatch;
mod workload;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use options::Options;
use report::Results;
use sqlx::PgPool;
use stopwatch::{Pid, Taken};
use workload::{Database, Work};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// No run takes this much longer than it should; a message that is never acked must not hang the benchmark.
const PATIENCE: Duration = Duration::from_secs(60);

/// How the messages are processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variant {
    Pooled,
    Held,
    Session,
    /// One message per transaction.
    FrameworkAlone,
    /// Messages that wait share a transaction, as with one worker out of the box.
    Framework,
    FrameworkOnMemoryBroker,
}

impl Variant {
    const fn name(self) -> &'static str {
        match self {
            Self::Pooled => "by hand, pool",
            Self::Held => "by hand, held connection, fence",
            Self::Session => "the framework's statements, no runtime",
            Self::FrameworkAlone => "framework, one message per transaction",
            Self::Framework => "framework, shared transactions",
            Self::FrameworkOnMemoryBroker => "framework, in-memory broker",
        }
    }

    async fn run(
        self,
        pool: &PgPool,
        work: &Arc<Work>,
        concurrency: usize,
        server: Pid,
    ) -> Result<Taken> {
        match self {
            Self::Pooled => by_hand::pooled(pool, work, concurrency, server).await,
            Self::Held => by_hand::held(pool, work, concurrency, server).await,
            Self::Session => by_hand::session(pool, work, concurrency, server).await,
            Self::FrameworkAlone => {
                framework::preloaded(pool, work, concurrency, Some(1), server).await
            }
            Self::Framework => {
                framework::preloaded(pool, work, concurrency, Some(16), server).await
            }
            Self::FrameworkOnMemoryBroker => {
                framework::memory_broker(pool, work, concurrency, server).await
            }
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = match Options::from_arguments(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("error: {problem}");
            return ExitCode::from(2);
        }
    };
    match bench(&options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn bench(options: &Options) -> Result<()> {
    let mut variants = vec![
        Variant::Pooled,
        Variant::Held,
        Variant::Session,
        Variant::FrameworkAlone,
        Variant::Framework,
    ];
    if options.memory_broker {
        variants.push(Variant::FrameworkOnMemoryBroker);
    }
    let mut database = Database::create().await?;
    sources_alone(database.server()).await?;
    for &concurrency in &options.concurrency {
        let messages = calibrated(&mut database, concurrency, options.seconds).await?;
        let mut results = Results::new(&variants, messages);
        for round in 0..options.rounds {
            for place in 0..variants.len() {
                let index = (round + place) % variants.len();
                let taken = one_run(&mut database, variants[index], messages, concurrency).await?;
                results.add(index, taken);
            }
        }
        println!(
            "\n## Concurrency {concurrency}\n\nPool of {}, {} rounds of {messages} messages.\n\n{results}",
            concurrency + 1,
            options.rounds,
        );
    }
    Ok(())
}

/// One variant over new messages and empty tables, checked.
async fn one_run(
    database: &mut Database,
    variant: Variant,
    messages: usize,
    concurrency: usize,
) -> Result<Taken> {
    database.empty().await?;
    let work = Work::of(messages)?;
    let pool = database.pool(u32::try_from(concurrency)? + 1).await?;
    let run = variant.run(&pool, &work, concurrency, database.server());
    let taken = tokio::time::timeout(PATIENCE, run)
        .await
        .map_err(|_| format!("{}: not done after {PATIENCE:?}", variant.name()))??;
    pool.close().await;
    database
        .check(messages)
        .await
        .map_err(|error| format!("{}: {error}", variant.name()))?;
    Ok(taken)
}

/// How many messages the base does in that time; also warms everything up.
async fn calibrated(database: &mut Database, concurrency: usize, seconds: f64) -> Result<usize> {
    let mut messages = 200 * concurrency;
    let mut taken = one_run(database, Variant::Pooled, messages, concurrency).await?;
    messages = report::messages_in(seconds.min(1.0), messages, taken);
    taken = one_run(database, Variant::Pooled, messages, concurrency).await?;
    Ok(report::messages_in(seconds, messages, taken))
}

/// What the sources give without an inbox behind them: far more than a database takes, or the results are theirs.
async fn sources_alone(server: Pid) -> Result<()> {
    println!("## Sources alone\n\n| source | messages/s |\n|---|---|");
    for (name, memory_broker) in [("preloaded", false), ("in-memory broker", true)] {
        let work = Work::of(20_000)?;
        let taken = framework::source_alone(memory_broker, &work, server).await?;
        println!(
            "| {name} | {:.0} |",
            report::per_second(work.count(), taken.elapsed)
        );
    }
    Ok(())
}
