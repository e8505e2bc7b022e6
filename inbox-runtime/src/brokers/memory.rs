//! A broker inside the process that delivers at least once and misbehaves on request.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use inbox_core::{
    Assignment, Capabilities, Deliveries, Delivery, Envelope, IdSource, PublishError, Publisher,
    Settle, SettleError, SettleToken, Source, SourceError, Verdict,
};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// The delay that a queue of this broker grants unless its source says otherwise; SQS grants as much.
const LONGEST_DELAY: Duration = Duration::from_secs(12 * 60 * 60);

/// A broker inside the process, with named queues.
///
/// It promises what real brokers promise and no more: each message is delivered until one of its deliveries
/// is acked. Deliveries that an assignment left unsettled come back, marked as redelivered, in front of the
/// queue. Everything lives in memory and ends with the process.
///
/// On request it does what real brokers do at bad moments: it loses acks ([`lose_ack`](Self::lose_ack)),
/// delivers copies ([`publish_copies`](Self::publish_copies)) and repetitions
/// ([`publish_repeated`](Self::publish_repeated)), changes the order ([`shuffle`](Self::shuffle),
/// [`reorder`](Self::reorder)), breaks connections ([`disconnect`](Self::disconnect),
/// [`crash`](Self::crash)), refuses them ([`fail_open`](Self::fail_open)), and drops what was delivered too
/// often ([`limit_deliveries`](Self::limit_deliveries)). Every settle is written to a log
/// ([`settled`](Self::settled)).
///
/// Clones are handles to the same broker.
///
/// ```
/// use std::num::NonZeroUsize;
/// use inbox_runtime::brokers::{LostAck, MemoryBroker};
/// use inbox_runtime::{Envelope, Source, Verdict};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let broker = MemoryBroker::new();
/// broker.publish("orders", Envelope::new(r#"{"cents": 995}"#).id("order-1"));
/// broker.lose_ack("orders", "order-1", 1, LostAck::Silently);
///
/// let mut assignment = broker.source("orders").open(NonZeroUsize::MIN).await?;
/// for redelivered in [false, true] {
///     let delivery = assignment.deliveries.next().await?.expect("a delivery");
///     assert_eq!(delivery.redelivered, redelivered);
///     assignment.settle.settle(vec![(delivery.token, Verdict::Ack)]).await;
/// }
/// broker.until_idle().await;
/// assert_eq!(broker.settled().len(), 2);
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct MemoryBroker {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Told after every change, so that whoever waits looks again.
    changed: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    queues: HashMap<String, Queue>,
    log: Vec<Settled>,
    settles: u64,
    messages: u64,
    assignments: u32,
}

#[derive(Default)]
struct Queue {
    ready: VecDeque<Message>,
    /// Handed back with a delay, in the order of their due times.
    delayed: Vec<(Instant, Message)>,
    places: BTreeMap<u32, Place>,
    lost_acks: Vec<LostAckRule>,
    failing_opens: u32,
    delivery_limit: Option<u32>,
    dropped: Vec<Envelope>,
    most_outstanding: usize,
    opened: u64,
}

/// One copy of a message in a queue.
struct Message {
    copy: u64,
    envelope: Envelope,
    deliveries: u32,
    /// How many acks of it are still to be forgotten.
    repeats: u32,
}

/// The broker's side of an assignment.
struct Place {
    prefetch: usize,
    window: Option<Duration>,
    lease: Option<Duration>,
    longest_delay: Option<Duration>,
    counts: bool,
    condition: Condition,
    issued: u32,
    outstanding: BTreeMap<u32, Outstanding>,
    /// Tokens whose delivery was taken away before they were used.
    void: HashSet<u32>,
}

#[derive(Clone, PartialEq, Eq)]
enum Condition {
    Open,
    Stopped,
    Lost(&'static str),
}

struct Outstanding {
    message: Message,
    due: Option<Instant>,
}

struct LostAckRule {
    /// `None`: whichever ack comes first.
    of: Option<(String, u32)>,
    how: LostAck,
}

/// How an ack gets lost on its way to the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostAck {
    /// The settle is answered as done, and the message comes again all the same.
    Silently,
    /// The settle is answered [`SettleError::Gone`], and the message comes again.
    Gone,
    /// The connection breaks: the settle is answered [`SettleError::Gone`], the assignment is lost, and
    /// everything that it had not settled comes again.
    Disconnect,
}

