//! NATS JetStream.

mod api;
mod consumer;
mod deliveries;
mod leases;
mod message;
mod publisher;
mod source;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, ServerAddr};
use inbox_core::SourceError;

use super::address::without_password;
use api::JetStream;

pub use consumer::{ConsumerDeclaration, DeliverFrom};
pub use publisher::JetStreamPublisher;
pub use source::JetStreamSource;

/// How long a connection may take to be ready.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// How long the server may take to answer a request.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// Where nobody listens, on no machine.
const NOWHERE: &str = "nats://127.0.0.1:0";

/// A NATS server (or cluster) with JetStream and how to connect to it; makes sources and publishers.
///
/// Each open source has a connection of its own, and so has each publisher. The feature `nats-tls` lets them be
/// encrypted.
///
/// ```
/// use inbox_runtime::brokers::{ConsumerDeclaration, Nats};
///
/// let broker = Nats::new("nats://shop:secret@nats.internal:4222");
/// let orders = broker
///     .consumer("ORDERS", "billing")
///     .declare(ConsumerDeclaration::new().filter("orders.placed"));
/// let publisher = broker.publisher();
/// ```
#[derive(Clone)]
pub struct Nats {
    url: String,
    user: Option<(String, String)>,
    token: Option<String>,
    connection_name: Option<String>,
    domain: Option<String>,
}

impl Nats {
    /// The server at `nats://user:password@host:port`, or several of one cluster with `,` between them. With `tls` in
    /// place of `nats` an unencrypted connection is refused.
    ///
    /// Nothing is parsed or connected here: a wrong URL is among the [`problems`](inbox_core::Source::problems) of the
    /// source. What has a meaning in a URL is escaped in user and password (`%40` for `@`). A user without a password is
    /// taken for a token, as NATS has it. Of several servers, the first that has them says user and password for all.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            user: None,
            token: None,
            connection_name: None,
            domain: None,
        }
    }

    /// User and password, whatever characters they have; those in the URL are not looked at.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.user = Some((user.into(), password.into()));
        self
    }

    /// The token that the server asks for instead of user and password.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// The name under which the server lists the connections.
    #[must_use]
    pub fn connection_name(mut self, name: impl Into<String>) -> Self {
        self.connection_name = Some(name.into());
        self
    }

    /// The JetStream domain that has the streams, where it is not the one of the server that is connected to (a leaf
    /// node of a hub).
    #[must_use]
    pub fn domain(mut self, domain: impl Into<String>) -> Self {
        self.domain = Some(domain.into());
        self
    }

    /// A source of the messages that the durable pull consumer `name` delivers of `stream`.
    pub fn consumer(&self, stream: impl Into<String>, name: impl Into<String>) -> JetStreamSource {
        JetStreamSource::new(self.clone(), stream.into(), name.into())
    }

    /// A publisher that waits until a stream has stored the message. Connects with its first one.
    #[must_use]
    pub fn publisher(&self) -> JetStreamPublisher {
        JetStreamPublisher::new(self.clone())
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if let Err(problem) = self.addresses() {
            problems.push(problem);
        }
        if self.token.is_some() && self.user.is_some() {
            problems.push(
                "NATS takes either a user or a token: leave `user` or `token` of `Nats` off"
                    .to_owned(),
            );
        }
        if let Some(domain) = &self.domain
            && !is_name(domain)
        {
            problems.push(format!(
                "`{domain}` cannot be the name of a JetStream domain: change it in `Nats::domain`"
            ));
        }
        problems
    }

    fn addresses(&self) -> Result<Vec<ServerAddr>, String> {
        const FORM: &str = "write it as `nats://user:password@host:port`";
        let address = |url: &str| {
            let wrong = |why: &str, remedy: &str| {
                format!("the NATS url {} {why}: {remedy}", without_secret(url))
            };
            // The parser's own texts could repeat a password.
            let address: ServerAddr = url.parse().map_err(|_| wrong("cannot be parsed", FORM))?;
            match address.scheme() {
                "nats" => {}
                "tls" if cfg!(feature = "nats-tls") => {}
                "tls" => {
                    return Err(wrong(
                        "asks for encryption",
                        "switch the feature `nats-tls` of inbox-runtime on",
                    ));
                }
                _ => return Err(wrong("is for web sockets, which are not supported", FORM)),
            }
            if address.host().is_empty() {
                return Err(wrong("names no host", FORM));
            }
            Ok(address)
        };
        self.url.split(',').map(str::trim).map(address).collect()
    }

    /// User and password, or a token, as the options or the URL say.
    fn credentials(&self, addresses: &[ServerAddr]) -> Option<Credentials> {
        let in_url = || {
            let user = addresses.iter().find(|address| address.has_user_pass())?;
            let name = unescaped(user.username()?);
            Some(match user.password() {
                Some(password) => Credentials::User(name, unescaped(password)),
                None => Credentials::Token(name),
            })
        };
        match (&self.user, &self.token) {
            (Some((user, password)), _) => Some(Credentials::User(user.clone(), password.clone())),
            (None, Some(token)) => Some(Credentials::Token(token.clone())),
            (None, None) => in_url(),
        }
    }

    fn shown(&self) -> String {
        let urls = self.url.split(',').map(str::trim).map(without_secret);
        urls.collect::<Vec<_>>().join(", ")
    }

    /// Opens a connection that is gone when it is lost.
    async fn connect(&self) -> Result<Connection, SourceError> {
        let addresses = self.addresses().map_err(SourceError::new)?;
        let complaint = Complaint::default();
        let mut options = ConnectOptions::new()
            .connection_timeout(CONNECT_LIMIT)
            .request_timeout(Some(REQUEST_LIMIT))
            .retain_servers_order()
            .ignore_discovered_servers()
            .max_reconnects(addresses.len())
            .event_callback({
                let complaint = complaint.clone();
                move |event| {
                    complaint.note(&event);
                    std::future::ready(())
                }
            });
        if !cfg!(feature = "nats-tls") {
            // Without it the client would panic on a server that insists on encryption. A certificate that cannot be read
            // makes that an error.
            options = options.add_root_certificates("".into());
        }
        // The client itself does not look for them in the URL.
        options = match self.credentials(&addresses) {
            Some(Credentials::User(user, password)) => options.user_and_password(user, password),
            Some(Credentials::Token(token)) => options.token(token),
            None => options,
        };
        if let Some(name) = &self.connection_name {
            options = options.name(name);
        }
        let client = options
            .connect(addresses)
            .await
            .map_err(|error| SourceError::new(self.refusal(error.kind(), &error)))?;
        // The client would reconnect by itself, and with it would go acks of deliveries that others have by then, and
        // requests for more that nobody waits for. With nowhere to go it ends, and whoever uses it is told.
        client.set_server_pool(NOWHERE).await.map_err(|error| {
            SourceError::new(format!("NATS at {} was lost ({error})", self.shown()))
        })?;
        Ok(Connection {
            jetstream: JetStream::new(client.clone(), self.domain.as_deref()),
            client,
            complaint,
        })
    }

    /// Why no connection came about, and what to do.
    fn refusal(&self, kind: ConnectErrorKind, error: &dyn std::error::Error) -> String {
        let remedy = match kind {
            ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
                "check user and password, or the token, given to `Nats`"
            }
            ConnectErrorKind::Tls if cfg!(feature = "nats-tls") => {
                "check the server's certificate, and that it speaks TLS on this port"
            }
            ConnectErrorKind::Tls => {
                "it wants encryption: switch the feature `nats-tls` of inbox-runtime on"
            }
            _ => "check that the server runs, and host and port in the url given to `Nats::new`",
        };
        format!(
            "NATS at {} cannot be connected to ({error}): {remedy}",
            self.shown()
        )
    }
}

