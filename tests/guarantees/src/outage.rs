//! Databases of one test that go away and come back, each in the way that it can.
//!
//! | outage | PostgreSQL, MariaDB | through a proxy | SQLite |
//! |---|---|---|---|
//! | [`OwnDatabase::stop`] | the server is shut down | connections are cut and refused | the folder of the file is away, as a volume that is not mounted |
//! | [`OwnDatabase::pause`] | the server's processes are stopped where they are | nothing gets through | another program holds the write lock |
//!
//! What a server that is killed is to its clients, no file is: an embedded database dies with its process, which
//! `crash.rs` is about, or its disk fails under it, which `outages.rs` has for SQLite alone.

use std::path::PathBuf;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::pool::PoolOptions;
use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection, Executor as _, Pool};
use tokio::sync::Mutex;
use tokio::task::block_in_place;

use crate::proxy::FaultProxy;
use crate::servers::OwnServer;
use crate::{Sandbox, TestDatabase, eventually};

/// A database that one test takes away from its inbox.
#[derive(Debug)]
pub struct OwnDatabase<Db: TestDatabase> {
    /// The database.
    pub sandbox: Sandbox<Db>,
    host: Host,
    /// How the inbox reaches it.
    options: OptionsOf<Db>,
    /// Those of the inbox.
    pools: std::sync::Mutex<Vec<Pool<Db>>>,
}

type OptionsOf<Db> = <<Db as sqlx::Database>::Connection as Connection>::Options;

/// What a database lives on.
#[derive(Debug)]
pub enum Host {
    /// PostgreSQL, MariaDB: a server of its own.
    Server(OwnServer),
    /// PostgreSQL, MariaDB: a proxy to the server that all tests share.
    Proxy(FaultProxy),
    /// SQLite: a folder of its own.
    Folder {
        /// Where the file is.
        folder: PathBuf,
        /// Whoever holds the write lock.
        writer: Mutex<Option<SqliteConnection>>,
    },
}

impl<Db: TestDatabase> OwnDatabase<Db> {
    /// One on a server of its own, with the ledger and the inbox tables, and a pool of `connections` for the test.
    pub async fn start(connections: u32) -> Self {
        let (host, sandbox) = Db::alone(connections).await;
        let options = Clone::clone(&*sandbox.pool.connect_options());
        Self {
            sandbox,
            host,
            options,
            pools: std::sync::Mutex::default(),
        }
    }

    /// One that the inbox reaches through a proxy, which is sooner done than a server of its own.
    pub async fn behind_a_proxy(connections: u32) -> Self {
        let (host, sandbox, options) = Db::behind_a_proxy(connections).await;
        Self {
            sandbox,
            host,
            options,
            pools: std::sync::Mutex::default(),
        }
    }

    /// A pool for the inbox, which an outage leaves without a connection; the test's own would hide the outage from it.
    #[must_use]
    pub fn pool(&self, connections: u32) -> Pool<Db> {
        let folder = match &self.host {
            Host::Server(_) | Host::Proxy(_) => None,
            Host::Folder { folder, .. } => Some(folder.clone()),
        };
        let pool = PoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(Duration::from_secs(1))
            // A server ends its sessions itself.
            .before_acquire(move |_, _| {
                let is_there = folder.as_ref().is_none_or(|folder| folder.exists());
                Box::pin(std::future::ready(Ok(is_there)))
            })
            .connect_lazy_with(self.options.clone());
        self.pools().push(pool.clone());
        pool
    }

    fn pools(&self) -> MutexGuard<'_, Vec<Pool<Db>>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes it away from whoever does not work with it at this moment. A server ends all sessions; whoever has SQLite's
    /// file open goes on with it wherever it is.
    ///
    /// # Panics
    ///
    /// When that is not possible.
    pub fn stop_at_once(&self) {
        match &self.host {
            Host::Server(server) => block_in_place(|| server.stop()),
            Host::Proxy(proxy) => proxy.refuse(),
            Host::Folder { folder, .. } => {
                std::fs::rename(folder, folder.with_extension("away")).expect("it is away already");
            }
        }
    }

    /// Takes it away in an orderly way, until [`again`](Self::again). SQLite's file goes when no worker has it open any
    /// more, because whoever has a file open can go on with it wherever it is: nothing may be published meanwhile.
    ///
    /// # Panics
    ///
    /// When that is not possible.
    pub async fn stop(&self) {
        if matches!(self.host, Host::Folder { .. }) {
            eventually("no worker has the file open", || async {
                let pools = self.pools();
                pools
                    .iter()
                    .all(|pool| pool.num_idle() == pool.size() as usize)
            })
            .await;
        }
        self.stop_at_once();
    }

    /// Kills the server, until [`again`](Self::again).
    ///
    /// # Panics
    ///
    /// When the database has no server of its own.
    pub fn crash(&self) {
        match &self.host {
            Host::Server(server) => block_in_place(|| server.crash()),
            Host::Proxy(_) | Host::Folder { .. } => panic!("there is no server to kill"),
        }
    }

    /// Brings it back.
    ///
    /// # Panics
    ///
    /// When it does not come back.
    pub fn again(&self) {
        match &self.host {
            Host::Server(server) => block_in_place(|| server.again()),
            Host::Proxy(proxy) => proxy.accept(),
            Host::Folder { folder, .. } => {
                std::fs::rename(folder.with_extension("away"), folder).expect("it is not away");
            }
        }
    }

    /// Lets it answer no more, or no writer, until [`resume`](Self::resume). SQLite gives the lock when nobody has it: the
    /// inbox must have come to rest before, or soon.
    ///
    /// # Panics
    ///
    /// When that is not possible.
    pub async fn pause(&self) {
        match &self.host {
            Host::Server(server) => block_in_place(|| server.pause()),
            Host::Proxy(proxy) => proxy.hold(),
            Host::Folder { writer, .. } => {
                let mut conn = SqliteConnection::connect(&self.sandbox.url)
                    .await
                    .expect("no connection to the test database");
                conn.execute("PRAGMA busy_timeout = 60000; BEGIN IMMEDIATE")
                    .await
                    .expect("no write lock within a minute");
                *writer.lock().await = Some(conn);
            }
        }
    }

    /// Ends [`pause`](Self::pause).
    ///
    /// # Panics
    ///
    /// When that is not possible.
    pub async fn resume(&self) {
        match &self.host {
            Host::Server(server) => block_in_place(|| server.resume()),
            Host::Proxy(proxy) => proxy.resume(),
            Host::Folder { writer, .. } => {
                let writer = writer.lock().await.take().expect("nobody holds the lock");
                writer.close().await.expect("the lock is not given back");
            }
        }
    }
}
