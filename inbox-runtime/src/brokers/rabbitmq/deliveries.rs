use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::future::{MaybeDone, maybe_done};
use inbox_core::{
    Assignment, Deliveries, Delivery, Settle, SettleError, SettleToken, SourceError, Verdict,
};
use lapin::options::{BasicAckOptions, BasicCancelOptions, BasicNackOptions};
use lapin::{Channel, Connection, Consumer};

use super::message;
use super::reason;
use super::unsettled::{Frame, Planned, Unsettled};

/// Back to the queue. Without `requeue` RabbitMQ drops the message where no dead letter exchange is set, and
/// over AMQP nobody can ask whether one is.
const HAND_BACK: BasicNackOptions = BasicNackOptions {
    multiple: false,
    requeue: true,
};

/// One connection with one channel, and what was delivered on it and not settled yet.
///
/// When the last half of the assignment is dropped, the client closes channel and connection politely in the
/// background, and the server takes everything unsettled back: also what lies in the client's buffer.
struct Session {
    queue: String,
    unsettled: Mutex<Unsettled>,
    channel: Channel,
    _connection: Connection,
}

/// Numbers the deliveries of the whole process. Delivery tags start at 1 on every channel, so a tag kept past
/// its channel would settle another message; these numbers mean nothing anywhere else.
static DELIVERIES: AtomicU64 = AtomicU64::new(1);

pub(super) fn assignment(
    queue: String,
    connection: Connection,
    channel: Channel,
    consumer: Consumer,
    counts: bool,
) -> Assignment {
    let session = Arc::new(Session {
        queue,
        unsettled: Mutex::default(),
        channel,
        _connection: connection,
    });
    Assignment {
        deliveries: Box::new(RabbitMqDeliveries {
            consumer,
            session: Arc::clone(&session),
            counts,
            end: None,
        }),
        settle: Arc::new(RabbitMqSettle(session)),
    }
}

impl Session {
    fn unsettled(&self) -> MutexGuard<'_, Unsettled> {
        self.unsettled
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Settles what is unsettled, many at once where they are the first on the channel.
    async fn settle(&self, verdicts: &[(SettleToken, Verdict)]) -> Vec<Result<(), SettleError>> {
        // Decided and queued in one poll under one lock. If frames of two calls could change places, an ack of many
        // would settle what is in work, or end at a tag that is settled already.
        let mut queued = poll_fn(|cx| Poll::Ready(self.queue(verdicts, cx))).await;
        // Of another channel, or settled before: sending anything would at best close this channel.
        let mut answers: Vec<_> = verdicts.iter().map(|_| Err(SettleError::Gone)).collect();
        for (places, sending) in &mut queued {
            (&mut *sending).await;
            let answer = match Pin::new(sending).take_output() {
                Some(sent) => self.answer(sent).await,
                None => Err(None),
            };
            for place in places {
                answers[*place] = match &answer {
                    Ok(()) => Ok(()),
                    Err(None) => Err(SettleError::Gone),
                    Err(Some(error)) => Err(SettleError::Failed(error.clone().into())),
                };
            }
        }
        answers
    }

    /// The client queues a frame in the first poll of its future, in the order of these polls. (Its `Acker` does not:
    /// that spawns a task for each.)
    fn queue<'a>(
        &'a self,
        verdicts: &[(SettleToken, Verdict)],
        cx: &mut Context<'_>,
    ) -> Vec<(Vec<usize>, Queued<'a>)> {
        let mut unsettled = self.unsettled();
        let planned = unsettled.settle(verdicts);
        let mut queued = Vec::with_capacity(planned.len());
        for Planned { frame, verdicts } in planned {
            let mut sending = maybe_done(self.send(frame));
            let _ = Pin::new(&mut sending).poll(cx);
            queued.push((verdicts, sending));
        }
        queued
    }

    fn send(&self, frame: Frame) -> Sending<'_> {
        match frame {
            Frame::Ack { tag, multiple } => {
                Box::pin(self.channel.basic_ack(tag, BasicAckOptions { multiple }))
            }
            Frame::HandBack { tag } => Box::pin(self.channel.basic_nack(tag, HAND_BACK)),
        }
    }

    /// `Err(None)`: the channel ended before.
    async fn answer(&self, sent: lapin::Result<()>) -> Result<(), Option<lapin::Error>> {
        match sent {
            Ok(()) => Ok(()),
            Err(_) if !self.channel.status().connected() => Err(None),
            Err(error) => {
                // A channel that stays open would keep the delivery for ever: the server takes it back when the
                // channel closes.
                if let Err(error) = self.channel.close(200, "a settle failed".into()).await {
                    tracing::debug!(queue = %self.queue, %error, "the channel cannot be closed");
                }
                Err(Some(error))
            }
        }
    }
}

