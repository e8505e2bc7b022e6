//! The framework.

use std::num::NonZeroUsize;
use std::sync::Arc;

use inbox_runtime::brokers::MemoryBroker;
use inbox_runtime::{
    Batch, HandlerError, Inbox, InboxBuilder, MessageId, Source, Tx, Verdict, inbox_handler,
};
use sqlx::{PgPool, Postgres};
use tokio::sync::oneshot;

use crate::Result;
use crate::preloaded::Preloaded;
use crate::stopwatch::{Pid, Stopwatch, Taken};
use crate::variant::Setting;
use crate::workload::{OrderPlaced, Work, book, book_together};

const QUEUE: &str = "orders";

/// How many messages share a transaction, where they do.
pub(crate) const SHARED: usize = 16;

#[inbox_handler(consumer = "bench")]
async fn charge(
    order: OrderPlaced,
    tx: &mut Tx<Postgres>,
    id: MessageId,
) -> std::result::Result<(), HandlerError> {
    book!(order, id.as_str(), tx);
    Ok(())
}

/// The same for messages that are ordered by their account, and so by the row that they change.
#[inbox_handler(consumer = "bench", order_by = "payload:/account")]
async fn charge_in_order(
    order: OrderPlaced,
    tx: &mut Tx<Postgres>,
    id: MessageId,
) -> std::result::Result<(), HandlerError> {
    charge(order, tx, id).await
}

/// The same for many messages, with statements for all of them.
#[inbox_handler(consumer = "bench", batch(max = 100))]
async fn post(
    orders: Batch<OrderPlaced>,
    tx: &mut Tx<Postgres>,
) -> std::result::Result<(), sqlx::Error> {
    let orders: Vec<(&str, &OrderPlaced)> = orders
        .iter()
        .map(|order| (order.id().as_str(), &**order))
        .collect();
    book_together(&orders, tx).await
}

/// An inbox with the ordinary handler.
pub(crate) fn inbox(
    pool: &PgPool,
    source: impl Source,
    concurrency: usize,
    messages_per_transaction: usize,
) -> InboxBuilder<Postgres> {
    Inbox::builder(pool.clone())
        .source(QUEUE, source)
        .register(charge::handler())
        .concurrency(concurrency)
        .messages_per_transaction(messages_per_transaction)
}

/// How the messages are processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// So many messages may share a transaction, whichever rows they change.
    Together(usize),
    /// Each message has a transaction of its own, and is acked after a flush for many.
    Flushing,
    /// Messages of one account go to one worker, and may share a transaction.
    InOrder,
    /// The handler takes batches.
    Batches,
}

/// The source is what costs least.
pub(crate) async fn preloaded(setting: &Setting, mode: Mode) -> Result<Taken> {
    let source = Preloaded::new(&setting.work);
    let acks = source.acks();
    let builder = match mode {
        Mode::Together(messages) => inbox(&setting.pool, source, setting.concurrency, messages),
        Mode::Flushing => inbox(&setting.pool, source, setting.concurrency, 1).ack_after_flush(),
        Mode::InOrder | Mode::Batches => {
            let builder = Inbox::builder(setting.pool.clone())
                .source(QUEUE, source)
                .concurrency(setting.concurrency);
            if mode == Mode::InOrder {
                builder.register(charge_in_order::handler())
            } else {
                builder.register(post::handler())
            }
        }
    };
    let inbox = builder.build().await?;
    run(inbox, &setting.work, Some(setting.server), acks.all()).await
}

/// The source is the in-memory broker, which keeps books on every delivery.
pub(crate) async fn memory_broker(setting: &Setting) -> Result<Taken> {
    let broker = filled(&setting.work);
    let inbox = inbox(&setting.pool, broker.source(QUEUE), setting.concurrency, 1)
        .build()
        .await?;
    let done = broker.until_idle();
    run(inbox, &setting.work, Some(setting.server), done).await
}

/// Runs it until `done`, and takes the time.
pub(crate) async fn run<Db: inbox_core::InboxDatabase>(
    inbox: Inbox<Db>,
    work: &Work,
    server: Option<Pid>,
    done: impl Future<Output = ()>,
) -> Result<Taken> {
    let (stop, stopped) = oneshot::channel::<()>();
    let stopwatch = Stopwatch::start(server)?;
    let running = tokio::spawn(inbox.run_until(async {
        let _ = stopped.await;
    }));
    done.await;
    let taken = stopwatch.stop(work.count())?;
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
pub(crate) async fn source_alone(memory_broker: bool, work: &Arc<Work>) -> Result<Taken> {
    let source: Box<dyn Source> = if memory_broker {
        Box::new(filled(work).source(QUEUE))
    } else {
        Box::new(Preloaded::new(work))
    };
    let mut assignment = source.open(NonZeroUsize::MIN).await?;
    let stopwatch = Stopwatch::start(None)?;
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
    stopwatch.stop(work.count())
}
