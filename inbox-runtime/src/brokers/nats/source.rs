use std::num::NonZeroUsize;
use std::time::Duration;

use async_trait::async_trait;
use inbox_core::{Assignment, Capabilities, IdSource, Learned, Needs, Source, SourceError};
use serde_json::json;

use super::api::ApiError;
use super::consumer::{ConsumerDeclaration, Found};
use super::deliveries::{self, Terms};
use super::{Connection, Nats, is_name, message};

/// How long a message may wait at the server for its retry. It keeps one of `max_ack_pending` meanwhile, so what has to wait
/// for longer waits in the database.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// A durable pull consumer of a JetStream stream as a source of messages; made by [`Nats::consumer`].
///
/// Each time it is opened it makes a connection of its own. The client would reconnect by itself, but an assignment ends
/// with its connection, and the runtime opens the next one: so nothing is asked for that nobody waits for, and no delivery
/// is settled that others have by then. What was unsettled comes again after the consumer's `ack_wait`.
///
/// # What becomes of a message
///
/// It is acked when the inbox has committed it, has found it committed, or keeps it in its own table: as a dead letter, or
/// parked for a retry. The inbox waits for the server's answer to each ack. A message that cannot be handled is acked too,
/// once the dead letter is committed, and is never terminated, since the table has all that JetStream would forget.
///
/// A message whose handler failed is handed back with a delay where that is at most a minute, else it is parked; one that
/// could not be tried (an outage, a copy in work elsewhere) is held. The messages that are in work, or wait for a worker,
/// never number more than the prefetch, and the server is told in time that work goes on, so that it delivers none of them
/// to somebody else ([`without_extension`](Self::without_extension)). A handler that hangs is ended by its own `timeout`.
///
/// # The envelope
///
/// The subject is its key, and also its type where neither a header `type` nor CloudEvents say one. The headers
/// `content-type` and `correlation-id` are the properties of these names. The time is the one at which the stream stored
/// the message. The id is `Nats-Msg-Id`, else the CloudEvents attribute `id`; never the message's place in the stream: a
/// producer that sends again after a lost confirm gets another one, and `Nats-Msg-Id` keeps JetStream itself from storing it
/// twice for some minutes only.
///
/// # What is checked
///
/// When the inbox is built, and whenever the source is opened: the stream and the consumer are there; the consumer pulls, is
/// durable, acks explicitly, delivers whole messages; its `max_deliver` is unlimited or above `max_attempts` of the handlers
/// (each crash takes one delivery more, and what used it up is stuck, so leave it unlimited where you can; where it is not,
/// failures are held or parked instead of handed back); its `max_ack_pending` holds the prefetch; a consumer that is
/// [declared](Self::declare) is as declared. A stream with limits can be read again for as long as it keeps a message
/// (`max_age`), which the inbox has to outlast: see [`replay_window`](Self::replay_window).
///
/// # What it cannot do
///
/// The client reads headers that are UTF-8, with names as NATS writes them, and cuts white space off the ends of their
/// values. A message with others costs the connection each time that it comes; remove it from the stream by hand.
#[derive(Debug, Clone)]
pub struct JetStreamSource {
    broker: Nats,
    stream: String,
    consumer: String,
    declaration: Option<ConsumerDeclaration>,
    id_sources: Vec<IdSource>,
    is_extended: bool,
    longest_delay: Duration,
    replay_window: Option<Duration>,
    orders_by_subject: bool,
}

impl JetStreamSource {
    pub(super) fn new(broker: Nats, stream: String, consumer: String) -> Self {
        Self {
            broker,
            stream,
            consumer,
            declaration: None,
            id_sources: vec![
                IdSource::Header(message::MESSAGE_ID.to_owned()),
                IdSource::CloudEvents,
            ],
            is_extended: true,
            longest_delay: LONGEST_DELAY,
            replay_window: None,
            orders_by_subject: false,
        }
    }

    /// Makes the consumer when the source is opened, if it is not there. Without this it must exist. The stream must exist
    /// in any case.
    #[must_use]
    pub fn declare(mut self, consumer: ConsumerDeclaration) -> Self {
        self.declaration = Some(consumer);
        self
    }

    /// Looks for a message's id in these places, in this order.
    ///
    /// The default: the header `Nats-Msg-Id`, the CloudEvents attribute `id`. Name only places that the producer fills once
    /// per message and repeats on every retry.
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

    /// Does not tell the server that work goes on. What is not settled within the consumer's `ack_wait`, the time in which it
    /// waited for a worker included, is delivered again, here or elsewhere; the inbox makes that harmless, and it costs the
    /// work. The start is refused when a handler may run for longer than `ack_wait`.
    #[must_use]
    pub const fn without_extension(mut self) -> Self {
        self.is_extended = false;
        self
    }