type Sending<'a> = Pin<Box<dyn Future<Output = lapin::Result<()>> + Send + 'a>>;

/// A frame that the client has taken.
type Queued<'a> = MaybeDone<Sending<'a>>;

struct RabbitMqDeliveries {
    consumer: Consumer,
    session: Arc<Session>,
    /// Whether the queue is known to count deliveries, so that no count means none.
    counts: bool,
    end: Option<End>,
}

#[derive(Clone)]
enum End {
    Stopped,
    Lost(String),
}

#[async_trait]
impl Deliveries for RabbitMqDeliveries {
    async fn next(&mut self) -> Result<Option<Delivery>, SourceError> {
        match &self.end {
            None => {}
            Some(End::Stopped) => return Ok(None),
            Some(End::Lost(why)) => return Err(SourceError::new(why.as_str())),
        }
        // The stream gives a delivery away only in the poll that completes, so none is lost with this future.
        let why = loop {
            match self.consumer.next().await {
                // Buffered before its channel ended: the server has taken it back already.
                Some(Ok(delivery)) if delivery.acker.poisoned() => {}
                Some(Ok(delivery)) => return Ok(Some(self.take(delivery))),
                Some(Err(error)) => break reason(&error),
                None => {
                    break "the server cancelled the consumer; was the queue deleted, or moved to another node?"
                        .to_owned();
                }
            }
        };
        let why = format!("lost the RabbitMQ queue `{}`: {why}", self.session.queue);
        self.end = Some(End::Lost(why.clone()));
        Err(SourceError::new(why))
    }

    /// Cancels the consumer and hands back what the server sent and nobody took yet; what was taken can still
    /// be settled.
    async fn stop(&mut self) {
        if self.end.is_some() {
            return;
        }
        self.end = Some(End::Stopped);
        let tag = self.consumer.tag();
        let cancelled = self
            .session
            .channel
            .basic_cancel(tag, BasicCancelOptions::default())
            .await;
        if let Err(error) = cancelled {
            // The channel is gone, and with it everything that it had delivered.
            tracing::debug!(queue = %self.session.queue, %error, "the consumer cannot be cancelled");
            return;
        }
        // Others shall have these at once, not when the last handler here is done and the channel closes.
        while let Some(Ok(delivery)) = self.consumer.next().await {
            if let Err(error) = delivery.acker.nack(HAND_BACK).await {
                tracing::debug!(queue = %self.session.queue, %error, "a buffered delivery goes back with its channel");
            }
        }
    }
}

impl RabbitMqDeliveries {
    fn take(&self, delivery: lapin::message::Delivery) -> Delivery {
        let number = DELIVERIES.fetch_add(1, Ordering::Relaxed);
        self.session
            .unsettled()
            .insert(number, delivery.delivery_tag);
        let earlier = message::earlier_deliveries(&delivery.properties, self.counts);
        let redelivered = delivery.redelivered || message::was_given_up(&delivery.properties);
        Delivery::new(message::envelope(delivery), SettleToken::new(number))
            .redelivered(redelivered)
            .earlier_deliveries(earlier)
    }
}

struct RabbitMqSettle(Arc<Session>);

#[async_trait]
impl Settle for RabbitMqSettle {
    async fn settle(&self, verdicts: Vec<(SettleToken, Verdict)>) -> Vec<Result<(), SettleError>> {
        self.0.settle(&verdicts).await
    }

    fn is_gone(&self) -> bool {
        !self.0.channel.status().connected()
    }
}
