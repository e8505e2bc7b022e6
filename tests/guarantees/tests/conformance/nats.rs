//! NATS JetStream.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use inbox_core::Publisher as _;
use inbox_guarantees::environment;
use inbox_guarantees::nats::{CONSUMER, TestStream, nanoseconds};
use inbox_guarantees::servers::OwnServer;
use inbox_guarantees::tap::{From, Listener, Tap};
use inbox_runtime::brokers::{ConsumerDeclaration, JetStreamPublisher, JetStreamSource, Nats};
use inbox_runtime::testing::conformance::{self, Ability, Case, Rig, Setup, suite};
use inbox_runtime::{BoxError, Envelope};
use serde_json::json;
use tokio::sync::RwLock;

/// How many messages are on their way to the server at a time.
const AT_ONCE: usize = 64;

/// How long the server waits for an ack, and where it takes deliveries away early.
const ACK_WAIT: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_secs(2);

pub(crate) struct JetStream<const EXTENDED: bool> {
    /// Replaced by one over a new connection after a restart.
    stream: RwLock<TestStream>,
    url: String,
    name: String,
    ack_wait: Duration,
    server: Option<OwnServer>,
    /// What the sources connect through, to be cut.
    tap: Tap,
    published: Mutex<HashSet<String>>,
}

/// Only passes on.
struct Deaf;

impl Listener for Deaf {
    fn hear(&mut self, _from: From, _bytes: &[u8]) {}
}

impl<const EXTENDED: bool> JetStream<EXTENDED> {
    async fn on(
        stream: TestStream,
        url: String,
        ack_wait: Duration,
        server: Option<OwnServer>,
    ) -> Self {
        Self {
            name: stream.name.clone(),
            tap: Tap::to(stream.server(), || Deaf).await,
            stream: RwLock::new(stream),
            url,
            ack_wait,
            server,
            published: Mutex::default(),
        }
    }

    /// Messages as the server stores them. It carries no blank id, and under `Nats-Msg-Id` it would drop a copy that comes too
    /// soon, so copies have their id in the other place where the source looks.
    fn as_stored(&self, messages: &[Envelope]) -> Vec<Envelope> {
        let mut published = self.published.lock().unwrap();
        let stored = messages.iter().map(|message| {
            let mut stored = message.clone();
            match message.id.as_deref() {
                None => stored,
                Some(blank) if blank.trim().is_empty() => {
                    stored.id = None;
                    stored
                }
                Some(id) if published.insert(id.to_owned()) => stored,
                Some(id) => {
                    stored.id = None;
                    stored.header("ce-id", id.to_owned())
                }
            }
        });
        stored.collect()
    }

    fn at(&self, address: SocketAddr) -> Nats {
        let (user, _) = self.url.rsplit_once('@').unwrap_or_default();
        Nats::new(format!("{user}@{address}"))
    }

    async fn publish_one(
        &self,
        publisher: &JetStreamPublisher,
        message: &Envelope,
    ) -> Result<(), BoxError> {
        let deadline = Instant::now() + Self::PATIENCE;
        let subject = format!("{}.placed", self.name);
        loop {
            match publisher.publish(&subject, message).await {
                // A server that has just started listens before it has found its streams.
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
impl<const EXTENDED: bool> Rig for JetStream<EXTENDED> {
    type Source = JetStreamSource;

    fn lacks(_ability: Ability) -> Option<&'static str> {
        None
    }

    async fn fresh(setup: Setup) -> Result<Self, BoxError> {
        let server = tokio::task::block_in_place(|| match setup {
            Setup::OwnBroker => Some(OwnServer::start("nats")),
            _ => None,
        });
        let url = match &server {
            Some(server) => server.url("NATS_URL"),
            None => environment("NATS_URL"),
        };
        let ack_wait = match setup {
            Setup::ShortWindow => SHORT,
            _ => ACK_WAIT,
        };
        // The shortest that the server accepts.
        let stream = json!({ "duplicate_window": nanoseconds(Duration::from_millis(100)) });
        let consumer = json!({ "ack_wait": nanoseconds(ack_wait) });
        let stream = TestStream::on(&url, stream, consumer).await;
        Ok(Self::on(stream, url, ack_wait, server).await)
    }

    fn source(&self) -> JetStreamSource {
        let source = self.at(self.tap.address()).consumer(&self.name, CONSUMER);
        let source = source.declare(ConsumerDeclaration::new().ack_wait(self.ack_wait));
        if EXTENDED {
            source
        } else {
            source.without_extension()
        }
    }

    async fn publish(&self, messages: &[Envelope]) -> Result<(), BoxError> {
        let publisher = Nats::new(&self.url).publisher();
        let publisher = match &self.server {
            Some(_) => publisher.confirm_limit(Duration::from_secs(3)),
            None => publisher,
        };
        let messages = self.as_stored(messages);
        let publishing = messages
            .iter()
            .map(|message| self.publish_one(&publisher, message));
        let publishing: Vec<_> = publishing.collect();
        // In their order as far as one at a time goes.
        let at_once = if messages.len() > AT_ONCE { AT_ONCE } else { 1 };
        let published = stream::iter(publishing).buffered(at_once);
        published.try_collect::<()>().await?;
        Ok(())
    }

    async fn left(&self) -> Result<u64, BoxError> {
        Ok(self.stream.read().await.left().await)
    }

    async fn cut(&self) -> Result<(), BoxError> {
        self.tap.cut();
        Ok(())
    }

    async fn stop(&self) -> Result<(), BoxError> {
        self.command(OwnServer::stop)
    }

    async fn crash(&self) -> Result<(), BoxError> {
        // The server writes acks to its disk a little after it confirmed them; what a crash makes it forget comes again
        // when its time is over, which may be after the case has ended.
        tokio::time::sleep(Duration::from_secs(2)).await;
        self.command(OwnServer::crash)
    }

    async fn start(&self) -> Result<(), BoxError> {
        self.command(OwnServer::again)?;
        *self.stream.write().await = TestStream::attach(&self.url, self.name.clone()).await;
        Ok(())
    }

    fn address(&self) -> String {
        format!("{} {}", self.url, self.name)
    }

    async fn attach(address: &str) -> Result<Self, BoxError> {
        let (url, name) = address.split_once(' ').ok_or("no address")?;
        let stream = TestStream::attach(url, name.to_owned()).await;
        Ok(Self::on(stream, url.to_owned(), ACK_WAIT, None).await)
    }
}

suite!(JetStream<true>);

/// The one case that differs without the extension.
#[test]
fn what_takes_longer_than_an_unextended_lease_bills_once() {
    conformance::test::<JetStream<false>>(Case::Window, module_path!());
}
