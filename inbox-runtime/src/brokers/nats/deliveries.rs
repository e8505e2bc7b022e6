use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_nats::{Message, RequestErrorKind, StatusCode, Subscriber};
use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::future::{FutureExt as _, join_all};
use inbox_core::{
    Assignment, Deliveries, Delivery, Settle, SettleError, SettleToken, SourceError, Verdict,
};
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Connection;
use super::leases::Leases;
use super::message::{self, Delivered};

/// How long a request for messages waits at the server.
const REQUEST_EXPIRES: Duration = Duration::from_secs(30);

/// How often the server shows during that time that it still knows the request.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// How long the server may be silent while a request waits there: longer, and it knows it no more.
const SILENCE: Duration = Duration::from_secs(15);

/// How long what was given back at the very end may take to leave.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

const CONNECTION_LOST: &str = "the connection was lost";

/// Says how many of the messages asked for will not come.
const STILL_PENDING: &str = "Nats-Pending-Messages";

/// The consumer of an assignment, and how the server wants to be asked.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    pub(super) stream: String,
    pub(super) consumer: String,
    pub(super) prefetch: NonZeroUsize,
    /// The largest request that the server takes.
    pub(super) most_in_a_request: Option<usize>,
    /// The longest time for which the server lets a request wait.
    pub(super) longest_request: Option<Duration>,
    /// How often the server delivers a message.
    pub(super) max_deliver: Option<u64>,
    /// How long the server waits for a delivery that is not extended; `None`: nothing is extended.
    pub(super) extended: Option<Duration>,
}

/// One connection, what was delivered on it and not settled yet, and what was asked for.
///
/// When the last half of the assignment is dropped, the subscription goes, and with it the requests for more. The server
/// delivers what is unsettled again after its `ack_wait`.
struct Session {
    terms: Terms,
    connection: Connection,
    leases: Mutex<Leases>,
    /// A settle came to its end, so there is room for more.
    settled: Notify,
    /// The assignment is known to be lost, whatever the connection says.
    lost: CancellationToken,
    /// Ends the tasks of the session.
    _end: DropGuard,
}

/// Numbers the deliveries of the whole process, so that a token settles nothing in another assignment.
static DELIVERIES: AtomicU64 = AtomicU64::new(1);

/// Begins to take messages.
pub(super) async fn assignment(
    connection: Connection,
    terms: Terms,
) -> Result<Assignment, SourceError> {
    let inbox = connection.client.new_inbox();
    let subscriber = connection.client.subscribe(inbox.clone()).await;
    let subscriber = subscriber.map_err(|error| {
        SourceError::new(format!("nothing can be received from NATS ({error})"))
    })?;
    let end = CancellationToken::new();
    let session = Arc::new(Session {
        leases: Mutex::new(Leases::new(terms.prefetch.get())),
        settled: Notify::new(),
        lost: end.child_token(),
        _end: end.clone().drop_guard(),
        connection,
        terms,
    });
    if let Some(ack_wait) = session.terms.extended {
        // It must not keep the session, which ends it.
        tokio::spawn(extend(
            Arc::downgrade(&session),
            ack_wait,
            session.lost.clone(),
        ));
    }
    Ok(Assignment {
        deliveries: Box::new(JetStreamDeliveries {
            session: Arc::clone(&session),
            subscriber: Some(subscriber),
            inbox,
            heard: Instant::now(),
            end,
            ended: None,
        }),
        settle: Arc::new(JetStreamSettle(session)),
    })
}

/// Tells the server that work goes on, for every delivery that is unsettled, so that nobody else gets it.
///
/// A quarter of the time is the grain: each delivery is extended before half of it is over.
async fn extend(session: std::sync::Weak<Session>, ack_wait: Duration, lost: CancellationToken) {
    const IN_PROGRESS: &str = "+WPI";
    let grain = (ack_wait / 4).max(Duration::from_millis(1));
    let mut ticks = tokio::time::interval(grain);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = lost.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let Some(session) = session.upgrade() else {
            return;
        };
        if session.is_gone() {
            return;
        }
        let client = &session.connection.client;
        // Under the lock, and not waiting: no sign may follow the settle of its delivery, whose delay it would undo. What
        // does not fit now is due again with the next tick.
        session.leases().renew(grain, Instant::now(), |reply| {
            let sending = client.publish(reply.clone(), IN_PROGRESS.into());
            tokio::task::unconstrained(sending)
                .now_or_never()
                .is_some_and(|sent| sent.is_ok())
        });
    }
}

impl Session {
    fn leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_gone(&self) -> bool {
        self.lost.is_cancelled() || self.connection.is_lost()
    }

