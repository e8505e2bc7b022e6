use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::delivery::Delivery;
use crate::envelope::Envelope;
use crate::error::BoxError;
use crate::identity::IdSource;

/// A place that messages come from: a queue, a topic, a stream.
///
/// A source is a description; [`Source::open`] connects. The runtime opens it again, with back-off, whenever
/// an [`Assignment`] ended, so an adapter neither reconnects by itself nor hides that a connection was lost.
///
/// # The contract of an adapter
///
/// An adapter is this trait, [`Deliveries`] and [`Settle`]. It keeps no message and decides nothing about one; it says
/// what the broker does. `inbox_runtime::testing::conformance` proves it against its real broker.
///
/// **Nothing is lost, nothing is settled early.** Only [`Verdict::Ack`] takes a message from the broker. The adapter
/// consumes without any automatic ack, position or commit. What an assignment leaves behind, whether it was dropped,
/// stopped or lost, comes again: to the next assignment, at the latest when the [lease](Capabilities::lease) of a dead one
/// is over. A delivery that the client library has buffered and nobody took is left behind like any other.
///
/// **"Not acked" is not "redelivered".** Many brokers deliver nothing again while a connection lives. So the runtime ends
/// every delivery in an ack, in a hand-back, or keeps it and tries it again from memory. It hands back only
/// where the broker can delay ([`longest_delay`](Capabilities::longest_delay)), when a
/// [`settle_window`](Capabilities::settle_window) is half over, and at a shutdown. Where hand-backs are counted against a
/// message ([`counts_hand_backs`](Capabilities::counts_hand_backs)), none is made for an outage or for a copy in work
/// elsewhere. A hand-back is never a rejection: the inbox keeps the dead letters, so the adapter never tells the broker to
/// drop or to move a message.
///
/// **A broker's counter proves nothing about the handler.** It also grows when a connection drops. It and the flag
/// [`redelivered`](Delivery::redelivered) only let the runtime count, before the handler starts, what may have ended a
/// process; they are never compared with `max_attempts`. A limit of the broker that such redeliveries can reach is among
/// the problems of [`learn`](Self::learn).
///
/// **Tokens belong to their assignment.** A token that is void, unknown or used settles nothing, neither here nor on the
/// next assignment: a delivery tag, which starts again with each channel, is no token. The numbers of an adapter are its
/// own, for example from a counter of the process; a position in a log, which always means the same record, will do.
///
/// **The runtime owns reconnection.** [`Deliveries::next`] answers an error when the assignment is lost, also while the
/// prefetch is used up, and nothing afterwards; the client library's own recovery is switched off, or its end of a session
/// is told. From then on [`Settle::settle`] answers [`SettleError::Gone`], and [`Settle::is_gone`] is `true`, so that what
/// waits is not started any more.
///
/// **Back-pressure is the prefetch.** An assignment never has more than `prefetch` deliveries unsettled, over all
/// partitions. A client library that fetches more keeps it to itself. A broker that expects polling is polled by the adapter
/// while nothing is taken.
///
/// **The adapter keeps what is in work.** Where the broker wants signs of life ([`lease`](Capabilities::lease)) a task of
/// the adapter gives them, at a third of the lease or oftener, while the token is unsettled and the assignment lives. They
/// end with the assignment, so that the messages of a process that died come again.
///
/// **Several consumers are one delivery.** The runtime runs them all and settles once when the last one is done. When one of
/// them has parked or buried the message, the delivery is acked in the end and never handed back.
///
/// **Order** is that of [`Envelope::key`], for a source that [says so](Capabilities::orders_by_key): messages with one key
/// run one after another within the process. It ends with a failure: a message that waits for its next attempt lets
/// the next one of its key pass, and a hand-back changes the order at most brokers. The adapter orders nothing by itself.
///
/// **Bytes stay bytes.** The payload is what the producer sent, an empty one included. An id that is missing stays missing:
/// no delivery tag, position or broker-made id takes its place unless the user asked for it. What the client library cannot
/// carry becomes an id that is refused, never another one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a source of messages",
    label = "not a source",
    note = "a source is made by one of `inbox_runtime::brokers`, for example `RabbitMq::new(\"amqp://localhost\").queue(\"orders\")`"
)]
#[async_trait]
pub trait Source: Send + Sync + 'static {
    /// The messaging system, in OpenTelemetry's words (`rabbitmq`, `kafka`, ...).
    fn system(&self) -> &'static str;

    /// What the broker behind it can do, as far as that is known without asking it.
    fn capabilities(&self) -> Capabilities;

    /// Where this source looks for a message's id, in order.
    fn id_sources(&self) -> Vec<IdSource>;

    /// What is wrong with the configuration, each finding naming the value and the remedy. Connects nowhere.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }

    /// Asks the broker what it alone knows, such as how long it keeps its messages, and changes nothing there.
    ///
    /// Asked when the inbox is built, and before each [`open`](Self::open): what is wrong by then refuses the start, or
    /// keeps the source closed until it is mended. The default asks nobody. An adapter that learns nothing beyond its
    /// [`capabilities`](Self::capabilities) leaves it as it is.
    ///
    /// # Errors
    ///
    /// [`SourceError`] when the broker cannot be asked: the start goes on with [`capabilities`](Self::capabilities), since
    /// the broker may come later than its consumers do.
    async fn learn(&self, _needs: &Needs) -> Result<Learned, SourceError> {
        Ok(Learned::new(self.capabilities()))
    }

    /// Connects and starts consuming, with at most `prefetch` unsettled deliveries.
    ///
    /// May be dropped at every await point, and is called any number of times, also for several assignments that live at
    /// the same time. Dropping both halves of an assignment ends it, without an await.
    ///
    /// # Errors
    ///
    /// [`SourceError`]; the runtime logs it and tries again.
    async fn open(&self, prefetch: NonZeroUsize) -> Result<Assignment, SourceError>;
}

