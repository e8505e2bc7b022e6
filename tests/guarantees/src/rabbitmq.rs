//! Queues on a real RabbitMQ, seen from outside the inbox.

use std::net::SocketAddr;

use inbox_core::Publisher as _;
use inbox_runtime::Envelope;
use inbox_runtime::brokers::{Declaration, QueueKind, RabbitMq, RabbitMqPublisher, RabbitMqSource};
use lapin::options::{BasicGetOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::{environment, eventually, unique};

/// After this time without a consumer the server removes a queue of the tests.
const EXPIRES_MS: i32 = 10 * 60 * 1000;

/// A queue of one test.
pub struct TestQueue {
    /// Its name.
    pub name: String,
    url: String,
    publisher: RabbitMqPublisher,
    channel: lapin::Channel,
    _connection: Connection,
}

/// What can be seen of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Messages that are not with a consumer.
    pub ready: u32,
    /// Consumers.
    pub consumers: u32,
}

impl TestQueue {
    /// A new queue on the shared server.
    pub async fn new(kind: QueueKind) -> Self {
        Self::on(&environment("AMQP_URL"), kind, &[]).await
    }

    /// A new queue on the server at `url`, with more arguments.
    ///
    /// # Panics
    ///
    /// When the server does not make it.
    pub async fn on(url: &str, kind: QueueKind, more: &[(&str, AMQPValue)]) -> Self {
        let name = unique("q");
        let queue = Self::attach(url, name).await;
        let kind = if kind == QueueKind::Quorum {
            "quorum"
        } else {
            "classic"
        };
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
        arguments.insert("x-expires".into(), AMQPValue::LongInt(EXPIRES_MS));
        for (argument, value) in more {
            arguments.insert((*argument).into(), value.clone());
        }
        let options = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        queue
            .channel
            .queue_declare(queue.name.as_str().into(), options, arguments)
            .await
            .expect("no queue");
        queue
    }

    /// The same queue over a new connection, after a restart of its server.
    pub async fn after_restart(self) -> Self {
        Self::attach(&self.url, self.name).await
    }

    /// A queue that is there already.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    pub async fn attach(url: &str, name: String) -> Self {
        let connection = Connection::connect(url, ConnectionProperties::default())
            .await
            .expect("RabbitMQ does not answer");
        Self {
            channel: connection.create_channel().await.expect("no channel"),
            publisher: RabbitMq::new(url).publisher(),
            url: url.to_owned(),
            name,
            _connection: connection,
        }
    }

    /// What a source says that declares a queue like these.
    #[must_use]
    pub fn declaration(kind: QueueKind) -> Declaration {
        Declaration::new(kind).argument("x-expires", EXPIRES_MS)
    }

    /// The queue as a source.
    #[must_use]
    pub fn source(&self) -> RabbitMqSource {
        RabbitMq::new(&self.url).queue(&self.name)
    }

    /// The queue as a source whose connection the server lists under the queue's name.
    #[must_use]
    pub fn named_source(&self) -> RabbitMqSource {
        RabbitMq::new(&self.url)
            .connection_name(&self.name)
            .queue(&self.name)
    }

    /// The queue as a source that connects to a proxy.
    ///
    /// # Panics
    ///
    /// When the server's address is in another form than the tests' server has it.
    #[must_use]
    pub fn source_through(&self, proxy: SocketAddr) -> RabbitMqSource {
        let (user, place) = self.url.rsplit_once('@').expect("no user in the url");
        let (_, vhost) = place.split_once('/').expect("no virtual host in the url");
        RabbitMq::new(format!("{user}@{proxy}/{vhost}")).queue(&self.name)
    }

    /// Where its server listens.
    ///
    /// # Panics
    ///
    /// When the server's address is in another form than the tests' server has it.
    #[must_use]
    pub fn server(&self) -> SocketAddr {
        let (_, place) = self.url.rsplit_once('@').expect("no user in the url");
        let (server, _) = place.split_once('/').expect("no virtual host in the url");
        server.parse().expect("no IP address and port in the url")
    }

    /// Publishes a message and waits for the confirm.
    ///
    /// # Panics
    ///
    /// When it is not confirmed.
    pub async fn publish(&self, message: Envelope) {
        self.publisher
            .publish(&self.name, &message)
            .await
            .expect("not published");
    }

    /// What is to be seen of it now.
    ///
    /// # Panics
    ///
    /// When the queue is gone.
    pub async fn seen(&self) -> Seen {
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let queue = self
            .channel
            .queue_declare(self.name.as_str().into(), options, FieldTable::default())
            .await
            .expect("the queue is gone");
        Seen {
            ready: queue.message_count(),
            consumers: queue.consumer_count(),
        }
    }

    /// Waits until `consumers` consume it.
    pub async fn until_consumed_by(&self, consumers: u32) {
        eventually("the consumers of the queue", || async {
            self.seen().await.consumers == consumers
        })
        .await;
    }

    /// The messages left when nobody consumes any more: with its last consumer gone, what was not acked is
    /// ready again.
    pub async fn left(&self) -> u32 {
        self.until_consumed_by(0).await;
        self.seen().await.ready
    }

    /// Takes one message away: its id.
    ///
    /// # Panics
    ///
    /// When the queue is gone.
    pub async fn take(&self) -> Option<String> {
        let got = self
            .channel
            .basic_get(self.name.as_str().into(), BasicGetOptions { no_ack: true })
            .await
            .expect("the queue is gone")?;
        let id = got.delivery.properties.message_id().as_ref();
        Some(id.map(ToString::to_string).unwrap_or_default())
    }
}

