//! The member of the consumer group: one thread that polls, whatever the handlers do, and one that waits for commits.
//!
//! Everything that librdkafka might do slowly happens on these two, so no task ever waits in it, and a future that is
//! dropped interrupts nothing. The partitions have queues of their own: what nobody has room for stays there, while the main queue
//! goes on to be polled for rebalances and answers. That is what keeps a member with slow handlers in its group.

use std::collections::VecDeque;
use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use inbox_core::{Envelope, SourceError};
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext as _, RDKafkaLogLevel};
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{Offset, TopicPartitionList};
use tokio::sync::oneshot;

use super::message::{self, OrderedBy};
use super::state::Shared;
use super::{Kafka, refused};

/// How long the brokers may take to say which topics there are.
const METADATA_LIMIT: Duration = Duration::from_secs(10);

/// Commits of a busy member are at least so far apart.
const COMMIT_PAUSE: Duration = Duration::from_millis(20);

/// How long a commit that failed waits for its repetition.
const COMMIT_BACKOFF: Duration = Duration::from_millis(250);

/// How long the last commit may take at the end of an assignment.
const LAST_COMMIT_LIMIT: Duration = Duration::from_secs(3);

/// The longest time between two polls.
const TICK: Duration = Duration::from_millis(250);

/// The same while something is awaited that wakes nobody.
const SHORT_TICK: Duration = Duration::from_millis(10);

/// What a member of the group needs to know.
pub(super) struct Member {
    pub(super) cluster: Kafka,
    pub(super) config: ClientConfig,
    pub(super) topics: Vec<String>,
    pub(super) prefetch: NonZeroUsize,
    pub(super) ordered_by: OrderedBy,
    pub(super) type_header: String,
    pub(super) skips_null_bodies: bool,
    /// How long a partition that moves away may wait for the handlers in work.
    pub(super) revoke_wait: Duration,
    /// After so long without any broker the group has surely thrown the member out.
    pub(super) outage_limit: Duration,
}

/// Joins the group; answered as soon as the topics are found and subscribed to.
pub(super) async fn join(member: Member) -> Result<Arc<Shared>, SourceError> {
    let (answer, joined) = oneshot::channel();
    std::thread::Builder::new()
        .name("inbox-kafka".to_owned())
        .spawn(move || member.run(answer))
        .map_err(|error| SourceError::caused("no thread for the Kafka consumer", error))?;
    joined
        .await
        .unwrap_or_else(|_| Err(SourceError::new("the thread of the Kafka consumer ended")))
}

impl Member {
    fn run(self, answer: oneshot::Sender<Result<Arc<Shared>, SourceError>>) {
        let shared = Arc::new(Shared::default());
        shared.polled_here();
        let consumer = match self.subscribe(&shared) {
            Ok(consumer) => consumer,
            Err(error) => {
                let _ = answer.send(Err(error));
                return;
            }
        };
        let committer = match Committer::start(Arc::clone(&consumer), Arc::clone(&shared)) {
            Ok(committer) => committer,
            Err(error) => {
                let error = SourceError::caused("no thread for the commits to Kafka", error);
                let _ = answer.send(Err(error));
                return;
            }
        };
        // Whoever asked may be gone.
        if answer.send(Ok(Arc::clone(&shared))).is_err() {
            shared.note_dropped();
        }
        Poller {
            consumer,
            shared,
            queues: VecDeque::new(),
            committer,
            spare: VecDeque::new(),
            leaving: None,
            commit: None,
            next_commit: Instant::now(),
            outage: None,
            ending: None,
            member: self,
        }
        .run();
    }

    fn subscribe(&self, shared: &Arc<Shared>) -> Result<Arc<BaseConsumer<Context>>, SourceError> {
        let context = Context::default();
        let mut consumer = BaseConsumer::from_config_and_context(&self.config, context)
            .map_err(|error| SourceError::new(refused(&error)))?;
        let waking = Arc::clone(shared);
        consumer.set_nonempty_callback(move || waking.wake_poller());
        for topic in &self.topics {
            let metadata = consumer
                .fetch_metadata(Some(topic), METADATA_LIMIT)
                .map_err(|error| self.cluster.unreachable(&consumer, &error))?;
            let found = metadata
                .topics()
                .iter()
                .find(|found| found.name() == topic.as_str());
            let problem = match found.map(|found| found.error().map(RDKafkaErrorCode::from)) {
                Some(None) => continue,
                None
                | Some(Some(
                    RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic,
                )) => format!(
                    "there is no topic `{topic}` at Kafka `{}`: create it, or correct its name in `Kafka::topic`",
                    self.cluster.brokers
                ),
                Some(Some(RDKafkaErrorCode::TopicAuthorizationFailed)) => format!(
                    "the topic `{topic}` may not be read: give its user the permission READ for the topic and the \
                     group"
                ),
                Some(Some(code)) => format!("the topic `{topic}` cannot be consumed ({code})"),
            };
            return Err(SourceError::new(problem));
        }
        let topics: Vec<&str> = self.topics.iter().map(String::as_str).collect();
        consumer.subscribe(&topics).map_err(|error| {
            SourceError::new(format!(
                "the topics {:?} cannot be subscribed to ({error})",
                self.topics
            ))
        })?;
        Ok(Arc::new(consumer))
    }
}