impl fmt::Debug for Nats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nats")
            .field("url", &self.shown())
            .field("connection_name", &self.connection_name)
            .field("domain", &self.domain)
            .finish_non_exhaustive()
    }
}

/// A connection that does not come back when it is lost.
#[derive(Clone)]
struct Connection {
    client: Client,
    jetstream: JetStream,
    complaint: Complaint,
}

impl Connection {
    fn is_lost(&self) -> bool {
        self.client.connection_state() != State::Connected
    }
}

/// What the server complained about last, such as a permission that is missing: it does not say which request it was.
#[derive(Debug, Clone, Default)]
struct Complaint(Arc<Mutex<Option<String>>>);

impl Complaint {
    fn note(&self, event: &Event) {
        if let Event::ServerError(error) = event {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
        }
    }

    /// ` (the server says: ..)`, if it said something.
    fn in_brackets(&self) -> String {
        let complaint = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let complaint = complaint.as_deref();
        complaint
            .map(|complaint| format!(" (the server says: {complaint})"))
            .unwrap_or_default()
    }
}

/// A url to show. What stands alone before the `@` is a token, and no user.
fn without_secret(url: &str) -> String {
    let after_scheme = url.find("://").map_or(0, |at| at + 3);
    match url[after_scheme..].rsplit_once('@') {
        Some((token, place)) if !token.contains(':') => {
            format!("`{}***@{place}`", &url[..after_scheme])
        }
        _ => without_password(url),
    }
}

