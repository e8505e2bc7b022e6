//! The framework beside the same work written by hand.
//!
//! `tests/bench/run` starts servers of its own, which wait for the disk, runs this, and stops them. Tables go to the
//! output, progress to the error output; `docs/benchmark.md` tells what is measured.

mod brokers;
mod by_hand;
mod chart;
mod database;
mod document;
mod framework;
mod idle;
mod messages;
mod network;
mod options;
mod pgbench;
mod preloaded;
mod progress;
mod results;
mod sqlite;
mod stopwatch;
mod variant;
mod workload;

use std::process::ExitCode;

use database::{Database, Path};
use document::Document;
use options::{Options, Part};
use workload::Work;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

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
    let mut database = Database::create().await?;
    let mut paths = Vec::new();
    paths.extend(options.direct.then_some(Path::Direct));
    paths.extend(options.delayed.then_some(Path::Delayed));
    let mut document = Document::default();
    conditions(&mut document, &database, options, &paths).await?;

    if options.has(Part::Messages) {
        document.section(
            "New messages",
            "By hand, held: a worker keeps its connection, so the pool is not asked for each message. Fence: the proof \
             before the commit that the transaction still is the one that claimed. Set-based: a statement for many \
             messages, which locks the rows in their order.",
        );
        for (path, concurrency) in each(&paths, &options.concurrency) {
            let table = messages::new_ones(&mut database, options, path, concurrency).await?;
            document.table(&table);
            if concurrency == options.main_concurrency() {
                document.chart(path, concurrency, table);
            }
        }
    }
    if options.has(Part::Duplicates) {
        document.section(
            "Duplicates only",
            "Every message was processed before. By hand: begin, claim, roll back. The framework also compares the payload \
             with that of the first delivery.",
        );
        for (path, concurrency) in each(&paths, &[options.main_concurrency()]) {
            let table = messages::duplicates(&mut database, options, path, concurrency).await?;
            document.table(&table);
        }
    }
    if options.has(Part::Sqlite) {
        document.section(
            "SQLite",
            "A file in WAL mode; one worker, as there is one writer.",
        );
        document.table(&sqlite::table(options).await?);
    }
    if options.has(Part::Idle) {
        document.section(
            "When idle",
            "One message at a time, with pauses, in turn to the framework and to the loop written by hand: from being \
             there to being acked. After a second without work a worker of the framework gives its connection back, so \
             the long pause shows what taking one costs.",
        );
        for path in &paths {
            for table in idle::tables(&mut database, options, *path).await? {
                document.table(&table);
            }
        }
    }
    if options.has(Part::Brokers) {
        document.section(
            "From a broker to PostgreSQL",
            "Messages that lie there, durable, consumed from the first ack until the last one. Afterwards nothing may be left. \
             By hand from Kafka, each worker reads a partition of its own and commits after each message, without waiting. Debian's \
             NATS does not wait for the disk; `NATS_SERVER_BIN` may name a current one, which does.",
        );
        document.table(&brokers::table::<brokers::RabbitMq>(&mut database, options).await?);
        document.table(&brokers::table::<brokers::Kafka>(&mut database, options).await?);
        document.table(&brokers::table::<brokers::Nats>(&mut database, options).await?);
    }
    if options.write_docs {
        document.write()?;
    }
    Ok(())
}

fn each(paths: &[Path], concurrency: &[usize]) -> impl Iterator<Item = (Path, usize)> {
    paths
        .iter()
        .flat_map(|path| concurrency.iter().map(|workers| (*path, *workers)))
}

/// What the figures depend on, and what shows that they are not those of the benchmark itself.
async fn conditions(
    document: &mut Document,
    database: &Database,
    options: &Options,
    paths: &[Path],
) -> Result<()> {
    let cores = std::thread::available_parallelism()?;
    document.condition(format!(
        "PostgreSQL {} with `fsync` and `synchronous_commit`; {cores} cores for clients and servers together.",
        database.version()
    ));
    document.condition(format!(
        "{} rounds; the base takes about {} s for a run.",
        options.rounds, options.seconds
    ));
    for path in paths {
        document.condition(format!(
            "{}: `SELECT 1` takes {:.3} ms (median of 500).",
            path.name(),
            database.round_trip(*path).await?.as_secs_f64() * 1e3
        ));
    }
    for (name, memory_broker) in [("in memory", false), ("in-memory broker", true)] {
        if memory_broker && !options.memory_broker {
            continue;
        }
        let taken = framework::source_alone(memory_broker, &Work::of(20_000)?).await?;
        document.condition(format!(
            "The framework's source ({name}) alone gives {:.0} messages/s, with {:.1} allocations for each.",
            taken.per_second(),
            taken.allocations.unwrap_or_default() as f64 / taken.messages as f64
        ));
    }
    Ok(())
}