/// What librdkafka calls, always from within a poll of the one thread.
#[derive(Default)]
struct Context {
    happened: Mutex<Vec<Happened>>,
    /// The client is being closed: whatever it gives or takes is given up at once.
    is_closing: AtomicBool,
}

enum Happened {
    Assigned(TopicPartitionList),
    Revoked {
        partitions: TopicPartitionList,
        is_lost: bool,
    },
    Committed(KafkaResult<()>),
}

impl Context {
    fn note(&self, happened: Happened) {
        self.happened
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(happened);
    }

    fn take(&self) -> Vec<Happened> {
        std::mem::take(&mut *self.happened.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        super::log(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::warn!(%error, reason, "Kafka");
    }

    fn stats_raw(&self, statistics: &[u8]) {
        tracing::debug!(statistics = %String::from_utf8_lossy(statistics), "librdkafka");
    }
}

impl ConsumerContext for Context {
    /// Only noted: librdkafka waits for the answer, and the thread goes on to poll until it can give it.
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        what: RDKafkaRespErr,
        partitions: &mut TopicPartitionList,
    ) {
        let is_assigned = what == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        if self.is_closing.load(Ordering::Relaxed) {
            return answer(consumer, partitions, is_assigned);
        }
        self.note(if is_assigned {
            Happened::Assigned(partitions.clone())
        } else {
            Happened::Revoked {
                partitions: partitions.clone(),
                is_lost: consumer.assignment_lost(),
            }
        });
    }
}

/// Answers a rebalance; a client that is closing gives up what it is given.
fn answer(consumer: &BaseConsumer<Context>, partitions: &TopicPartitionList, is_assigned: bool) {
    if !is_assigned {
        return unassign(consumer, partitions);
    }
    if let Err(error) = assign(consumer, partitions) {
        tracing::debug!(%error, "partitions came at the end");
    }
}

fn assign(consumer: &BaseConsumer<Context>, partitions: &TopicPartitionList) -> KafkaResult<()> {
    match consumer.rebalance_protocol() {
        RebalanceProtocol::Cooperative => consumer.incremental_assign(partitions),
        _ => consumer.assign(partitions),
    }
}

fn unassign(consumer: &BaseConsumer<Context>, partitions: &TopicPartitionList) {
    let done = match consumer.rebalance_protocol() {
        RebalanceProtocol::Cooperative => consumer.incremental_unassign(partitions),
        _ => consumer.unassign(),
    };
    if let Err(error) = done {
        tracing::warn!(%error, "the partitions cannot be given up");
    }
}

/// A record, out of librdkafka's hands.
struct Record {
    window: u64,
    offset: i64,
    /// `None`: to be passed over.
    envelope: Option<Envelope>,
}

/// Partitions that are on their way to somebody else.
struct Leaving {
    partitions: TopicPartitionList,
    windows: Vec<u64>,
    /// When handlers that are still in work are not waited for any longer.
    settled_by: Instant,
    /// When the commit is not waited for any longer.
    committed_by: Instant,
}

/// A second thread, which waits for the answers to commits: librdkafka gives them to nobody who does not wait.
struct Committer {
    requests: mpsc::Sender<TopicPartitionList>,
    thread: JoinHandle<()>,
}

impl Committer {
    fn start(consumer: Arc<BaseConsumer<Context>>, shared: Arc<Shared>) -> io::Result<Self> {
        let (requests, to_commit) = mpsc::channel::<TopicPartitionList>();
        let thread = std::thread::Builder::new()
            .name("inbox-kafka-commit".to_owned())
            .spawn(move || {
                for offsets in to_commit {
                    let result = consumer.commit(&offsets, CommitMode::Sync);
                    consumer.context().note(Happened::Committed(result));
                    shared.wake_poller();
                }
            })?;
        Ok(Self { requests, thread })
    }
}

struct Poller {
    consumer: Arc<BaseConsumer<Context>>,
    shared: Arc<Shared>,
    queues: VecDeque<(u64, PartitionQueue<Context>)>,
    committer: Committer,
    /// Records that came by the main queue before their partition had one of its own.
    spare: VecDeque<Record>,
    leaving: Option<Leaving>,
    /// The windows of the commit on its way, and their offsets.
    commit: Option<Vec<(u64, i64)>>,
    next_commit: Instant,
    /// Since when no broker answers.
    outage: Option<Instant>,
    /// By when the last commit must be through.
    ending: Option<Instant>,
    member: Member,
}

impl Poller {
    fn run(mut self) {
        loop {
            let mut is_busy = self.serve();
            is_busy |= self.fetch();
            self.read_again();
            self.commit();
            self.give_up();
            self.look_for_brokers();
            if self.is_done() {
                break;
            }
            if !is_busy {
                std::thread::park_timeout(self.tick());
            }
        }
        self.close();
    }

