use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use inbox_core::{
    Assignment, Capabilities, Deliveries, Delivery, IdSource, Learned, Needs, Settle, SettleError,
    SettleToken, Source, SourceError, Verdict,
};
use rdkafka::config::ClientConfig;

use super::consumer::{self, Member};
use super::message::{ID, OrderedBy, TYPE};
use super::state::{Membership, Shared};
use super::{Kafka, Settings, is_on, refused, topic};

/// What a topic may be called.
const LONGEST_TOPIC: usize = 249;

/// How long a partition that moves away waits for the handlers in work.
const REVOKE_WAIT: Duration = Duration::from_secs(10);

/// The smallest `max.poll.interval.ms`, in milliseconds: the client is polled at least four times a second, and a
/// revoked partition gets half of the interval to finish what is in work.
const SHORTEST_POLL_INTERVAL: u64 = 5_000;

/// What a source sets where nobody else does.
const DEFAULTS: [(&str, &str); 8] = [
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    ("auto.offset.reset", "earliest"),
    ("partition.assignment.strategy", "cooperative-sticky"),
    // The client's own prefetch is beyond ours: enough for the next moment, not a hundred thousand messages.
    ("queued.min.messages", "1000"),
    ("queued.max.messages.kbytes", "8192"),
    // How soon it fetches again after that was full; its own second would starve a busy partition.
    ("fetch.queue.backoff.ms", "10"),
    ("max.poll.interval.ms", "300000"),
];

/// Topics of a Kafka cluster as a source of messages; made by [`Kafka::topic`].
///
/// Each time it is opened it joins its consumer group as a new member. Offsets are committed by the source alone, and
/// only those of records that are done together with everything before them in their partition.
///
/// # What becomes of a record
///
/// Headers, key, timestamp and value are in the [`Envelope`](inbox_core::Envelope); the value is not touched. The headers
/// `message-id`, `message-type`, `content-type` and `correlation-id` also fill the properties of that name. The id is
/// taken from the CloudEvents attribute `id` (header `ce_id`, or structured mode), else from the headers `message-id` and
/// `id`; never from topic, partition and offset, because a producer that repeats itself writes a second record at another
/// offset. A null body (a tombstone) is an empty payload: what expects JSON is dead-lettered by it, unless
/// [`skip_null_bodies`](Self::skip_null_bodies) passes such records over.
///
/// # Order
///
/// Records with the same key, which are in one partition, go to one worker, one after another; records without a key and
/// those with different ones do not wait for each other. [`ordered_by_partition`](Self::ordered_by_partition) keeps the
/// order of all records of a partition. A handler's own `order_by` goes before both.
///
/// # What comes again
///
/// Kafka has neither delays nor redelivery. The runtime holds what shall wait for a moment and parks in the database
/// what shall wait for longer, so no partition stands still. What the group gives to another member before it was
/// committed is delivered there, and found to be processed if it was. The first records after an assignment are
/// therefore marked as redelivered, as many as the prefetch: each of them may have been in work when a process died.
///
/// # Rebalances
///
/// When a partition moves away, nothing more of it is started, handlers in work get [`revoke_wait`](Self::revoke_wait) to
/// end, what is done is committed, and then it goes. A partition that was lost (the group took this member for dead) is
/// not committed. The default `partition.assignment.strategy` is `cooperative-sticky`, which moves no more than
/// necessary; all members of a group need the same.
///
/// # Outages
///
/// librdkafka connects again by itself, and what is unsettled stays valid while the group keeps the member. When no
/// broker has answered for the time of `session.timeout.ms`, the source counts as lost and is opened anew.
#[derive(Debug, Clone)]
pub struct KafkaSource {
    cluster: Kafka,
    topics: Vec<String>,
    settings: Settings,
    id_sources: Vec<IdSource>,
    type_header: String,
    ordered_by: OrderedBy,
    skips_null_bodies: bool,
    revoke_wait: Duration,
    largest_payload: Option<u64>,
    replay_window: Option<Duration>,
}

impl KafkaSource {
    pub(super) fn new(cluster: Kafka, topics: Vec<String>) -> Self {
        Self {
            cluster,
            topics,
            settings: Settings::default(),
            id_sources: vec![
                IdSource::CloudEvents,
                IdSource::Header(ID.to_owned()),
                IdSource::Header("id".to_owned()),
            ],
            type_header: TYPE.to_owned(),
            ordered_by: OrderedBy::Key,
            skips_null_bodies: false,
            revoke_wait: REVOKE_WAIT,
            largest_payload: None,
            replay_window: None,
        }
    }

