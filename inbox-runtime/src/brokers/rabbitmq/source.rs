use std::num::NonZeroUsize;
use std::time::Duration;

use async_trait::async_trait;
use inbox_core::{Assignment, Capabilities, IdSource, Learned, Needs, Source, SourceError};
use lapin::options::{BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions};
use lapin::protocol::AMQPSoftError;
use lapin::types::FieldTable;

use super::deliveries;
use super::topology::{Declaration, QueueKind};
use super::{RabbitMq, is_soft, reason, short};

/// RabbitMQ's `consumer_timeout` unless its operator changed it.
const CONSUMER_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// How long declaring and subscribing may take, once connected.
const SET_UP_LIMIT: Duration = Duration::from_secs(30);

/// A queue of a RabbitMQ server as a source of messages; made by [`RabbitMq::queue`].
///
/// Each time it is opened it makes a connection and a channel of its own and subscribes anew. It does not
/// reconnect by itself, so a delivery of a lost channel is never settled on another one.
///
/// # What becomes of a message
///
/// The properties `message-id`, `type`, `content-type`, `correlation-id` and `timestamp`, the routing key and
/// the headers are in the [`Envelope`](inbox_core::Envelope); the payload is not touched. Texts and byte arrays
/// among the headers keep their bytes, numbers are decimal text, booleans `true` or `false`, tables and arrays
/// JSON; a header without a value is as good as absent. A message that is handed back goes to the queue again
/// and is never rejected, for without a dead letter exchange RabbitMQ drops what is rejected.
///
/// # What it cannot do
///
/// RabbitMQ has no delays, so the runtime holds what shall wait; see
/// [`settle_window`](RabbitMqSource::settle_window). Properties and header names are UTF-8 to AMQP: a `message-id`
/// that is not arrives as U+0000 and is refused as an id, elsewhere a `?` stands for what is not text. What is
/// nested deeper than 64 levels arrives as its bytes.
///
/// # What the server counts
///
/// A quorum queue counts deliveries (`x-delivery-count`), and with a limit gives a message up that was delivered more
/// often. The inbox spends that counter on nothing but crashes and lost connections: it never hands a message back for an
/// outage. A limit below `max_attempts` of a handler is refused all the same, since a message that ends its process is tried
/// that often. The limit is known where the source [declares](Self::declare) the queue; where a policy sets it, or
/// RabbitMQ 4 by default (20), say it with [`delivery_limit`](Self::delivery_limit). A message that was given up by a queue
/// and moved back (`x-death`) counts as delivered before.
#[derive(Debug, Clone)]
pub struct RabbitMqSource {
    broker: RabbitMq,
    queue: String,
    declaration: Option<Declaration>,
    consumer_tag: String,
    id_sources: Vec<IdSource>,
    settle_window: Option<Duration>,
    delivery_limit: Option<u32>,
    largest_payload: Option<u64>,
    orders_by_routing_key: bool,
}

impl RabbitMqSource {
    pub(super) fn new(broker: RabbitMq, queue: String) -> Self {
        Self {
            broker,
            queue,
            declaration: None,
            consumer_tag: String::new(),
            id_sources: vec![
                IdSource::Property,
                IdSource::CloudEvents,
                IdSource::Header("message-id".to_owned()),
                IdSource::Header("x-message-id".to_owned()),
            ],
            settle_window: Some(CONSUMER_TIMEOUT),
            delivery_limit: None,
            largest_payload: None,
            orders_by_routing_key: false,
        }
    }

    /// Declares the queue when the source is opened, so that it is there. Without this the queue must exist.
    #[must_use]
    pub fn declare(mut self, queue: impl Into<Declaration>) -> Self {
        self.declaration = Some(queue.into());
        self
    }

    /// The name under which the server lists the consumer. The default is a name of the server's making.
    #[must_use]
    pub fn consumer_tag(mut self, tag: impl Into<String>) -> Self {
        self.consumer_tag = tag.into();
        self
    }

