use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use inbox_core::{BoxError, Envelope, PublishError, Publisher};
use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext as _, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{FutureProducer, FutureRecord};

use super::{Kafka, Settings, is_on, message, refused};

/// How long a delivery report may take.
const CONFIRM_LIMIT: Duration = Duration::from_secs(30);

/// What a publisher sets where nobody else does.
const DEFAULTS: [(&str, &str); 4] = [
    ("enable.idempotence", "true"),
    ("acks", "all"),
    // The partition that Kafka's own producers choose for a key.
    ("partitioner", "murmur2_random"),
    // A topic that is not known after this time does not exist.
    ("topic.metadata.propagation.max.ms", "5000"),
];

/// Publishes to a Kafka cluster and waits for the delivery reports; made by [`Kafka::publisher`].
///
/// The destination is a topic. A message counts as published when all in-sync replicas have it (`acks=all`), and the
/// producer is idempotent: what it repeats by itself is stored once. One that has no report counts as not published,
/// although it may have arrived. It connects with its first message; clones share the client.
///
/// [`Envelope::key`] is the record's key, which decides the partition as Kafka's own producers do. Id, type, content
/// type and correlation id are headers: `message-id`, `message-type`, `content-type`, `correlation-id`.
#[derive(Clone)]
pub struct KafkaPublisher {
    cluster: Kafka,
    settings: Settings,
    confirm_limit: Duration,
    producer: Arc<Mutex<Option<FutureProducer<Context>>>>,
}

#[derive(Clone)]
struct Context;

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        super::log(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::warn!(%error, reason, "Kafka");
    }

    fn stats_raw(&self, statistics: &[u8]) {
        tracing::debug!(statistics = %String::from_utf8_lossy(statistics), "librdkafka");
    }
}

impl KafkaPublisher {
    pub(super) fn new(cluster: Kafka) -> Self {
        Self {
            cluster,
            settings: Settings::default(),
            confirm_limit: CONFIRM_LIMIT,
            producer: Arc::default(),
        }
    }

    /// A setting of librdkafka for this publisher, for example `compression.type` or `linger.ms`.
    #[must_use]
    pub fn set(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.set(name, value);
        self.producer = Arc::default();
        self
    }

    /// Gives a message up when it has no delivery report in time. The default is 30 seconds.
    #[must_use]
    pub fn confirm_limit(mut self, limit: Duration) -> Self {
        self.confirm_limit = limit;
        self.producer = Arc::default();
        self
    }

    fn producer(&self) -> Result<FutureProducer<Context>, BoxError> {
        let mut place = self.producer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(producer) = &*place {
            return Ok(producer.clone());
        }
        if let Some((name, value)) = self.setting(&["enable.idempotence"])
            && !is_on(value)
        {
            return Err(contradiction(name, value).into());
        }
        if let Some((name, value)) = self.setting(&["acks", "request.required.acks"])
            && !["all", "-1"].contains(&value)
        {
            return Err(contradiction(name, value).into());
        }
        let limit = self.confirm_limit.as_millis().to_string();
        let mut defaults = DEFAULTS.to_vec();
        defaults.push(("message.timeout.ms", &limit));
        let config = self.cluster.client(&defaults, &self.settings);
        // Makes threads and connects in the background.
        let producer = FutureProducer::from_config_and_context(&config, Context)
            .map_err(|error| refused(&error))?;
        *place = Some(producer.clone());
        Ok(producer)
    }

    fn setting(&self, names: &[&str]) -> Option<(&str, &str)> {
        self.cluster.setting(&self.settings, names)
    }
}

fn contradiction(name: &str, value: &str) -> String {
    format!(
        "the Kafka setting `{name}` is `{value}`, with which a message can be lost or stored twice: remove it"
    )
}

impl fmt::Debug for KafkaPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaPublisher")
            .field("cluster", &self.cluster)
            .field("settings", &self.settings)
            .field("confirm_limit", &self.confirm_limit)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Publisher for KafkaPublisher {
    async fn publish(&self, destination: &str, envelope: &Envelope) -> Result<(), PublishError> {
        let named = || destination.to_owned();
        let failed = |source: BoxError| PublishError::Failed {
            destination: named(),
            source,
        };
        let producer = self.producer().map_err(failed)?;
        let headers = message::headers(envelope).map_err(|problem| failed(problem.into()))?;
        let mut record = FutureRecord::to(destination)
            .payload(&envelope.payload[..])
            .headers(headers);
        if let Some(key) = &envelope.key {
            record = record.key(key.as_str());
        }
        record.timestamp = envelope.published_at.and_then(message::timestamp);
        match producer.send(record, self.confirm_limit).await {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(match error.rdkafka_error_code() {
                Some(
                    RDKafkaErrorCode::UnknownTopicOrPartition
                    | RDKafkaErrorCode::UnknownTopic
                    | RDKafkaErrorCode::InvalidTopic,
                ) => PublishError::Unroutable {
                    destination: named(),
                },
                Some(
                    code @ (RDKafkaErrorCode::MessageSizeTooLarge
                    | RDKafkaErrorCode::InvalidMessageSize
                    | RDKafkaErrorCode::MessageBatchTooLarge
                    | RDKafkaErrorCode::InvalidRecord
                    | RDKafkaErrorCode::TopicAuthorizationFailed
                    | RDKafkaErrorCode::PolicyViolation),
                ) => {
                    tracing::warn!(destination, reason = %code, "the message is refused");
                    PublishError::Refused {
                        destination: named(),
                    }
                }
                _ => failed(error.into()),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_lose_or_double_messages_are_refused() {
        for (name, value) in [
            ("enable.idempotence", "false"),
            ("acks", "1"),
            ("request.required.acks", "0"),
        ] {
            let publisher = Kafka::new("localhost:9092").publisher().set(name, value);
            let problem = publisher.producer().err().map(|error| error.to_string());
            assert!(
                problem
                    .as_ref()
                    .is_some_and(|problem| problem.contains(name)),
                "{name}: {problem:?}"
            );
        }
    }
}