    fn tick(&self) -> Duration {
        let has_to_commit = !self.shared.lock().is_committed();
        if self.leaving.is_some() || self.ending.is_some() || has_to_commit {
            SHORT_TICK
        } else {
            TICK
        }
    }

    /// Serves the main queue: rebalances, answers to commits, errors. Answers whether there was anything.
    fn serve(&mut self) -> bool {
        let mut is_busy = false;
        // An event that was served inside looks like none: ask once more.
        let mut nothing = 0;
        while nothing < 2 {
            let consumer = Arc::clone(&self.consumer);
            match consumer.poll(Duration::ZERO) {
                None => nothing += 1,
                Some(Ok(record)) => {
                    is_busy = true;
                    let window = self
                        .shared
                        .lock()
                        .window_of(record.topic(), record.partition());
                    // Of no window: it was revoked meanwhile.
                    if let Some(window) = window {
                        self.spare.push_back(self.member.record(window, &record));
                    }
                }
                Some(Err(error)) => {
                    is_busy = true;
                    self.failed(&error);
                }
            }
            for happened in self.consumer.context().take() {
                is_busy = true;
                nothing = 0;
                match happened {
                    Happened::Assigned(partitions) => self.assigned(&partitions),
                    Happened::Revoked {
                        partitions,
                        is_lost,
                    } => self.revoked(partitions, is_lost),
                    Happened::Committed(result) => self.committed(result),
                }
            }
        }
        is_busy
    }

    fn assigned(&mut self, partitions: &TopicPartitionList) {
        if let Err(error) = assign(&self.consumer, partitions) {
            return self.lose(format!(
                "the partitions given by the group cannot be taken ({error})"
            ));
        }
        for place in partitions.elements() {
            let (topic, partition) = (place.topic(), place.partition());
            let window = self.shared.lock().open_window(topic, partition);
            let Some(mut queue) = self.consumer.split_partition_queue(topic, partition) else {
                return self.lose(format!("partition {partition} of `{topic}` has no queue"));
            };
            let waking = Arc::clone(&self.shared);
            queue.set_nonempty_callback(move || waking.wake_poller());
            self.queues.push_back((window, queue));
            tracing::debug!(topic, partition, "a partition was assigned");
        }
        self.outage = None;
    }

    fn revoked(&mut self, partitions: TopicPartitionList, is_lost: bool) {
        let windows: Vec<u64> = {
            let state = self.shared.lock();
            let places = partitions.elements();
            let windows = places
                .iter()
                .filter_map(|place| state.window_of(place.topic(), place.partition()));
            windows.collect()
        };
        self.queues.retain(|(window, _)| !windows.contains(window));
        self.spare
            .retain(|record| !windows.contains(&record.window));
        if is_lost {
            tracing::warn!(
                partitions = windows.len(),
                "the group has given this member's partitions to others; what is in work comes again there"
            );
            self.shared.lock().give_up(&windows);
            return unassign(&self.consumer, &partitions);
        }
        tracing::debug!(partitions = windows.len(), "partitions are revoked");
        self.shared.lock().leave(&windows);
        let settled_by = Instant::now() + self.member.revoke_wait;
        self.leaving = Some(Leaving {
            partitions,
            windows,
            settled_by,
            committed_by: settled_by + LAST_COMMIT_LIMIT.min(self.member.revoke_wait),
        });
        // Not to wait for the pause.
        self.next_commit = Instant::now();
    }

