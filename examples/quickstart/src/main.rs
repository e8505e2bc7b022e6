//! Order events go through a broker that misbehaves into a SQLite file, and every order is booked once.
//!
//! ```text
//! cargo run -p quickstart                          the orders that come with the example
//! cargo run -p quickstart -- orders.ndjson         your own: one JSON object per line
//! cargo run -p quickstart -- -                     from the standard input
//! cargo run -p quickstart -- --crash-after 4       dies between COMMIT and ack of the 4th order
//! ```
//!
//! Start it twice, or after a crash: what was booked is reported as a duplicate, and the sum is right.
//!
//! What a service of your own needs is in this file: the message, the handler, the builder. The broker's
//! misbehaviour is in `feed.rs`, the input in `orders.rs`, the output in `screen.rs`.

mod feed;
mod options;
mod orders;
mod screen;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use inbox_runtime::brokers::MemoryBroker;
use inbox_runtime::testing::Step;
use inbox_runtime::{BoxError, HandlerError, Inbox, MessageId, Tx, inbox_handler};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{Sqlite, SqlitePool};
use tokio::sync::watch;

use crate::feed::Troubles;
use crate::options::{Command, Options};
use crate::orders::{Ledger, Orders};
use crate::screen::Screen;

/// The queue, and the name of the source that consumes it.
const QUEUE: &str = "orders";

/// The message, decoded from JSON. The other fields of a line are not looked at here.
#[derive(Debug, serde::Deserialize)]
struct OrderPlaced {
    account: String,
    amount_cents: i64,
}

/// Books an order once, however often it is delivered.
#[inbox_handler(consumer = "billing")]
async fn book(order: OrderPlaced, tx: &mut Tx<Sqlite>, id: MessageId) -> Result<(), HandlerError> {
    if order.amount_cents < 0 {
        return Err(HandlerError::reject("an order has no negative amount"));
    }
    sqlx::query("INSERT INTO ledger (order_id, account, amount_cents) VALUES (?, ?, ?)")
        .bind(id.as_str())
        .bind(&order.account)
        .bind(order.amount_cents)
        .execute(&mut *tx)
        .await?;
    Ok(())
}

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args_os().skip(1)) {
        Ok(Command::Run(options)) => options,
        Ok(Command::Help) => {
            println!("{}", options::HELP);
            return ExitCode::SUCCESS;
        }
        Err(problem) => {
            return stopped(&format!(
                "{problem}\n  help: cargo run -p quickstart -- --help"
            ));
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return stopped(&format!("no runtime: {error}")),
    };
    match runtime.block_on(run(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(problem) => stopped(&problem),
    }
}

fn stopped(problem: &str) -> ExitCode {
    eprintln!("error: {problem}");
    ExitCode::from(2)
}

/// Answers whether every order was booked once and every bad line kept.
async fn run(options: &Options) -> Result<bool, String> {
    // The input first: nothing is written when it is not there.
    let mut orders = Orders::open(options.input.as_deref())?;
    let pool = open(options).await?;
    let before = Ledger::read(&pool).await.map_err(|error| {
        format!(
            "the table `ledger` of the database {} is not this example's: {error}\n  help: name another file with \
             --database FILE",
            options.database.display()
        )
    })?;
    let screen = Screen::install(options.verbose);
    screen.line(&format!("input     {}", orders.name()));
    screen.line(&format!(
        "database  {} ({before})\n",
        options.database.display()
    ));

    let broker = MemoryBroker::new();
    let troubles = Arc::new(Troubles::new(broker.clone(), options.crash_after, screen));
    let (stop, _) = watch::channel(());
    // Two instances of one service, as behind any queue: copies of a message can be in work at the same time.
    let mut instances = Vec::new();
    for _ in 0..2 {
        let troubles = Arc::clone(&troubles);
        let inbox = Inbox::builder(pool.clone())
            .source(QUEUE, broker.source(QUEUE))
            .register(book::handler())
            .prefetch(4)
            .on_step(move |step, id| {
                if step == Step::AfterCommit {
                    troubles.between_commit_and_ack(id);
                }
            })
            .build()
            .await
            .map_err(|error| format!("database {}: {error}", options.database.display()))?;
        let mut stopped = stop.subscribe();
        instances.push(tokio::spawn(inbox.run_until(async move {
            let _ = stopped.changed().await;
        })));
    }

    let fed = feed::feed(&mut orders, &before, &broker, &troubles, screen).await;
    broker.until_idle().await;
    let _ = stop.send(());
    for instance in instances {
        instance.await.map_err(|error| error.to_string())?;
    }
    fed?;
    screen::summary(&pool, &orders, troubles.delivered(), screen)
        .await
        .map_err(|error| format!("database {}: {error}", options.database.display()))
}

/// Opens the database, makes it if it is not there, and with it the application's own table.
async fn open(options: &Options) -> Result<SqlitePool, String> {
    let file = SqliteConnectOptions::new()
        .filename(&options.database)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal);
    let opened = async {
        let pool = SqlitePoolOptions::new()
            .max_connections(4)
            .acquire_timeout(Duration::from_secs(10))
            .connect_with(file)
            .await?;
        // No unique key on `order_id`, on purpose: nothing but the inbox prevents a second booking.
        sqlx::query(
            "CREATE TABLE IF NOT EXISTS ledger \
             (entry INTEGER PRIMARY KEY, order_id TEXT NOT NULL, account TEXT NOT NULL, amount_cents INTEGER NOT NULL)",
        )
        .execute(&pool)
        .await?;
        // Several instances start on it, so once, here, instead of `.migrate_on_start()`.
        inbox_runtime::migrate(&pool).await?;
        Ok::<_, BoxError>(pool)
    };
    opened.await.map_err(|error| {
        format!(
            "the database {} cannot be opened for writing: {error}\n  help: name a SQLite file in a folder that you \
             may write to with --database FILE",
            options.database.display()
        )
    })
}
