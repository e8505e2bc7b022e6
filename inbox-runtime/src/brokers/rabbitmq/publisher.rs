use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use inbox_core::{BoxError, Envelope, PublishError, Publisher, SourceError};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::protocol::AMQPSoftError;
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation, Connection};
use tokio::sync::Semaphore;

use super::{RabbitMq, is_soft, message, reason, short};

/// How many messages of one publisher can be on their way at a time.
const CHANNELS: usize = 32;

/// How long a confirm may take.
const CONFIRM_LIMIT: Duration = Duration::from_secs(30);

/// Room that a header frame needs besides the values that are counted.
const FRAME_OVERHEAD: usize = 512;

/// Publishes to a RabbitMQ server and waits for its confirms; made by [`RabbitMq::publisher`].
///
/// Messages are persistent and mandatory: one that reaches no queue is
/// [`Unroutable`](PublishError::Unroutable), one that the server did not confirm counts as not published,
/// although it may have arrived. It connects with its first message, and again with the next one after a
/// connection was lost. Up to 32 messages can be on their way at a time; clones share the connection.
///
/// # Destinations
///
/// | destination | goes to |
/// |---|---|
/// | `orders` | the queue `orders`, through the default exchange |
/// | `shop/order.placed` | the exchange `shop`, with the routing key `order.placed` |
/// | `events/` | the exchange `events`, with an empty routing key (fanout) |
/// | `/a/b` | the queue `a/b`, through the default exchange |
///
/// The first `/` ends the exchange's name, so an exchange with a `/` in its name cannot be reached.
#[derive(Clone)]
pub struct RabbitMqPublisher {
    broker: RabbitMq,
    confirm_limit: Duration,
    link: Arc<tokio::sync::Mutex<Option<Arc<Link>>>>,
}

/// One connection and its channels that are not in use.
///
/// A channel carries one message at a time: the client gives a returned message to whichever confirm comes
/// next on the channel, which is the right one only when there is no other.
struct Link {
    connection: Connection,
    permits: Semaphore,
    idle: Mutex<Vec<Channel>>,
}

impl RabbitMqPublisher {
    pub(super) fn new(broker: RabbitMq) -> Self {
        Self {
            broker,
            confirm_limit: CONFIRM_LIMIT,
            link: Arc::default(),
        }
    }

    /// Gives a message up when the server has not confirmed it in time. The default is 30 seconds; a server
    /// that is short of memory or disk confirms nothing.
    #[must_use]
    pub const fn confirm_limit(mut self, limit: Duration) -> Self {
        self.confirm_limit = limit;
        self
    }

    async fn link(&self) -> Result<Arc<Link>, SourceError> {
        let mut place = self.link.lock().await;
        if let Some(link) = &*place
            && link.connection.status().connected()
        {
            return Ok(Arc::clone(link));
        }
        *place = None;
        let link = Arc::new(Link {
            connection: self.broker.connect().await?,
            permits: Semaphore::new(CHANNELS),
            idle: Mutex::default(),
        });
        *place = Some(Arc::clone(&link));
        Ok(link)
    }

    async fn send(&self, message: Message<'_>) -> Result<Confirmation, BoxError> {
        let link = self.link().await?;
        let _permit = link.permits.acquire().await?;
        // A header frame cannot be split: the server answers a larger one by closing the connection.
        let room = link.connection.configuration().frame_max() as usize;
        if room != 0 && message.properties_size + FRAME_OVERHEAD > room {
            return Err(format!(
                "its headers take {} bytes, and the server takes frames of {room}",
                message.properties_size
            )
            .into());
        }
        let channel = link.channel().await?;
        let options = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let confirmation = channel
            .basic_publish(
                message.exchange,
                message.routing_key,
                options,
                message.payload,
                message.properties,
            )
            .await?
            .await?;
        // Only a channel that has nothing more to come is used again; any other one closes when it is dropped.
        link.idle().push(channel);
        Ok(confirmation)
    }
}

struct Message<'a> {
    exchange: ShortString,
    routing_key: ShortString,
    payload: &'a [u8],
    properties: BasicProperties,
    properties_size: usize,
}

impl Link {
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Channel>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn channel(&self) -> Result<Channel, lapin::Error> {
        loop {
            let Some(channel) = self.idle().pop() else {
                break;
            };
            if channel.status().connected() {
                return Ok(channel);
            }
        }
        let channel = self.connection.create_channel().await?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        Ok(channel)
    }
}

impl fmt::Debug for RabbitMqPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMqPublisher")
            .field("broker", &self.broker)
            .field("confirm_limit", &self.confirm_limit)
            .finish_non_exhaustive()
    }
}

/// Exchange and routing key of a destination.
fn route(destination: &str) -> (&str, &str) {
    destination.split_once('/').unwrap_or(("", destination))
}

#[async_trait]
impl Publisher for RabbitMqPublisher {
    async fn publish(&self, destination: &str, envelope: &Envelope) -> Result<(), PublishError> {
        let named = || destination.to_owned();
        let failed = |source: BoxError| PublishError::Failed {
            destination: named(),
            source,
        };
        let (exchange, routing_key) = route(destination);
        let (properties, properties_size) =
            message::properties(envelope).map_err(|problem| failed(problem.into()))?;
        let message = Message {
            exchange: short(exchange).map_err(|problem| failed(problem.into()))?,
            routing_key: short(routing_key).map_err(|problem| failed(problem.into()))?,
            payload: &envelope.payload,
            properties,
            properties_size,
        };
        match tokio::time::timeout(self.confirm_limit, self.send(message)).await {
            Ok(Ok(Confirmation::Ack(None))) => Ok(()),
            Ok(Ok(Confirmation::Ack(Some(_)))) => Err(PublishError::Unroutable {
                destination: named(),
            }),
            Ok(Ok(Confirmation::Nack(_))) => Err(PublishError::Refused {
                destination: named(),
            }),
            Ok(Ok(Confirmation::NotRequested)) => {
                Err(failed("the channel does not confirm".into()))
            }
            Ok(Err(error)) => Err(match error.downcast::<lapin::Error>() {
                // The exchange does not exist.
                Ok(error) if is_soft(&error, &AMQPSoftError::NOTFOUND) => {
                    PublishError::Unroutable {
                        destination: named(),
                    }
                }
                Ok(error)
                    if is_soft(&error, &AMQPSoftError::ACCESSREFUSED)
                        || is_soft(&error, &AMQPSoftError::PRECONDITIONFAILED) =>
                {
                    tracing::warn!(destination, reason = %reason(&error), "the message is refused");
                    PublishError::Refused {
                        destination: named(),
                    }
                }
                Ok(error) => failed(error),
                Err(error) => failed(error),
            }),
            Err(_) => Err(failed(
                format!(
                    "the server did not confirm it within {:?}",
                    self.confirm_limit
                )
                .into(),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::route;

    #[test]
    fn a_destination_is_a_queue_or_an_exchange_with_a_key() {
        assert_eq!(route("orders"), ("", "orders"));
        assert_eq!(route("shop/order.placed"), ("shop", "order.placed"));
        assert_eq!(route("events/"), ("events", ""));
        assert_eq!(route("/a/b"), ("", "a/b"));
        assert_eq!(route("shop/a/b"), ("shop", "a/b"));
    }
}