    async fn settle(&self, token: &SettleToken, verdict: Verdict) -> Result<(), SettleError> {
        if self.is_gone() {
            return Err(SettleError::Gone);
        }
        let Some(reply) = self.leases().settle(token.number()) else {
            return Err(SettleError::Gone);
        };
        // Also when this future is dropped: then the delivery is neither extended nor counted any more.
        let _room = Room(self);
        let answer = match verdict {
            Verdict::Ack => "+ACK".to_owned(),
            Verdict::HandBack { delay } => hand_back(delay),
            // A verdict of a later version: it comes again.
            _ => hand_back(None),
        };
        // As a request, which the server answers when it has noted it: a plain ack can be lost unseen.
        match self.connection.client.request(reply, answer.into()).await {
            Ok(_) => Ok(()),
            Err(_) if self.is_gone() => Err(SettleError::Gone),
            Err(error) if error.kind() == RequestErrorKind::NoResponders => {
                let gone = format!(
                    "the consumer `{}` of the stream `{}` is gone",
                    self.terms.consumer, self.terms.stream
                );
                Err(SettleError::Failed(gone.into()))
            }
            Err(error) => Err(SettleError::Failed(error.into())),
        }
    }

    /// Asks for as many messages as there is room for, if that is worth a request; whether it was.
    async fn request(&self, inbox: &str) -> Result<bool, SourceError> {
        let Some(wanted) = self.leases().wanted() else {
            return Ok(false);
        };
        let wanted = wanted.min(self.terms.most_in_a_request.unwrap_or(wanted));
        let expires = self.terms.longest_request.unwrap_or(REQUEST_EXPIRES);
        let expires = expires.min(REQUEST_EXPIRES);
        // The server wants at least two of them in the time of a request.
        let heartbeat = HEARTBEAT.min(expires / 3);
        let request = json!({
            "batch": wanted,
            "expires": u64::try_from(expires.as_nanos()).unwrap_or(u64::MAX),
            "idle_heartbeat": u64::try_from(heartbeat.as_nanos()).unwrap_or(u64::MAX),
        });
        let Terms {
            stream, consumer, ..
        } = &self.terms;
        let subject = self
            .connection
            .jetstream
            .subject(&format!("CONSUMER.MSG.NEXT.{stream}.{consumer}"));
        let client = &self.connection.client;
        // Dropped before its end it was not sent.
        let sent = client.publish_with_reply(subject, inbox.to_owned(), request.to_string().into());
        match sent.await {
            Ok(()) => {
                self.leases().note_requested(wanted);
                Ok(true)
            }
            Err(error) => Err(self.loss(&error.to_string())),
        }
    }

    fn loss(&self, why: &str) -> SourceError {
        let Terms {
            stream, consumer, ..
        } = &self.terms;
        let said = self.connection.complaint.in_brackets();
        SourceError::new(format!(
            "lost the consumer `{consumer}` of the stream `{stream}`: {why}{said}"
        ))
    }
}

/// The nanoseconds are JetStream's; without a delay it delivers the message again at once.
fn hand_back(delay: Option<Duration>) -> String {
    match delay.filter(|delay| !delay.is_zero()) {
        None => "-NAK".to_owned(),
        Some(delay) => format!("-NAK {{\"delay\": {}}}", delay.as_nanos()),
    }
}

/// The room of a delivery whose settle is on its way.
struct Room<'a>(&'a Session);

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.0.leases().note_settled();
        self.0.settled.notify_one();
    }
}

struct JetStreamDeliveries {
    session: Arc<Session>,
    /// Taken away when nothing more is to be taken.
    subscriber: Option<Subscriber>,
    inbox: String,
    /// When the server last showed that it knows of a request.
    heard: Instant,
    /// Done when the session is.
    end: CancellationToken,
    ended: Option<String>,
}

#[async_trait]
impl Deliveries for JetStreamDeliveries {
    async fn next(&mut self) -> Result<Option<Delivery>, SourceError> {
        if let Some(why) = &self.ended {
            return Err(self.session.loss(why));
        }
        match self.receive().await {
            Ok(delivery) => Ok(delivery),
            Err(why) => {
                // What was delivered is not extended any more, and not started.
                self.session.lost.cancel();
                self.ended = Some(why.clone());
                self.subscriber = None;
                Err(self.session.loss(&why))
            }
        }
    }

    /// Asks for nothing more, and gives what still comes back at once; what was taken can still be settled.
    async fn stop(&mut self) {
        let Some(mut subscriber) = self.subscriber.take() else {
            return;
        };
        let connection = self.session.connection.clone();
        let end = self.end.clone();
        // What is here by now goes before this returns: the process may end soon after.
        while let Some(Some(message)) = subscriber.next().now_or_never() {
            give_back(&connection, message).await;
        }
        let _ = connection.client.flush().await;
        // A request cannot be taken back, so what comes for it goes back, until the subscription can go.
        tokio::spawn(async move {
            loop {
                let message = tokio::select! {
                    biased;
                    message = subscriber.next() => message,
                    () = end.cancelled() => None,
                };
                match message {
                    Some(message) => give_back(&connection, message).await,
                    None => break,
                }
            }
            drop(subscriber);
            // With the last handle the client closes its connection, whatever is still to be written.
            let _ = tokio::time::timeout(FLUSH_LIMIT, connection.client.flush()).await;
        });
    }
}