/// One settle, as the log of a [`MemoryBroker`] keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settled {
    /// Its place among all settles of the broker, from 1.
    pub sequence: u64,
    /// When.
    pub at: std::time::Instant,
    /// The queue.
    pub queue: String,
    /// [`Envelope::id`] of the message; `None` also where the delivery is no longer known.
    pub message_id: Option<String>,
    /// Which published copy, numbered over the whole broker from 1; 0 where it is no longer known.
    pub copy: u64,
    /// Which delivery of this copy, from 1; 0 where it is no longer known.
    pub delivery: u32,
    /// What was asked.
    pub verdict: Verdict,
    /// What came of it.
    pub effect: Effect,
}

/// What came of a settle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// What was asked.
    Done,
    /// The ack was lost as requested; the message comes again.
    AckLost,
    /// The delivery had been taken away before: the assignment was lost or the time was over.
    Gone,
    /// The hand-back used up the limit of deliveries; the message was dropped.
    Dropped,
    /// The delivery was settled before: a defect of whoever settles.
    Twice,
    /// The token was never given out by this assignment: a defect of whoever settles.
    Foreign,
}

/// What a queue of a [`MemoryBroker`] holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueState {
    /// Messages that can be delivered now.
    pub ready: usize,
    /// Messages that wait for their delay to end.
    pub delayed: usize,
    /// Deliveries that are not settled.
    pub outstanding: usize,
    /// The most deliveries that one assignment ever had unsettled at a time; never above its prefetch.
    pub most_outstanding: usize,
    /// How many assignments were opened.
    pub opened: u64,
}

impl MemoryBroker {
    /// A broker without messages. Queues come into being with their first use.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts a message into a queue.
    pub fn publish(&self, queue: &str, envelope: Envelope) {
        self.put(queue, envelope, 1, 0);
    }

    /// Puts `copies` copies of one message into a queue, one behind the other, as a producer does that repeats
    /// its send: none is marked as redelivered, and with enough prefetch they are in work at the same time.
    pub fn publish_copies(&self, queue: &str, envelope: Envelope, copies: u32) {
        self.put(queue, envelope, copies, 0);
    }

    /// Puts a message into a queue that is delivered until it was acked `times` times: a broker that forgets
    /// acks.
    pub fn publish_repeated(&self, queue: &str, envelope: Envelope, times: u32) {
        self.put(queue, envelope, 1, times.saturating_sub(1));
    }

    /// A source that consumes a queue. Any number of sources may consume the same one; each message goes to
    /// one of them.
    #[must_use]
    pub fn source(&self, queue: &str) -> MemorySource {
        MemorySource {
            broker: self.clone(),
            queue: queue.to_owned(),
            capabilities: Capabilities::new()
                .longest_delay(LONGEST_DELAY)
                .counts_hand_backs(false)
                .orders_by_key(true),
            counts_deliveries: true,
            id_sources: vec![IdSource::Property, IdSource::CloudEvents],
        }
    }

    /// Loses the ack of one delivery: of the message with this [`Envelope::id`], and of its `delivery`th
    /// delivery (from 1).
    pub fn lose_ack(&self, queue: &str, message_id: &str, delivery: u32, how: LostAck) {
        self.change(queue, |queue| {
            queue.lost_acks.push(LostAckRule {
                of: Some((message_id.to_owned(), delivery)),
                how,
            });
        });
    }

    /// Loses the next `count` acks of a queue, whichever they are.
    pub fn lose_next_acks(&self, queue: &str, count: usize, how: LostAck) {
        self.change(queue, |queue| {
            queue
                .lost_acks
                .extend((0..count).map(|_| LostAckRule { of: None, how }));
        });
    }

    /// Shuffles the messages that can be delivered now; the same seed gives the same order.
    pub fn shuffle(&self, queue: &str, seed: u64) {
        self.change(queue, |queue| {
            fastrand::Rng::with_seed(seed).shuffle(queue.ready.make_contiguous());
        });
    }

    /// Puts the messages with these ids first, in this order; the others follow as they were.
    pub fn reorder(&self, queue: &str, message_ids: &[&str]) {
        self.change(queue, |queue| {
            let place = |message: &Message| {
                message_ids
                    .iter()
                    .position(|id| message.envelope.id.as_deref() == Some(*id))
                    .unwrap_or(message_ids.len())
            };
            queue.ready.make_contiguous().sort_by_key(place);
        });
    }

