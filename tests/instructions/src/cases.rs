//! What is counted.

use std::path::Path;

use inbox_runtime::brokers::MemoryBroker;
use inbox_runtime::{Envelope, HandlerError, Inbox, MessageId, Tx, inbox_handler};
use serde::Deserialize;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{Sqlite, SqlitePool};
use tokio::sync::oneshot;

/// A way of a message through the house.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Case {
    /// From the source over the queue to the ack, for a message that no handler takes: no database.
    Ignored,
    /// With a handler of one statement. SQLite's own work is in it.
    Handled,
    /// The same, and up to four share a transaction. With more, one takes so long under callgrind on a slow machine that
    /// the next ones get fewer, and the count would be the clock's.
    Shared,
}

#[derive(Debug, Deserialize)]
struct OrderPlaced {
    account: String,
    amount: i64,
}

#[inbox_handler(consumer = "billing", on = "OrderPlaced")]
async fn charge(
    order: OrderPlaced,
    tx: &mut Tx<Sqlite>,
    id: MessageId,
) -> Result<(), HandlerError> {
    sqlx::query("INSERT INTO ledger (account, amount, msg_id) VALUES ($1, $2, $3)")
        .bind(order.account)
        .bind(order.amount)
        .bind(id.as_str())
        .execute(tx)
        .await?;
    Ok(())
}

impl Case {
    pub(crate) const ALL: [Self; 3] = [Self::Ignored, Self::Handled, Self::Shared];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ignored => "ignored",
            Self::Handled => "handled",
            Self::Shared => "shared",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|case| case.name() == name)
    }

    /// Processes so many messages.
    pub(crate) fn run(self, messages: usize, folder: &Path) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("no runtime");
        runtime.block_on(async {
            let pool = database(folder).await;
            let expected = match self {
                Self::Ignored => 0,
                _ => messages,
            };
            self.through_an_inbox(&pool, messages).await;
            let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM ledger")
                .fetch_one(&pool)
                .await
                .expect("no ledger");
            assert_eq!(usize::try_from(rows).ok(), Some(expected), "ledger rows");
        });
    }

    async fn through_an_inbox(self, pool: &SqlitePool, messages: usize) {
        let broker = MemoryBroker::new();
        for n in 0..messages {
            broker.publish("orders", self.message(n));
        }
        let inbox = Inbox::builder(pool.clone())
            .source("orders", broker.source("orders"))
            .register(charge::handler())
            .ignore(["OrderSeen"])
            .messages_per_transaction(if self == Self::Shared { 4 } else { 1 })
            .prefetch(64)
            .without_purge()
            .build()
            .await
            .expect("no inbox");
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(inbox.run_until(async {
            let _ = stopped.await;
        }));
        broker.until_idle().await;
        drop(stop);
        running.await.expect("the inbox panicked");
        assert_eq!(broker.settled().len(), messages, "each is settled once");
    }

    fn message(self, n: usize) -> Envelope {
        let kind = match self {
            Self::Ignored => "OrderSeen",
            _ => "OrderPlaced",
        };
        Envelope::new(r#"{"account":"acc-1","amount":100}"#)
            .id(format!("m-{n:08}"))
            .message_type(kind)
    }
}

async fn database(folder: &Path) -> SqlitePool {
    // What the disk takes is nobody's instructions; the framework warns of a database that could lose a commit.
    let options = SqliteConnectOptions::new()
        .filename(folder.join("inbox.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal);
    let pool = SqlitePoolOptions::new()
        .max_connections(2)
        .connect_with(options)
        .await
        .expect("no database");
    inbox_runtime::migrate(&pool).await.expect("no tables");
    sqlx::query(
        "CREATE TABLE ledger (account TEXT NOT NULL, amount BIGINT NOT NULL, msg_id TEXT NOT NULL)",
    )
    .execute(&pool)
    .await
    .expect("no ledger");
    pool
}
