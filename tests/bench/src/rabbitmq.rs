//! From a queue of RabbitMQ into PostgreSQL: messages that lie in a durable queue are consumed until all are acked.

use std::num::NonZeroUsize;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use inbox_runtime::brokers::RabbitMq;
use inbox_runtime::{
    Assignment, Capabilities, IdSource, Learned, Needs, Publisher as _, Settle, SettleError,
    SettleToken, Source, SourceError, Verdict,
};
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties};
use sqlx::PgPool;
use tokio::task::JoinSet;

use crate::database::{Database, Path};
use crate::messages::in_time;
use crate::options::Options;
use crate::preloaded::Acks;
use crate::results::Table;
use crate::stopwatch::{Pid, Stopwatch, Taken};
use crate::workload::{OrderPlaced, Work};
use crate::{Result, by_hand, framework};

const WORKERS: usize = 4;

/// The same for all: twice what shared transactions can have in work.
const PREFETCH: u16 = 2 * (WORKERS * framework::SHARED) as u16;

/// How many messages of a publisher can be on their way.
const PUBLISHED_AT_ONCE: usize = 32;

#[derive(Debug, Clone, Copy)]
enum Variant {
    ByHand,
    /// With so many messages in a transaction.
    Framework(usize),
}

pub(crate) async fn table(database: &mut Database, options: &Options) -> Result<Table> {
    let mut broker = Broker::connect().await?;
    let mut messages = 500;
    for _ in 0..2 {
        let taken = run(&mut broker, database, Variant::ByHand, messages).await?;
        messages = taken.messages_in(options.seconds);
    }
    let variants = [
        (
            Variant::ByHand,
            "by hand: lapin, pool, one message per transaction",
        ),
        (
            Variant::Framework(1),
            "framework, one message per transaction",
        ),
        (
            Variant::Framework(framework::SHARED),
            "framework, shared transactions",
        ),
    ];
    Table::of(
        format!("From a quorum queue of RabbitMQ, concurrency {WORKERS}, prefetch {PREFETCH}"),
        options.rounds,
        &variants,
        async |variant| run(&mut broker, database, variant, messages).await,
    )
    .await
}

/// One variant over a new queue and empty tables; both are checked.
async fn run(
    broker: &mut Broker,
    database: &mut Database,
    variant: Variant,
    messages: usize,
) -> Result<Taken> {
    let work = Work::of(messages)?;
    broker.fill(&work).await?;
    database.empty().await?;
    let pool = database
        .pool(Path::Direct, u32::try_from(WORKERS)? + 1)
        .await?;
    let server = database.server();
    let taken = in_time(async {
        match variant {
            Variant::ByHand => consume(broker, &pool, messages, server).await,
            Variant::Framework(together) => {
                let acks = Arc::new(Acks::of(messages));
                let source = Counted {
                    source: RabbitMq::new(&broker.url).queue(&broker.queue),
                    acks: Arc::clone(&acks),
                };
                let inbox = framework::inbox(&pool, source, WORKERS, together)
                    .prefetch(PREFETCH.into())
                    .build()
                    .await?;
                framework::run(inbox, &work, Some(server), acks.all()).await
            }
        }
    })
    .await?;
    pool.close().await;
    database.check(messages).await?;
    broker.check_empty().await?;
    Ok(taken)
}

/// The consumer written by hand: each worker takes a delivery, processes it in a transaction of the pool, and acks.
async fn consume(broker: &Broker, pool: &PgPool, messages: usize, server: Pid) -> Result<Taken> {
    let stopwatch = Stopwatch::start(Some(server))?;
    let connection = Connection::connect(&broker.url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel
        .basic_qos(PREFETCH, BasicQosOptions::default())
        .await?;
    let consumer = channel
        .basic_consume(
            broker.queue.as_str().into(),
            "by-hand".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        )
        .await?;
    let acks = Arc::new(Acks::of(messages));
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let (pool, acks, mut deliveries) = (pool.clone(), Arc::clone(&acks), consumer.clone());
        workers.spawn(async move {
            while let Some(delivery) = deliveries.try_next().await? {
                let order: OrderPlaced = serde_json::from_slice(&delivery.data)?;
                let id = delivery.properties.message_id().as_ref();
                let id = id.ok_or("a message without an id")?.as_str();
                by_hand::process(&pool, id, &order).await?;
                if !delivery.acker.ack(BasicAckOptions::default()).await? {
                    return Err("an ack was not sent".into());
                }
                acks.one();
            }
            Result::Ok(())
        });
    }
    tokio::select! {
        () = acks.all() => {}
        Some(ended) = workers.join_next() => ended??,
    }
    let taken = stopwatch.stop(messages)?;
    connection.close(200, "done".into()).await?;
    // They end with the connection, or with the error that this is to them.
    workers.shutdown().await;
    Ok(taken)
}

/// The server, and a queue on it.
struct Broker {
    url: String,
    queue: String,
    channel: Channel,
    _connection: Connection,
}

impl Broker {
    async fn connect() -> Result<Self> {
        let url = std::env::var("AMQP_URL")
            .map_err(|_| "AMQP_URL is not set: run `tests/bench/run`, which starts a server")?;
        let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
        Ok(Self {
            channel: connection.create_channel().await?,
            queue: format!("inbox-bench-{}", std::process::id()),
            url,
            _connection: connection,
        })
    }

    /// A new queue with these messages, all of them confirmed.
    async fn fill(&mut self, work: &Work) -> Result<()> {
        self.delete().await?;
        let mut arguments = FieldTable::default();
        arguments.insert(
            "x-queue-type".into(),
            AMQPValue::LongString("quorum".into()),
        );
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        self.channel
            .queue_declare(self.queue.as_str().into(), durable, arguments)
            .await?;
        let publisher = RabbitMq::new(&self.url).publisher();
        stream::iter(work.messages())
            .map(|message| publisher.publish(&self.queue, message))
            .buffer_unordered(PUBLISHED_AT_ONCE)
            .try_collect::<()>()
            .await?;
        Ok(())
    }

    /// Nothing is left, also not what came back when the consumer went. Deletes the queue.
    async fn check_empty(&mut self) -> Result<()> {
        let left = self.delete().await?;
        if left > 0 {
            return Err(format!("{left} messages are left in the queue").into());
        }
        Ok(())
    }

    /// How many messages it had.
    async fn delete(&mut self) -> Result<u32> {
        Ok(self
            .channel
            .queue_delete(self.queue.as_str().into(), QueueDeleteOptions::default())
            .await?)
    }
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
