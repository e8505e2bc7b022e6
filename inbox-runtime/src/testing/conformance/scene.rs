use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use inbox_core::{
    BoxError, CallError, DecodeError, Envelope, Handler, HandlerError, HandlerFuture, HandlerSpec,
    Incoming, Requirements, Source, Tx,
};
use sqlx::{Sqlite, SqlitePool};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

use crate::{Inbox, InboxBuilder, RetryPolicy, Stopped};

/// The attempts of a message.
const ATTEMPTS: u32 = 4;

/// Longer than any restart of a broker, so that nothing is parked.
const HOLD: Duration = Duration::from_secs(5 * 60);

/// What the handlers saw, and how they are to behave. Messages say it in their ids: see [`Bill`].
#[derive(Debug, Clone)]
pub(super) struct Scene(Arc<State>);

#[derive(Debug)]
struct State {
    entered: Mutex<Vec<String>>,
    gate: Semaphore,
}

impl Scene {
    pub(super) fn new() -> Self {
        Self(Arc::new(State {
            entered: Mutex::default(),
            gate: Semaphore::new(0),
        }))
    }

    /// How often a handler of `billing` was called with the message.
    pub(super) fn entered(&self, id: &str) -> usize {
        let entered = self.0.entered.lock();
        let entered = entered.unwrap_or_else(PoisonError::into_inner);
        entered.iter().filter(|entered| *entered == id).count()
    }

    /// Lets so many slow messages pass.
    pub(super) fn pass(&self, messages: usize) {
        self.0.gate.add_permits(messages);
    }
}

/// An order of 100 for acc-1.
pub(super) fn order(id: impl Into<String>) -> Envelope {
    Envelope::new(r#"{"account":"acc-1","amount":100}"#)
        .id(id)
        .message_type("OrderPlaced")
}

/// Several orders.
pub(super) fn orders<I: Into<String>>(ids: impl IntoIterator<Item = I>) -> Vec<Envelope> {
    ids.into_iter().map(order).collect()
}

/// The handler of all cases: one row, and the amount added to the account. `slow-..` then waits to be let through,
/// `later-..` fails the first time, `poison-..` every time.
#[derive(Debug)]
struct Bill(Scene);

impl Handler for Bill {
    type Db = Sqlite;

    const SPEC: HandlerSpec = HandlerSpec::new("billing", "conformance::bill", file!(), line!())
        .max_attempts(ATTEMPTS)
        // A broker can take half a minute to stop, and slow messages outlive that.
        .timeout(Duration::from_secs(180));

    fn requirements(_needs: &mut Requirements) {}

    fn call<'a>(
        &'a self,
        incoming: &'a [Incoming<'_>],
        tx: &'a mut Tx<Sqlite>,
    ) -> HandlerFuture<'a> {
        Box::pin(async move {
            for one in incoming {
                let id = one.id().as_str();
                {
                    let entered = self.0.0.entered.lock();
                    let mut entered = entered.unwrap_or_else(PoisonError::into_inner);
                    entered.push(id.to_owned());
                }
                bill("billing", one, tx).await?;
                let failure = match id.split('-').next() {
                    Some("slow") => {
                        let permit = self.0.0.gate.acquire().await;
                        permit.map_err(failed)?.forget();
                        None
                    }
                    Some("poison") => Some("it never works"),
                    Some("later") if one.attempt() == 1 => Some("not yet"),
                    _ => None,
                };
                if let Some(failure) = failure {
                    return Err(failed(failure));
                }
            }
            Ok(())
        })
    }
}

/// Another consumer of the same messages: `torn-..` fails the first time.
#[derive(Debug)]
struct Notify;

impl Handler for Notify {
    type Db = Sqlite;

    const SPEC: HandlerSpec =
        HandlerSpec::new("notifications", "conformance::notify", file!(), line!())
            .max_attempts(ATTEMPTS);

    fn requirements(_needs: &mut Requirements) {}

    fn call<'a>(
        &'a self,
        incoming: &'a [Incoming<'_>],
        tx: &'a mut Tx<Sqlite>,
    ) -> HandlerFuture<'a> {
        Box::pin(async move {
            for one in incoming {
                bill("notifications", one, tx).await?;
                if one.id().as_str().starts_with("torn") && one.attempt() == 1 {
                    return Err(failed("not yet"));
                }
            }
            Ok(())
        })
    }
}

fn failed(error: impl Into<BoxError>) -> CallError {
    CallError::Handler(HandlerError::new(error))
}

async fn bill(
    consumer: &str,
    incoming: &Incoming<'_>,
    tx: &mut Tx<Sqlite>,
) -> Result<(), CallError> {
    let undecodable = |why: &str| CallError::Decode(DecodeError::new(why));
    let body: serde_json::Value = serde_json::from_slice(&incoming.body())
        .map_err(|error| CallError::Decode(DecodeError::new(error)))?;
    let account = body["account"].as_str();
    let account = account.ok_or_else(|| undecodable("no account"))?;
    let amount = body["amount"].as_i64();
    let amount = amount.ok_or_else(|| undecodable("no amount"))?;
    let row = "INSERT INTO ledger (consumer, account, amount, message_id, process) \
               VALUES (?, ?, ?, ?, ?)";
    sqlx::query(row)
        .bind(consumer)
        .bind(account)
        .bind(amount)
        .bind(incoming.id().as_str())
        .bind(i64::from(std::process::id()))
        .execute(&mut *tx)
        .await
        .map_err(failed)?;
    sqlx::query("UPDATE accounts SET balance = balance + ? WHERE id = ?")
        .bind(amount)
        .bind(account)
        .execute(&mut *tx)
        .await
        .map_err(failed)?;
    Ok(())
}

/// The inbox of a case: consumer `billing`, one message in a transaction.
pub(super) fn inbox(pool: &SqlitePool, source: impl Source, scene: &Scene) -> InboxBuilder<Sqlite> {
    Inbox::builder(pool.clone())
        .source("orders", source)
        .register(Bill(scene.clone()))
        .messages_per_transaction(1)
        .longest_hold(HOLD)
        .retry(
            RetryPolicy::default()
                .first_delay(Duration::from_millis(100))
                .longest_delay(Duration::from_millis(400)),
        )
}

/// The same with the consumer `notifications` besides.
pub(super) fn with_notifications(inbox: InboxBuilder<Sqlite>) -> InboxBuilder<Sqlite> {
    inbox.register(Notify)
}

/// An inbox that runs until it is stopped.
#[derive(Debug)]
pub(super) struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Stopped>,
}

impl Running {
    pub(super) async fn start(inbox: InboxBuilder<Sqlite>) -> Result<Self, BoxError> {
        let inbox = inbox.build().await?;
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(inbox.run_until(async {
            let _ = stopped.await;
        }));
        Ok(Self { stop, task })
    }

    /// Stops it and waits for its end.
    pub(super) async fn stop(self, patience: Duration) -> Result<Stopped, BoxError> {
        drop(self.stop);
        match tokio::time::timeout(patience, self.task).await {
            Ok(stopped) => Ok(stopped?),
            Err(_) => Err(format!("the inbox did not stop within {patience:?}").into()),
        }
    }
}
