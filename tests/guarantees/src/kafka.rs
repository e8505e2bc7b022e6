//! Topics on a real Kafka, seen from outside the inbox.

use std::time::Duration;

use inbox_core::Publisher as _;
use inbox_runtime::Envelope;
use inbox_runtime::brokers::{Kafka, KafkaPublisher, KafkaSource};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{Offset, TopicPartitionList};

use crate::{environment, eventually, unique};

/// How long the broker may take to answer.
const LIMIT: Duration = Duration::from_secs(30);

/// A topic of one test, and a group of the same name.
pub struct TestTopic {
    /// The name of both.
    pub name: String,
    /// Where its brokers are.
    pub brokers: String,
    partitions: i32,
    publisher: KafkaPublisher,
}

impl TestTopic {
    /// A new topic on the shared server.
    pub async fn new(partitions: i32) -> Self {
        Self::on(&environment("KAFKA_BROKERS"), partitions, &[]).await
    }

    /// A new topic on these brokers, with settings of its own.
    ///
    /// # Panics
    ///
    /// When they do not make it.
    pub async fn on(brokers: &str, partitions: i32, settings: &[(&str, &str)]) -> Self {
        let name = unique("topic");
        let admin: AdminClient<DefaultClientContext> = config(brokers).create().expect("no client");
        let mut topic = NewTopic::new(&name, partitions, TopicReplication::Fixed(1));
        for (setting, value) in settings {
            topic = topic.set(setting, value);
        }
        let made = admin
            .create_topics([&topic], &AdminOptions::new())
            .await
            .expect("Kafka does not answer");
        for one in made {
            one.expect("no topic");
        }
        Self::attach(brokers, name, partitions)
    }

    /// A topic that is there.
    #[must_use]
    pub fn attach(brokers: &str, name: String, partitions: i32) -> Self {
        Self {
            publisher: Kafka::new(brokers).publisher(),
            brokers: brokers.to_owned(),
            name,
            partitions,
        }
    }

    /// The topic as a source whose group notices a death after six seconds.
    #[must_use]
    pub fn source(&self) -> KafkaSource {
        quick(&self.brokers, &self.name, &self.name)
    }

    /// Publishes a message and waits for its report; those with the same key go to the same partition.
    ///
    /// # Panics
    ///
    /// When it is not published.
    pub async fn publish(&self, message: Envelope) {
        self.publisher
            .publish(&self.name, &message)
            .await
            .expect("not published");
    }

    /// Publishes a record as it is to one partition.
    ///
    /// # Panics
    ///
    /// When it is not published.
    pub async fn publish_to(&self, partition: i32, message: &Envelope, payload: Option<&[u8]>) {
        let producer: FutureProducer = config(&self.brokers).create().expect("no producer");
        let mut headers = rdkafka::message::OwnedHeaders::new();
        let id = message
            .id
            .as_deref()
            .map(|id| ("message-id", id.as_bytes()));
        let kind = message.message_type.as_deref();
        let kind = kind.map(|kind| ("message-type", kind.as_bytes()));
        for (key, value) in id.into_iter().chain(kind).chain(message.headers.iter()) {
            headers = headers.insert(rdkafka::message::Header {
                key,
                value: Some(value),
            });
        }
        let mut record = FutureRecord::<[u8], [u8]>::to(&self.name)
            .partition(partition)
            .headers(headers);
        record.payload = payload;
        record.key = message.key.as_deref().map(str::as_bytes);
        producer.send(record, LIMIT).await.expect("not published");
    }

    /// The committed offset of each partition; 0 where there is none.
    ///
    /// # Panics
    ///
    /// When the brokers do not answer.
    pub async fn committed(&self) -> Vec<i64> {
        let (brokers, name, partitions) =
            (self.brokers.clone(), self.name.clone(), self.partitions);
        let asking = move || {
            let consumer: BaseConsumer = config(&brokers)
                .set("group.id", &name)
                .create()
                .expect("no consumer");
            let mut places = TopicPartitionList::new();
            places.add_partition_range(&name, 0, partitions - 1);
            let places = consumer
                .committed_offsets(places, LIMIT)
                .expect("no committed offsets");
            let offsets = places
                .elements()
                .into_iter()
                .map(|place| match place.offset() {
                    Offset::Offset(offset) => offset,
                    _ => 0,
                });
            offsets.collect()
        };
        tokio::task::spawn_blocking(asking)
            .await
            .expect("no answer")
    }

    /// The offset behind the last record of each partition.
    ///
    /// # Panics
    ///
    /// When the brokers do not answer.
    pub async fn ends(&self) -> Vec<i64> {
        let (brokers, name, partitions) =
            (self.brokers.clone(), self.name.clone(), self.partitions);
        let asking = move || {
            let consumer: BaseConsumer = config(&brokers).create().expect("no consumer");
            (0..partitions)
                .map(|partition| {
                    let (_, end) = consumer
                        .fetch_watermarks(&name, partition, LIMIT)
                        .expect("no watermarks");
                    end
                })
                .collect()
        };
        tokio::task::spawn_blocking(asking)
            .await
            .expect("no answer")
    }

    /// Waits until everything is committed.
    pub async fn until_committed(&self) {
        let ends = self.ends().await;
        eventually("everything is committed", || async {
            self.committed().await == ends
        })
        .await;
    }

    /// The members of the group while it is not changing; `None` while it is.
    ///
    /// # Panics
    ///
    /// When the brokers do not answer.
    pub async fn members(&self) -> Option<usize> {
        let (brokers, name) = (self.brokers.clone(), self.name.clone());
        let asking = move || {
            let consumer: BaseConsumer = config(&brokers).create().expect("no consumer");
            // Refused for a moment after a start of the broker.
            let groups = consumer.fetch_group_list(Some(&name), LIMIT).ok()?;
            let group = groups.groups().iter().find(|group| group.name() == name)?;
            ["Stable", "Empty"]
                .contains(&group.state())
                .then(|| group.members().len())
        };
        tokio::task::spawn_blocking(asking)
            .await
            .expect("no answer")
    }

    /// Waits until the group has so many members and has shared the partitions out.
    pub async fn until_members(&self, members: usize) {
        eventually("the members of the group", || async {
            self.members().await == Some(members)
        })
        .await;
    }
}

/// A source whose group notices a death after six seconds.
#[must_use]
pub fn quick(brokers: &str, topic: &str, group: &str) -> KafkaSource {
    Kafka::new(brokers)
        .topic(topic)
        .group(group)
        .set("session.timeout.ms", "6000")
        .set("heartbeat.interval.ms", "500")
}

fn config(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    config
}

impl std::fmt::Debug for TestTopic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TestTopic").field(&self.name).finish()
    }
}
