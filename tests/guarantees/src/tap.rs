//! A loopback proxy that changes nothing and lets a test see what passes.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Who sent some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// The inbox.
    Client,
    /// Its server.
    Server,
}

/// What looks at the bytes of one connection, in the order in which they pass.
pub trait Listener: Send + 'static {
    /// These pass next in this direction; a message may come in pieces.
    fn hear(&mut self, from: From, bytes: &[u8]);
}

/// The proxy. It goes, and every connection with it, when it is dropped.
#[derive(Debug)]
pub struct Tap {
    address: SocketAddr,
    cuts: Arc<watch::Sender<()>>,
    accepting: JoinHandle<()>,
}

impl Tap {
    /// A proxy to the server at `target`; each connection has a listener of its own.
    ///
    /// # Panics
    ///
    /// When there is no free port.
    pub async fn to<L: Listener>(
        target: SocketAddr,
        listener: impl Fn() -> L + Send + 'static,
    ) -> Self {
        let socket = TcpListener::bind(("127.0.0.1", 0)).await.expect("no port");
        let address = socket.local_addr().expect("no address");
        let cuts = Arc::new(watch::Sender::new(()));
        let shared = Arc::clone(&cuts);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = socket.accept().await {
                let listener = Arc::new(Mutex::new(listener()));
                tokio::spawn(connection(client, target, listener, shared.subscribe()));
            }
        });
        Self {
            address,
            cuts,
            accepting,
        }
    }

    /// Where clients connect to.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts every connection that is open now.
    pub fn cut(&self) {
        self.cuts.send_replace(());
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn connection<L: Listener>(
    client: TcpStream,
    target: SocketAddr,
    listener: Arc<Mutex<L>>,
    mut cuts: watch::Receiver<()>,
) {
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    // Neither side shall wait for the other's acknowledgement of small packets because of us.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        _ = copy(From::Client, from_client, to_server, &listener) => {}
        _ = copy(From::Server, from_server, to_client, &listener) => {}
        _ = cuts.changed() => {}
    }
}

async fn copy<L: Listener>(
    from: From,
    mut reader: OwnedReadHalf,
    mut writer: OwnedWriteHalf,
    listener: &Mutex<L>,
) -> std::io::Result<()> {
    let mut buffer = [0; 16 * 1024];
    loop {
        let n = reader.read(&mut buffer).await?;
        if n == 0 {
            return Ok(());
        }
        // Heard before it goes on: the other side cannot have answered yet.
        listener
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .hear(from, &buffer[..n]);
        writer.write_all(&buffer[..n]).await?;
    }
}