    /// Breaks the connection of every open assignment of a queue: its next delivery is an error, its tokens
    /// are void, and what it had not settled comes again.
    pub fn disconnect(&self, queue: &str) {
        self.change(queue, |queue| queue.lose_places("the connection broke"));
    }

    /// Breaks every connection, as a crash of the broker does that lost no message.
    pub fn crash(&self) {
        let mut state = self.lock();
        for queue in state.queues.values_mut() {
            queue.lose_places("the broker crashed");
        }
        drop(state);
        self.tell();
    }

    /// Lets the next `times` attempts to open a queue fail.
    pub fn fail_open(&self, queue: &str, times: u32) {
        self.change(queue, |queue| queue.failing_opens = times);
    }

    /// Drops a message when it comes back after more than `limit` redeliveries, as a quorum queue of RabbitMQ
    /// with a delivery limit and without a dead letter exchange does. See [`dropped`](Self::dropped).
    pub fn limit_deliveries(&self, queue: &str, limit: u32) {
        self.change(queue, |queue| queue.delivery_limit = Some(limit));
    }

    /// The messages that a queue dropped because of its limit.
    #[must_use]
    pub fn dropped(&self, queue: &str) -> Vec<Envelope> {
        self.lock()
            .queues
            .get(queue)
            .map(|queue| queue.dropped.clone())
            .unwrap_or_default()
    }

    /// What a queue holds now.
    #[must_use]
    pub fn queue_state(&self, queue: &str) -> QueueState {
        let mut state = self.lock();
        let Some(queue) = state.queues.get_mut(queue) else {
            return QueueState::default();
        };
        queue.advance(Instant::now());
        QueueState {
            ready: queue.ready.len(),
            delayed: queue.delayed.len(),
            outstanding: queue.outstanding(),
            most_outstanding: queue.most_outstanding,
            opened: queue.opened,
        }
    }

    /// Every settle so far, in order.
    #[must_use]
    pub fn settled(&self) -> Vec<Settled> {
        self.lock().log.clone()
    }

    /// Empties the log of settles, which otherwise grows for as long as the broker lives. The numbering goes
    /// on.
    pub fn clear_log(&self) {
        self.lock().log.clear();
    }

    /// Waits until the broker has answered `count` settles in all.
    pub async fn until_settled(&self, count: u64) {
        self.until(|state| state.settles >= count).await;
    }

    /// Waits until no queue holds anything: no message ready, delayed or unsettled.
    pub async fn until_idle(&self) {
        self.until(|state| state.queues.values().all(Queue::is_idle))
            .await;
    }

    async fn until(&self, reached: impl Fn(&State) -> bool) {
        let mut changed = self.shared.changed.subscribe();
        while !reached(&self.lock()) {
            // The sender lives in `self`, so this cannot fail.
            let _ = changed.changed().await;
        }
    }

    fn put(&self, queue: &str, envelope: Envelope, copies: u32, repeats: u32) {
        let mut state = self.lock();
        let first = state.messages + 1;
        state.messages += u64::from(copies);
        let envelopes = std::iter::repeat_n(envelope, copies as usize);
        state
            .queue(queue)
            .ready
            .extend((first..).zip(envelopes).map(|(copy, envelope)| Message {
                copy,
                envelope,
                deliveries: 0,
                repeats,
            }));
        drop(state);
        self.tell();
    }

    fn change<T>(&self, queue: &str, change: impl FnOnce(&mut Queue) -> T) -> T {
        let answer = change(self.lock().queue(queue));
        self.tell();
        answer
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics half-way through a change, so a poisoned state is whole.
        self.shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        self.shared.changed.send_replace(());
    }
}

impl fmt::Debug for MemoryBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names: Vec<String> = self.lock().queues.keys().cloned().collect();
        names.sort();
        f.debug_struct("MemoryBroker")
            .field("queues", &names)
            .finish_non_exhaustive()
    }
}

/// Publishes to the queue that `destination` names.
#[async_trait]
impl Publisher for MemoryBroker {
    async fn publish(&self, destination: &str, envelope: &Envelope) -> Result<(), PublishError> {
        if destination.is_empty() {
            return Err(PublishError::Unroutable {
                destination: destination.to_owned(),
            });
        }
        self.put(destination, envelope.clone(), 1, 0);
        Ok(())
    }
}

impl State {
    fn queue(&mut self, name: &str) -> &mut Queue {
        self.queues.entry(name.to_owned()).or_default()
    }
}

impl Queue {
    fn outstanding(&self) -> usize {
        self.places
            .values()
            .map(|place| place.outstanding.len())
            .sum()
    }

