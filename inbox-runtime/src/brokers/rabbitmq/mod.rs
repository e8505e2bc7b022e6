//! RabbitMQ, over AMQP 0-9-1.

mod deliveries;
mod message;
mod publisher;
mod source;
mod topology;
mod unsettled;
mod wire;

use std::fmt;
use std::time::Duration;

use inbox_core::SourceError;
use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::tcp::{AMQPUriTcpExt, AsyncTcpStream, OwnedTLSConfig};
use lapin::types::ShortString;
use lapin::uri::AMQPUri;
use lapin::{Connection, ConnectionProperties, ErrorKind};

use super::address::without_password;

pub use publisher::RabbitMqPublisher;
pub use source::RabbitMqSource;
pub use topology::{Argument, Declaration, QueueKind};

/// How long a connection may take to be ready, unless the URL says otherwise (`connection_timeout`, in
/// milliseconds).
const CONNECT_LIMIT: Duration = Duration::from_secs(30);

/// A RabbitMQ server (or cluster) and how to connect to it; makes sources and publishers.
///
/// Each open source has a connection of its own, and so has each publisher.
///
/// RabbitMQ has no redelivery window of its own: a message that is acked is gone. What can bring it back (a queue of
/// dead letters that is moved back, a producer that repeats itself) is known to you alone: state it in
/// [`InboxBuilder::redelivery_window`](crate::InboxBuilder::redelivery_window).
///
/// ```
/// use inbox_runtime::brokers::{QueueKind, RabbitMq};
///
/// let broker = RabbitMq::new("amqp://shop:secret@rabbit.internal:5672/%2f");
/// let orders = broker.queue("orders").declare(QueueKind::Quorum);
/// let publisher = broker.publisher();
/// ```
#[derive(Clone)]
pub struct RabbitMq {
    url: String,
    heartbeat: Option<Duration>,
    connection_name: Option<String>,
}

impl RabbitMq {
    /// The server at `amqp://user:password@host:port/vhost`.
    ///
    /// Without a path the virtual host is `/`, which a path writes as `/%2f`. Nothing is parsed or connected
    /// here: a wrong URL is among the [`problems`](inbox_core::Source::problems) of the source.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            heartbeat: None,
            connection_name: None,
        }
    }

    /// Finds a silent server dead after about twice this time. The default is what the server suggests (60
    /// seconds unless configured otherwise); the shorter of the two counts. Whole seconds.
    #[must_use]
    pub const fn heartbeat(mut self, interval: Duration) -> Self {
        self.heartbeat = Some(interval);
        self
    }

    /// The name under which the server lists the connections, in its management pages and logs.
    #[must_use]
    pub fn connection_name(mut self, name: impl Into<String>) -> Self {
        self.connection_name = Some(name.into());
        self
    }

    /// A source that consumes the queue `name`.
    pub fn queue(&self, name: impl Into<String>) -> RabbitMqSource {
        RabbitMqSource::new(self.clone(), name.into())
    }

    /// A publisher that waits for the server's confirms. Connects with its first message.
    #[must_use]
    pub fn publisher(&self) -> RabbitMqPublisher {
        RabbitMqPublisher::new(self.clone())
    }

    /// What is wrong with the settings of the connection.
    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if let Err(problem) = self.address() {
            problems.push(problem);
        }
        if let Some(interval) = self.heartbeat {
            let whole = interval.subsec_nanos() == 0;
            if !whole || !(1..=u64::from(u16::MAX)).contains(&interval.as_secs()) {
                problems.push(format!(
                    "the RabbitMQ heartbeat {interval:?} is not between 1 and 65535 whole seconds: change it in \
                     `heartbeat`, or leave it to the server"
                ));
            }
        }
        problems
    }

    fn address(&self) -> Result<AMQPUri, String> {
        let wrong = |why: &str, remedy: &str| {
            format!(
                "the RabbitMQ url {} {why}: {remedy}",
                without_password(&self.url)
            )
        };
        const FORM: &str = "write it as `amqp://user:password@host:port/vhost`";
        let mut address: AMQPUri = self.url.parse().map_err(|problem: String| {
            // One of the parser's texts repeats the whole url, password and all.
            if problem.starts_with("Invalid URL") {
                wrong("cannot be parsed", FORM)
            } else {
                wrong(&format!("cannot be parsed ({problem})"), FORM)
            }
        })?;
        // The parser takes a host that it does not understand for `localhost`.
        let host = self.url.split("://").nth(1).unwrap_or_default();
        let host = host.split(['/', '?', '#']).next().unwrap_or_default();
        let host = host.rsplit('@').next().unwrap_or_default();
        if host.starts_with('[') {
            return Err(wrong(
                "has an IPv6 address as its host, which the AMQP client does not understand",
                "use a host name",
            ));
        }
        if host.is_empty() || host.starts_with(':') || address.authority.host.is_empty() {
            return Err(wrong("names no host", FORM));
        }
        if address.vhost.is_empty() {
            return Err(wrong(
                "ends in `/`, which names a virtual host with an empty name",
                "leave the `/` off or write `/%2f` for the default virtual host, `/name` for another one",
            ));
        }
        if let Some(interval) = self.heartbeat {
            address.query.heartbeat = u16::try_from(interval.as_secs()).ok();
        }
        Ok(address)
    }

    /// Opens a connection.
    async fn connect(&self) -> Result<Connection, SourceError> {
        let address = self.address().map_err(SourceError::new)?;
        let shown = without_password(&self.url);
        let mut properties = ConnectionProperties::default();
        if let Some(name) = &self.connection_name {
            properties = properties.with_connection_name(name.as_str().into());
        }
        let limit = address
            .query
            .connection_timeout
            .map_or(CONNECT_LIMIT, Duration::from_millis);
        let encrypted = address.scheme == lapin::uri::AMQPScheme::AMQPS;
        let connecting = Connection::connector(
            address,
            wire::runtime(),
            // The client itself would wait for a silent host as long as the operating system does.
            async move |address, _| {
                let tls = OwnedTLSConfig::default();
                let runtime = async_rs::Runtime::tokio_current();
                let stream = address.connect_with_config_async(tls.as_ref(), &runtime);
                match tokio::time::timeout(limit, stream).await {
                    // Built without TLS, the client takes `amqps` for `amqp` and would send the password in the
                    // clear.
                    Ok(Ok(AsyncTcpStream::Plain(_))) if encrypted => {
                        Err(std::io::Error::other("the AMQP client is built without TLS").into())
                    }
                    // Above the encryption, where the frames are.
                    Ok(stream) => Ok(AsyncTcpStream::Plain(wire::Guarded::new(stream?))),
                    Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
                }
            },
            properties,
        );
        match tokio::time::timeout(limit, connecting).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(SourceError::new(refusal(&shown, &error, encrypted))),
            Err(_) => Err(SourceError::new(format!(
                "RabbitMQ at {shown} did not answer within {limit:?}: are host and port of the url those of a \
                 RabbitMQ server?"
            ))),
        }
    }
}

