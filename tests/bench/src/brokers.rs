//! From a broker into PostgreSQL: messages that lie there, durable, are consumed until all are acked.

mod kafka;
mod nats;
mod rabbitmq;

use std::borrow::Cow;
use std::num::NonZeroUsize;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use inbox_runtime::{
    Assignment, Capabilities, Envelope, IdSource, Learned, Needs, Publisher, Settle, SettleError,
    SettleToken, Source, SourceError, Verdict,
};
use sqlx::PgPool;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

pub(crate) use self::kafka::Kafka;
pub(crate) use self::nats::Nats;
pub(crate) use self::rabbitmq::RabbitMq;
use crate::database::{Database, Path};
use crate::messages::in_time;
use crate::options::Options;
use crate::preloaded::Acks;
use crate::results::Table;
use crate::stopwatch::{Stopwatch, Taken};
use crate::workload::{OrderPlaced, Work};
use crate::{Result, by_hand, framework};

const WORKERS: usize = 4;

/// The same for all: twice what shared transactions can have in work.
const PREFETCH: usize = 2 * WORKERS * framework::SHARED;

/// How many messages of a publisher can be on their way.
const PUBLISHED_AT_ONCE: usize = 32;

/// A broker, and a place for the messages of one run.
pub(crate) trait Broker: Sized {
    /// What the messages come from.
    const PLACE: &'static str;
    /// The name of the consumer written by hand.
    const BY_HAND: &'static str;

    /// The place for the framework.
    type Source: Source;

    /// The server that `tests/bench/run` has started.
    async fn connect() -> Result<Self>;

    /// A new place with these messages, all of them confirmed.
    async fn fill(&mut self, work: &Work) -> Result<()>;

    fn source(&self) -> Self::Source;

    /// The consumer written by hand: each worker takes a delivery, processes it in a transaction of the pool, and acks.
    /// Until it is told that all is done.
    async fn consume(
        &self,
        pool: &PgPool,
        acks: &Arc<Acks>,
        done: oneshot::Receiver<()>,
    ) -> Result<()>;

    /// Nothing is left, also not what came back when the consumer went.
    async fn check_empty(&mut self) -> Result<()>;
}

#[derive(Debug, Clone, Copy)]
enum Variant {
    ByHand,
    /// With so many workers, and so many messages in a transaction.
    Framework(usize, usize),
}

pub(crate) async fn table<B: Broker>(database: &mut Database, options: &Options) -> Result<Table> {
    let mut broker = B::connect().await?;
    let mut messages = 500;
    for _ in 0..2 {
        let taken = run(&mut broker, database, Variant::ByHand, messages).await?;
        messages = taken.messages_in(options.seconds);
    }
    let variants = [
        (Variant::ByHand, B::BY_HAND),
        (
            Variant::Framework(WORKERS, 1),
            "framework, one message per transaction",
        ),
        (
            Variant::Framework(4 * WORKERS, 1),
            "framework, the same with 16 workers",
        ),
        (
            Variant::Framework(WORKERS, framework::SHARED),
            "framework, shared transactions",
        ),
    ];
    Table::of(
        format!(
            "From {}, concurrency {WORKERS}, prefetch {PREFETCH}",
            B::PLACE
        ),
        options.rounds,
        &variants,
        async |variant| run(&mut broker, database, variant, messages).await,
    )
    .await
}

