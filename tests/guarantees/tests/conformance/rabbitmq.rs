//! RabbitMQ, with quorum and with classic queues.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use inbox_core::Publisher as _;
use inbox_guarantees::environment;
use inbox_guarantees::rabbitmq::{TestQueue, close_connections};
use inbox_guarantees::servers::OwnServer;
use inbox_runtime::brokers::{QueueKind, RabbitMq, RabbitMqPublisher, RabbitMqSource};
use inbox_runtime::testing::conformance::{Ability, Rig, Setup, suite};
use inbox_runtime::{BoxError, Envelope};
use tokio::sync::RwLock;

/// The server looks once a minute which deliveries are too old.
const WINDOW: (&str, Duration) = ("consumer_timeout = 5000", Duration::from_secs(5));

/// How many messages are on their way to the server at a time.
const AT_ONCE: usize = 64;

pub(crate) struct Rabbit<const QUORUM: bool> {
    /// Replaced by one over a new connection after a restart.
    queue: RwLock<TestQueue>,
    broker: RabbitMq,
    url: String,
    name: String,
    server: Option<OwnServer>,
    window: Option<Duration>,
}

impl<const QUORUM: bool> Rabbit<QUORUM> {
    const KIND: QueueKind = if QUORUM {
        QueueKind::Quorum
    } else {
        QueueKind::Classic
    };

    fn on(queue: TestQueue, url: String, server: Option<OwnServer>) -> Self {
        let name = queue.name.clone();
        Self {
            broker: RabbitMq::new(&url).connection_name(&name),
            queue: RwLock::new(queue),
            url,
            name,
            server,
            window: None,
        }
    }

    async fn publish_one(
        &self,
        publisher: &RabbitMqPublisher,
        message: &Envelope,
    ) -> Result<(), BoxError> {
        let deadline = Instant::now() + Self::PATIENCE;
        loop {
            match publisher.publish(&self.name, message).await {
                // A server that has just started listens before it has found its classic queues, and takes what is for a
                // quorum queue that has no leader yet without ever confirming it. Once more is a duplicate at worst.
                Err(error) if self.server.is_some() && Instant::now() < deadline => {
                    tracing::info!(%error, "publishing again");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                published => return Ok(published?),
            }
        }
    }

    fn command(&self, command: impl FnOnce(&OwnServer)) -> Result<(), BoxError> {
        let server = self.server.as_ref().ok_or("others use this server")?;
        tokio::task::block_in_place(|| command(server));
        Ok(())
    }
}

#[async_trait]
impl<const QUORUM: bool> Rig for Rabbit<QUORUM> {
    type Source = RabbitMqSource;

    // Of which the server may need one to see that a delivery is too old.
    const PATIENCE: Duration = Duration::from_secs(150);

    fn lacks(ability: Ability) -> Option<&'static str> {
        match ability {
            // It would be the same server for a second time, which takes more than a minute.
            Ability::ShortWindow if !QUORUM => {
                Some("consumer_timeout is the server's, and proven with a quorum queue")
            }
            _ => None,
        }
    }

    async fn fresh(setup: Setup) -> Result<Self, BoxError> {
        let server = tokio::task::block_in_place(|| match setup {
            Setup::OwnBroker => Some(OwnServer::start("rabbitmq")),
            Setup::ShortWindow => Some(OwnServer::start_with(
                "rabbitmq",
                "RABBITMQ_EXTRA_CONF",
                WINDOW.0,
            )),
            _ => None,
        });
        let url = match &server {
            Some(server) => server.url("AMQP_URL"),
            None => environment("AMQP_URL"),
        };
        let queue = TestQueue::on(&url, Self::KIND, &[]).await;
        let window = (setup == Setup::ShortWindow).then_some(WINDOW.1);
        Ok(Self {
            window,
            ..Self::on(queue, url, server)
        })
    }

    fn source(&self) -> RabbitMqSource {
        let source = self.broker.queue(&self.name);
        let source = source.declare(TestQueue::declaration(Self::KIND));
        match self.window {
            Some(window) => source.settle_window(window),
            None => source,
        }
    }

    async fn publish(&self, messages: &[Envelope]) -> Result<(), BoxError> {
        let publisher = match &self.server {
            Some(_) => self
                .broker
                .publisher()
                .confirm_limit(Duration::from_secs(3)),
            None => self.broker.publisher(),
        };
        let publishing = messages
            .iter()
            .map(|message| self.publish_one(&publisher, message));
        let publishing: Vec<_> = publishing.collect();
        // In their order as far as one channel goes.
        let at_once = if messages.len() > AT_ONCE { AT_ONCE } else { 1 };
        let published = stream::iter(publishing).buffered(at_once);
        published.try_collect::<()>().await?;
        Ok(())
    }

    async fn left(&self) -> Result<u64, BoxError> {
        Ok(self.queue.read().await.left().await.into())
    }

    async fn cut(&self) -> Result<(), BoxError> {
        close_connections(&self.name).await;
        Ok(())
    }

    async fn stop(&self) -> Result<(), BoxError> {
        self.command(OwnServer::stop)
    }

    async fn crash(&self) -> Result<(), BoxError> {
        // The server writes the names of its quorum queues half a second after the last declaration at the soonest, and
        // one that dies before that does not find them again, whatever it has confirmed.
        tokio::time::sleep(Duration::from_secs(2)).await;
        self.command(OwnServer::crash)
    }

    async fn start(&self) -> Result<(), BoxError> {
        self.command(OwnServer::again)?;
        *self.queue.write().await = TestQueue::attach(&self.url, self.name.clone()).await;
        Ok(())
    }

    fn address(&self) -> String {
        format!("{} {}", self.url, self.name)
    }

    async fn attach(address: &str) -> Result<Self, BoxError> {
        let (url, name) = address.split_once(' ').ok_or("no address")?;
        let queue = TestQueue::attach(url, name.to_owned()).await;
        Ok(Self::on(queue, url.to_owned(), None))
    }
}

mod quorum {
    use super::*;
    suite!(Rabbit<true>);
}

mod classic {
    use super::*;
    suite!(Rabbit<false>);
}