    /// The longest delay for which the server keeps a message that is tried again; what has to wait for longer is held, or
    /// parked in the database. The default is a minute, since such a message keeps one of the consumer's `max_ack_pending`.
    #[must_use]
    pub const fn longest_delay(mut self, delay: Duration) -> Self {
        self.longest_delay = delay;
        self
    }

    /// How far back messages are ever read again: by a consumer that is made anew, or is set back. It counts where the stream
    /// keeps its messages for longer than that, or for ever; without it nobody can know, and the inbox has to remember its
    /// messages for as long as the stream does.
    #[must_use]
    pub const fn replay_window(mut self, window: Duration) -> Self {
        self.replay_window = Some(window);
        self
    }

    /// The subject says which messages belong together (`orders.ACCOUNT`): those with the same one go to one worker, one
    /// after another, unless their handler has an `order_by` of its own. Not the default, since most subjects name a kind of
    /// message.
    #[must_use]
    pub const fn ordered_by_subject(mut self) -> Self {
        self.orders_by_subject = true;
        self
    }

    /// The stream and the consumer as the server has them.
    async fn find(&self, connection: &Connection) -> Result<Option<Found>, SourceError> {
        let jetstream = &connection.jetstream;
        let stream = jetstream
            .ask(&format!("STREAM.INFO.{}", self.stream), None)
            .await;
        let stream = stream.map_err(|error| {
            if error.is_no_stream() {
                SourceError::new(format!(
                    "there is no stream `{}`: create it, or correct its name or the domain given to `Nats`",
                    self.stream
                ))
            } else {
                self.failed("the stream cannot be looked at", &error, connection)
            }
        })?;
        let asked = format!("CONSUMER.INFO.{}.{}", self.stream, self.consumer);
        let consumer = match jetstream.ask(&asked, None).await {
            Ok(consumer) => consumer,
            Err(error) if error.is_no_consumer() => return Ok(None),
            Err(error) => {
                return Err(self.failed("the consumer cannot be looked at", &error, connection));
            }
        };
        Ok(Some(Found::new(
            stream["config"].clone(),
            consumer["config"].clone(),
            largest(connection),
        )))
    }

    /// What the source would find once it has made its consumer.
    async fn foresee(
        &self,
        connection: &Connection,
        declaration: &ConsumerDeclaration,
    ) -> Result<Found, SourceError> {
        let stream = connection
            .jetstream
            .ask(&format!("STREAM.INFO.{}", self.stream), None)
            .await;
        let stream = stream
            .map_err(|error| self.failed("the stream cannot be looked at", &error, connection))?;
        let consumer = declaration.config(&self.consumer);
        Ok(Found::new(
            stream["config"].clone(),
            consumer,
            largest(connection),
        ))
    }

    async fn create(
        &self,
        connection: &Connection,
        declaration: &ConsumerDeclaration,
    ) -> Result<(), SourceError> {
        let body = json!({
            "stream_name": self.stream,
            "config": declaration.config(&self.consumer),
            // From 2.10 on: another process may have made it meanwhile, and it is not to be changed.
            "action": "create",
        });
        let verb = format!("CONSUMER.DURABLE.CREATE.{}.{}", self.stream, self.consumer);
        match connection.jetstream.ask(&verb, Some(&body)).await {
            Ok(_) => Ok(()),
            Err(error) => Err(self.failed("it cannot be made as declared", &error, connection)),
        }
    }

    fn failed(&self, what: &str, error: &ApiError, connection: &Connection) -> SourceError {
        let said = connection.complaint.in_brackets();
        SourceError::new(format!(
            "the consumer `{}` of the stream `{}`: {what} ({error}){said}",
            self.consumer, self.stream
        ))
    }

    fn missing(&self) -> SourceError {
        SourceError::new(format!(
            "there is no consumer `{}` of the stream `{}`: create it, correct its name, or let the source make it with \
             `.declare(ConsumerDeclaration::new())`",
            self.consumer, self.stream
        ))
    }
}

/// The largest message that the server takes, in bytes.
fn largest(connection: &Connection) -> u64 {
    u64::try_from(connection.client.server_info().max_payload).unwrap_or(u64::MAX)
}

