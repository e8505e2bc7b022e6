//! RabbitMQ: a quorum queue.

use std::borrow::Cow;
use std::sync::Arc;

use futures_util::stream::TryStreamExt as _;
use inbox_runtime::brokers::{RabbitMq as Server, RabbitMqSource};
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties};
use sqlx::PgPool;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::{Broker, PREFETCH, WORKERS, address, process, publish, unique, until};
use crate::Result;
use crate::preloaded::Acks;
use crate::workload::Work;

/// The server, and a queue on it.
pub(crate) struct RabbitMq {
    url: String,
    queue: String,
    channel: Channel,
    _connection: Connection,
}

impl RabbitMq {
    /// How many messages it had.
    async fn delete(&mut self) -> Result<u32> {
        Ok(self
            .channel
            .queue_delete(self.queue.as_str().into(), QueueDeleteOptions::default())
            .await?)
    }
}

impl Broker for RabbitMq {
    const PLACE: &'static str = "a quorum queue of RabbitMQ";
    const BY_HAND: &'static str = "by hand: lapin, pool, one message per transaction";

    type Source = RabbitMqSource;

    async fn connect() -> Result<Self> {
        let url = address("AMQP_URL")?;
        let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
        Ok(Self {
            channel: connection.create_channel().await?,
            queue: unique(),
            url,
            _connection: connection,
        })
    }

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
        let publisher = Server::new(&self.url).publisher();
        let messages = work.messages().iter().map(Cow::Borrowed);
        publish(&publisher, &self.queue, messages).await
    }

    fn source(&self) -> RabbitMqSource {
        Server::new(&self.url).queue(&self.queue)
    }

    async fn consume(
        &self,
        pool: &PgPool,
        acks: &Arc<Acks>,
        done: oneshot::Receiver<()>,
    ) -> Result<()> {
        let connection = Connection::connect(&self.url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel
            .basic_qos(u16::try_from(PREFETCH)?, BasicQosOptions::default())
            .await?;
        let consumer = channel
            .basic_consume(
                self.queue.as_str().into(),
                "by-hand".into(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            )
            .await?;
        let mut workers = JoinSet::new();
        for _ in 0..WORKERS {
            let (pool, acks, mut deliveries) = (pool.clone(), Arc::clone(acks), consumer.clone());
            workers.spawn(async move {
                while let Some(delivery) = deliveries.try_next().await? {
                    let id = delivery.properties.message_id().as_ref();
                    let id = id.ok_or("a message without an id")?.as_str();
                    process(&pool, id, &delivery.data).await?;
                    if !delivery.acker.ack(BasicAckOptions::default()).await? {
                        return Err("an ack was not sent".into());
                    }
                    acks.one();
                }
                Result::Ok(())
            });
        }
        until(done, &mut workers).await?;
        connection.close(200, "done".into()).await?;
        // They end with the connection, or with the error that this is to them.
        workers.shutdown().await;
        Ok(())
    }

    async fn check_empty(&mut self) -> Result<()> {
        let left = self.delete().await?;
        if left > 0 {
            return Err(format!("{left} messages are left in the queue").into());
        }
        Ok(())
    }
}
