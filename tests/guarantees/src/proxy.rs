//! A TCP proxy on loopback that fails on request, between an inbox and its server.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::mysql::MySqlConnectOptions;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, MySql, Postgres};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::{Sandbox, TestDatabase};

/// COMMIT at the end of a simple query, and as its completion tag has it.
const COMMIT: &[u8] = b"COMMIT\0";
/// COMMIT with the next transaction behind it, of messages when a fence is before it, and else of what prepares a session.
const COMMIT_AND_GO_ON: &[u8] = b"COMMIT; RESET ALL";
const FENCE: &[u8] = b"EXECUTE inbox_fence";
/// What only work on a message has; until then a session is being prepared.
const WORK: &[u8] = b"EXECUTE inbox_";

/// COMMIT as MariaDB gets it, and what only a connection has that was used for work on a message.
const XA_COMMIT: &[u8] = b"ONE PHASE";
const XA_WORK: &[u8] = b"claim_nonce) VALUES";

/// What is spoken through the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Language {
    Postgres,
    MySql,
}

/// What the proxy does to the next COMMIT that passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtCommit {
    /// Cuts the connection before the server has seen it: the server rolls back.
    CutBefore,
    /// Cuts the connection when the server has executed it, before the client sees the answer.
    CutAfter,
    /// Lets nothing of this connection through any more, from before the server has seen it.
    FreezeBefore,
    /// Lets nothing of this connection through any more, from after the server has executed it.
    FreezeAfter,
}

/// The proxy. It goes, and every connection with it, when it is dropped.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    control: Arc<Control>,
    listener: JoinHandle<()>,
}

#[derive(Debug)]
struct Control {
    plan: Mutex<Plan>,
    /// Counts up when every open connection is to be cut.
    cuts: watch::Sender<u64>,
    /// Whether nothing gets through.
    holding: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Plan {
    at_commit: Vec<AtCommit>,
    struck: usize,
    refusing: bool,
}

impl Control {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FaultProxy {
    /// A proxy to the server at `target`; the COMMITs that it knows are those of PostgreSQL.
    ///
    /// # Panics
    ///
    /// When there is no free port.
    pub async fn to(target: SocketAddr) -> Self {
        Self::between(target, Language::Postgres).await
    }

    /// A proxy to the MariaDB at `target`.
    ///
    /// # Panics
    ///
    /// When there is no free port.
    pub async fn to_mysql(target: SocketAddr) -> Self {
        Self::between(target, Language::MySql).await
    }

    async fn between(target: SocketAddr, language: Language) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("no port");
        let address = listener.local_addr().expect("no address");
        let control = Arc::new(Control {
            plan: Mutex::default(),
            cuts: watch::Sender::new(0),
            holding: watch::Sender::new(false),
        });
        let shared = Arc::clone(&control);
        let listener = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if !shared.plan().refusing {
                    tokio::spawn(connection(client, target, language, Arc::clone(&shared)));
                }
            }
        });
        Self {
            address,
            control,
            listener,
        }
    }

    /// Where clients connect to.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Strikes at the next COMMITs, one after the other; later ones pass.
    pub fn at_commits(&self, strikes: &[AtCommit]) {
        self.control.plan().at_commit.extend(strikes);
    }

    /// How many COMMITs were struck.
    #[must_use]
    pub fn struck(&self) -> usize {
        self.control.plan().struck
    }

    /// Cuts every connection and closes new ones at once, until [`accept`](Self::accept).
    pub fn refuse(&self) {
        self.control.plan().refusing = true;
        self.cut();
    }

    /// Ends [`refuse`](Self::refuse).
    pub fn accept(&self) {
        self.control.plan().refusing = false;
    }

    /// Cuts every connection that is open now, frozen ones too.
    pub fn cut(&self) {
        self.control.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Keeps everything back, on all connections, without closing any.
    pub fn hold(&self) {
        self.control.holding.send_replace(true);
    }

    /// Ends [`hold`](Self::hold): what was kept back goes on.
    pub fn resume(&self) {
        self.control.holding.send_replace(false);
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.listener.abort();
        self.cut();
    }
}

/// A database that is reached over TCP.
pub trait Proxied: TestDatabase {
    /// A proxy to the server of `sandbox`, and how its database is reached through it.
    fn proxy_to(
        sandbox: &Sandbox<Self>,
    ) -> impl Future<Output = (FaultProxy, <Self::Connection as Connection>::Options)> + Send;
}

impl Proxied for Postgres {
    async fn proxy_to(sandbox: &Sandbox<Self>) -> (FaultProxy, PgConnectOptions) {
        let direct: PgConnectOptions = sandbox.url.parse().expect("no address");
        let proxy = FaultProxy::to(address(direct.get_host(), direct.get_port())).await;
        let options = direct.port(proxy.address().port());
        (proxy, options)
    }
}

impl Proxied for MySql {
    async fn proxy_to(sandbox: &Sandbox<Self>) -> (FaultProxy, MySqlConnectOptions) {
        let direct: MySqlConnectOptions = sandbox.url.parse().expect("no address");
        let proxy = FaultProxy::to_mysql(address(direct.get_host(), direct.get_port())).await;
        let options = direct.port(proxy.address().port());
        (proxy, options)
    }
}