    /// The consumer group, which shares the partitions and remembers how far they are done. Required.
    #[must_use]
    pub fn group(self, name: impl Into<String>) -> Self {
        self.set("group.id", name)
    }

    /// A setting of librdkafka for this source, for example `session.timeout.ms` or `group.instance.id`.
    #[must_use]
    pub fn set(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.set(name, value);
        self
    }

    /// Looks for a message's id in these places, in this order.
    ///
    /// The default: the CloudEvents attribute `id`, then the headers `message-id` and `id`. Name only places that the
    /// producer fills once per message and repeats on every retry. [`IdSource::Property`] is the header `message-id`.
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

    /// The header that says the type of a message; a CloudEvent says it by itself. The default is `message-type`.
    #[must_use]
    pub fn type_header(mut self, name: impl Into<String>) -> Self {
        self.type_header = name.into();
        self
    }

    /// Keeps the order of all records of a partition, whatever their keys are: one after another, each when the one
    /// before it is done or waits in the database.
    ///
    /// [`Envelope::key`](inbox_core::Envelope::key) is then `topic/partition` instead of the record's own key.
    #[must_use]
    pub const fn ordered_by_partition(mut self) -> Self {
        self.ordered_by = OrderedBy::Partition;
        self
    }

    /// Passes over records without a body (tombstones of a compacted topic): they count as done, and no handler sees
    /// them.
    #[must_use]
    pub const fn skip_null_bodies(mut self) -> Self {
        self.skips_null_bodies = true;
        self
    }

    /// How long a partition that the group gives to another member waits for handlers in work; 10 seconds, and never
    /// more than half of `max.poll.interval.ms`. The whole group waits meanwhile. A handler that takes longer may still
    /// commit; its message comes again at the other member and is a duplicate there.
    #[must_use]
    pub const fn revoke_wait(mut self, wait: Duration) -> Self {
        self.revoke_wait = wait;
        self
    }

    /// How far back the group's offsets are ever set, instead of the topic's `retention.ms`, which is asked for at the
    /// start: an operator's promise. Needed for topics that keep records for ever, such as compacted ones.
    #[must_use]
    pub const fn replay_window(mut self, window: Duration) -> Self {
        self.replay_window = Some(window);
        self
    }

    /// The largest payload that the topic takes, in bytes, instead of its `max.message.bytes`, which is asked for at the
    /// start. The start is refused when the database could not keep such a message.
    #[must_use]
    pub const fn largest_payload(mut self, bytes: u64) -> Self {
        self.largest_payload = Some(bytes);
        self
    }

    fn setting(&self, names: &[&str]) -> Option<(&str, &str)> {
        self.cluster.setting(&self.settings, names)
    }

    fn config(&self) -> ClientConfig {
        let mut defaults = DEFAULTS.to_vec();
        // The brokers assign by themselves there.
        if self.setting(&["group.protocol"]) == Some(("group.protocol", "consumer")) {
            defaults.retain(|(name, _)| *name != "partition.assignment.strategy");
        }
        self.cluster.client(&defaults, &self.settings)
    }

    fn milliseconds(&self, name: &str, default: u64) -> Duration {
        let set = self
            .setting(&[name])
            .and_then(|(_, value)| value.parse().ok());
        Duration::from_millis(set.unwrap_or(default))
    }

    fn poll_interval(&self) -> Duration {
        self.milliseconds("max.poll.interval.ms", 300_000)
    }