    fn is_idle(&self) -> bool {
        self.ready.is_empty() && self.delayed.is_empty() && self.outstanding() == 0
    }

    /// Ends the delays and takes away the deliveries whose time is over.
    fn advance(&mut self, now: Instant) {
        let due = self.delayed.partition_point(|(at, _)| *at <= now);
        self.ready
            .extend(self.delayed.drain(..due).map(|(_, message)| message));
        let mut expired = Vec::new();
        for place in self.places.values_mut() {
            if place.window.is_none() {
                continue;
            }
            let over = |outstanding: &Outstanding| outstanding.due.is_some_and(|due| due <= now);
            let numbers: Vec<u32> = place
                .outstanding
                .iter()
                .filter_map(|(number, outstanding)| over(outstanding).then_some(*number))
                .collect();
            for number in numbers {
                if let Some(outstanding) = place.outstanding.remove(&number) {
                    place.void.insert(number);
                    expired.push(outstanding.message);
                }
            }
        }
        self.give_back(expired);
    }

    /// When something changes here by the passing of time alone.
    fn next_due(&self) -> Option<Instant> {
        let delayed = self.delayed.first().map(|(at, _)| *at);
        let expiring = self
            .places
            .values()
            .flat_map(|place| place.outstanding.values())
            .filter_map(|outstanding| outstanding.due);
        expiring.chain(delayed).min()
    }

    /// Puts messages back in front, in their order, or drops those that were delivered too often.
    fn give_back(&mut self, messages: Vec<Message>) -> bool {
        let mut dropped = false;
        for message in messages.into_iter().rev() {
            if self
                .delivery_limit
                .is_some_and(|limit| message.deliveries > limit)
            {
                dropped = true;
                self.dropped.push(message.envelope);
            } else {
                self.ready.push_front(message);
            }
        }
        dropped
    }

    fn delay(&mut self, until: Instant, message: Message) {
        let place = self.delayed.partition_point(|(at, _)| *at <= until);
        self.delayed.insert(place, (until, message));
    }

    fn lose_places(&mut self, why: &'static str) {
        let ids: Vec<u32> = self.places.keys().copied().collect();
        // From the youngest, so that what the oldest holds comes back in front.
        for id in ids.into_iter().rev() {
            self.lose_place(id, why);
        }
    }

    fn lose_place(&mut self, id: u32, why: &'static str) {
        let Some(place) = self.places.get_mut(&id) else {
            return;
        };
        place.condition = Condition::Lost(why);
        let outstanding = std::mem::take(&mut place.outstanding);
        place.void.extend(outstanding.keys());
        let lease = place.lease;
        let messages = outstanding.into_values().map(|o| o.message);
        match lease {
            Some(lease) => {
                let until = Instant::now() + lease;
                messages.for_each(|message| self.delay(until, message));
            }
            None => {
                self.give_back(messages.collect());
            }
        }
    }

    fn take(&mut self, id: u32) -> Taken {
        let now = Instant::now();
        self.advance(now);
        let Some(place) = self.places.get_mut(&id) else {
            return Taken::End;
        };
        match place.condition {
            Condition::Stopped => return Taken::End,
            Condition::Lost(why) => return Taken::Lost(why),
            Condition::Open => {}
        }
        if place.outstanding.len() < place.prefetch
            && let Some(mut message) = self.ready.pop_front()
        {
            let earlier = message.deliveries;
            message.deliveries += 1;
            place.issued += 1;
            let token = SettleToken::new(token_number(id, place.issued));
            let delivery = Delivery::new(message.envelope.clone(), token)
                .redelivered(earlier > 0)
                .earlier_deliveries(place.counts.then_some(earlier));
            let due = place.window.map(|window| now + window);
            place
                .outstanding
                .insert(place.issued, Outstanding { message, due });
            self.most_outstanding = self.most_outstanding.max(place.outstanding.len());
            return Taken::Delivery(Box::new(delivery));
        }
        Taken::Nothing(self.next_due())
    }

    /// The rule that loses this ack, if there is one; it is used up.
    fn lost_ack(&mut self, message: &Message) -> Option<LostAck> {
        let place = self.lost_acks.iter().position(|rule| match &rule.of {
            None => true,
            Some((id, delivery)) => {
                message.envelope.id.as_ref() == Some(id) && message.deliveries == *delivery
            }
        })?;
        Some(self.lost_acks.remove(place).how)
    }