fn address(host: &str, port: u16) -> SocketAddr {
    format!("{host}:{port}").parse().expect("no address")
}

/// Copies both directions until one ends, the proxy cuts, or a strike says so.
async fn connection(
    client: TcpStream,
    target: SocketAddr,
    language: Language,
    control: Arc<Control>,
) {
    let mut cuts = control.cuts.subscribe();
    cuts.mark_unchanged();
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // The strike that this connection's COMMIT met, for the direction of the answers.
    let (met, meets) = watch::channel(None);
    let requests = requests(from_client, to_server, language, &control, met);
    let answers = answers(from_server, to_client, language, &control, meets);
    tokio::select! {
        _ = requests => {}
        _ = answers => {}
        _ = cuts.changed() => {}
    }
}

async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    language: Language,
    control: &Control,
    met: watch::Sender<Option<AtCommit>>,
) -> std::io::Result<()> {
    let mut held = control.holding.subscribe();
    let mut work = Finder::of(WORK);
    let mut fence = Finder::of(FENCE);
    let mut last_commit = Finder::of(COMMIT);
    let mut commit_and_go_on = Finder::of(COMMIT_AND_GO_ON);
    let mut xa_work = Finder::of(XA_WORK);
    let mut xa_commit = Finder::of(XA_COMMIT);
    let (mut works, mut fenced) = (false, false);
    let mut buffer = [0; 8192];
    loop {
        let n = from.read(&mut buffer).await?;
        if n == 0 {
            return Ok(());
        }
        let _ = held.wait_for(|holding| !holding).await;
        works |= match language {
            Language::Postgres => work.complete_in(&buffer[..n]),
            Language::MySql => xa_work.complete_in(&buffer[..n]),
        };
        fenced |= fence.complete_in(&buffer[..n]);
        let commits_last = last_commit.complete_in(&buffer[..n]) && works;
        let goes_on = commit_and_go_on.complete_in(&buffer[..n]) && fenced;
        let commits = match language {
            Language::Postgres => commits_last || goes_on,
            Language::MySql => xa_commit.complete_in(&buffer[..n]) && works,
        };
        if commits {
            fenced = false;
            let strike = {
                let mut plan = control.plan();
                let next = (!plan.at_commit.is_empty()).then(|| plan.at_commit.remove(0));
                plan.struck += usize::from(next.is_some());
                next
            };
            match strike {
                Some(AtCommit::CutBefore) => return Ok(()),
                Some(AtCommit::FreezeBefore) => freeze().await,
                Some(after) => {
                    met.send_replace(Some(after));
                }
                None => {}
            }
        }
        to.write_all(&buffer[..n]).await?;
    }
}

async fn answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    language: Language,
    control: &Control,
    met: watch::Receiver<Option<AtCommit>>,
) -> std::io::Result<()> {
    let mut held = control.holding.subscribe();
    let mut commits = Finder::of(COMMIT);
    let mut last = LastAnswer::default();
    let mut buffer = [0; 8192];
    loop {
        let n = from.read(&mut buffer).await?;
        if n == 0 {
            return Ok(());
        }
        let _ = held.wait_for(|holding| !holding).await;
        let strike = *met.borrow();
        if strike.is_some() {
            // Nothing between the COMMIT and its completion reaches the client.
            let is_complete = match language {
                Language::Postgres => commits.complete_in(&buffer[..n]),
                Language::MySql => last.complete_in(&buffer[..n]),
            };
            if is_complete {
                match strike {
                    Some(AtCommit::FreezeAfter) => freeze().await,
                    _ => return Ok(()),
                }
            }
            continue;
        }
        to.write_all(&buffer[..n]).await?;
    }
}

async fn freeze() {
    // As a partition does: neither side hears anything. `FaultProxy::cut` ends it.
    tokio::time::sleep(Duration::MAX).await;
}

/// Finds the last answer of MariaDB to a text of statements that answer no rows.
#[derive(Default)]
struct LastAnswer(Vec<u8>);

impl LastAnswer {
    fn complete_in(&mut self, bytes: &[u8]) -> bool {
        self.0.extend_from_slice(bytes);
        while let [low, middle, high, _, rest @ ..] = &self.0[..] {
            let length = usize::from(*low) | usize::from(*middle) << 8 | usize::from(*high) << 16;
            let Some(packet) = rest.get(..length) else {
                return false;
            };
            // An error ends it; behind OK and two numbers of one byte each is the status, with a bit for "more".
            let is_last = packet.first() == Some(&0xff)
                || packet.get(3).is_none_or(|status| status & 0x08 == 0);
            self.0.drain(..4 + length);
            if is_last {
                return true;
            }
        }
        false
    }
}

/// Finds words in a stream, also where they arrive in pieces.
struct Finder {
    word: &'static [u8],
    seen: Vec<u8>,
}

impl Finder {
    const fn of(word: &'static [u8]) -> Self {
        Self {
            word,
            seen: Vec::new(),
        }
    }

    fn complete_in(&mut self, bytes: &[u8]) -> bool {
        self.seen.extend_from_slice(bytes);
        let length = self.word.len();
        let found = self.seen.windows(length).any(|window| window == self.word);
        let keep = if found { 0 } else { length - 1 };
        self.seen.drain(..self.seen.len().saturating_sub(keep));
        found
    }
}
