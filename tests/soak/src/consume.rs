//! The consumer process: two inboxes with a handler for each way of dispatch.
//!
//! It tells its [`Tally`] on its output. The end of its input is the signal to shut down.

use std::fs::OpenOptions;
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{FutureExt as _, Shared};
use inbox_guarantees::child::{die, say};
use inbox_guarantees::recorded::{Record, Recorded};
use inbox_guarantees::{OrderPlaced, bill, on_each_database, sqlite_pool};
use inbox_runtime::brokers::RabbitMq;
use inbox_runtime::testing::Step;
use inbox_runtime::{
    Attempt, Batch, HandlerError, Inbox, InboxBuilder, InboxDatabase, MessageId, RetryPolicy,
    Source, Tx, inbox_handler,
};
use serde::{Deserialize, Serialize};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::oneshot;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{EnvFilter, filter_fn};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::database::Engine;
use crate::message::{Act, PLACES, Task};
use crate::tally::{self, Tally};

/// How often the tally is told, when it has changed.
const TELLS: Duration = Duration::from_millis(50);

/// How long handlers get at a shutdown.
const GRACE: Duration = Duration::from_secs(5);

/// What a process is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Duty {
    pub(crate) engine: Engine,
    /// The database's address, or the path of its file.
    pub(crate) database: String,
    pub(crate) amqp: String,
    /// The queues of [`PLACES`], in their order.
    pub(crate) queues: Vec<String>,
    pub(crate) seed: u64,
    /// Die by SIGKILL at this step of the path, counted over all messages.
    pub(crate) dies_at: Option<u32>,
    /// Where the log goes, behind what is there.
    pub(crate) log_file: PathBuf,
    /// What is logged, as `RUST_LOG` has it.
    pub(crate) log: String,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The signal to shut down, for several.
type Stop = Shared<oneshot::Receiver<()>>;

/// What all of this process shares.
struct Process {
    duty: Duty,
    /// Steps reached.
    steps: AtomicU32,
    records: Mutex<Vec<Record>>,
}

impl Process {
    /// The source of [`PLACES`] with this index.
    fn source(&self, place: usize) -> impl Source + use<> {
        let queue = &self.duty.queues[place];
        let (source, record) = Recorded::new(RabbitMq::new(&self.duty.amqp).queue(queue));
        self.records().push(record);
        source
    }

    fn records(&self) -> std::sync::MutexGuard<'_, Vec<Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tally(&self) -> Tally {
        let redelivered: usize = self.records().iter().map(Record::redelivered).sum();
        Tally {
            redelivered: u64::try_from(redelivered).unwrap_or(u64::MAX),
            ..tally::of_this_process()
        }
    }

    fn tell(&self, tally: &Tally) {
        if let Ok(json) = serde_json::to_string(tally) {
            say(format_args!("{json}"));
        }
    }

    /// What both inboxes have in common.
    fn configure<Db: InboxDatabase>(
        self: &Arc<Self>,
        builder: InboxBuilder<Db>,
    ) -> InboxBuilder<Db> {
        let process = Arc::clone(self);
        builder
            .grace(GRACE)
            .retry(
                RetryPolicy::default()
                    .first_delay(Duration::from_millis(30))
                    .longest_delay(Duration::from_millis(500)),
            )
            // Longer delays are waited for in the database. Whoever stands still for long loses what he took from there.
            .longest_hold(Duration::from_millis(300))
            .poll_interval(Duration::from_millis(200))
            .lease(Duration::from_secs(3))
            // Those that always fail may be the last ones left.
            .broken_after(u32::MAX)
            .on_step(move |step, id| process.reach(step, id))
    }

    fn reach(&self, step: Step, id: &str) {
        let reached = self.steps.fetch_add(1, Ordering::Relaxed) + 1;
        if self.duty.dies_at == Some(reached) {
            self.tell(&self.tally());
            tracing::info!(?step, id, "dying");
            die();
        }
    }
}