    fn settle(&mut self, id: u32, number: u64, verdict: Verdict, entry: &mut Settled) {
        let now = Instant::now();
        self.advance(now);
        let Some(place) = self.places.get_mut(&id) else {
            entry.effect = Effect::Gone;
            return;
        };
        // Half of the number is the assignment's, so a token cannot settle anything of another one.
        let delivery = number as u32;
        if number != token_number(id, delivery) || delivery == 0 || delivery > place.issued {
            entry.effect = Effect::Foreign;
            return;
        }
        let Some(Outstanding { mut message, .. }) = place.outstanding.remove(&delivery) else {
            entry.effect = if place.void.remove(&delivery) {
                Effect::Gone
            } else {
                Effect::Twice
            };
            return;
        };
        let longest_delay = place.longest_delay;
        entry.message_id.clone_from(&message.envelope.id);
        entry.copy = message.copy;
        entry.delivery = message.deliveries;
        entry.effect = match verdict {
            Verdict::HandBack { delay } => match (delay, longest_delay) {
                (Some(delay), Some(longest)) if !delay.is_zero() => {
                    self.delay(now + delay.min(longest), message);
                    Effect::Done
                }
                _ if self.give_back(vec![message]) => Effect::Dropped,
                _ => Effect::Done,
            },
            // Whatever else there will be, only a hand-back keeps the message.
            _ => match self.lost_ack(&message) {
                Some(LostAck::Silently) => {
                    self.give_back(vec![message]);
                    Effect::AckLost
                }
                Some(LostAck::Gone) => {
                    self.give_back(vec![message]);
                    Effect::Gone
                }
                Some(LostAck::Disconnect) => {
                    // It goes back together with the others, so that they keep their order.
                    if let Some(place) = self.places.get_mut(&id) {
                        place
                            .outstanding
                            .insert(delivery, Outstanding { message, due: None });
                    }
                    self.lose_place(id, "the connection broke during an ack");
                    if let Some(place) = self.places.get_mut(&id) {
                        place.void.remove(&delivery);
                    }
                    Effect::Gone
                }
                None if message.repeats > 0 => {
                    message.repeats -= 1;
                    self.give_back(vec![message]);
                    Effect::AckLost
                }
                None => Effect::Done,
            },
        };
    }
}

enum Taken {
    Delivery(Box<Delivery>),
    /// Nothing to deliver before something changes, or before this instant.
    Nothing(Option<Instant>),
    End,
    Lost(&'static str),
}

const fn token_number(assignment: u32, delivery: u32) -> u64 {
    (assignment as u64) << 32 | delivery as u64
}

/// A queue of a [`MemoryBroker`] as a source of messages.
#[derive(Debug, Clone)]
pub struct MemorySource {
    broker: MemoryBroker,
    queue: String,
    capabilities: Capabilities,
    counts_deliveries: bool,
    id_sources: Vec<IdSource>,
}

impl MemorySource {
    /// Behaves like a broker that can do this. The default: delays up to twelve hours, hand-backs that cost
    /// nothing, no limit of time.
    ///
    /// Without [`longest_delay`](Capabilities::longest_delay) every delay is ignored; with
    /// [`settle_window`](Capabilities::settle_window) a delivery that is not settled in time is taken away and
    /// delivered again. With a [`lease`](Capabilities::lease) what an assignment leaves behind comes again only when
    /// that is over. A [`redelivery_window`](Capabilities::redelivery_window) is what the inbox has to remember;
    /// this broker repeats nothing by it.
    #[must_use]
    pub fn behave_as(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// Behaves like a broker that does not say how often it delivered a message.
    #[must_use]
    pub const fn uncounted(mut self) -> Self {
        self.counts_deliveries = false;
        self
    }

    /// Looks for a message's id in these places, in this order. The default: [`Envelope::id`], then the
    /// CloudEvents attribute.
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
}

#[async_trait]
impl Source for MemorySource {
    fn system(&self) -> &'static str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
            .clone()
            .counts_deliveries(self.counts_deliveries)
    }

    fn id_sources(&self) -> Vec<IdSource> {
        self.id_sources.clone()
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.queue.is_empty() {
            problems.push(
                "the queue of a memory source has no name: name it in `MemoryBroker::source`"
                    .to_owned(),
            );
        }
        if self
            .capabilities
            .settle_window
            .is_some_and(|window| window.is_zero())
        {
            problems.push(format!(
                "the memory queue `{}` takes every delivery away at once: its settle window is zero",
                self.queue
            ));
        }
        problems
    }