/// What an inbox asks of a source, for settings that have to go with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Needs {
    /// The most deliveries that it has unsettled at a time.
    pub prefetch: NonZeroUsize,
    /// The longest `timeout` of the handlers that listen to the source.
    pub longest_timeout: Duration,
    /// The largest `max_attempts` of the handlers that listen to the source.
    pub most_attempts: u32,
}

impl Needs {
    /// The needs of handlers that run for up to `longest_timeout`, up to `most_attempts` times.
    #[must_use]
    pub const fn new(
        prefetch: NonZeroUsize,
        longest_timeout: Duration,
        most_attempts: u32,
    ) -> Self {
        Self {
            prefetch,
            longest_timeout,
            most_attempts,
        }
    }
}

/// What a broker answered to [`Source::learn`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Learned {
    /// What it can do, by its own settings.
    pub capabilities: Capabilities,
    /// Settings of the broker under which messages would be lost, or not be consumed; each finding names the setting, its
    /// value and the remedy. What can be told from the capabilities is found by the runtime and is not among these.
    pub problems: Vec<String>,
}

impl Learned {
    /// Nothing wrong.
    #[must_use]
    pub const fn new(capabilities: Capabilities) -> Self {
        Self {
            capabilities,
            problems: Vec::new(),
        }
    }

    /// Adds what is wrong.
    #[must_use]
    pub fn problems(mut self, problems: impl IntoIterator<Item = String>) -> Self {
        self.problems.extend(problems);
        self
    }
}

/// What the runtime must know of a broker to decide about a delivery that is not acked.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The longest delay that the broker itself can put before a redelivery; `None`: it has no delays, and
    /// the runtime holds the delivery instead. Every delay from zero to this one is kept: one that the broker can only
    /// grant in steps is rounded up by the adapter.
    pub longest_delay: Option<Duration>,
    /// Whether handing a delivery back uses up a counter that makes the broker drop or move the message.
    pub counts_hand_backs: bool,
    /// How long the broker waits for a settle before it takes the delivery away, whatever the adapter does; `None`: no
    /// limit is known, or the adapter extends it for as long as the delivery is unsettled (see [`lease`](Self::lease)). No
    /// handler may run for longer.
    pub settle_window: Option<Duration>,
    /// What the broker calls its settle window, for people (RabbitMQ: `consumer_timeout`).
    pub settle_setting: Option<&'static str>,
    /// How long the broker waits for a sign that a delivery is still in work; `None`: it wants none. The adapter gives these
    /// signs by itself while the token is unsettled and the assignment lives, so what is in work is never taken away for it.
    /// What was left behind comes again only after this time.
    pub lease: Option<Duration>,
    /// Whether every delivery says how often the broker delivered the message before
    /// ([`Delivery::earlier_deliveries`]).
    pub counts_deliveries: bool,
    /// Whether an ack takes effect only when everything before it is acked too (a log with one position for each
    /// partition). After the end of an assignment, what is behind the first delivery that was not acked comes again.
    pub acks_in_order: bool,
    /// Whether [`Envelope::key`](crate::Envelope::key) says which messages have to stay in order (a partition key, a
    /// message group), so that it orders them for handlers without an `order_by` of their own.
    pub orders_by_key: bool,
    /// How long after its first delivery the broker can deliver a message once more, also after an ack (a stream that is
    /// read again, a topic whose offsets are set back); `None`: the adapter knows no such time, [`Duration::MAX`]: for
    /// ever. The inbox has to remember its messages for longer.
    pub redelivery_window: Option<Duration>,
    /// What the broker calls its redelivery window, for people (Kafka: `retention.ms`).
    pub redelivery_setting: Option<&'static str>,
    /// The largest payload that the broker delivers, in bytes; `None`: it is not known. What the database cannot store
    /// can be neither parked nor kept as a dead letter.
    pub largest_payload: Option<u64>,
}

