//! What the brokers say of a topic.

use std::time::Duration;

use inbox_core::SourceError;
use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::BaseConsumer;
use rdkafka::error::RDKafkaErrorCode;

use super::Kafka;

/// How long the brokers may take to answer: start-up does not wait much longer, and wants to hear why they did not.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);

/// What a source needs to know of its topics.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Topics {
    /// For how long a record can be read again.
    pub(super) kept_for: Option<Duration>,
    pub(super) largest_payload: Option<u64>,
}

/// Asks for the settings of topics.
///
/// On a thread for blocking work: making and closing a client waits for threads of its own.
pub(super) async fn ask(
    cluster: Kafka,
    config: ClientConfig,
    names: Vec<String>,
) -> Result<Topics, SourceError> {
    let runtime = tokio::runtime::Handle::current();
    let asking = move || {
        let client: AdminClient<DefaultClientContext> = config
            .create()
            .map_err(|error| SourceError::new(super::refused(&error)))?;
        let topics: Vec<_> = names
            .iter()
            .map(|name| ResourceSpecifier::Topic(name))
            .collect();
        let options = AdminOptions::new().request_timeout(Some(ANSWER_LIMIT));
        let answers = runtime
            .block_on(client.describe_configs(&topics, &options))
            .map_err(|error| match config.create::<BaseConsumer>() {
                Ok(other) => cluster.unreachable(&other, &error),
                Err(error) => SourceError::new(super::refused(&error)),
            })?;
        let mut found = Topics::default();
        for (name, answer) in names.iter().zip(answers) {
            found.add(name, answer);
        }
        Ok(found)
    };
    tokio::task::spawn_blocking(asking)
        .await
        .unwrap_or_else(|error| Err(SourceError::caused("the brokers were not asked", error)))
}

impl Topics {
    fn add(&mut self, name: &str, answer: Result<ConfigResource, RDKafkaErrorCode>) {
        let topic = match answer {
            Ok(topic) => topic,
            Err(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => {
                // It may be made before the source is opened, which fails until then.
                return;
            }
            Err(code) => {
                return tracing::warn!(
                    topic = name,
                    %code,
                    "the settings of the topic cannot be read, so its `retention.ms` is not compared with the retention"
                );
            }
        };
        let value = |setting: &str| topic.get(setting).and_then(|entry| entry.value.as_deref());
        // A compacted topic keeps the last record of each key for ever.
        let is_compacted = value("cleanup.policy").is_some_and(|policy| policy.contains("compact"));
        let kept_for = if is_compacted {
            Some(Duration::MAX)
        } else {
            value("retention.ms")
                .and_then(|milliseconds| milliseconds.parse::<i64>().ok())
                .map(|milliseconds| {
                    u64::try_from(milliseconds).map_or(Duration::MAX, Duration::from_millis)
                })
        };
        self.kept_for = self.kept_for.max(kept_for);
        let largest = value("max.message.bytes").and_then(|bytes| bytes.parse().ok());
        self.largest_payload = self.largest_payload.max(largest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdkafka::admin::{ConfigEntry, ConfigSource, OwnedResourceSpecifier};

    fn topic(entries: &[(&str, &str)]) -> Result<ConfigResource, RDKafkaErrorCode> {
        let entries = entries.iter().map(|(name, value)| ConfigEntry {
            name: (*name).to_owned(),
            value: Some((*value).to_owned()),
            source: ConfigSource::Default,
            is_read_only: false,
            is_default: true,
            is_sensitive: false,
        });
        Ok(ConfigResource {
            specifier: OwnedResourceSpecifier::Topic("orders".to_owned()),
            entries: entries.collect(),
        })
    }

    #[test]
    fn the_longest_retention_of_the_topics_counts() {
        let mut topics = Topics::default();
        topics.add(
            "a",
            topic(&[("retention.ms", "1000"), ("max.message.bytes", "7")]),
        );
        topics.add(
            "b",
            topic(&[("retention.ms", "60000"), ("max.message.bytes", "5")]),
        );
        topics.add("c", Err(RDKafkaErrorCode::TopicAuthorizationFailed));
        assert_eq!(topics.kept_for, Some(Duration::from_secs(60)));
        assert_eq!(topics.largest_payload, Some(7));
    }

    #[test]
    fn a_topic_without_retention_and_a_compacted_one_keep_their_records_for_ever() {
        for entries in [
            &[("retention.ms", "-1"), ("cleanup.policy", "delete")],
            &[("retention.ms", "1000"), ("cleanup.policy", "compact")],
            &[
                ("retention.ms", "1000"),
                ("cleanup.policy", "compact,delete"),
            ],
        ] {
            let mut topics = Topics::default();
            topics.add("a", topic(entries));
            assert_eq!(topics.kept_for, Some(Duration::MAX), "{entries:?}");
        }
    }
}