on_each_database! {
    async fn perform(
        consumer: &str,
        task: &Task,
        id: &MessageId,
        attempt: Option<u32>,
        tx: &mut Tx<Db>,
    ) -> Result<(), HandlerError> {
        task.act.begin().await;
        let booking: OrderPlaced = task.booking(consumer);
        if task.act == Act::Undo {
            let mut undone = tx.savepoint().await?;
            bill!(Db, booking, id, undone);
            undone.rollback().await?;
        }
        bill!(Db, booking, id, tx);
        task.act.end(attempt)
    }

    #[inbox_handler(consumer = "billing", max_attempts = 8, on = "Task", from = "orders")]
    async fn billing(task: Task, tx: &mut Tx<Db>, id: MessageId, attempt: Attempt) -> Result<(), HandlerError> {
        perform("billing", &task, &id, Some(attempt.0), tx).await
    }

    #[inbox_handler(consumer = "audit", max_attempts = 8, on = "Task", from = "orders")]
    async fn audit(task: Task, tx: &mut Tx<Db>, id: MessageId, attempt: Attempt) -> Result<(), HandlerError> {
        perform("audit", &task, &id, Some(attempt.0), tx).await
    }

    #[inbox_handler(consumer = "refunding", max_attempts = 8, on = "Task", from = "refunds", own_transaction = true)]
    async fn refunding(task: Task, tx: &mut Tx<Db>, id: MessageId, attempt: Attempt) -> Result<(), HandlerError> {
        perform("refunding", &task, &id, Some(attempt.0), tx).await
    }

    #[inbox_handler(consumer = "bookkeeping", max_attempts = 8, on = "Task", from = "payments", order_by = "payload:/account")]
    async fn bookkeeping(task: Task, tx: &mut Tx<Db>, id: MessageId, attempt: Attempt) -> Result<(), HandlerError> {
        perform("bookkeeping", &task, &id, Some(attempt.0), tx).await
    }

    #[inbox_handler(consumer = "metering", max_attempts = 8, on = "Task", from = "readings")]
    async fn metering(task: Task, tx: &mut Tx<Db>, id: MessageId, attempt: Attempt) -> Result<(), HandlerError> {
        perform("metering", &task, &id, Some(attempt.0), tx).await
    }

    #[inbox_handler(consumer = "statistics", max_attempts = 8, on = "Task", from = "events", batch(max = 10, linger = "5ms"))]
    async fn statistics(mut tasks: Batch<Task>, tx: &mut Tx<Db>) -> Result<(), HandlerError> {
        // In the order of the rows that two batches have in common.
        tasks.as_mut_slice().sort_by(|one, other| one.order.account.cmp(&other.order.account));
        for task in &tasks {
            perform("statistics", task, task.id(), None, tx).await?;
        }
        Ok(())
    }

    #[inbox_handler(consumer = "clearing", max_attempts = 8, on = "Task", from = "transfers")]
    async fn clearing(task: Task, tx: &mut Tx<Db>, id: MessageId, attempt: Attempt) -> Result<(), HandlerError> {
        perform("clearing", &task, &id, Some(attempt.0), tx).await
    }

    /// Some of its messages end the process.
    #[inbox_handler(consumer = "peril", max_attempts = 3, on = "Task", from = "perils")]
    async fn peril(task: Task, tx: &mut Tx<Db>, id: MessageId, attempt: Attempt) -> Result<(), HandlerError> {
        perform("peril", &task, &id, Some(attempt.0), tx).await
    }

    pub(super) async fn run(pool: sqlx::Pool<Db>, process: Arc<Process>, stop: Stop) {
        let several = async {
            let mut builder = Inbox::builder(pool.clone());
            for (index, place) in PLACES.iter().enumerate().filter(|(_, place)| place.name != "transfers") {
                builder = builder.source(place.name, process.source(index));
            }
            process
                .configure(builder)
                .register(billing::handler())
                .register(audit::handler())
                .register(refunding::handler())
                .register(bookkeeping::handler())
                .register(metering::handler())
                .register(statistics::handler())
                .register(peril::handler())
                .messages_per_transaction(8)
                .share_at_once()
                .prefetch(24)
                .build()
                .await
        };
        let flushed = async {
            let mut builder = Inbox::builder(pool.clone());
            for (index, place) in PLACES.iter().enumerate().filter(|(_, place)| place.name == "transfers") {
                builder = builder.source(place.name, process.source(index));
            }
            let builder = process.configure(builder).register(clearing::handler());
            if <Db as InboxDatabase>::COMMITS_ASYNCHRONOUSLY {
                builder.concurrency(2).ack_after_flush().build().await
            } else {
                builder.build().await
            }
        };
        match tokio::try_join!(several, flushed) {
            Ok((several, flushed)) => {
                let until = |stop: Stop| async { let _ = stop.await; };
                tokio::join!(several.run_until(until(stop.clone())), flushed.run_until(until(stop)));
            }
            Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "not built"),
        }
    }
}