    /// Looks for a message's id in these places, in this order.
    ///
    /// The default: the property `message-id`, the CloudEvents attribute `id`, the headers `message-id` and
    /// `x-message-id`. Name only places that the producer fills once per message and repeats on every retry.
    #[must_use]
    pub fn id_from(mut self, places: impl IntoIterator<Item = IdSource>) -> Self {
        self.id_sources = places.into_iter().collect();
        self
    }

    /// Looks for a message's id in this header and nowhere else.
    #[must_use]
    pub fn id_header(self, name: impl Into<String>) -> Self {
        self.id_from([IdSource::Header(name.into())])
    }

    /// How long the server waits for a settle before it takes everything unsettled away: its
    /// `consumer_timeout`, 30 minutes unless its operator changed it; `None` where it is switched off. No
    /// delivery is held longer than this.
    #[must_use]
    pub fn settle_window(mut self, window: impl Into<Option<Duration>>) -> Self {
        self.settle_window = window.into();
        self
    }

    /// How often the queue redelivers a message before it gives it up, where that is not said in
    /// [`declare`](Self::declare): by a policy (`delivery-limit`), or by RabbitMQ 4, whose quorum queues have a limit of
    /// 20 by default. Without this and a declaration no limit is assumed. The start is refused when a handler's
    /// `max_attempts` is above it.
    #[must_use]
    pub const fn delivery_limit(mut self, limit: u32) -> Self {
        self.delivery_limit = Some(limit);
        self
    }

    /// The largest payload that the server takes, in bytes: its `max_message_size`. The start is refused when the
    /// database could not keep such a message. Without this nothing is compared.
    #[must_use]
    pub const fn largest_payload(mut self, bytes: u64) -> Self {
        self.largest_payload = Some(bytes);
        self
    }

    /// The routing key says which messages belong together (an account, a customer): those with the same one go to one
    /// worker, one after another, unless their handler has an `order_by` of its own.
    ///
    /// Not the default, because in most topologies the routing key names a kind of message, and a queue with a single
    /// kind would then keep a single worker busy.
    #[must_use]
    pub fn ordered_by_routing_key(mut self) -> Self {
        self.orders_by_routing_key = true;
        self
    }

    /// Whether the queue is known to count deliveries.
    fn counts(&self) -> bool {
        self.declaration
            .as_ref()
            .is_some_and(|declaration| declaration.kind() == QueueKind::Quorum)
    }

    async fn subscribe(
        &self,
        connection: &lapin::Connection,
        prefetch: NonZeroUsize,
    ) -> Result<(lapin::Channel, lapin::Consumer), SourceError> {
        let failed = |what: &str, error: &lapin::Error| {
            SourceError::new(format!(
                "the queue `{}` cannot be consumed: {what} ({})",
                self.queue,
                reason(error)
            ))
        };
        let name = short(&self.queue).map_err(SourceError::new)?;
        let tag = short(&self.consumer_tag).map_err(SourceError::new)?;
        let channel = connection
            .create_channel()
            .await
            .map_err(|error| failed("no channel", &error))?;
        match &self.declaration {
            Some(declaration) => declaration.declare(&channel, &self.queue, &name).await?,
            None => {
                let options = QueueDeclareOptions {
                    passive: true,
                    ..QueueDeclareOptions::default()
                };
                channel
                    .queue_declare(name.clone(), options, FieldTable::default())
                    .await
                    .map_err(|error| {
                        if is_soft(&error, &AMQPSoftError::NOTFOUND) {
                            SourceError::new(format!(
                                "there is no queue `{}` ({}): create it, correct the name or the virtual host, or let \
                                 the source make it with `.declare(QueueKind::Quorum)`",
                                self.queue,
                                reason(&error)
                            ))
                        } else {
                            failed("it cannot be checked", &error)
                        }
                    })?;
            }
        }
        // Zero would mean no bound at all; more than AMQP can say is bounded by what it can.
        let prefetch = u16::try_from(prefetch.get()).unwrap_or(u16::MAX);
        channel
            .basic_qos(prefetch, BasicQosOptions { global: false })
            .await
            .map_err(|error| failed("no prefetch", &error))?;
        let consumer = channel
            .basic_consume(
                name,
                tag,
                BasicConsumeOptions::default(),
                FieldTable::default(),
            )
            .await
            .map_err(|error| failed("no subscription", &error))?;
        Ok((channel, consumer))
    }
}

