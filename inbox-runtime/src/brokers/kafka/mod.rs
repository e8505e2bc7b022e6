//! Apache Kafka, through librdkafka.

mod consumer;
mod message;
mod publisher;
mod source;
mod state;
mod topic;
mod window;

use std::fmt;
use std::time::{Duration, Instant};

use inbox_core::SourceError;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

pub use publisher::KafkaPublisher;
pub use source::KafkaSource;

/// How long a client that has no answer is asked for the reason.
const REASON_LIMIT: Duration = Duration::from_millis(1500);

/// A Kafka cluster and how to connect to it; makes sources and publishers.
///
/// Each open source is a member of its consumer group with a client and a thread of its own; each publisher has a
/// client of its own.
///
/// ```
/// use inbox_runtime::brokers::Kafka;
///
/// let cluster = Kafka::new("kafka-1.internal:9092,kafka-2.internal:9092");
/// let orders = cluster.topic("orders").group("billing");
/// let publisher = cluster.publisher();
/// ```
#[derive(Clone)]
pub struct Kafka {
    brokers: String,
    settings: Settings,
}

impl Kafka {
    /// The cluster that one of these brokers belongs to: `host:port`, several with commas between them.
    ///
    /// Nothing is connected here.
    pub fn new(brokers: impl Into<String>) -> Self {
        Self {
            brokers: brokers.into(),
            settings: Settings::default(),
        }
    }

    /// A setting of librdkafka for all clients, for example `security.protocol` or `client.id`.
    ///
    /// What librdkafka does not know, or does not take, is among the [`problems`](inbox_core::Source::problems) of a
    /// source. Encryption and SASL need the feature `kafka-ssl`; what else librdkafka can be built with (`gssapi`, `zstd`,
    /// `libz`, a build with CMake) are features of the crate `rdkafka`, which your application can switch on.
    #[must_use]
    pub fn set(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.set(name, value);
        self
    }

    /// A source that consumes the topic `name`; it needs a [`group`](KafkaSource::group).
    pub fn topic(&self, name: impl Into<String>) -> KafkaSource {
        KafkaSource::new(self.clone(), vec![name.into()])
    }

    /// A source that consumes several topics as one.
    pub fn topics<T: Into<String>>(&self, names: impl IntoIterator<Item = T>) -> KafkaSource {
        KafkaSource::new(self.clone(), names.into_iter().map(Into::into).collect())
    }

    /// A publisher that waits for the delivery reports.
    #[must_use]
    pub fn publisher(&self) -> KafkaPublisher {
        KafkaPublisher::new(self.clone())
    }

    /// The settings of one client: the defaults, then those for all clients, then its own ones.
    fn client(&self, defaults: &[(&str, &str)], own: &Settings) -> ClientConfig {
        let mut config = ClientConfig::new();
        // Chosen here, because the client would take it from another logging library.
        config.set_log_level(RDKafkaLogLevel::Warning);
        config.set("bootstrap.servers", self.brokers.as_str());
        for (name, value) in defaults {
            config.set(*name, *value);
        }
        for (name, value) in self.settings.0.iter().chain(&own.0) {
            config.set(name.as_str(), value.as_str());
        }
        config
    }

