//! Streams and consumers of a real NATS server, seen from outside the inbox.

use std::net::SocketAddr;
use std::time::Duration;

use async_nats::{Client, ConnectOptions, HeaderMap};
use inbox_core::Publisher as _;
use inbox_runtime::Envelope;
use inbox_runtime::brokers::{JetStreamPublisher, JetStreamSource, Nats};
use serde_json::{Value, json};

use crate::{environment, eventually, unique};

/// How long the streams of the tests keep a message: less than the retention of an inbox.
const MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// The consumer that tests use.
pub const CONSUMER: &str = "billing";

/// A stream of one test with one consumer.
pub struct TestStream {
    /// Its name, which is also the first part of its subjects.
    pub name: String,
    url: String,
    publisher: JetStreamPublisher,
    client: Client,
}

/// What can be seen of a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Messages that were not delivered yet.
    pub pending: u64,
    /// Messages that were delivered and not acked.
    pub unacked: u64,
    /// Requests for messages that wait at the server.
    pub waiting: u64,
}

impl TestStream {
    /// A new stream on the shared server, and a consumer with these settings beyond what an inbox needs.
    pub async fn new(consumer: Value) -> Self {
        Self::on(&environment("NATS_URL"), json!({}), consumer).await
    }

    /// A new stream on the server at `url`, with these settings beyond the usual ones.
    pub async fn on(url: &str, stream: Value, consumer: Value) -> Self {
        let new = Self::without_consumer(url, stream).await;
        new.make_consumer(consumer).await;
        new
    }

    /// A new stream that nobody consumes.
    ///
    /// # Panics
    ///
    /// When the server does not make it.
    pub async fn without_consumer(url: &str, stream: Value) -> Self {
        let name = unique("S");
        let new = Self::attach(url, name.clone()).await;
        let usual = json!({
            "name": name,
            "subjects": [format!("{name}.>")],
            "retention": "limits",
            "storage": "file",
            "num_replicas": 1,
            "max_age": nanoseconds(MAX_AGE),
        });
        let stream = merged(usual, &stream);
        new.ask(&format!("STREAM.CREATE.{name}"), &stream).await;
        new
    }

    /// The same stream over a new connection, after a restart of its server.
    pub async fn after_restart(self) -> Self {
        Self::attach(&self.url, self.name.clone()).await
    }

    /// A stream that is there.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    pub async fn attach(url: &str, name: String) -> Self {
        let (user, _) = url.rsplit_once('@').expect("no user in the url");
        let (_, user) = user.rsplit_once('/').expect("no scheme in the url");
        let (user, password) = user.split_once(':').expect("no password in the url");
        let options = ConnectOptions::with_user_and_password(user.into(), password.into());
        Self {
            client: options.connect(url).await.expect("NATS does not answer"),
            publisher: Nats::new(url).publisher(),
            url: url.to_owned(),
            name,
        }
    }

    /// Makes the consumer.
    ///
    /// # Panics
    ///
    /// When the server does not make it.
    pub async fn make_consumer(&self, settings: Value) {
        let usual = json!({
            "durable_name": CONSUMER,
            "ack_policy": "explicit",
            "deliver_policy": "all",
            "replay_policy": "instant",
        });
        let config = merged(usual, &settings);
        let body = json!({ "stream_name": self.name, "config": config });
        let verb = if config["durable_name"].is_string() {
            format!("CONSUMER.DURABLE.CREATE.{}.{CONSUMER}", self.name)
        } else {
            format!("CONSUMER.CREATE.{}.{CONSUMER}", self.name)
        };
        self.ask(&verb, &body).await;
    }

    /// The consumer as a source.
    #[must_use]
    pub fn source(&self) -> JetStreamSource {
        Nats::new(&self.url).consumer(&self.name, CONSUMER)
    }

    /// The consumer as a source that connects to a proxy.
    ///
    /// # Panics
    ///
    /// When the server's address is in another form than the tests' server has it.
    #[must_use]
    pub fn source_through(&self, proxy: SocketAddr) -> JetStreamSource {
        let (user, _) = self.url.rsplit_once('@').expect("no user in the url");
        Nats::new(format!("{user}@{proxy}")).consumer(&self.name, CONSUMER)
    }

    /// Where its server listens.
    ///
    /// # Panics
    ///
    /// When the server's address is in another form than the tests' server has it.
    #[must_use]
    pub fn server(&self) -> SocketAddr {
        let (_, server) = self.url.rsplit_once('@').expect("no user in the url");
        server.parse().expect("no IP address and port in the url")
    }

    /// A subject of the stream.
    #[must_use]
    pub fn subject(&self) -> String {
        format!("{}.placed", self.name)
    }

    /// Publishes a message and waits until it is stored.
    ///
    /// # Panics
    ///
    /// When it is not.
    pub async fn publish(&self, message: Envelope) {
        self.publisher
            .publish(&self.subject(), &message)
            .await
            .expect("not published");
    }

    /// Publishes a message with these headers, past the adapter.
    ///
    /// # Panics
    ///
    /// When it is not stored.
    pub async fn publish_raw(&self, headers: &[(&str, &str)], body: &'static [u8]) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, *value);
        }
        let stored = self
            .client
            .request_with_headers(self.subject(), map, body.into())
            .await
            .expect("no stream takes it");
        let stored: Value = serde_json::from_slice(&stored.payload).expect("no JSON");
        assert!(stored["seq"].is_u64(), "not stored: {stored}");
    }

    /// What is to be seen of the consumer now.
    pub async fn seen(&self) -> Seen {
        let info = self.consumer().await;
        let number = |name: &str| info[name].as_u64().unwrap_or_default();
        Seen {
            pending: number("num_pending"),
            unacked: number("num_ack_pending"),
            waiting: number("num_waiting"),
        }
    }

    /// What the server says of the consumer.
    pub async fn consumer(&self) -> Value {
        let verb = format!("CONSUMER.INFO.{}.{CONSUMER}", self.name);
        self.ask(&verb, &json!({})).await
    }

    /// How many messages are neither acked nor on their way to be.
    pub async fn left(&self) -> u64 {
        let seen = self.seen().await;
        seen.pending + seen.unacked
    }

    /// Waits until everything is acked, which the server may note a little after it said so.
    pub async fn until_all_acked(&self) {
        eventually("everything is acked", || async { self.left().await == 0 }).await;
    }

    /// Deletes the consumer, and what it knows with it.
    pub async fn delete_consumer(&self) {
        let verb = format!("CONSUMER.DELETE.{}.{CONSUMER}", self.name);
        self.ask(&verb, &json!({})).await;
    }

    async fn ask(&self, verb: &str, body: &Value) -> Value {
        let subject = format!("$JS.API.{verb}");
        let answer = self.client.request(subject, body.to_string().into()).await;
        let answer = answer.expect("JetStream does not answer");
        let answer: Value = serde_json::from_slice(&answer.payload).expect("no JSON");
        assert!(answer.get("error").is_none(), "{verb}: {answer}");
        answer
    }
}

/// A time as JetStream writes it.
///
/// # Panics
///
/// When it is too long for that.
#[must_use]
pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("centuries")
}

fn merged(mut usual: Value, more: &Value) -> Value {
    for (name, value) in more.as_object().into_iter().flatten() {
        usual[name] = value.clone();
    }
    usual
}

impl std::fmt::Debug for TestStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TestStream").field(&self.name).finish()
    }
}