/// One variant over a new place and empty tables; both are checked.
async fn run<B: Broker>(
    broker: &mut B,
    database: &mut Database,
    variant: Variant,
    messages: usize,
) -> Result<Taken> {
    let work = Work::of(messages)?;
    broker.fill(&work).await?;
    database.empty().await?;
    let pool = database
        .pool(Path::Direct, u32::try_from(4 * WORKERS)? + 1)
        .await?;
    let server = database.server();
    let acks = Arc::new(Acks::of(messages));
    let (stop, done) = oneshot::channel();
    // From the first ack on: how long it takes to join a group is the broker's matter.
    let timing = async {
        acks.first().await;
        let stopwatch = Stopwatch::start(Some(server))?;
        acks.all().await;
        let taken = stopwatch.stop(messages - 1)?;
        drop(stop);
        Result::Ok(taken)
    };
    let consuming = async {
        match variant {
            Variant::ByHand => broker.consume(&pool, &acks, done).await,
            Variant::Framework(workers, together) => {
                let source = Counted {
                    source: broker.source(),
                    acks: Arc::clone(&acks),
                };
                let inbox = framework::inbox(&pool, source, workers, together)
                    .prefetch(PREFETCH)
                    .build()
                    .await?;
                let stopped = async {
                    let _ = done.await;
                };
                // As an application would: on the runtime's own threads.
                tokio::spawn(inbox.run_until(stopped)).await?;
                Ok(())
            }
        }
    };
    let taken = in_time(async {
        let (taken, ()) = tokio::try_join!(timing, consuming)?;
        Ok(taken)
    })
    .await?;
    pool.close().await;
    database.check(messages).await?;
    broker.check_empty().await?;
    Ok(taken)
}

/// Processes one message by hand.
async fn process(pool: &PgPool, id: &str, payload: &[u8]) -> Result<()> {
    let order: OrderPlaced = serde_json::from_slice(payload)?;
    by_hand::process(pool, id, &order).await
}

/// Publishes all of them, confirmed.
async fn publish(
    publisher: &impl Publisher,
    destination: &str,
    messages: impl Iterator<Item = Cow<'_, Envelope>>,
) -> Result<()> {
    stream::iter(messages)
        .map(|message| async move { publisher.publish(destination, &message).await })
        .buffer_unordered(PUBLISHED_AT_ONCE)
        .try_collect::<()>()
        .await?;
    Ok(())
}

/// Until all is done, or a worker ends before.
async fn until(done: oneshot::Receiver<()>, workers: &mut JoinSet<Result<()>>) -> Result<()> {
    tokio::select! {
        _ = done => Ok(()),
        Some(ended) = workers.join_next() => ended?,
    }
}

fn address(variable: &str) -> Result<String> {
    let address = std::env::var(variable);
    address.map_err(|_| {
        format!("{variable} is not set: run `tests/bench/run`, which starts a server").into()
    })
}

/// A name that this process has not used yet, and no other one.
fn unique() -> String {
    format!("inbox-bench-{}-{}", std::process::id(), fastrand::u32(..))
}

/// Counts the acks of a source.
struct Counted<S> {
    source: S,
    acks: Arc<Acks>,
}

#[async_trait]
impl<S: Source> Source for Counted<S> {
    fn system(&self) -> &'static str {
        self.source.system()
    }

    fn capabilities(&self) -> Capabilities {
        self.source.capabilities()
    }

    fn id_sources(&self) -> Vec<IdSource> {
        self.source.id_sources()
    }

    fn problems(&self) -> Vec<String> {
        self.source.problems()
    }

    async fn learn(&self, needs: &Needs) -> std::result::Result<Learned, SourceError> {
        self.source.learn(needs).await
    }

    async fn open(&self, prefetch: NonZeroUsize) -> std::result::Result<Assignment, SourceError> {
        let assignment = self.source.open(prefetch).await?;
        Ok(Assignment {
            settle: Arc::new(CountedSettle {
                settle: assignment.settle,
                acks: Arc::clone(&self.acks),
            }),
            ..assignment
        })
    }
}

struct CountedSettle {
    settle: Arc<dyn Settle>,
    acks: Arc<Acks>,
}

#[async_trait]
impl Settle for CountedSettle {
    async fn settle(
        &self,
        verdicts: Vec<(SettleToken, Verdict)>,
    ) -> Vec<std::result::Result<(), SettleError>> {
        let acks: Vec<bool> = verdicts
            .iter()
            .map(|(_, verdict)| *verdict == Verdict::Ack)
            .collect();
        let answers = self.settle.settle(verdicts).await;
        for (ack, answer) in acks.into_iter().zip(&answers) {
            if ack && answer.is_ok() {
                self.acks.one();
            }
        }
        answers
    }

    fn is_gone(&self) -> bool {
        self.settle.is_gone()
    }
}