impl std::fmt::Debug for TestQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TestQueue").field(&self.name).finish()
    }
}

/// Lets the server close the connections of this name, through its management interface.
///
/// # Panics
///
/// When there is none within 20 seconds, or the server refuses.
pub async fn close_connections(name: &str) {
    // The list is a little behind.
    eventually("the connection in the server's list", || async {
        !connections_of(name).await.is_empty()
    })
    .await;
    for connection in connections_of(name).await {
        let escaped = connection.replace(' ', "%20").replace('>', "%3E");
        management("DELETE", &format!("/api/connections/{escaped}")).await;
    }
}

/// The server's own names of the connections that their client called `name`.
async fn connections_of(name: &str) -> Vec<String> {
    let listing = management("GET", "/api/connections").await;
    let list: serde_json::Value = serde_json::from_str(&listing).expect("no list");
    list.as_array()
        .into_iter()
        .flatten()
        .filter(|connection| connection["client_properties"]["connection_name"] == name)
        .filter_map(|connection| connection["name"].as_str().map(str::to_owned))
        .collect()
}

/// One request to the management interface; its body.
async fn management(method: &str, path: &str) -> String {
    let url = environment("RABBITMQ_MANAGEMENT_URL");
    let rest = url.strip_prefix("http://").expect("not http");
    let (user, host) = rest.rsplit_once('@').expect("no user");
    let mut stream = TcpStream::connect(host).await.expect("no management");
    // 1.0: the body comes in one piece and ends with the connection.
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: {host}\r\nAuthorization: Basic {}\r\n\r\n",
        base64(user.as_bytes())
    );
    stream.write_all(request.as_bytes()).await.expect("closed");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("closed");
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    let status = head.split(' ').nth(1).unwrap_or_default();
    assert!(status.starts_with('2'), "{method} {path}: {head}");
    body.to_owned()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let mut bits = 0_usize;
        for position in 0..3 {
            bits = bits << 8 | usize::from(group.get(position).copied().unwrap_or(0));
        }
        for position in 0..4 {
            if position <= group.len() {
                text.push(char::from(DIGITS[bits >> (18 - 6 * position) & 63]));
            } else {
                text.push('=');
            }
        }
    }
    text
}