#[async_trait]
impl Source for JetStreamSource {
    fn system(&self) -> &'static str {
        "nats"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new()
            .longest_delay(self.longest_delay)
            // Held deliveries cost the server nothing, and where `max_deliver` is limited each one counts.
            .counts_hand_backs(true)
            .counts_deliveries(true)
            .settle_setting("ack_wait")
            .redelivery_setting("max_age")
            .orders_by_key(self.orders_by_subject);
        let waits = self.declaration.as_ref().map(ConsumerDeclaration::waits);
        if self.is_extended {
            capabilities.lease = waits;
        } else {
            capabilities.settle_window = waits;
        }
        capabilities
    }

    fn id_sources(&self) -> Vec<IdSource> {
        self.id_sources.clone()
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = self.broker.problems();
        for (what, name) in [("stream", &self.stream), ("consumer", &self.consumer)] {
            if !is_name(name) {
                problems.push(format!(
                    "`{}` cannot be the name of a JetStream {what}: change it in `Nats::consumer`",
                    name.escape_debug()
                ));
            }
        }
        if let Some(declaration) = &self.declaration {
            problems.extend(declaration.problems(&self.consumer));
        }
        problems
    }

    async fn learn(&self, needs: &Needs) -> Result<Learned, SourceError> {
        let connection = self.broker.connect().await?;
        let found = match (self.find(&connection).await?, &self.declaration) {
            (Some(found), _) => found,
            (None, Some(declaration)) => self.foresee(&connection, declaration).await?,
            (None, None) => return Err(self.missing()),
        };
        let capabilities = found.refine(self.capabilities(), self.is_extended, self.replay_window);
        let problems = found.problems(&self.consumer, self.declaration.as_ref(), needs);
        Ok(Learned::new(capabilities).problems(problems))
    }

    async fn open(&self, prefetch: NonZeroUsize) -> Result<Assignment, SourceError> {
        let connection = self.broker.connect().await?;
        let mut found = self.find(&connection).await?;
        if let (None, Some(declaration)) = (&found, &self.declaration) {
            self.create(&connection, declaration).await?;
            found = self.find(&connection).await?;
        }
        let found = found.ok_or_else(|| self.missing())?;
        // Whoever opens it without having asked is not to lose messages either.
        let needs = Needs::new(prefetch, Duration::ZERO, 0);
        let problems = found.problems(&self.consumer, self.declaration.as_ref(), &needs);
        if !problems.is_empty() {
            return Err(SourceError::new(problems.join("; ")));
        }
        let terms = Terms {
            stream: self.stream.clone(),
            consumer: self.consumer.clone(),
            prefetch,
            most_in_a_request: found.most_in_a_request(),
            longest_request: found.longest_request(),
            max_deliver: found.max_deliver(),
            extended: self.is_extended.then(|| found.ack_wait()),
        };
        deliveries::assignment(connection, terms).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source() -> JetStreamSource {
        Nats::new("nats://localhost").consumer("ORDERS", "billing")
    }

    #[test]
    fn a_source_says_what_jetstream_can_do() {
        let capabilities = source().capabilities();
        assert_eq!(capabilities.longest_delay, Some(Duration::from_secs(60)));
        assert!(capabilities.counts_hand_backs);
        assert!(!capabilities.orders_by_key);
        assert_eq!(capabilities.settle_window, None, "it is extended");
        assert_eq!(capabilities.redelivery_window, None, "not known yet");
        assert!(source().ordered_by_subject().capabilities().orders_by_key);
        let hour = Duration::from_secs(60 * 60);
        assert_eq!(
            source().longest_delay(hour).capabilities().longest_delay,
            Some(hour)
        );
        let plain = source().without_extension();
        assert_eq!(plain.capabilities().settle_window, None, "not known yet");
        let declared = plain.declare(ConsumerDeclaration::new().ack_wait(hour));
        assert_eq!(declared.capabilities().settle_window, Some(hour));
    }

    #[test]
    fn wrong_settings_are_named_with_their_remedy() {
        let broker = Nats::new("nats://localhost");
        for (source, says) in [
            (broker.consumer("", "billing"), "JetStream stream"),
            (broker.consumer("OR.DERS", "billing"), "`OR.DERS`"),
            (broker.consumer("ORDERS", "bil ling"), "`bil ling`"),
            (broker.consumer("ORDERS", "*"), "JetStream consumer"),
            (
                source().declare(ConsumerDeclaration::new().filter("a..b")),
                "`a..b`",
            ),
        ] {
            let problems = source.problems();
            assert_eq!(problems.len(), 1, "{says}: {problems:?}");
            assert!(problems[0].contains(says), "{says}: {problems:?}");
        }
        assert!(
            source()
                .declare(ConsumerDeclaration::new())
                .problems()
                .is_empty()
        );
        assert_eq!(Nats::new("").consumer("", "").problems().len(), 3);
    }
}