/// The process, from its start to its orderly end.
pub(crate) fn consume(duty: &str) -> Result<(), Failure> {
    let duty: Duty = serde_json::from_str(duty)?;
    fastrand::seed(duty.seed);
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&duty.log_file)?;
    let pid = std::process::id();
    tracing_subscriber::registry()
        .with(
            tracing_subscriber::fmt::layer()
                .with_ansi(false)
                .with_thread_names(true)
                .with_writer(Arc::new(log))
                .with_filter(EnvFilter::try_new(&duty.log)?),
        )
        .with(tally::Counting.with_filter(filter_fn(|event| {
            event.target().starts_with("inbox_runtime") && *event.level() <= LevelFilter::DEBUG
        })))
        .init();
    std::panic::set_hook(Box::new(move |panic| {
        tracing::warn!(pid, %panic, "a panic");
    }));
    tracing::info!(pid, dies_at = duty.dies_at, "a consumer starts");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        // It stands in every line of the log, which several processes write.
        .thread_name(pid.to_string())
        .enable_all()
        .build()?;
    runtime.block_on(work(Arc::new(Process {
        duty,
        steps: AtomicU32::new(0),
        records: Mutex::default(),
    })))
}

async fn work(process: Arc<Process>) -> Result<(), Failure> {
    let stop = until_told().shared();
    let telling = tokio::spawn({
        let process = Arc::clone(&process);
        async move {
            let mut told = Tally::default();
            loop {
                tokio::time::sleep(TELLS).await;
                let tally = process.tally();
                if tally != told {
                    process.tell(&tally);
                    told = tally;
                }
            }
        }
    });
    // It starts anew for as long as its servers are not there.
    while stop.clone().now_or_never().is_none() {
        let stop = stop.clone();
        let process = Arc::clone(&process);
        match process.duty.engine {
            Engine::Postgres => {
                let options = PgPoolOptions::new()
                    .max_connections(8)
                    .acquire_timeout(Duration::from_secs(5));
                postgres::run(options.connect_lazy(&process.duty.database)?, process, stop).await;
            }
            Engine::MySql => {
                let options = MySqlPoolOptions::new()
                    .max_connections(8)
                    .acquire_timeout(Duration::from_secs(5));
                mysql::run(options.connect_lazy(&process.duty.database)?, process, stop).await;
            }
            Engine::Sqlite => {
                let pool = sqlite_pool(process.duty.database.as_ref(), 4).await;
                sqlite::run(pool, process, stop).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    telling.abort();
    process.tell(&process.tally());
    Ok(())
}

/// Completes with the end of the input.
fn until_told() -> oneshot::Receiver<()> {
    let (tell, told) = oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        let _ = tell.send(());
    });
    told
}