async fn give_back(connection: &Connection, message: Message) {
    let Some(reply) = message.reply.filter(|_| message.status.is_none()) else {
        return;
    };
    let answer = hand_back(None).into();
    if let Err(error) = connection.client.publish(reply, answer).await {
        tracing::debug!(%error, "a delivery comes again after its time");
    }
}

impl JetStreamDeliveries {
    /// The next delivery; the error says why there is none.
    async fn receive(&mut self) -> Result<Option<Delivery>, String> {
        let session = Arc::clone(&self.session);
        loop {
            let Some(subscriber) = &mut self.subscriber else {
                return Ok(None);
            };
            let requested = session.request(&self.inbox).await;
            if requested.map_err(|_| CONNECTION_LOST.to_owned())? {
                self.heard = Instant::now();
            }
            let is_waiting = session.leases().is_waiting();
            let silence = SILENCE.saturating_sub(self.heard.elapsed());
            // A message is taken out of the subscription only in the poll that completes, so none is lost with this future.
            let message = tokio::select! {
                biased;
                message = subscriber.next() => message,
                () = session.settled.notified() => continue,
                () = session.lost.cancelled() => None,
                () = tokio::time::sleep(silence), if is_waiting => {
                    return Err(format!("the server was silent for {SILENCE:?}; is the consumer still there?"));
                }
            };
            self.heard = Instant::now();
            let message = message.ok_or_else(|| CONNECTION_LOST.to_owned())?;
            match message.status {
                None => {
                    if let Some(delivery) = self.take(message) {
                        return Ok(Some(delivery));
                    }
                }
                Some(status) => self.note(status, &message)?,
            }
        }
    }

    fn take(&self, message: Message) -> Option<Delivery> {
        let delivered = message.reply.as_deref().and_then(Delivered::read);
        let (Some(delivered), Some(reply)) = (delivered, message.reply.clone()) else {
            tracing::warn!(
                subject = %message.subject,
                "what came is no delivery of JetStream and is left alone"
            );
            return None;
        };
        let session = &self.session;
        let number = DELIVERIES.fetch_add(1, Ordering::Relaxed);
        session.leases().take(number, reply, Instant::now());
        if session
            .terms
            .max_deliver
            .is_some_and(|most| delivered.times >= most)
        {
            tracing::error!(
                stream = %session.terms.stream,
                consumer = %session.terms.consumer,
                sequence = delivered.sequence,
                deliveries = delivered.times,
                "this is the last delivery of a message: if it ends without an ack, the server never delivers it again; \
                 raise `max_deliver` of the consumer, or make it unlimited"
            );
        }
        let delivery = Delivery::new(
            message::envelope(message, delivered),
            SettleToken::new(number),
        );
        Some(
            delivery
                .redelivered(delivered.times > 1)
                .earlier_deliveries(Some(delivered.earlier())),
        )
    }

    /// What the server says of a request.
    fn note(&self, status: StatusCode, message: &Message) -> Result<(), String> {
        let said = message
            .description
            .as_deref()
            .unwrap_or("no reason is given");
        let headers = message.headers.as_ref();
        let pending = headers.and_then(|headers| headers.get(STILL_PENDING));
        let pending = pending.and_then(|pending| pending.as_str().parse().ok());
        match (status.as_u16(), pending) {
            // A heartbeat: the request is alive.
            (100, _) => Ok(()),
            // It has waited long enough, or what it waited for cannot come: the next one asks for the rest.
            (404 | 408, Some(pending)) => {
                self.session.leases().note_expired(pending);
                Ok(())
            }
            (409, Some(pending)) if said == "Batch Completed" => {
                self.session.leases().note_expired(pending);
                Ok(())
            }
            (503, _) => {
                Err("nobody serves it any more; was it deleted, or is JetStream down?".to_owned())
            }
            (status, _) => Err(format!("the server says {status} {said}")),
        }
    }
}

struct JetStreamSettle(Arc<Session>);

#[async_trait]
impl Settle for JetStreamSettle {
    async fn settle(&self, verdicts: Vec<(SettleToken, Verdict)>) -> Vec<Result<(), SettleError>> {
        // All are sent before the first answer is waited for.
        let settling = verdicts
            .iter()
            .map(|(token, verdict)| self.0.settle(token, *verdict));
        join_all(settling).await
    }

    fn is_gone(&self) -> bool {
        self.0.is_gone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_sent_in_nanoseconds() {
        assert_eq!(hand_back(None), "-NAK");
        assert_eq!(hand_back(Some(Duration::ZERO)), "-NAK");
        let delay = Some(Duration::from_secs(20));
        assert_eq!(hand_back(delay), "-NAK {\"delay\": 20000000000}");
    }
}
