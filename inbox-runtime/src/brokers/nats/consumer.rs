//! Streams and consumers: what a source makes, what it finds, and what is wrong with that.

use std::num::NonZeroU32;
use std::time::Duration;

use inbox_core::{Capabilities, Needs};
use serde_json::{Value, json};

/// JetStream's `ack_wait` where nobody set it.
const ACK_WAIT: Duration = Duration::from_secs(30);

/// A durable pull consumer as a source makes it where there is none.
///
/// One that is there already is never changed. Whatever is said here must then be true of it, or the source is not opened;
/// what is not said may be as it likes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConsumerDeclaration {
    filters: Vec<String>,
    deliver_from: Option<DeliverFrom>,
    ack_wait: Option<Duration>,
    max_ack_pending: Option<u32>,
    max_deliver: Option<NonZeroU32>,
}

/// Where in the stream a new consumer begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeliverFrom {
    /// With the oldest message that the stream has.
    First,
    /// With what is published after the consumer was made.
    New,
    /// With the message of this sequence number.
    Sequence(u64),
}

impl ConsumerDeclaration {
    /// A consumer of all messages of its stream, from the oldest on, with an explicit ack for each, which it delivers until
    /// they are acked.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes only messages of this subject, which may have wildcards. Several filters must not overlap, and need a server
    /// from 2.10 on.
    #[must_use]
    pub fn filter(mut self, subject: impl Into<String>) -> Self {
        self.filters.push(subject.into());
        self
    }

    /// Where it begins. The default is the oldest message.
    #[must_use]
    pub const fn deliver_from(mut self, from: DeliverFrom) -> Self {
        self.deliver_from = Some(from);
        self
    }

    /// How long the server waits for an ack, or a sign that work goes on, before it delivers the message again. The default
    /// is 30 seconds. After a crash it is the time for which a message waits.
    #[must_use]
    pub const fn ack_wait(mut self, wait: Duration) -> Self {
        self.ack_wait = Some(wait);
        self
    }

    /// How many messages may be unacked at a time, in all processes together; the server delivers nothing more until some
    /// are acked. It counts those that wait for a delayed retry. The default is 1000.
    #[must_use]
    pub const fn max_ack_pending(mut self, messages: u32) -> Self {
        self.max_ack_pending = Some(messages);
        self
    }

    /// How often the server delivers a message. By default it does so until the message is acked, which is what an inbox
    /// needs: a message that used this up stays in the stream and is never delivered again, and nobody is told.
    #[must_use]
    pub const fn max_deliver(mut self, deliveries: NonZeroU32) -> Self {
        self.max_deliver = Some(deliveries);
        self
    }

    pub(super) fn problems(&self, consumer: &str) -> Vec<String> {
        let mut problems = Vec::new();
        let mut wrong =
            |what: String| problems.push(format!("the consumer `{consumer}` is declared {what}"));
        for filter in &self.filters {
            let is_subject = !filter.is_empty()
                && filter.split('.').all(|token| !token.is_empty())
                && !filter.contains(char::is_whitespace);
            if !is_subject {
                wrong(format!(
                    "with the filter `{filter}`, which is no subject: write it as `orders.*` or `orders.>`"
                ));
            }
        }
        if self
            .ack_wait
            .is_some_and(|wait| wait.is_zero() || wait > Duration::from_secs(30 * 24 * 60 * 60))
        {
            wrong(format!(
                "with an `ack_wait` of {:?}: give it some seconds, and at most 30 days",
                self.ack_wait.unwrap_or_default()
            ));
        }
        if self.max_ack_pending == Some(0) {
            wrong("with `max_ack_pending(0)`: give it at least the prefetch".to_owned());
        }
        if self.deliver_from == Some(DeliverFrom::Sequence(0)) {
            wrong("to begin with the sequence 0: streams count from 1".to_owned());
        }
        problems
    }

    /// How long the server waits for an ack.
    pub(super) fn waits(&self) -> Duration {
        self.ack_wait.unwrap_or(ACK_WAIT)
    }

    /// The server's words for it.
    pub(super) fn config(&self, consumer: &str) -> Value {
        let mut config = json!({
            "durable_name": consumer,
            "ack_policy": "explicit",
            "replay_policy": "instant",
            "ack_wait": nanoseconds(self.waits()),
            "max_deliver": self.max_deliver.map_or(-1, |most| i64::from(most.get())),
            "deliver_policy": "all",
        });
        if let Some(most) = self.max_ack_pending {
            config["max_ack_pending"] = most.into();
        }
        match self.deliver_from {
            None | Some(DeliverFrom::First) => {}
            Some(DeliverFrom::New) => config["deliver_policy"] = "new".into(),
            Some(DeliverFrom::Sequence(first)) => {
                config["deliver_policy"] = "by_start_sequence".into();
                config["opt_start_seq"] = first.into();
            }
        }
        match self.filters.as_slice() {
            [] => {}
            [one] => config["filter_subject"] = one.as_str().into(),
            many => config["filter_subjects"] = json!(many),
        }
        config
    }