impl fmt::Debug for RabbitMq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMq")
            .field("url", &without_password(&self.url))
            .field("heartbeat", &self.heartbeat)
            .field("connection_name", &self.connection_name)
            .finish()
    }
}

/// Why no connection came about, and what to do.
fn refusal(shown: &str, error: &lapin::Error, encrypted: bool) -> String {
    let why = reason(error);
    let remedy = match error.kind() {
        ErrorKind::ProtocolError(error)
            if *error.kind() == AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED) =>
        {
            "check user and password in the url given to `RabbitMq::new`"
        }
        ErrorKind::ProtocolError(error)
            if *error.kind() == AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED) =>
        {
            "check the virtual host in the url given to `RabbitMq::new`, and the user's permissions for it"
        }
        _ if encrypted => {
            "check that the server speaks TLS on this port, and that a TLS feature of this crate is switched on"
        }
        _ => "check that the server runs, and host and port in the url given to `RabbitMq::new`",
    };
    format!("RabbitMQ at {shown} cannot be connected to ({why}): {remedy}")
}

/// The server's own words where the error comes from it.
fn reason(error: &lapin::Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(error) if !error.get_message().as_str().is_empty() => {
            error.get_message().to_string()
        }
        _ => error.to_string(),
    }
}

fn is_soft(error: &lapin::Error, kind: &AMQPSoftError) -> bool {
    matches!(error.kind(), ErrorKind::ProtocolError(error)
        if matches!(error.kind(), AMQPErrorKind::Soft(found) if found == kind))
}

/// A name for the wire; the client's own conversion panics on a long one.
fn short(name: &str) -> Result<ShortString, String> {
    ShortString::try_new(name).map_err(|_| {
        format!(
            "`{name}` has {} bytes, and AMQP names have at most 255",
            name.len()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_ever_shown() {
        let broker = RabbitMq::new("amqp://u:secret@h:1/v");
        assert!(!format!("{broker:?} {:?}", broker.queue("q")).contains("secret"));
    }

    #[test]
    fn wrong_urls_are_named_without_their_password() {
        for (url, says) in [
            ("", "cannot be parsed"),
            ("localhost", "cannot be parsed"),
            ("amqp:u:secret@h", "cannot be parsed"),
            ("http://u:secret@h", "http"),
            ("amqp://u:secret@h:port", "port"),
            ("amqp://u:secret", "port"),
            ("amqp://u:secret@/v", "host"),
            ("amqp://", "host"),
            ("amqp://u:secret@[::1]:5672", "IPv6"),
            ("amqp://u:secret@h/", "virtual host"),
            ("amqp://u:secret@h?heartbeat=x", "cannot be parsed"),
        ] {
            let problems = RabbitMq::new(url).problems();
            assert_eq!(problems.len(), 1, "{url}: {problems:?}");
            assert!(problems[0].contains(says), "{url}: {problems:?}");
            assert!(!problems[0].contains("secret"), "{url}: {problems:?}");
        }
        for url in [
            "amqp://h",
            "amqp://h/%2f",
            "amqps://u:p@h:1/v?heartbeat=5",
            "amqp://127.0.0.1:5672/v",
        ] {
            assert!(RabbitMq::new(url).problems().is_empty(), "{url}");
        }
    }

    #[test]
    fn odd_heartbeats_are_refused() {
        for (interval, right) in [
            (Duration::ZERO, false),
            (Duration::from_millis(1500), false),
            (Duration::from_secs(70_000), false),
            (Duration::from_secs(10), true),
        ] {
            let broker = RabbitMq::new("amqp://h").heartbeat(interval);
            assert_eq!(broker.problems().is_empty(), right, "{interval:?}");
        }
        let broker = RabbitMq::new("amqp://h?heartbeat=30").heartbeat(Duration::from_secs(7));
        assert_eq!(broker.address().unwrap().query.heartbeat, Some(7));
    }
}
