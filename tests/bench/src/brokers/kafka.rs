//! Kafka: a topic with a partition for each worker.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use inbox_runtime::brokers::{Kafka as Cluster, KafkaSource};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, StreamConsumer};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::{Offset, TopicPartitionList};
use sqlx::PgPool;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::{Broker, WORKERS, address, process, publish, unique, until};
use crate::Result;
use crate::preloaded::Acks;
use crate::workload::Work;

/// How long the broker may take to answer.
const LIMIT: Duration = Duration::from_secs(10);

/// The header in which the publisher puts the id.
const ID: &str = "message-id";

/// The cluster, and a topic on it with a group of the same name.
pub(crate) struct Kafka {
    brokers: String,
    admin: AdminClient<DefaultClientContext>,
    topic: String,
}

impl Kafka {
    fn config(brokers: &str, group: &str) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", brokers)
            .set("group.id", group)
            .set("enable.auto.commit", "false");
        config
    }

    fn partitions(&self) -> impl Iterator<Item = i32> {
        (0..).take(WORKERS)
    }

    /// A reader of one partition from its beginning.
    fn reader(&self, partition: i32) -> Result<StreamConsumer> {
        let reader: StreamConsumer = Self::config(&self.brokers, &self.topic).create()?;
        let mut from = TopicPartitionList::new();
        from.add_partition_offset(&self.topic, partition, Offset::Beginning)?;
        reader.assign(&from)?;
        Ok(reader)
    }
}

impl Broker for Kafka {
    const PLACE: &'static str = "four partitions of Kafka";
    const BY_HAND: &'static str = "by hand: rdkafka, pool, one message per transaction";

    type Source = KafkaSource;

    async fn connect() -> Result<Self> {
        let brokers = address("KAFKA_BROKERS")?;
        Ok(Self {
            admin: Self::config(&brokers, "").create()?,
            topic: String::new(),
            brokers,
        })
    }

    async fn fill(&mut self, work: &Work) -> Result<()> {
        self.topic = unique();
        let partitions = i32::try_from(WORKERS)?;
        let topic = NewTopic::new(&self.topic, partitions, TopicReplication::Fixed(1));
        let made = self
            .admin
            .create_topics([&topic], &AdminOptions::new())
            .await?;
        for one in made {
            one.map_err(|(topic, error)| format!("{topic}: {error}"))?;
        }
        let publisher = Cluster::new(&self.brokers).publisher();
        // In turn for each worker.
        let keyed = work.messages().iter().map(|message| {
            let id = message.id.clone().unwrap_or_default();
            Cow::Owned(message.clone().key(id))
        });
        publish(&publisher, &self.topic, keyed).await
    }

    fn source(&self) -> KafkaSource {
        Cluster::new(&self.brokers)
            .topic(&self.topic)
            .group(&self.topic)
    }

    async fn consume(
        &self,
        pool: &PgPool,
        acks: &Arc<Acks>,
        done: oneshot::Receiver<()>,
    ) -> Result<()> {
        let mut workers = JoinSet::new();
        let mut readers = Vec::new();
        for partition in self.partitions() {
            let reader = Arc::new(self.reader(partition)?);
            readers.push(Arc::clone(&reader));
            let (pool, acks) = (pool.clone(), Arc::clone(acks));
            workers.spawn(async move {
                loop {
                    let message = reader.recv().await?;
                    let id = id_of(&message).ok_or("a message without an id")?;
                    process(&pool, &id, message.payload().unwrap_or_default()).await?;
                    reader.commit_message(&message, CommitMode::Async)?;
                    acks.one();
                }
            });
        }
        until(done, &mut workers).await?;
        workers.shutdown().await;
        // Behind the commits that are on their way.
        let commit = move || {
            readers
                .iter()
                .try_for_each(|reader| reader.commit(&reader.position()?, CommitMode::Sync))
        };
        tokio::task::spawn_blocking(commit).await??;
        Ok(())
    }

    async fn check_empty(&mut self) -> Result<()> {
        let group: BaseConsumer = Self::config(&self.brokers, &self.topic).create()?;
        let (topic, partitions) = (self.topic.clone(), self.partitions().collect::<Vec<_>>());
        let check = move || {
            let mut asked = TopicPartitionList::new();
            for partition in &partitions {
                asked.add_partition(&topic, *partition);
            }
            let committed = group.committed_offsets(asked, LIMIT)?;
            for partition in partitions {
                let (_, end) = group.fetch_watermarks(&topic, partition, LIMIT)?;
                let offset = committed.find_partition(&topic, partition);
                let offset = offset.map(|found| found.offset());
                if offset != Some(Offset::Offset(end)) {
                    return Err(format!(
                        "partition {partition} ends at {end}, and {offset:?} is committed"
                    )
                    .into());
                }
            }
            Result::Ok(())
        };
        tokio::task::spawn_blocking(check).await??;
        self.admin
            .delete_topics(&[&self.topic], &AdminOptions::new())
            .await?;
        Ok(())
    }
}

fn id_of(message: &BorrowedMessage<'_>) -> Option<String> {
    let headers = message.headers()?;
    let id = headers.iter().find(|header| header.key == ID)?.value?;
    String::from_utf8(id.to_vec()).ok()
}