    async fn open(&self, prefetch: NonZeroUsize) -> Result<Assignment, SourceError> {
        let mut state = self.broker.lock();
        if let queue @ Queue {
            failing_opens: 1.., ..
        } = state.queue(&self.queue)
        {
            queue.failing_opens -= 1;
            return Err(SourceError::new(format!(
                "the memory broker refuses to open the queue `{}`, as it was told to",
                self.queue
            )));
        }
        state.assignments += 1;
        let id = state.assignments;
        let queue = state.queue(&self.queue);
        queue.opened += 1;
        queue.places.insert(
            id,
            Place {
                prefetch: prefetch.get(),
                window: self.capabilities.settle_window,
                lease: self.capabilities.lease,
                longest_delay: self.capabilities.longest_delay,
                counts: self.counts_deliveries,
                condition: Condition::Open,
                issued: 0,
                outstanding: BTreeMap::new(),
                void: HashSet::new(),
            },
        );
        drop(state);
        let held = Arc::new(Held {
            broker: self.broker.clone(),
            queue: self.queue.clone(),
            id,
        });
        Ok(Assignment {
            deliveries: Box::new(MemoryDeliveries(Arc::clone(&held))),
            settle: Arc::new(MemorySettle(held)),
        })
    }
}

/// The consumer's side of an assignment. Its end gives back whatever is unsettled.
struct Held {
    broker: MemoryBroker,
    queue: String,
    id: u32,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.broker.change(&self.queue, |queue| {
            queue.lose_place(self.id, "it was dropped");
            queue.places.remove(&self.id);
        });
    }
}

struct MemoryDeliveries(Arc<Held>);

#[async_trait]
impl Deliveries for MemoryDeliveries {
    async fn next(&mut self) -> Result<Option<Delivery>, SourceError> {
        let Held { broker, queue, id } = &*self.0;
        let mut changed = broker.shared.changed.subscribe();
        loop {
            // A delivery is taken and returned in one step, so none is lost with this future.
            let taken = broker.lock().queue(queue).take(*id);
            let due = match taken {
                Taken::Delivery(delivery) => return Ok(Some(*delivery)),
                Taken::End => return Ok(None),
                Taken::Lost(why) => {
                    return Err(SourceError::new(format!(
                        "lost the memory queue `{queue}`: {why}"
                    )));
                }
                Taken::Nothing(due) => due,
            };
            // `changed` fails only without a sender, and the sender lives in `broker`.
            match due {
                Some(due) => tokio::select! {
                    _ = changed.changed() => {}
                    () = sleep_until(due) => {}
                },
                None => {
                    let _ = changed.changed().await;
                }
            }
        }
    }

    async fn stop(&mut self) {
        let Held { broker, queue, id } = &*self.0;
        broker.change(queue, |queue| {
            if let Some(place) = queue.places.get_mut(id)
                && place.condition == Condition::Open
            {
                place.condition = Condition::Stopped;
            }
        });
    }
}

struct MemorySettle(Arc<Held>);

#[async_trait]
impl Settle for MemorySettle {
    async fn settle(&self, verdicts: Vec<(SettleToken, Verdict)>) -> Vec<Result<(), SettleError>> {
        let Held { broker, queue, id } = &*self.0;
        let mut state = broker.lock();
        let mut answers = Vec::with_capacity(verdicts.len());
        for (token, verdict) in verdicts {
            state.settles += 1;
            let mut entry = Settled {
                sequence: state.settles,
                at: Instant::now().into_std(),
                queue: queue.clone(),
                message_id: None,
                copy: 0,
                delivery: 0,
                verdict,
                effect: Effect::Gone,
            };
            state
                .queue(queue)
                .settle(*id, token.number(), verdict, &mut entry);
            answers.push(match entry.effect {
                Effect::Done | Effect::AckLost | Effect::Dropped => Ok(()),
                Effect::Gone => Err(SettleError::Gone),
                Effect::Twice => Err(SettleError::Failed(
                    "the delivery was settled before".into(),
                )),
                Effect::Foreign => Err(SettleError::Failed(
                    "the token is not of this assignment".into(),
                )),
            });
            state.log.push(entry);
        }
        drop(state);
        broker.tell();
        answers
    }

    fn is_gone(&self) -> bool {
        let Held { broker, queue, id } = &*self.0;
        let mut state = broker.lock();
        let place = state.queue(queue).places.get(id);
        place.is_none_or(|place| matches!(place.condition, Condition::Lost(_)))
    }
}