    /// Gives revoked partitions up once nothing of them is in work and their commit is through.
    fn give_up(&mut self) {
        let Some(leaving) = &self.leaving else {
            return;
        };
        let now = Instant::now();
        let (is_in_work, is_committed) = {
            let state = self.shared.lock();
            let windows = || {
                leaving
                    .windows
                    .iter()
                    .filter_map(|number| state.windows.get(number))
            };
            (
                windows().any(super::window::Window::is_in_work),
                windows().all(|window| window.to_commit().is_none()),
            )
        };
        let is_settled = !is_in_work || now >= leaving.settled_by;
        if !(is_settled && is_committed || now >= leaving.committed_by) {
            return;
        }
        if is_in_work || !is_committed {
            tracing::warn!(
                waited = ?self.member.revoke_wait,
                "partitions are given up while handlers are in work; their messages come again elsewhere"
            );
        }
        if let Some(Leaving {
            partitions,
            windows,
            ..
        }) = self.leaving.take()
        {
            self.shared.lock().give_up(&windows);
            unassign(&self.consumer, &partitions);
        }
    }

    /// Delivers as much as there is room for. Answers whether there was anything.
    fn fetch(&mut self) -> bool {
        let room = {
            let state = self.shared.lock();
            if state.is_stopping || state.is_dropped {
                return false;
            }
            let prefetch = self.member.prefetch.get();
            prefetch.saturating_sub(state.unsettled())
        };
        let mut records = Vec::new();
        while records.len() < room {
            let Some(record) = self.spare.pop_front().or_else(|| self.poll_partitions()) else {
                break;
            };
            records.push(record);
        }
        if records.is_empty() {
            return false;
        }
        self.outage = None;
        let mut state = self.shared.lock();
        for record in records {
            state.deliver(
                record.window,
                record.offset,
                record.envelope,
                self.member.prefetch.get(),
            );
        }
        drop(state);
        self.shared.tell();
        true
    }

    /// The next record of the partitions, which take turns.
    fn poll_partitions(&mut self) -> Option<Record> {
        for _ in 0..self.queues.len() {
            self.queues.rotate_left(1);
            let polled = self.queues.back().and_then(|(window, queue)| {
                let polled = queue.poll(Duration::ZERO)?;
                Some(polled.map(|record| self.member.record(*window, &record)))
            });
            match polled {
                None => {}
                Some(Ok(record)) => return Some(record),
                Some(Err(error)) => self.failed(&error),
            }
        }
        None
    }

    /// Lets the broker send once more what was handed back.
    fn read_again(&self) {
        let places: Vec<_> = {
            let mut state = self.shared.lock();
            if state.is_stopping || state.is_dropped {
                return;
            }
            let windows = state
                .windows
                .values_mut()
                .filter(|window| !window.is_leaving);
            windows
                .filter_map(|window| {
                    let offset = window.take_handed_back()?;
                    Some((Arc::clone(&window.topic), window.partition, offset))
                })
                .collect()
        };
        for (topic, partition, offset) in places {
            let sought =
                self.consumer
                    .seek(&topic, partition, Offset::Offset(offset), Duration::ZERO);
            if let Err(error) = sought {
                self.lose(format!(
                    "what was handed back of `{topic}` cannot be read again ({error})"
                ));
            }
        }
    }

    /// Sends what is done and not committed, one commit at a time.
    fn commit(&mut self) {
        let now = Instant::now();
        if self.commit.is_some() || now < self.next_commit {
            return;
        }
        let mut offsets = TopicPartitionList::new();
        let mut windows = Vec::new();
        for (number, window) in &self.shared.lock().windows {
            let Some(offset) = window.to_commit() else {
                continue;
            };
            let added = offsets.add_partition_offset(
                &window.topic,
                window.partition,
                Offset::Offset(offset),
            );
            if added.is_ok() {
                windows.push((*number, offset));
            }
        }
        if windows.is_empty() {
            return;
        }
        self.next_commit = now + COMMIT_PAUSE;
        self.commit = Some(windows);
        if self.committer.requests.send(offsets).is_err() {
            self.lose("the thread that commits to Kafka has ended".to_owned());
        }
    }

    fn committed(&mut self, result: KafkaResult<()>) {
        let sent = self.commit.take().unwrap_or_default();
        if let Err(error) = result {
            return self.not_committed(&error);
        }
        self.outage = None;
        let mut state = self.shared.lock();
        for (number, offset) in sent {
            if let Some(window) = state.windows.get_mut(&number) {
                window.note_committed(offset);
            }
        }
        drop(state);
        self.shared.tell();
    }

    /// Not committed, and no fault of any message: it is sent again, unless its partition is taken away meanwhile.
    fn not_committed(&mut self, error: &KafkaError) {
        self.next_commit = Instant::now() + COMMIT_BACKOFF;
        match error.rdkafka_error_code() {
            Some(
                RDKafkaErrorCode::RebalanceInProgress
                | RDKafkaErrorCode::IllegalGeneration
                | RDKafkaErrorCode::UnknownMemberId,
            ) => tracing::debug!(%error, "the group is changing; the commit is tried again"),
            _ => tracing::warn!(%error, "a commit failed; trying again"),
        }
    }