#[derive(PartialEq, Eq)]
enum Credentials {
    User(String, String),
    Token(String),
}

/// A part of a URL as it was meant: `%40` is `@`.
fn unescaped(part: &str) -> String {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((&first, others)) = rest.split_first() {
        let escaped = match others {
            [high, low, ..] if first == b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let value = digit(*high).zip(digit(*low));
                value.and_then(|(high, low)| u8::try_from(high * 16 + low).ok())
            }
            _ => None,
        };
        bytes.push(escaped.unwrap_or(first));
        rest = if escaped.is_some() {
            &others[2..]
        } else {
            others
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether it can be a token of a subject: a name of a stream, a consumer or a domain.
fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name.contains(['.', '*', '>', '/', '\\'])
        && !name.contains(|c: char| c.is_whitespace() || c.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_urls_are_named_without_their_password() {
        for (url, says) in [
            ("", "names no host"),
            ("nats://u:secret@h:port", "cannot be parsed"),
            ("http://u:secret@h", "cannot be parsed"),
            ("ws://u:secret@h", "web sockets"),
            ("nats://h,nats://u:secret@h:port", "`nats://u:***@h:port`"),
        ] {
            let problems = Nats::new(url).problems();
            assert_eq!(problems.len(), 1, "{url}: {problems:?}");
            assert!(problems[0].contains(says), "{url}: {problems:?}");
            assert!(!problems[0].contains("secret"), "{url}: {problems:?}");
        }
        for url in [
            "nats://h",
            "h",
            "nats://u:p@h:1",
            "nats://a:1, nats://b:2",
            "nats://[::1]:4222",
        ] {
            assert!(Nats::new(url).problems().is_empty(), "{url}");
        }
        let encrypted = Nats::new("tls://h").problems();
        assert_eq!(encrypted.is_empty(), cfg!(feature = "nats-tls"));
    }

    #[test]
    fn no_secret_is_ever_shown() {
        let broker = Nats::new("nats://u:secret@h:1,nats://secret@g:1,secret@f")
            .user("u", "secret")
            .token("secret");
        let shown = format!("{broker:?} {:?}", broker.consumer("S", "c"));
        assert!(!shown.contains("secret"), "{shown}");
        assert_eq!(
            broker.shown(),
            "`nats://u:***@h:1`, `nats://***@g:1`, `***@f`"
        );
        assert_eq!(broker.problems().len(), 1, "{:?}", broker.problems());
    }

    #[test]
    fn who_one_is_stands_in_the_url_or_in_the_options() {
        let user = |user: &str, password: &str| {
            Some(Credentials::User(user.to_owned(), password.to_owned()))
        };
        let token = |token: &str| Some(Credentials::Token(token.to_owned()));
        for (broker, expected) in [
            (Nats::new("nats://h"), None),
            (Nats::new("nats://u:p@h"), user("u", "p")),
            (Nats::new("nats://h,nats://u:p@g"), user("u", "p")),
            (
                Nats::new("nats://u%40x:%c3%a4%2F%zz@h"),
                user("u@x", "ä/%zz"),
            ),
            (Nats::new("nats://s3cret@h"), token("s3cret")),
            (Nats::new("nats://u:p@h").user("a", "@"), user("a", "@")),
            (Nats::new("nats://u:p@h").token("t"), token("t")),
        ] {
            let addresses = broker.addresses().unwrap();
            assert!(broker.credentials(&addresses) == expected, "{broker:?}");
        }
    }

    #[tokio::test]
    async fn a_server_that_wants_encryption_is_an_error_and_no_panic() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let broker = Nats::new(format!("nats://{}", listener.local_addr().unwrap()));
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let info = b"INFO {\"tls_required\":true,\"max_payload\":1024}\r\n";
            stream.write_all(info).await.unwrap();
            let mut hello = [0; 1];
            let _ = stream.read(&mut hello).await;
        });
        let Err(error) = broker.connect().await else {
            panic!("connected without encryption");
        };
        let said = error.to_string();
        let built = if cfg!(feature = "nats-tls") {
            "cannot be connected to"
        } else {
            "feature `nats-tls`"
        };
        assert!(said.contains(built), "{said}");
        server.await.unwrap();
    }

    #[test]
    fn odd_domains_are_refused() {
        for (domain, right) in [("hub", true), ("", false), ("a.b", false), ("a b", false)] {
            let broker = Nats::new("nats://h").domain(domain);
            assert_eq!(broker.problems().is_empty(), right, "{domain}");
        }
    }
}