impl Capabilities {
    /// A broker without delays, that counts what is handed back, and without a known time limit.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            longest_delay: None,
            counts_hand_backs: true,
            settle_window: None,
            settle_setting: None,
            lease: None,
            counts_deliveries: false,
            acks_in_order: false,
            orders_by_key: false,
            redelivery_window: None,
            redelivery_setting: None,
            largest_payload: None,
        }
    }

    /// Sets the longest delay.
    #[must_use]
    pub const fn longest_delay(mut self, delay: Duration) -> Self {
        self.longest_delay = Some(delay);
        self
    }

    /// Sets whether a hand-back is counted.
    #[must_use]
    pub const fn counts_hand_backs(mut self, counts: bool) -> Self {
        self.counts_hand_backs = counts;
        self
    }

    /// Sets the time limit of a delivery.
    #[must_use]
    pub const fn settle_window(mut self, window: Duration) -> Self {
        self.settle_window = Some(window);
        self
    }

    /// Sets what the broker calls the time limit of a delivery.
    #[must_use]
    pub const fn settle_setting(mut self, name: &'static str) -> Self {
        self.settle_setting = Some(name);
        self
    }

    /// Sets how long the broker waits for a sign of life.
    #[must_use]
    pub const fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Sets whether every delivery is counted.
    #[must_use]
    pub const fn counts_deliveries(mut self, counts: bool) -> Self {
        self.counts_deliveries = counts;
        self
    }

    /// Sets whether acks take effect in the order of the deliveries alone.
    #[must_use]
    pub const fn acks_in_order(mut self, in_order: bool) -> Self {
        self.acks_in_order = in_order;
        self
    }

    /// Sets whether the key of a message orders it among others.
    #[must_use]
    pub const fn orders_by_key(mut self, orders: bool) -> Self {
        self.orders_by_key = orders;
        self
    }

    /// Sets how long a message can be delivered once more.
    #[must_use]
    pub const fn redelivery_window(mut self, window: Duration) -> Self {
        self.redelivery_window = Some(window);
        self
    }

    /// Sets what the broker calls the time for which a message can be delivered once more.
    #[must_use]
    pub const fn redelivery_setting(mut self, name: &'static str) -> Self {
        self.redelivery_setting = Some(name);
        self
    }

    /// Sets the largest payload, in bytes.
    #[must_use]
    pub const fn largest_payload(mut self, bytes: u64) -> Self {
        self.largest_payload = Some(bytes);
        self
    }
}

impl Default for Capabilities {
    fn default() -> Self {
        Self::new()
    }
}

/// An open stream of deliveries together with the one way to settle them: a channel, a set of partitions.
///
/// When it is gone, its tokens are void: they settle nothing anywhere else.
pub struct Assignment {
    /// Yields the deliveries.
    pub deliveries: Box<dyn Deliveries>,
    /// Settles them.
    pub settle: Arc<dyn Settle>,
}

impl fmt::Debug for Assignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Assignment")
    }
}

/// The deliveries of one assignment.
#[async_trait]
pub trait Deliveries: Send {
    /// The next delivery; `None` when the assignment ended in an orderly way. Waits while `prefetch` deliveries are
    /// unsettled, and is asked all the same, so that a loss is noticed.
    ///
    /// Must be safe to drop at every await point: a delivery taken from the broker must not be lost with the
    /// future.
    ///
    /// # Errors
    ///
    /// [`SourceError`] when the assignment is lost; nothing more comes from it.
    async fn next(&mut self) -> Result<Option<Delivery>, SourceError>;

    /// Stops taking new deliveries, while the ones taken can still be settled. What nobody took goes back to the broker,
    /// for others to have it at once. Called more than once, it does no more.
    async fn stop(&mut self) {}
}

