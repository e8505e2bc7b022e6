//! The framework.

use std::future::pending;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use inbox_runtime::brokers::MemoryBroker;
use inbox_runtime::{
    Assignment, Capabilities, Deliveries, Delivery, HandlerError, IdSource, Inbox, MessageId,
    Settle, SettleError, SettleToken, Source, SourceError, Tx, Verdict, inbox_handler,
};
use sqlx::{PgPool, Postgres};
use tokio::sync::{Notify, oneshot};

use crate::Result;
use crate::stopwatch::{Pid, Stopwatch, Taken};
use crate::workload::{OrderPlaced, Work, book};

const QUEUE: &str = "orders";

#[inbox_handler(consumer = "bench")]
async fn charge(
    order: OrderPlaced,
    tx: &mut Tx<Postgres>,
    id: MessageId,
) -> std::result::Result<(), HandlerError> {
    book!(order, id.as_str(), tx);
    Ok(())
}

/// The source hands out what is in memory and counts the acks.
pub(crate) async fn preloaded(
    pool: &PgPool,
    work: &Arc<Work>,
    concurrency: usize,
    messages_per_transaction: Option<usize>,
    server: Pid,
) -> Result<Taken> {
    let source = Preloaded::new(work);
    let acks = Arc::clone(&source.acks);
    let together = messages_per_transaction;
    run(pool, source, concurrency, together, server, acks.all()).await
}

/// The source is the in-memory broker, which keeps books on every delivery.
pub(crate) async fn memory_broker(
    pool: &PgPool,
    work: &Arc<Work>,
    concurrency: usize,
    server: Pid,
) -> Result<Taken> {
    let broker = filled(work);
    run(
        pool,
        broker.source(QUEUE),
        concurrency,
        None,
        server,
        broker.until_idle(),
    )
    .await
}

async fn run(
    pool: &PgPool,
    source: impl Source,
    concurrency: usize,
    messages_per_transaction: Option<usize>,
    server: Pid,
    done: impl Future<Output = ()>,
) -> Result<Taken> {
    let mut builder = Inbox::builder(pool.clone())
        .source(QUEUE, source)
        .register(charge::handler())
        .concurrency(concurrency);
    if let Some(messages) = messages_per_transaction {
        builder = builder.messages_per_transaction(messages);
    }
    let inbox = builder.build().await?;
    let (stop, stopped) = oneshot::channel::<()>();
    let stopwatch = Stopwatch::start(server)?;
    let running = tokio::spawn(inbox.run_until(async {
        let _ = stopped.await;
    }));
    done.await;
    let taken = stopwatch.stop()?;
    drop(stop);
    running.await?;
    Ok(taken)
}

fn filled(work: &Work) -> MemoryBroker {
    let broker = MemoryBroker::new();
    for message in work.messages() {
        broker.publish(QUEUE, message.clone());
    }
    broker
}

/// What a source of the benchmark gives on its own: taken and acked one by one, with no inbox and no database.
pub(crate) async fn source_alone(
    memory_broker: bool,
    work: &Arc<Work>,
    server: Pid,
) -> Result<Taken> {
    let source: Box<dyn Source> = if memory_broker {
        Box::new(filled(work).source(QUEUE))
    } else {
        Box::new(Preloaded::new(work))
    };
    let mut assignment = source.open(NonZeroUsize::MIN).await?;
    let stopwatch = Stopwatch::start(server)?;
    for _ in 0..work.count() {
        let delivery = assignment
            .deliveries
            .next()
            .await?
            .ok_or("the source ended")?;
        for answer in assignment
            .settle
            .settle(vec![(delivery.token, Verdict::Ack)])
            .await
        {
            answer?;
        }
    }
    stopwatch.stop()
}

/// A source that costs next to nothing.
struct Preloaded {
    work: Arc<Work>,
    acks: Arc<Acks>,
}

impl Preloaded {
    fn new(work: &Arc<Work>) -> Self {
        Self {
            work: Arc::clone(work),
            acks: Arc::new(Acks {
                missing: AtomicUsize::new(work.count()),
                all: Notify::new(),
            }),
        }
    }
}

struct Acks {
    missing: AtomicUsize,
    all: Notify,
}

impl Acks {
    async fn all(&self) {
        self.all.notified().await;
    }
}

#[async_trait]
impl Source for Preloaded {
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
            deliveries: Box::new(InOrder(Arc::clone(&self.work))),
            settle: Arc::clone(&self.acks) as Arc<dyn Settle>,
        })
    }
}

struct InOrder(Arc<Work>);

#[async_trait]
impl Deliveries for InOrder {
    async fn next(&mut self) -> std::result::Result<Option<Delivery>, SourceError> {
        match self.0.take() {
            Some(message) => Ok(Some(Delivery::new(message.clone(), SettleToken::new(0)))),
            None => pending().await,
        }
    }
}

#[async_trait]
impl Settle for Acks {
    async fn settle(
        &self,
        verdicts: Vec<(SettleToken, Verdict)>,
    ) -> Vec<std::result::Result<(), SettleError>> {
        for (_, verdict) in &verdicts {
            // Anything else would be a message that was not processed: the run then never ends, and says so.
            if *verdict == Verdict::Ack && self.missing.fetch_sub(1, Ordering::Relaxed) == 1 {
                self.all.notify_one();
            }
        }
        verdicts.iter().map(|_| Ok(())).collect()
    }
}