    /// What is wrong with the settings that decide about loss.
    fn setting_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for names in [
            &["enable.auto.commit", "auto.commit.enable"][..],
            &["enable.auto.offset.store"],
        ] {
            if let Some((name, value)) = self.setting(names)
                && is_on(value)
            {
                problems.push(format!(
                    "the Kafka setting `{name}` is `{value}`, which commits records before they are processed, and a \
                     crash would lose them: remove it, offsets are committed by the source"
                ));
            }
        }
        if let Some((name, value)) = self.setting(&["auto.offset.reset"])
            && ["latest", "largest", "end"].contains(&value)
        {
            problems.push(format!(
                "the Kafka setting `{name}` is `{value}`, which skips records whenever the group has no offset, also \
                 after it expired: remove it (the inbox knows what it has processed). A new group that shall begin at \
                 the end gets its offsets before the first start, with `kafka-consumer-groups --reset-offsets \
                 --to-latest`"
            ));
        }
        if let Some((name, value)) = self.setting(&["max.poll.interval.ms"])
            && value
                .parse::<u64>()
                .is_ok_and(|interval| interval < SHORTEST_POLL_INTERVAL)
        {
            problems.push(format!(
                "the Kafka setting `{name}` is {value}, and half of it is what a revoked partition has to finish its \
                 work: set {SHORTEST_POLL_INTERVAL} at least"
            ));
        }
        problems
    }
}

#[async_trait]
impl Source for KafkaSource {
    fn system(&self) -> &'static str {
        "kafka"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new()
            .counts_hand_backs(false)
            .acks_in_order(true)
            .orders_by_key(true);
        capabilities.largest_payload = self.largest_payload;
        capabilities.redelivery_window = self.replay_window;
        capabilities
    }

    fn id_sources(&self) -> Vec<IdSource> {
        self.id_sources.clone()
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = self.cluster.problems();
        if self.topics.is_empty() {
            problems.push("the Kafka source has no topic: name one in `Kafka::topics`".to_owned());
        }
        for topic in &self.topics {
            let is_legal = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            if topic.is_empty() || topic.len() > LONGEST_TOPIC || !topic.chars().all(is_legal) {
                problems.push(format!(
                    "`{topic}` is no name of a Kafka topic (1 to {LONGEST_TOPIC} letters, digits, `.`, `_` and `-`): \
                     correct it in `Kafka::topic`"
                ));
            }
        }
        let distinct: BTreeSet<&String> = self.topics.iter().collect();
        if distinct.len() < self.topics.len() {
            problems.push(format!(
                "the Kafka topics {:?} name one twice: name each once in `Kafka::topics`",
                self.topics
            ));
        }
        match self.setting(&["group.id"]) {
            None | Some((_, "")) => problems.push(format!(
                "the Kafka source of {:?} has no consumer group (`group.id`), so nothing could be committed: name it \
                 with `.group(\"..\")`",
                self.topics
            )),
            Some(_) => {}
        }
        if self.revoke_wait.is_zero() {
            problems.push(
                "`revoke_wait` of a Kafka source is zero, so each rebalance would repeat what is in work: give it some \
                 seconds"
                    .to_owned(),
            );
        }
        problems.extend(self.setting_problems());
        if let Err(error) = self.config().create_native_config() {
            problems.push(refused(&error));
        }
        problems
    }

    /// The retention and the largest message of the topics. A record may stay a little longer than `retention.ms` says,
    /// because Kafka deletes whole segments.
    async fn learn(&self, _needs: &Needs) -> Result<Learned, SourceError> {
        let mut capabilities = self.capabilities();
        if self.replay_window.is_some() && self.largest_payload.is_some() {
            return Ok(Learned::new(capabilities));
        }
        let config = self.cluster.client(&[], &Settings::default());
        let topics = topic::ask(self.cluster.clone(), config, self.topics.clone()).await?;
        if self.replay_window.is_none() {
            capabilities.redelivery_window = topics.kept_for;
            capabilities.redelivery_setting = Some("retention.ms");
        }
        if self.largest_payload.is_none() {
            capabilities.largest_payload = topics.largest_payload;
        }
        Ok(Learned::new(capabilities))
    }

    async fn open(&self, prefetch: NonZeroUsize) -> Result<Assignment, SourceError> {
        let member = Member {
            cluster: self.cluster.clone(),
            config: self.config(),
            topics: self.topics.clone(),
            prefetch,
            ordered_by: self.ordered_by,
            type_header: self.type_header.clone(),
            skips_null_bodies: self.skips_null_bodies,
            revoke_wait: self.revoke_wait.min(self.poll_interval() / 2),
            outage_limit: self.milliseconds("session.timeout.ms", 45_000),
        };
        let shared = consumer::join(member).await?;
        let membership = Arc::new(Membership(Arc::clone(&shared)));
        Ok(Assignment {
            deliveries: Box::new(KafkaDeliveries(Arc::clone(&membership))),
            settle: Arc::new(KafkaSettle(membership)),
        })
    }
}

