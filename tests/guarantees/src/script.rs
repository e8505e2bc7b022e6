//! Handlers that do what a test tells them, message by message.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use inbox_runtime::brokers::{Effect, MemoryBroker};
use inbox_runtime::{
    Handler, HandlerError, Inbox, InboxBuilder, InboxDatabase, MessageId, RetryPolicy, Tx, Verdict,
};
use sqlx::{AssertSqlSafe, Executor as _, MySql, Pool, Postgres, Row as _, Sqlite};

use crate::dispatch::Serve as _;
use crate::{Running, all_acked, order};

/// One thing that a handler does after it has billed its message.
#[derive(Debug, Clone)]
pub enum Step {
    /// Runs SQL and goes on whatever the database answers; the answer is noted.
    Swallow(String),
    /// Runs SQL and returns its error.
    Run(String),
    /// Returns an error.
    Fail(&'static str),
    /// Runs SQL, and hides its error in one that has no `source()`.
    RunHidden(String),
    /// Panics.
    Panic(&'static str),
    /// Waits for something that is not the database.
    Sleep(Duration),
}

/// [`Step::Swallow`]
pub fn swallow(sql: impl Into<String>) -> Step {
    Step::Swallow(sql.into())
}

/// [`Step::Run`]
pub fn run(sql: impl Into<String>) -> Step {
    Step::Run(sql.into())
}

/// What handlers are to do, and what they saw. Clones are the same script.
#[derive(Debug, Clone, Default)]
pub struct Script(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    steps: HashMap<String, Vec<Vec<Step>>>,
    starts: HashMap<String, Vec<Instant>>,
    answers: HashMap<String, Vec<String>>,
}

impl Script {
    /// In every run for this message.
    #[must_use]
    pub fn always(self, id: &str, steps: impl IntoIterator<Item = Step>) -> Self {
        self.first(id, [steps.into_iter().collect()])
    }

    /// In the first run for this message; later ones only bill.
    #[must_use]
    pub fn once(self, id: &str, steps: impl IntoIterator<Item = Step>) -> Self {
        self.first(id, [steps.into_iter().collect(), Vec::new()])
    }

    /// In the first runs for this message, one after the other; later ones are like the last.
    #[must_use]
    pub fn first(self, id: &str, runs: impl IntoIterator<Item = Vec<Step>>) -> Self {
        self.change(|state| {
            state
                .steps
                .insert(id.to_owned(), runs.into_iter().collect())
        });
        self
    }

    /// How often the handler was entered for this message.
    #[must_use]
    pub fn runs(&self, id: &str) -> usize {
        self.starts(id).len()
    }

    /// When the handler was entered for this message.
    #[must_use]
    pub fn starts(&self, id: &str) -> Vec<Instant> {
        self.change(|state| state.starts.get(id).cloned().unwrap_or_default())
    }

    /// What the database answered to the statements of this message, in order: the first column of the last
    /// row, "" for none, or the code of its error behind "error ".
    #[must_use]
    pub fn answers(&self, id: &str) -> Vec<String> {
        self.change(|state| state.answers.get(id).cloned().unwrap_or_default())
    }

    /// Runs the steps of this message.
    ///
    /// # Errors
    ///
    /// As the steps say.
    ///
    /// # Panics
    ///
    /// As the steps say.
    pub async fn play<Db: ScriptDatabase>(
        &self,
        id: &MessageId,
        tx: &mut Tx<Db>,
    ) -> Result<(), HandlerError> {
        for step in self.enter(id.as_str()) {
            match step {
                Step::Swallow(sql) => drop(self.ask(id, tx, &sql).await),
                Step::Run(sql) => drop(self.ask(id, tx, &sql).await?),
                Step::RunHidden(sql) => {
                    let answer = self.ask(id, tx, &sql).await;
                    answer.map_err(|error| format!("hidden: {error}"))?;
                }
                Step::Fail(text) => return Err(text.into()),
                Step::Panic(text) => panic!("{text}"),
                Step::Sleep(time) => tokio::time::sleep(time).await,
            }
        }
        Ok(())
    }

    async fn ask<Db: ScriptDatabase>(
        &self,
        id: &MessageId,
        tx: &mut Tx<Db>,
        sql: &str,
    ) -> Result<String, sqlx::Error> {
        let answer = Db::ask(tx, sql).await;
        let noted = match &answer {
            Ok(value) => value.clone(),
            Err(error) => {
                let code = error.as_database_error().and_then(|e| e.code());
                format!("error {}", code.unwrap_or_default())
            }
        };
        self.change(|state| {
            let answers = state.answers.entry(id.as_str().to_owned()).or_default();
            answers.push(noted);
        });
        answer
    }

    fn enter(&self, id: &str) -> Vec<Step> {
        self.change(|state| {
            let starts = state.starts.entry(id.to_owned()).or_default();
            starts.push(Instant::now());
            let run = starts.len();
            let Some(runs) = state.steps.get(id) else {
                return Vec::new();
            };
            runs.get(run - 1)
                .or_else(|| runs.last())
                .cloned()
                .unwrap_or_default()
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A database on which a handler can run any SQL.
pub trait ScriptDatabase: InboxDatabase {
    /// Runs SQL in the handler's transaction: the first column of the last row as text, or "".
    fn ask(
        tx: &mut Tx<Self>,
        sql: &str,
    ) -> impl Future<Output = Result<String, sqlx::Error>> + Send;
}

impl ScriptDatabase for Postgres {
    async fn ask(tx: &mut Tx<Self>, sql: &str) -> Result<String, sqlx::Error> {
        let rows = tx.fetch_all(sqlx::raw_sql(AssertSqlSafe(sql))).await?;
        // A simple query's answers are text, whatever their type.
        let text = rows.last().map(|row| {
            row.try_get_raw(0)
                .ok()
                .and_then(|value| value.as_str().ok().map(str::to_owned))
        });
        Ok(text.flatten().unwrap_or_default())
    }
}

impl ScriptDatabase for MySql {
    async fn ask(tx: &mut Tx<Self>, sql: &str) -> Result<String, sqlx::Error> {
        let rows = tx.fetch_all(sqlx::raw_sql(AssertSqlSafe(sql))).await?;
        // A simple query's answers are text, whatever their type.
        let text = rows
            .last()
            .and_then(|row| row.try_get_unchecked::<Vec<u8>, _>(0).ok());
        Ok(text
            .map(|text| String::from_utf8_lossy(&text).into_owned())
            .unwrap_or_default())
    }
}

impl ScriptDatabase for Sqlite {
    async fn ask(tx: &mut Tx<Self>, sql: &str) -> Result<String, sqlx::Error> {
        let rows = tx.fetch_all(sqlx::raw_sql(AssertSqlSafe(sql))).await?;
        let text = rows.last().map(|row| row.try_get_unchecked::<String, _>(0));
        Ok(text.and_then(Result::ok).unwrap_or_default())
    }
}

/// One worker whose handler follows a script.
#[derive(Debug)]
pub struct Stage {
    /// Where the messages come from, in the queue `orders`.
    pub broker: MemoryBroker,
    /// What its handler does and saw.
    pub script: Script,
    running: Running,
}

impl Stage {
    /// Starts it.
    ///
    /// # Panics
    ///
    /// When the configuration is refused.
    pub async fn start<H: Handler>(
        pool: &Pool<H::Db>,
        script: Script,
        handler: H,
        configure: impl FnOnce(InboxBuilder<H::Db>) -> InboxBuilder<H::Db>,
    ) -> Self {
        let broker = MemoryBroker::new();
        let builder = Inbox::builder(pool.clone())
            .source("orders", broker.source("orders"))
            .serve(handler)
            .state(script.clone())
            .concurrency(1)
            .retry(RetryPolicy::default().first_delay(Duration::from_millis(20)));
        let inbox = configure(builder).build().await.expect("the inbox");
        Self {
            broker,
            script,
            running: Running::start(inbox),
        }
    }

    /// Publishes a message.
    pub fn publish(&self, id: &str) {
        self.broker.publish("orders", order(id));
    }

    /// Publishes a message and waits until the broker has nothing left.
    pub async fn deliver(&self, id: &str) {
        self.publish(id);
        all_acked(&self.broker).await;
    }

    /// How often a message was acked.
    #[must_use]
    pub fn acks(&self, id: &str) -> usize {
        let verdicts = self.verdicts(id);
        verdicts.iter().filter(|v| **v == Verdict::Ack).count()
    }

    /// How the deliveries of a message were settled, in order.
    ///
    /// # Panics
    ///
    /// When one was settled twice, or with a token of somebody else.
    #[must_use]
    pub fn verdicts(&self, id: &str) -> Vec<Verdict> {
        let settled = self.broker.settled();
        let of_it = settled
            .iter()
            .filter(|settled| settled.message_id.as_deref() == Some(id));
        of_it
            .map(|settled| {
                assert_eq!(settled.effect, Effect::Done, "{settled:?}");
                settled.verdict
            })
            .collect()
    }

    /// Stops it.
    pub async fn stop(self) {
        self.running.stop().await;
    }
}
