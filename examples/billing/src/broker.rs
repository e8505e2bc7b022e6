//! The brokers that the example runs on, chosen by one switch. Nothing else of it knows which one it is.

use inbox_runtime::brokers::{ConsumerDeclaration, Nats, QueueKind, RabbitMq};
use inbox_runtime::{BoxError, InboxBuilder, Publisher, Source};
use serde_json::json;
use sqlx::Postgres;

use crate::environment;

/// The queue, the topic, or the subject of this example.
const ORDERS: &str = "inbox-example.orders";

/// The stream that keeps the subject.
const STREAM: &str = "inbox-example";

/// The consumer of the stream, or the group of the topic.
const CONSUMER: &str = "billing";

/// How long JetStream keeps a message: no longer than the inbox remembers its id.
const KEPT_FOR_HOURS: u64 = 24;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broker {
    RabbitMq,
    Kafka,
    Nats,
}

impl Broker {
    pub(crate) fn named(name: &str) -> Result<Self, String> {
        match name {
            "rabbitmq" => Ok(Self::RabbitMq),
            "kafka" => Ok(Self::Kafka),
            "nats" => Ok(Self::Nats),
            other => Err(format!(
                "`{other}` is no broker of this example\n  help: --broker rabbitmq, --broker kafka or --broker nats"
            )),
        }
    }

    /// What messages are sent to.
    pub(crate) const fn destination(self) -> &'static str {
        ORDERS
    }

    /// Consumes the orders, from a queue, topic or stream that is made where there is none.
    pub(crate) async fn source(
        self,
        inbox: InboxBuilder<Postgres>,
    ) -> Result<InboxBuilder<Postgres>, String> {
        match self {
            Self::RabbitMq => {
                let queue = rabbitmq()?.queue(ORDERS).declare(QueueKind::Classic);
                Ok(inbox.source("orders", queue))
            }
            Self::Kafka => kafka::source(inbox).await,
            Self::Nats => {
                let url = nats_url()?;
                let stream = Nats::new(url.as_str())
                    .consumer(STREAM, CONSUMER)
                    .declare(ConsumerDeclaration::new());
                works(&stream, "NATS_URL")?;
                make_stream(&url)
                    .await
                    .map_err(|error| format!("the stream `{STREAM}` was not made: {error}"))?;
                Ok(inbox.source("orders", stream))
            }
        }
    }

    pub(crate) fn publisher(self) -> Result<Box<dyn Publisher>, String> {
        match self {
            Self::RabbitMq => {
                let broker = rabbitmq()?;
                // An address that can never work is not tried again and again.
                works(&broker.queue(ORDERS), "AMQP_URL")?;
                Ok(Box::new(broker.publisher()))
            }
            Self::Kafka => kafka::publisher(),
            Self::Nats => {
                let broker = Nats::new(nats_url()?);
                works(&broker.consumer(STREAM, CONSUMER), "NATS_URL")?;
                Ok(Box::new(broker.publisher()))
            }
        }
    }
}

fn rabbitmq() -> Result<RabbitMq, String> {
    environment("AMQP_URL", "amqp://guest:guest@localhost:5672/%2f").map(RabbitMq::new)
}

fn nats_url() -> Result<String, String> {
    environment("NATS_URL", "nats://localhost:4222")
}

fn works(source: &impl Source, variable: &str) -> Result<(), String> {
    match source.problems().first() {
        Some(problem) => Err(format!("{variable}: {problem}")),
        None => Ok(()),
    }
}

/// A stream belongs to those who run the server, and most of them have a tool for it; here it is one request.
async fn make_stream(url: &str) -> Result<(), BoxError> {
    let server: async_nats::ServerAddr = url.parse()?;
    let mut options = async_nats::ConnectOptions::new();
    // The client itself does not look for them in the URL.
    if let (Some(user), Some(password)) = (server.username(), server.password()) {
        options = options.user_and_password(user.to_owned(), password.to_owned());
    }
    let client = options.connect(server).await?;
    let stream = json!({
        "name": STREAM,
        "subjects": [ORDERS],
        "retention": "limits",
        "storage": "file",
        "num_replicas": 1,
        "max_age": KEPT_FOR_HOURS * 3_600 * 1_000_000_000,
    });
    // The same settings again are no error.
    let subject = format!("$JS.API.STREAM.CREATE.{STREAM}");
    let answer = client.request(subject, stream.to_string().into()).await?;
    let answer: serde_json::Value = serde_json::from_slice(&answer.payload)?;
    match answer.get("error") {
        Some(error) => Err(error.to_string().into()),
        None => Ok(()),
    }
}

#[cfg(feature = "kafka")]
mod kafka {
    use inbox_runtime::brokers::Kafka;
    use inbox_runtime::{BoxError, InboxBuilder, Publisher};
    use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
    use rdkafka::client::DefaultClientContext;
    use rdkafka::config::ClientConfig;
    use rdkafka::types::RDKafkaErrorCode;
    use sqlx::Postgres;

    use super::{CONSUMER, ORDERS, environment, works};

    pub(super) async fn source(
        inbox: InboxBuilder<Postgres>,
    ) -> Result<InboxBuilder<Postgres>, String> {
        let brokers = brokers()?;
        let topic = Kafka::new(brokers.as_str()).topic(ORDERS).group(CONSUMER);
        works(&topic, "KAFKA_BROKERS")?;
        make_topic(&brokers)
            .await
            .map_err(|error| format!("the topic `{ORDERS}` was not made: {error}"))?;
        Ok(inbox.source("orders", topic))
    }

    pub(super) fn publisher() -> Result<Box<dyn Publisher>, String> {
        let cluster = Kafka::new(brokers()?);
        works(&cluster.topic(ORDERS).group(CONSUMER), "KAFKA_BROKERS")?;
        Ok(Box::new(cluster.publisher()))
    }

    fn brokers() -> Result<String, String> {
        environment("KAFKA_BROKERS", "localhost:9092")
    }

    /// With as many partitions as two processes of the example can share.
    async fn make_topic(brokers: &str) -> Result<(), BoxError> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", brokers);
        let admin: AdminClient<DefaultClientContext> = config.create()?;
        let topic = NewTopic::new(ORDERS, 4, TopicReplication::Fixed(1));
        let made = admin.create_topics([&topic], &AdminOptions::new()).await?;
        for one in made {
            match one {
                Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((_, error)) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Kafka's client is a library in C, which nobody builds who does not want it.
#[cfg(not(feature = "kafka"))]
mod kafka {
    use inbox_runtime::{InboxBuilder, Publisher};
    use sqlx::Postgres;

    const WITHOUT: &str = "this example was built without Kafka\n  help: cargo run -p billing --features kafka -- ...";

    pub(super) async fn source(
        _: InboxBuilder<Postgres>,
    ) -> Result<InboxBuilder<Postgres>, String> {
        Err(WITHOUT.to_owned())
    }

    pub(super) fn publisher() -> Result<Box<dyn Publisher>, String> {
        Err(WITHOUT.to_owned())
    }
}