    /// Where an existing consumer is not as declared: the setting, what it is, and what it should be.
    fn differences(&self, found: &Value) -> Vec<String> {
        let declared = self.config("");
        let said = [
            ("ack_wait", self.ack_wait.is_some()),
            ("max_ack_pending", self.max_ack_pending.is_some()),
            ("max_deliver", self.max_deliver.is_some()),
            ("deliver_policy", self.deliver_from.is_some()),
            (
                "opt_start_seq",
                matches!(self.deliver_from, Some(DeliverFrom::Sequence(_))),
            ),
            ("filter_subject", self.filters.len() == 1),
            ("filter_subjects", self.filters.len() > 1),
        ];
        let said = said.into_iter().filter(|(_, is_said)| *is_said);
        said.filter(|(name, _)| found[name] != declared[name])
            .map(|(name, _)| format!("its `{name}` is {} and not {}", found[name], declared[name]))
            .collect()
    }
}

/// A time as JetStream writes it.
fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// A time that JetStream wrote; `None`: none is set.
fn duration(nanoseconds: &Value) -> Option<Duration> {
    let nanoseconds = nanoseconds.as_u64().filter(|nanoseconds| *nanoseconds > 0);
    nanoseconds.map(Duration::from_nanos)
}

/// The settings of a stream and of its consumer, as the server has them.
#[derive(Debug, Clone)]
pub(super) struct Found {
    stream: Value,
    consumer: Value,
    /// The largest message that the server takes, in bytes; 0: it did not say.
    max_payload: u64,
}

impl Found {
    pub(super) const fn new(stream: Value, consumer: Value, max_payload: u64) -> Self {
        Self {
            stream,
            consumer,
            max_payload,
        }
    }

    /// How long the server waits for a delivery to be acked, at its shortest: `backoff` stands in for `ack_wait`.
    pub(super) fn ack_wait(&self) -> Duration {
        let backoff = self.consumer["backoff"].as_array();
        let backoff = backoff.into_iter().flatten().filter_map(duration);
        let ack_wait = duration(&self.consumer["ack_wait"]).unwrap_or(ACK_WAIT);
        backoff.fold(ack_wait, Duration::min)
    }

    /// The largest number of messages that one request may ask for, if there is such a limit.
    pub(super) fn most_in_a_request(&self) -> Option<usize> {
        positive(&self.consumer["max_batch"]).and_then(|most| usize::try_from(most).ok())
    }

    /// The longest time for which a request may wait at the server, if there is such a limit.
    pub(super) fn longest_request(&self) -> Option<Duration> {
        duration(&self.consumer["max_expires"])
    }

    /// How often the server delivers a message, if there is such a limit.
    pub(super) fn max_deliver(&self) -> Option<u64> {
        positive(&self.consumer["max_deliver"])
    }

    /// What the broker's own settings change in what a source can do.
    pub(super) fn refine(
        &self,
        mut capabilities: Capabilities,
        is_extended: bool,
        replay_window: Option<Duration>,
    ) -> Capabilities {
        if !is_extended {
            capabilities.settle_window = Some(self.ack_wait());
        }
        if self.max_deliver().is_some() {
            // Each delivery may be the last one, so none is given back while it can be held or parked.
            capabilities.longest_delay = None;
        }
        // What WorkQueue and Interest streams were told to be done with is deleted.
        if self.stream["retention"] == "limits" {
            let kept = duration(&self.stream["max_age"]).unwrap_or(Duration::MAX);
            let replayed = replay_window.unwrap_or(Duration::MAX);
            capabilities.redelivery_window = Some(kept.min(replayed));
        }
        let limits = [
            (self.max_payload > 0).then_some(self.max_payload),
            positive(&self.stream["max_msg_size"]),
        ];
        if let Some(largest) = limits.into_iter().flatten().min() {
            capabilities.largest_payload = Some(largest);
        }
        capabilities
    }