/// Settles the deliveries of one assignment.
///
/// # Many at once
///
/// The runtime settles in one call whatever one transaction made durable, and several workers call at the same time. How
/// that goes over the wire is the adapter's choice, within these rules:
///
/// 1. **Nothing is settled whose token is not in a call.** A request that reaches further than its own message goes only as
///    far as everything before is settled too, by this call or an earlier one. What is still in work ends it.
/// 2. **The order in which work ends is any order.** The verdicts of a call are neither sorted nor without gaps.
/// 3. **Deciding and sending are one step.** Nothing of another call may come between the moment at which the adapter
///    decides what a request covers and the moment at which its place on the wire is fixed. The runtime may also drop the
///    future at its time limit: a delivery that was decided about must then have been sent, or count as unsettled.
/// 4. **Each verdict has an answer of its own**, in the order of the call. `Ok` says that nothing is left for the caller to
///    do. It does not promise that the message never comes again.
///
/// | broker | a request settles | so the adapter |
/// |---|---|---|
/// | AMQP 0-9-1 | one delivery, or (`multiple`) all up to a delivery tag of the channel | acks the run from the lowest unsettled tag on in one frame, the rest one by one; a tag that is settled already would close the channel |
/// | Kafka | all records of a partition below an offset | keeps, for each partition, which records are done, and commits behind the longest run from the last commit on. A record behind one that is in work is answered `Ok` and goes out when the run reaches it; a hand-back ends the run until the record was read again and is done |
/// | SQS | up to ten receipt handles, each with its own result | sends tens, tries again what failed for the server's reasons, and answers each handle by its own result |
/// | JetStream, Redis | one message each, or a list of them | sends them in one go |
#[async_trait]
pub trait Settle: Send + Sync {
    /// Settles each delivery by its verdict and answers each, in order; see [many at once](Self#many-at-once).
    ///
    /// An assignment that is gone answers [`SettleError::Gone`]: the broker delivers the message again.
    async fn settle(&self, verdicts: Vec<(SettleToken, Verdict)>) -> Vec<Result<(), SettleError>>;

    /// Whether the assignment is known to be gone: what it delivered is not worth starting any more, because
    /// it can no longer be settled and comes again.
    fn is_gone(&self) -> bool {
        false
    }

    /// Whether this delivery is known to be void, although its assignment lives on: a partition of it went to another
    /// member of the group.
    ///
    /// Asked before the delivery is started. Whoever is answered `true` neither starts nor settles it.
    fn is_void(&self, token: &SettleToken) -> bool {
        let _ = token;
        self.is_gone()
    }
}

/// The right to settle one delivery once. Cannot be copied; [`Settle::settle`] consumes it.
#[derive(Debug, PartialEq, Eq)]
pub struct SettleToken(u64);

impl SettleToken {
    /// A token with the adapter's own number of the delivery (AMQP: the delivery tag).
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The adapter's number.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.0
    }
}

/// What becomes of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The message is done for here: processed, known, or kept as a dead letter.
    Ack,
    /// The broker shall deliver it again, no earlier than after `delay` where it can delay.
    HandBack {
        /// At most [`Capabilities::longest_delay`]; `None`: at once.
        delay: Option<Duration>,
    },
}

/// Why a delivery was not settled. Never an error of its message: it comes again and is then a duplicate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettleError {
    /// The assignment ended before; the token is void.
    #[error("the assignment is gone; the broker delivers the message again")]
    Gone,
    /// The broker refused or could not be asked.
    #[error("the delivery was not settled")]
    Failed(#[source] BoxError),
}

/// Why a source cannot be opened, or an assignment was lost.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct SourceError {
    what: String,
    #[source]
    source: Option<BoxError>,
}

impl SourceError {
    /// An error that says what was tried.
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            source: None,
        }
    }

    /// An error with its cause.
    pub fn caused(what: impl Into<String>, source: impl Into<BoxError>) -> Self {
        Self {
            what: what.into(),
            source: Some(source.into()),
        }
    }
}

/// Publishes messages to a broker and knows when the broker has them.
#[async_trait]
pub trait Publisher: Send + Sync {
    /// Publishes `envelope` to `destination` and returns when the broker has confirmed it.
    ///
    /// # Errors
    ///
    /// [`PublishError`]: without a positive confirm the message counts as not published.
    async fn publish(&self, destination: &str, envelope: &Envelope) -> Result<(), PublishError>;
}

/// Why a message counts as not published.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The broker took it and knows no place to put it.
    #[error("the broker cannot route the message to `{destination}`")]
    Unroutable {
        /// Where it should have gone.
        destination: String,
    },
    /// The broker refused it.
    #[error("the broker refused the message for `{destination}`")]
    Refused {
        /// Where it should have gone.
        destination: String,
    },
    /// The broker could not be asked, or did not answer.
    #[error("the message for `{destination}` was not published")]
    Failed {
        /// Where it should have gone.
        destination: String,
        /// Why.
        #[source]
        source: BoxError,
    },
}