    fn failed(&mut self, error: &KafkaError) {
        let (code, is_fatal) = match error {
            KafkaError::PartitionEOF(_) => return,
            KafkaError::MessageConsumptionFatal(code) => (*code, true),
            KafkaError::MessageConsumption(code) => (*code, false),
            _ => return tracing::warn!(%error, "Kafka"),
        };
        let remedy = match code {
            RDKafkaErrorCode::AllBrokersDown => {
                self.outage.get_or_insert_with(Instant::now);
                return;
            }
            RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic => {
                "was the topic deleted?"
            }
            RDKafkaErrorCode::TopicAuthorizationFailed
            | RDKafkaErrorCode::GroupAuthorizationFailed => {
                "give its user the permission READ for the topic and the group"
            }
            RDKafkaErrorCode::InconsistentGroupProtocol => {
                "the other members of the group use other values of `partition.assignment.strategy`: set the same, or \
                 use a group of its own"
            }
            RDKafkaErrorCode::InvalidSessionTimeout => {
                "the broker's `group.min.session.timeout.ms` and `group.max.session.timeout.ms` do not allow this \
                 `session.timeout.ms`"
            }
            RDKafkaErrorCode::AutoOffsetReset => {
                "the group has no valid offset, and `auto.offset.reset` is `error`: set the group's offsets"
            }
            RDKafkaErrorCode::Authentication | RDKafkaErrorCode::SaslAuthenticationFailed => {
                "check user and password"
            }
            _ if is_fatal => "the client cannot go on",
            _ => return tracing::debug!(%error, "Kafka"),
        };
        self.lose(format!(
            "lost the Kafka topics {:?} ({code}): {remedy}",
            self.member.topics
        ));
    }

    fn lose(&self, why: String) {
        self.shared.lock().note_lost(why);
        self.shared.tell();
    }

    /// The client connects again by itself, and the membership lives on if that is soon.
    fn look_for_brokers(&mut self) {
        let limit = self.member.outage_limit;
        if self.outage.is_none_or(|since| since.elapsed() < limit) {
            return;
        }
        self.outage = None;
        let topic = self.member.topics.first().map(String::as_str);
        let answer = self.consumer.fetch_metadata(topic, Duration::from_secs(1));
        if let Err(error) = answer {
            self.lose(format!(
                "no broker of Kafka at `{}` has answered for {limit:?} ({error})",
                self.member.cluster.brokers
            ));
        }
    }

    /// Whether nothing is left to be done here.
    fn is_done(&mut self) -> bool {
        let (is_lost, may_end, is_committed) = {
            let state = self.shared.lock();
            let may_end = state.is_dropped || state.is_stopping && state.unsettled() == 0;
            (state.is_lost(), may_end, state.is_committed())
        };
        if is_lost {
            return true;
        }
        if !may_end {
            return false;
        }
        let ending = *self
            .ending
            .get_or_insert_with(|| Instant::now() + LAST_COMMIT_LIMIT);
        is_committed || Instant::now() >= ending
    }

    fn close(mut self) {
        self.consumer
            .context()
            .is_closing
            .store(true, Ordering::Relaxed);
        self.queues.clear();
        // librdkafka waits for the answers that are owed to it.
        if let Some(leaving) = self.leaving.take() {
            unassign(&self.consumer, &leaving.partitions);
        }
        for happened in self.consumer.context().take() {
            match happened {
                Happened::Assigned(partitions) => answer(&self.consumer, &partitions, true),
                Happened::Revoked { partitions, .. } => answer(&self.consumer, &partitions, false),
                Happened::Committed(_) => {}
            }
        }
        if self.commit.is_some() {
            // Whoever waits has waited long enough.
            self.shared.lock().note_closed();
            self.shared.tell();
        }
        drop(self.committer.requests);
        let _ = self.committer.thread.join();
        // Leaves the group, so that others need not wait for the end of the session.
        drop(self.consumer);
        self.shared.lock().note_closed();
        self.shared.tell();
    }
}

impl Member {
    fn record(&self, window: u64, record: &BorrowedMessage<'_>) -> Record {
        let is_skipped = self.skips_null_bodies && record.payload().is_none();
        Record {
            window,
            offset: record.offset(),
            envelope: (!is_skipped)
                .then(|| message::envelope(record, self.ordered_by, &self.type_header)),
        }
    }
}