    /// Settings under which messages would be lost or not be delivered.
    pub(super) fn problems(
        &self,
        name: &str,
        declared: Option<&ConsumerDeclaration>,
        needs: &Needs,
    ) -> Vec<String> {
        let consumer = &self.consumer;
        let mut problems = Vec::new();
        let mut wrong = |what: String| problems.push(format!("the consumer `{name}` {what}"));
        if consumer["deliver_subject"].is_string() {
            wrong(
                "is a push consumer (`deliver_subject`), which sends without being asked: make a pull consumer, or let the \
                 source make it with `.declare(ConsumerDeclaration::new())` under another name"
                    .to_owned(),
            );
        }
        if !consumer["durable_name"].is_string() {
            wrong(
                "is not durable, so the server forgets what was acked when nobody asks it for a while: make it with a \
                 `durable_name`"
                    .to_owned(),
            );
        }
        let ack_policy = consumer["ack_policy"].as_str().unwrap_or_default();
        if ack_policy != "explicit" {
            wrong(format!(
                "has the `ack_policy` {ack_policy}, under which messages that are still in work would count as acked: \
                 make it with `explicit`"
            ));
        }
        if consumer["headers_only"] == true {
            wrong("delivers no payloads (`headers_only`): make it without".to_owned());
        }
        if let Some(most) = positive(&consumer["max_bytes"]) {
            wrong(format!(
                "limits requests to {most} bytes (`max_bytes`), so a larger message would be stuck: make it without, and \
                 bound what is in flight by the prefetch"
            ));
        }
        if let Some(most) = self.max_deliver()
            && most <= u64::from(needs.most_attempts)
        {
            wrong(format!(
                "delivers a message at most {most} times (`max_deliver`), but handlers try it up to {} times \
                 (`max_attempts`): what used that up is neither delivered again nor kept as a dead letter; make \
                 `max_deliver` unlimited (-1), or at least well above `max_attempts`",
                needs.most_attempts
            ));
        }
        if let Some(most) = positive(&consumer["max_ack_pending"])
            && usize::try_from(most).is_ok_and(|most| most < needs.prefetch.get())
        {
            wrong(format!(
                "has at most {most} messages unacked (`max_ack_pending`), less than the prefetch of {}: raise the one, or \
                 lower the other with `.prefetch(..)`",
                needs.prefetch
            ));
        }
        let differences = declared.map(|declared| declared.differences(consumer));
        for difference in differences.into_iter().flatten() {
            wrong(format!(
                "is there already and not as declared: {difference}; change the declaration, or the consumer with the \
                 tools of NATS"
            ));
        }
        problems
    }
}

