//! NATS JetStream: a stream in files and a durable pull consumer.

use std::borrow::Cow;
use std::sync::Arc;

use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::{self, stream::Config};
use async_nats::{ConnectOptions, HeaderMap, ServerAddr};
use futures_util::stream::TryStreamExt as _;
use inbox_runtime::brokers::{JetStreamSource, Nats as Server};
use sqlx::PgPool;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::{Broker, PREFETCH, WORKERS, address, process, publish, unique, until};
use crate::Result;
use crate::preloaded::Acks;
use crate::workload::Work;

const CONSUMER: &str = "bench";

/// The server, and a stream on it with the subject of the same name.
pub(crate) struct Nats {
    url: String,
    jetstream: jetstream::Context,
    stream: String,
}

impl Nats {
    async fn consumer(&self, jetstream: &jetstream::Context) -> Result<PullConsumer> {
        Ok(jetstream
            .get_consumer_from_stream(CONSUMER, &self.stream)
            .await?)
    }
}

async fn connected(url: &str) -> Result<jetstream::Context> {
    let server: ServerAddr = url.parse()?;
    let mut options = ConnectOptions::new();
    if let (Some(user), Some(password)) = (server.username(), server.password()) {
        options = options.user_and_password(user.to_owned(), password.to_owned());
    }
    Ok(jetstream::new(options.connect(server).await?))
}

impl Broker for Nats {
    const PLACE: &'static str = "a stream of NATS JetStream";
    const BY_HAND: &'static str = "by hand: async-nats, pool, one message per transaction";

    type Source = JetStreamSource;

    async fn connect() -> Result<Self> {
        let url = address("NATS_URL")?;
        Ok(Self {
            jetstream: connected(&url).await?,
            stream: String::new(),
            url,
        })
    }

    async fn fill(&mut self, work: &Work) -> Result<()> {
        self.stream = unique();
        let stream = self
            .jetstream
            .create_stream(Config {
                name: self.stream.clone(),
                subjects: vec![self.stream.clone()],
                max_age: std::time::Duration::from_secs(24 * 60 * 60),
                ..Config::default()
            })
            .await?;
        stream
            .create_consumer(pull::Config {
                durable_name: Some(CONSUMER.to_owned()),
                ack_policy: AckPolicy::Explicit,
                ..pull::Config::default()
            })
            .await?;
        let publisher = Server::new(&self.url).publisher();
        let messages = work.messages().iter().map(Cow::Borrowed);
        publish(&publisher, &self.stream, messages).await
    }

    fn source(&self) -> JetStreamSource {
        Server::new(&self.url).consumer(&self.stream, CONSUMER)
    }

    async fn consume(
        &self,
        pool: &PgPool,
        acks: &Arc<Acks>,
        done: oneshot::Receiver<()>,
    ) -> Result<()> {
        let jetstream = connected(&self.url).await?;
        let mut workers = JoinSet::new();
        for _ in 0..WORKERS {
            let consumer = self.consumer(&jetstream).await?;
            let (pool, acks) = (pool.clone(), Arc::clone(acks));
            workers.spawn(async move {
                let mut messages = consumer
                    .stream()
                    .max_messages_per_batch(PREFETCH / WORKERS)
                    .messages()
                    .await?;
                while let Some(message) = messages.try_next().await? {
                    let id = message.headers.as_ref().and_then(id_of);
                    process(
                        &pool,
                        &id.ok_or("a message without an id")?,
                        &message.payload,
                    )
                    .await?;
                    // The framework waits for the server's answer as well.
                    message.double_ack().await?;
                    acks.one();
                }
                Result::Ok(())
            });
        }
        until(done, &mut workers).await?;
        workers.shutdown().await;
        Ok(())
    }

    async fn check_empty(&mut self) -> Result<()> {
        let mut consumer = self.consumer(&self.jetstream).await?;
        let seen = consumer.info().await?;
        let left = seen.num_pending + seen.num_ack_pending as u64;
        if left > 0 {
            return Err(format!("{left} messages are left in the stream").into());
        }
        self.jetstream.delete_stream(&self.stream).await?;
        Ok(())
    }
}

fn id_of(headers: &HeaderMap) -> Option<String> {
    Some(headers.get("Nats-Msg-Id")?.as_str().to_owned())
}