struct KafkaDeliveries(Arc<Membership>);

impl KafkaDeliveries {
    fn shared(&self) -> &Shared {
        &self.0.0
    }
}

#[async_trait]
impl Deliveries for KafkaDeliveries {
    async fn next(&mut self) -> Result<Option<Delivery>, SourceError> {
        self.shared().next().await
    }

    /// Returns when what is done is committed; with nothing in work, when the group is left.
    async fn stop(&mut self) {
        self.shared().stop();
        self.shared().stopped().await;
    }
}

impl Drop for KafkaDeliveries {
    fn drop(&mut self) {
        // Nobody takes what would be fetched.
        self.shared().stop();
    }
}

struct KafkaSettle(Arc<Membership>);

#[async_trait]
impl Settle for KafkaSettle {
    async fn settle(&self, verdicts: Vec<(SettleToken, Verdict)>) -> Vec<Result<(), SettleError>> {
        self.0.0.settle(&verdicts).await
    }

    fn is_gone(&self) -> bool {
        self.0.0.lock().is_gone()
    }

    fn is_void(&self, token: &SettleToken) -> bool {
        let is_void = self.0.0.lock().is_void(token);
        if is_void {
            self.0.0.wake_poller();
        }
        is_void
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source() -> KafkaSource {
        Kafka::new("localhost:9092")
            .topic("orders")
            .group("billing")
    }

    #[test]
    fn a_source_says_what_kafka_can_do() {
        let capabilities = source().capabilities();
        assert_eq!(capabilities.longest_delay, None);
        assert_eq!(capabilities.settle_window, None);
        assert!(!capabilities.counts_hand_backs);
        assert!(capabilities.orders_by_key);
    }

    #[test]
    fn wrong_settings_are_named_with_their_remedy() {
        let cluster = || Kafka::new("localhost:9092");
        for (source, says) in [
            (cluster().topic("orders"), "`.group(\"..\")`"),
            (cluster().topic("orders").group(""), "group.id"),
            (cluster().topic("").group("billing"), "Kafka::topic"),
            (cluster().topic("^orders.*").group("billing"), "`^orders.*`"),
            (cluster().topics(["a", "a"]).group("billing"), "twice"),
            (
                Kafka::new("nowhere").topic("orders").group("billing"),
                "`nowhere`",
            ),
            (
                source().set("enable.auto.commit", "true"),
                "`enable.auto.commit` is `true`",
            ),
            (
                source().set("auto.commit.enable", "true"),
                "`auto.commit.enable` is `true`",
            ),
            (
                source().set("enable.auto.offset.store", "true"),
                "`enable.auto.offset.store` is `true`",
            ),
            (
                source().set("auto.offset.reset", "latest"),
                "`auto.offset.reset` is `latest`",
            ),
            (
                source().set("max.poll.interval.ms", "4999"),
                "`max.poll.interval.ms` is 4999",
            ),
            (
                source().set("sesion.timeout.ms", "6000"),
                "`sesion.timeout.ms`",
            ),
            (
                source().set("session.timeout.ms", "soon"),
                "`session.timeout.ms` = `soon`",
            ),
            (source().revoke_wait(Duration::ZERO), "revoke_wait"),
        ] {
            let problems = source.problems();
            assert_eq!(problems.len(), 1, "{says}: {problems:?}");
            assert!(problems[0].contains(says), "{says}: {problems:?}");
        }
        let on_the_cluster = cluster()
            .set("enable.auto.commit", "true")
            .topic("orders")
            .group("billing");
        assert_eq!(on_the_cluster.problems().len(), 1);
    }

    #[test]
    fn settings_that_agree_with_ours_are_no_problem() {
        let source = source()
            .set("enable.auto.commit", "false")
            .set("auto.offset.reset", "earliest")
            .set("max.poll.interval.ms", "6000")
            .set("session.timeout.ms", "6000")
            .set("partition.assignment.strategy", "range");
        assert_eq!(source.problems(), Vec::<String>::new());
    }

    #[test]
    fn a_feature_that_is_not_built_in_is_named() {
        if cfg!(feature = "kafka-ssl") {
            return;
        }
        let problems = source().set("security.protocol", "ssl").problems();
        assert!(problems[0].contains("kafka-ssl"), "{problems:?}");
    }
}