/// A limit; `None`: there is none, which JetStream writes as 0, -1 or nothing.
fn positive(limit: &Value) -> Option<u64> {
    limit.as_u64().filter(|limit| *limit > 0)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn needs() -> Needs {
        let prefetch = NonZeroUsize::new(8).unwrap();
        Needs::new(prefetch, Duration::from_secs(30), 5)
    }

    /// The consumer of a declaration, as a server reports it, and what else it says of it.
    fn found(declaration: &ConsumerDeclaration, more: &Value) -> Found {
        let mut consumer = declaration.config("billing");
        for (name, value) in more.as_object().into_iter().flatten() {
            consumer[name] = value.clone();
        }
        let stream =
            json!({"retention": "limits", "max_age": nanoseconds(DAY), "max_msg_size": -1});
        Found::new(stream, consumer, 1024)
    }

    #[test]
    fn times_are_sent_in_nanoseconds() {
        let declaration = ConsumerDeclaration::new().ack_wait(Duration::from_secs(20));
        let config = declaration.config("billing");
        assert_eq!(config["ack_wait"].to_string(), "20000000000");
        assert_eq!(config["max_deliver"], -1);
        assert_eq!(config["ack_policy"], "explicit");
        assert_eq!(config["durable_name"], "billing");
        assert_eq!(
            ConsumerDeclaration::new().config("billing")["ack_wait"],
            30_000_000_000_u64
        );
    }

    #[test]
    fn filters_are_one_subject_or_a_list() {
        let one = ConsumerDeclaration::new().filter("a.*");
        assert_eq!(one.config("c")["filter_subject"], "a.*");
        let two = one.filter("b.>").config("c");
        assert_eq!(two["filter_subjects"], json!(["a.*", "b.>"]));
        assert!(two.get("filter_subject").is_none());
    }

    #[test]
    fn declarations_that_cannot_be_meant_are_refused() {
        for (declaration, says) in [
            (ConsumerDeclaration::new().filter(""), "filter"),
            (ConsumerDeclaration::new().filter("a..b"), "`a..b`"),
            (ConsumerDeclaration::new().filter("a b"), "`a b`"),
            (
                ConsumerDeclaration::new().ack_wait(Duration::ZERO),
                "ack_wait",
            ),
            (
                ConsumerDeclaration::new().ack_wait(Duration::MAX),
                "ack_wait",
            ),
            (
                ConsumerDeclaration::new().max_ack_pending(0),
                "max_ack_pending",
            ),
            (
                ConsumerDeclaration::new().deliver_from(DeliverFrom::Sequence(0)),
                "sequence 0",
            ),
        ] {
            let problems = declaration.problems("billing");
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert!(problems[0].contains(says), "{says}: {problems:?}");
            assert!(problems[0].contains("`billing`"), "{problems:?}");
        }
        assert!(ConsumerDeclaration::new().problems("billing").is_empty());
    }

    #[test]
    fn what_is_declared_goes_with_what_it_makes() {
        let all = ConsumerDeclaration::new()
            .filter("a")
            .deliver_from(DeliverFrom::Sequence(7))
            .ack_wait(Duration::from_secs(5))
            .max_ack_pending(100)
            .max_deliver(NonZeroU32::new(50).unwrap());
        for declaration in [ConsumerDeclaration::new(), all.clone()] {
            let problems =
                found(&declaration, &json!({})).problems("billing", Some(&declaration), &needs());
            assert_eq!(problems, Vec::<String>::new());
        }
        // What is not said may be as it likes.
        let problems = found(&all, &json!({})).problems(
            "billing",
            Some(&ConsumerDeclaration::new()),
            &needs(),
        );
        assert_eq!(problems, Vec::<String>::new());
        let problems = found(&ConsumerDeclaration::new(), &json!({})).problems(
            "billing",
            Some(&all),
            &needs(),
        );
        assert_eq!(problems.len(), 6, "{problems:?}");
        for says in [
            "`filter_subject` is null and not \"a\"",
            "`ack_wait` is 30000000000 and not 5000000000",
            "`max_deliver` is -1 and not 50",
        ] {
            assert!(
                problems.iter().any(|problem| problem.contains(says)),
                "{says}: {problems:?}"
            );
        }
    }

    #[test]
    fn consumers_that_lose_messages_are_refused_by_the_setting() {
        for (more, says) in [
            (json!({"ack_policy": "all"}), "`ack_policy` all"),
            (json!({"ack_policy": "none"}), "`ack_policy` none"),
            (json!({"deliver_subject": "x"}), "push consumer"),
            (json!({"durable_name": null}), "not durable"),
            (json!({"headers_only": true}), "headers_only"),
            (json!({"max_bytes": 100}), "100 bytes"),
            (json!({"max_deliver": 5}), "5 times (`max_deliver`)"),
            (
                json!({"max_ack_pending": 7}),
                "7 messages unacked (`max_ack_pending`)",
            ),
        ] {
            let problems =
                found(&ConsumerDeclaration::new(), &more).problems("billing", None, &needs());
            assert_eq!(problems.len(), 1, "{says}: {problems:?}");
            assert!(problems[0].contains(says), "{says}: {problems:?}");
        }
        for fine in [
            json!({"max_deliver": 6, "max_ack_pending": 8}),
            json!({"max_deliver": 0, "max_ack_pending": -1}),
        ] {
            let problems =
                found(&ConsumerDeclaration::new(), &fine).problems("billing", None, &needs());
            assert_eq!(problems, Vec::<String>::new());
        }
    }

    #[test]
    fn the_shortest_wait_counts() {
        let seconds = |seconds: u64| seconds * 1_000_000_000;
        let backoff = json!({"backoff": [seconds(5), seconds(1), seconds(60)]});
        let found = found(&ConsumerDeclaration::new(), &backoff);
        assert_eq!(found.ack_wait(), Duration::from_secs(1));
    }

    #[test]
    fn how_long_a_message_can_come_again_is_the_streams_to_say() {
        let window = |stream: Value, stated| {
            let found = Found::new(stream, ConsumerDeclaration::new().config("billing"), 0);
            found
                .refine(Capabilities::new(), true, stated)
                .redelivery_window
        };
        let limits = |age: Duration| json!({"retention": "limits", "max_age": nanoseconds(age)});
        assert_eq!(window(limits(DAY), None), Some(DAY));
        assert_eq!(window(limits(Duration::ZERO), None), Some(Duration::MAX));
        assert_eq!(window(limits(Duration::ZERO), Some(DAY)), Some(DAY));
        assert_eq!(window(limits(DAY), Some(DAY * 2)), Some(DAY));
        assert_eq!(window(json!({"retention": "workqueue"}), None), None);
        assert_eq!(
            window(json!({"retention": "interest", "max_age": 5}), None),
            None
        );
    }

    #[test]
    fn the_servers_limits_are_those_of_the_source() {
        let own = Capabilities::new().longest_delay(DAY);
        let unlimited =
            found(&ConsumerDeclaration::new(), &json!({})).refine(own.clone(), false, None);
        assert_eq!(unlimited.settle_window, Some(Duration::from_secs(30)));
        assert_eq!(unlimited.longest_delay, Some(DAY));
        assert_eq!(unlimited.largest_payload, Some(1024));
        let limited = found(&ConsumerDeclaration::new(), &json!({"max_deliver": 50}))
            .refine(own, false, None);
        assert_eq!(limited.longest_delay, None, "no delivery is wasted");
        let extended =
            found(&ConsumerDeclaration::new(), &json!({})).refine(Capabilities::new(), true, None);
        assert_eq!(extended.settle_window, None);
    }
}
