//! An inbox on RabbitMQ or Kafka in a process of its own: tests let it die, and start another one.
//!
//! Its one argument are [`Orders`] as JSON. It says on its output which steps it reaches. A line on its input
//! ends a wait, the end of its input is the signal to shut down.

use std::io::BufRead as _;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use inbox_guarantees::child::{Orders, die, number, say};
use inbox_guarantees::dispatch::Serve as _;
use inbox_guarantees::kafka::quick;
use inbox_guarantees::{EventLog, OrderPlaced, bill, mysql_pool, on_each_database, sqlite_pool};
use inbox_runtime::brokers::RabbitMq;
use inbox_runtime::testing::Step;
use inbox_runtime::{HandlerError, Inbox, MessageId, State, Tx, inbox_handler};
use sqlx::postgres::PgPoolOptions;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Copies of a message that one process works on at a time.
const PREFETCH: usize = 8;

/// The same where many messages wait.
const PREFETCH_UNDER_LOAD: usize = 24;

on_each_database! {
    /// Books as the cases have it.
    #[inbox_handler(consumer = "billing")]
    async fn charge(
        order: OrderPlaced,
        tx: &mut Tx<Db>,
        id: MessageId,
        State(orders): State<Arc<Orders>>,
    ) -> Result<(), HandlerError> {
        say(format_args!("entered {id}"));
        bill!(Db, order, id, tx);
        if orders.killer.as_deref() == Some(id.as_str()) {
            // In company of whatever else is in work.
            tokio::time::sleep(Duration::from_millis(50)).await;
            die();
        }
        if orders.long_statement {
            say(format_args!("in a statement {id}"));
            sqlx::query::<Db>(long_statement(<Db as sqlx::Database>::NAME)).execute(&mut *tx).await?;
        }
        // Long enough for the others to meet the claim.
        tokio::time::sleep(Duration::from_millis(if orders.under_load { 2 } else { 200 })).await;
        if let Some(file) = &orders.first_fails
            && std::fs::File::create_new(file).is_ok()
        {
            return Err("the first one fails".into());
        }
        Ok(())
    }

    /// The other consumer of the same messages.
    #[inbox_handler(consumer = "notifications")]
    async fn notify(
        order: OrderPlaced,
        tx: &mut Tx<Db>,
        id: MessageId,
    ) -> Result<(), HandlerError> {
        say(format_args!("entered {id}"));
        let order = OrderPlaced { account: "acc-2".to_owned(), ..order };
        bill!(Db, order, id, tx);
        Ok(())
    }

    pub(super) async fn run(pool: sqlx::Pool<Db>, orders: Arc<Orders>) -> Result<(), Failure> {
        let (shutdown, go) = listen();
        let broker = RabbitMq::new(&orders.amqp);
        let hook = {
            let orders = Arc::clone(&orders);
            move |step: Step, id: &str| {
                say(format_args!("step {} {id}", number(step)));
                if orders.die_at == Some(number(step)) {
                    die();
                }
                if orders.wait_at == Some(number(step)) {
                    go.wait();
                }
            }
        };
        let inbox = Inbox::builder(pool);
        let inbox = match &orders.kafka {
            Some(brokers) => inbox.source("orders", quick(brokers, &orders.queue, &orders.queue)),
            None => inbox.source("orders", broker.queue(&orders.queue)),
        };
        let inbox = inbox
            .state(Arc::clone(&orders))
            .prefetch(if orders.under_load { PREFETCH_UNDER_LOAD } else { PREFETCH })
            .claim_wait(Duration::from_secs(5))
            // What fails here is tried by another copy, and not parked.
            .longest_hold(Duration::from_secs(if orders.first_fails.is_some() { 60 } else { 1 }))
            .grace(Duration::from_secs(if orders.no_grace { 0 } else { 25 }))
            .on_step(hook);
        let inbox = if orders.notifications {
            inbox.serve(notify::handler())
        } else {
            inbox.serve(charge::handler())
        };
        let stopped = inbox
            .build()
            .await?
            .run_until(async {
                let _ = shutdown.await;
            })
            .await;
        say(format_args!("stopped, {} handed back", stopped.handed_back));
        Ok(())
    }
}

/// A statement that takes a minute or longer.
fn long_statement(database: &str) -> &'static str {
    match database {
        "PostgreSQL" => "SELECT pg_sleep(60)",
        "MySQL" => "SELECT SLEEP(60)",
        _ => {
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000000) \
             SELECT max(i) FROM n"
        }
    }
}

/// Waits that end together, once.
#[derive(Clone, Default)]
struct Go(Arc<(Mutex<bool>, Condvar)>);

impl Go {
    fn give(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }

    fn wait(&self) {
        let given = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _given = self.0.1.wait_while(given, |given| !*given);
    }
}

/// Reads the input: the shutdown, and the end of waits.
fn listen() -> (oneshot::Receiver<()>, Go) {
    let go = Go::default();
    let (shut_down, shutdown) = oneshot::channel();
    std::thread::spawn({
        let go = go.clone();
        move || {
            for _line in std::io::stdin().lock().lines().map_while(Result::ok) {
                go.give();
            }
            go.give();
            let _ = shut_down.send(());
        }
    });
    (shutdown, go)
}

#[tokio::main(worker_threads = 8)]
async fn main() -> Result<(), Failure> {
    let _ = EventLog::of_process();
    // SIGXFSZ: a file that may not grow is an error of whoever writes to it, and ends nobody.
    let _caught = signal(SignalKind::from_raw(25))?;
    let orders = std::env::args().nth(1).ok_or("orders as JSON, please")?;
    let orders: Arc<Orders> = Arc::new(serde_json::from_str(&orders)?);
    if orders.database.starts_with("postgres") {
        let pool = PgPoolOptions::new()
            .max_connections(6)
            .connect(&orders.database)
            .await?;
        postgres::run(pool, orders).await
    } else if orders.database.starts_with("mysql") {
        let pool = mysql_pool(orders.database.parse()?, 6).await;
        mysql::run(pool, orders).await
    } else {
        let pool = sqlite_pool(orders.database.as_ref(), 3).await;
        sqlite::run(pool, orders).await
    }
}
