//! Kafka: a topic with one partition, whose records come in their order, and with four where a load is to be shared.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use inbox_core::Publisher as _;
use inbox_guarantees::environment;
use inbox_guarantees::kafka::TestTopic;
use inbox_guarantees::servers::OwnServer;
use inbox_runtime::brokers::{Kafka, KafkaSource};
use inbox_runtime::testing::conformance::{Ability, Rig, Setup, suite};
use inbox_runtime::{BoxError, Envelope};

/// How many messages are on their way to the brokers at a time; the client keeps their order.
const AT_ONCE: usize = 64;

pub(crate) struct Topic {
    topic: TestTopic,
    partitions: i32,
    server: Option<OwnServer>,
}

impl Topic {
    fn command(&self, command: impl FnOnce(&OwnServer)) -> Result<(), BoxError> {
        let server = self.server.as_ref().ok_or("others use this server")?;
        tokio::task::block_in_place(|| command(server));
        Ok(())
    }
}

#[async_trait]
impl Rig for Topic {
    type Source = KafkaSource;

    // A member that died is missed after six seconds, and a group is not shared out at once.
    const PATIENCE: Duration = Duration::from_secs(120);

    fn lacks(ability: Ability) -> Option<&'static str> {
        match ability {
            Ability::Cut => Some(
                "clients connect to the addresses that brokers tell them, past any proxy; restarts of the broker cut them",
            ),
            Ability::ShortWindow => Some(
                "the adapter polls on while handlers run, so nothing is taken from an assignment that lives",
            ),
            _ => None,
        }
    }

    async fn fresh(setup: Setup) -> Result<Self, BoxError> {
        let server = tokio::task::block_in_place(|| match setup {
            Setup::OwnBroker => Some(OwnServer::start("kafka")),
            _ => None,
        });
        // In their order but where the load is to be shared.
        let partitions = if setup == Setup::SharedLoad { 4 } else { 1 };
        let brokers = match &server {
            Some(server) => server.url("KAFKA_BROKERS"),
            None => environment("KAFKA_BROKERS"),
        };
        Ok(Self {
            topic: TestTopic::on(&brokers, partitions, &[]).await,
            partitions,
            server,
        })
    }

    fn source(&self) -> KafkaSource {
        self.topic.source()
    }

    async fn publish(&self, messages: &[Envelope]) -> Result<(), BoxError> {
        let publisher = Kafka::new(&self.topic.brokers).publisher();
        let publishing = messages
            .iter()
            .map(|message| publisher.publish(&self.topic.name, message));
        let publishing: Vec<_> = publishing.collect();
        let at_once = if messages.len() > AT_ONCE { AT_ONCE } else { 1 };
        let published = stream::iter(publishing).buffered(at_once);
        published.try_collect::<()>().await?;
        Ok(())
    }

    async fn left(&self) -> Result<u64, BoxError> {
        let ends: i64 = self.topic.ends().await.iter().sum();
        let committed: i64 = self.topic.committed().await.iter().sum();
        Ok(u64::try_from(ends - committed)?)
    }

    async fn stop(&self) -> Result<(), BoxError> {
        self.command(OwnServer::stop)
    }

    async fn crash(&self) -> Result<(), BoxError> {
        self.command(OwnServer::crash)
    }

    async fn start(&self) -> Result<(), BoxError> {
        self.command(OwnServer::again)
    }

    fn address(&self) -> String {
        let Self {
            topic, partitions, ..
        } = self;
        format!("{} {} {partitions}", topic.brokers, topic.name)
    }

    async fn attach(address: &str) -> Result<Self, BoxError> {
        let (brokers, rest) = address.split_once(' ').ok_or("no address")?;
        let (name, partitions) = rest.split_once(' ').ok_or("no partitions")?;
        let partitions = partitions.parse()?;
        Ok(Self {
            topic: TestTopic::attach(brokers, name.to_owned(), partitions),
            partitions,
            server: None,
        })
    }
}

suite!(Topic);