    /// The value that a client gets for a setting, if anybody set it.
    fn setting<'a>(&'a self, own: &'a Settings, names: &[&str]) -> Option<(&'a str, &'a str)> {
        own.0
            .iter()
            .rev()
            .chain(self.settings.0.iter().rev())
            .find(|(name, _)| names.contains(&name.as_str()))
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// What is wrong with the address.
    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let well_formed = |broker: &str| {
            let broker = broker.trim();
            let place = broker.rsplit_once("://").map_or(broker, |(_, place)| place);
            place.rsplit_once(':').is_some_and(|(host, port)| {
                !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
            })
        };
        if !self.brokers.split(',').all(well_formed) {
            problems.push(format!(
                "the Kafka brokers `{}` are not of the form `host:port,host:port`: correct them in `Kafka::new`",
                self.brokers
            ));
        }
        for name in ["bootstrap.servers", "metadata.broker.list"] {
            if let Some((name, value)) = self.setting(&Settings::default(), &[name]) {
                problems.push(format!(
                    "the Kafka setting `{name}` is `{value}`, and `Kafka::new` says `{}`: name the brokers there alone",
                    self.brokers
                ));
            }
        }
        problems
    }

    /// Why no answer came, and what to do. A client tells what is wrong with its credentials to those alone who poll it.
    fn unreachable<C: ConsumerContext>(
        &self,
        client: &BaseConsumer<C>,
        error: &KafkaError,
    ) -> SourceError {
        let is_told = |code: &RDKafkaErrorCode| {
            use RDKafkaErrorCode::{Authentication, SSL, SaslAuthenticationFailed};
            matches!(code, Authentication | SaslAuthenticationFailed | SSL)
        };
        let until = Instant::now() + REASON_LIMIT;
        let mut events = std::iter::from_fn(|| {
            let left = until.saturating_duration_since(Instant::now());
            (!left.is_zero()).then(|| client.poll(left.min(Duration::from_millis(50))))
        })
        .filter_map(|event| event?.err()?.rdkafka_error_code());
        let told = error
            .rdkafka_error_code()
            .filter(is_told)
            .or_else(|| events.find(is_told));
        let (what, remedy) = match told {
            Some(RDKafkaErrorCode::SSL) => (
                "could not be agreed with on encryption",
                "check the settings that begin with `ssl.`, and that the brokers speak TLS on this port",
            ),
            Some(_) => (
                "refuses the credentials",
                "check user and password (`sasl.username`, `sasl.password`) and `sasl.mechanisms`",
            ),
            None => (
                "does not answer",
                "check that the brokers run, and hosts and ports in `Kafka::new`; where they want TLS or SASL, set \
                 `security.protocol`",
            ),
        };
        SourceError::new(format!(
            "Kafka at `{}` {what} ({}): {remedy}",
            self.brokers,
            told.map_or_else(|| error.to_string(), |code| code.to_string()),
        ))
    }
}

impl fmt::Debug for Kafka {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kafka")
            .field("brokers", &self.brokers)
            .field("settings", &self.settings)
            .finish()
    }
}

/// Settings of librdkafka, later ones over earlier ones.
#[derive(Clone, Default)]
struct Settings(Vec<(String, String)>);

impl Settings {
    fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.push((name.into(), value.into()));
    }
}

/// Names alone: a value can be a password.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|(name, _)| name))
            .finish()
    }
}

/// What librdkafka says against a setting; the value of what could be a secret is left out.
fn refused(error: &KafkaError) -> String {
    let KafkaError::ClientConfig(_, why, name, value) = error else {
        return error.to_string();
    };
    let is_secret = ["password", "secret", "pem", "key", "jaas"]
        .iter()
        .any(|word| name.contains(word));
    let value = if is_secret { "***" } else { value };
    let remedy = if why.contains("not available at build time")
        || why.contains("not supported in this build")
    {
        "for encryption and SASL switch on the feature `kafka-ssl` of inbox-runtime, for anything else name `rdkafka` \
         among your dependencies and switch it on there"
    } else {
        "correct it in `set`; librdkafka's CONFIGURATION.md lists all of them"
    };
    let why = if is_secret {
        "it is not valid"
    } else {
        why.as_str()
    };
    format!("the Kafka setting `{name}` = `{value}` is refused ({why}): {remedy}")
}

/// Whether a switch of librdkafka is on.
fn is_on(value: &str) -> bool {
    matches!(
        value.to_ascii_lowercase().as_str(),
        "true" | "t" | "1" | "yes" | "on"
    )
}

/// librdkafka's own log lines.
fn log(level: RDKafkaLogLevel, facility: &str, line: &str) {
    match level {
        RDKafkaLogLevel::Emerg
        | RDKafkaLogLevel::Alert
        | RDKafkaLogLevel::Critical
        | RDKafkaLogLevel::Error
        | RDKafkaLogLevel::Warning => tracing::warn!(facility, "librdkafka: {line}"),
        _ => tracing::debug!(facility, "librdkafka: {line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brokers_without_a_port_are_named() {
        for (brokers, right) in [
            ("localhost:9092", true),
            ("a:1,b:2", true),
            ("a:1, b:2", true),
            ("[::1]:9092", true),
            ("PLAINTEXT://a:1", true),
            ("", false),
            ("localhost", false),
            ("a:1,", false),
            ("a:port", false),
            (":9092", false),
        ] {
            let problems = Kafka::new(brokers).problems();
            assert_eq!(problems.is_empty(), right, "{brokers}: {problems:?}");
        }
        let twice = Kafka::new("a:1").set("bootstrap.servers", "b:1");
        assert!(twice.problems()[0].contains("`b:1`"));
    }

    #[test]
    fn no_password_is_ever_shown() {
        let cluster = Kafka::new("a:1").set("sasl.password", "hush");
        let source = cluster.topic("orders").set("ssl.key.password", "hush");
        assert!(!format!("{cluster:?} {source:?}").contains("hush"));
    }
}