#[async_trait]
impl Source for RabbitMqSource {
    fn system(&self) -> &'static str {
        "rabbitmq"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new()
            .counts_hand_backs(true)
            .counts_deliveries(self.counts())
            .settle_setting("consumer_timeout")
            .orders_by_key(self.orders_by_routing_key);
        capabilities.largest_payload = self.largest_payload;
        match self.settle_window {
            Some(window) => capabilities.settle_window(window),
            None => capabilities,
        }
    }

    fn id_sources(&self) -> Vec<IdSource> {
        self.id_sources.clone()
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = self.broker.problems();
        if self.queue.is_empty() {
            problems
                .push("the RabbitMQ queue has no name: name it in `RabbitMq::queue`".to_owned());
        }
        for (setting, name) in [("queue", &self.queue), ("consumer_tag", &self.consumer_tag)] {
            if let Err(problem) = short(name) {
                problems.push(format!("`{setting}` of a RabbitMQ source: {problem}"));
            }
        }
        if let Some(declaration) = &self.declaration {
            problems.extend(declaration.problems(&self.queue));
        }
        if self.settle_window.is_some_and(|window| window.is_zero()) {
            problems.push(format!(
                "the settle window of the RabbitMQ queue `{}` is zero, so nothing could be settled in time: give \
                 `settle_window` the server's consumer_timeout, or `None` where that is switched off",
                self.queue
            ));
        }
        problems
    }

    /// AMQP tells nothing of a queue's arguments and policies: what was declared or said is what is known.
    async fn learn(&self, needs: &Needs) -> Result<Learned, SourceError> {
        let declared = self.declaration.as_ref();
        let declared = declared.and_then(Declaration::limit_of_deliveries);
        let declared = declared.map(|limit| (limit, "the limit in `Declaration::delivery_limit`"));
        let told = self.delivery_limit.map(|limit| {
            let limit = i64::from(limit);
            (
                limit,
                "the queue's policy and the number in `RabbitMqSource::delivery_limit`",
            )
        });
        let least = declared
            .into_iter()
            .chain(told)
            .min_by_key(|(limit, _)| *limit);
        let problem = least
            .filter(|(limit, _)| *limit < i64::from(needs.most_attempts))
            .map(|(limit, remedy)| {
                format!(
                    "the RabbitMQ queue `{}` gives a message up after {limit} redeliveries (`x-delivery-limit`), and a handler \
                     may try it {} times (`max_attempts`): raise {remedy}, or lower `max_attempts`",
                    self.queue, needs.most_attempts
                )
            });
        Ok(Learned::new(self.capabilities()).problems(problem))
    }

    async fn open(&self, prefetch: NonZeroUsize) -> Result<Assignment, SourceError> {
        let connection = self.broker.connect().await?;
        let subscribing = self.subscribe(&connection, prefetch);
        let (channel, consumer) = tokio::time::timeout(SET_UP_LIMIT, subscribing)
            .await
            .map_err(|_| {
                SourceError::new(format!(
                    "RabbitMQ did not let the queue `{}` be consumed within {SET_UP_LIMIT:?}",
                    self.queue
                ))
            })??;
        Ok(deliveries::assignment(
            self.queue.clone(),
            connection,
            channel,
            consumer,
            self.counts(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source() -> RabbitMqSource {
        RabbitMq::new("amqp://localhost").queue("orders")
    }

    #[test]
    fn a_source_says_what_rabbitmq_can_do() {
        let capabilities = source().capabilities();
        assert_eq!(capabilities.longest_delay, None);
        assert!(capabilities.counts_hand_backs);
        assert!(!capabilities.orders_by_key);
        assert!(!capabilities.counts_deliveries, "nobody said what it is");
        let quorum = source().declare(QueueKind::Quorum).capabilities();
        assert!(quorum.counts_deliveries);
        let by_key = source().ordered_by_routing_key().capabilities();
        assert!(by_key.orders_by_key);
        assert_eq!(capabilities.settle_window, Some(Duration::from_secs(1800)));
        let window = Duration::from_secs(60);
        let settle_window = source().settle_window(window).capabilities().settle_window;
        assert_eq!(settle_window, Some(window));
        let settle_window = source().settle_window(None).capabilities().settle_window;
        assert_eq!(settle_window, None);
    }

    #[test]
    fn wrong_settings_are_named_with_their_remedy() {
        let classic = || Declaration::new(QueueKind::Classic);
        let quorum = || Declaration::new(QueueKind::Quorum);
        for (source, says) in [
            (
                RabbitMq::new("amqp://localhost").queue(""),
                "RabbitMq::queue",
            ),
            (
                RabbitMq::new("amqp://localhost").queue("q".repeat(256)),
                "256 bytes",
            ),
            (source().consumer_tag("t".repeat(256)), "consumer_tag"),
            (source().settle_window(Duration::ZERO), "settle_window"),
            (source().declare(quorum().durable(false)), "durable(false)"),
            (
                source().declare(quorum().delivery_limit(3)),
                "dead_letter_exchange",
            ),
            (
                source().declare(classic().delivery_limit(3)),
                "declare a quorum queue",
            ),
            (
                source().declare(classic().argument("x-queue-type", "stream")),
                "x-queue-type",
            ),
            (
                source().declare(classic().argument("a", 1).argument("a", true)),
                "`a` twice",
            ),
            (source().declare(classic().argument("", 1)), "1 to 255"),
            (
                source().declare(classic().bind("", "key")),
                "default exchange",
            ),
            (
                source().declare(classic().bind("e", "k".repeat(300))),
                "300 bytes",
            ),
        ] {
            let problems = source.problems();
            assert_eq!(problems.len(), 1, "{says}: {problems:?}");
            assert!(problems[0].contains(says), "{says}: {problems:?}");
        }
        let right = quorum().delivery_limit(3).dead_letter_exchange("dead");
        assert!(source().declare(right).problems().is_empty());
        assert!(source().declare(QueueKind::Classic).problems().is_empty());
        assert!(source().id_header("x-event-id").problems().is_empty());
    }

    #[tokio::test]
    async fn a_delivery_limit_below_the_attempts_is_refused_with_both_values() {
        let needs = Needs::new(NonZeroUsize::MIN, Duration::from_secs(30), 5);
        let declared = |limit: u32| {
            let queue = Declaration::new(QueueKind::Quorum).dead_letter_exchange("dead");
            source().declare(queue.delivery_limit(limit))
        };
        for (source, says) in [
            (declared(4), Some("`Declaration::delivery_limit`")),
            (declared(5), None),
            (
                source().delivery_limit(4),
                Some("`RabbitMqSource::delivery_limit`"),
            ),
            (source().delivery_limit(5), None),
            // A policy and an argument: the lower one counts.
            (
                declared(9).delivery_limit(2),
                Some("`RabbitMqSource::delivery_limit`"),
            ),
            (
                declared(2).delivery_limit(9),
                Some("`Declaration::delivery_limit`"),
            ),
            (source(), None),
        ] {
            let problems = source.learn(&needs).await.unwrap().problems;
            assert_eq!(problems.len(), usize::from(says.is_some()), "{problems:?}");
            for problem in problems {
                for word in ["`orders`", "`x-delivery-limit`", "5 times", says.unwrap()] {
                    assert!(problem.contains(word), "{word}: {problem}");
                }
            }
        }
    }

    #[test]
    fn every_problem_is_listed_at_once() {
        let source = RabbitMq::new("http://u:secret@h")
            .queue("")
            .settle_window(Duration::ZERO);
        assert_eq!(source.problems().len(), 3);
    }
}
