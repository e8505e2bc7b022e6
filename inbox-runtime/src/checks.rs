//! What `build()` finds out before the first message; everything that is wrong is reported together.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use inbox_core::{
    Capabilities, ConsumerName, DedupKey, HandlerSpec, IdSource, Isolation, Learned, Needs,
    RetryDelays, broker_side_identifier,
};

use crate::backoff::{self, RetryPolicy};

/// How many connections the runtime needs besides one per worker: start-up and maintenance.
pub(crate) const MAINTENANCE_CONNECTIONS: usize = 1;

/// How much longer than the longest redelivery a claim is remembered: for clocks that differ, and for a message that
/// is on its way.
const RETENTION_MARGIN: Duration = Duration::from_secs(60 * 60);

const SHORTEST_RETENTION: Duration = Duration::from_secs(60);
const LONGEST_RETENTION: Duration = Duration::from_secs(36_525 * 24 * 60 * 60);

/// A source as the checks see it.
#[derive(Debug)]
pub(crate) struct SourceFacts {
    pub(crate) name: String,
    pub(crate) id_sources: Vec<IdSource>,
    pub(crate) id_scope: Option<String>,
    pub(crate) problems: Vec<String>,
}

/// What the settings of a source have to go with. Asked when the inbox is built, and whenever the source is opened, since
/// a broker may come late and its settings may change.
#[derive(Debug, Clone)]
pub(crate) struct Demands {
    pub(crate) source: String,
    pub(crate) needs: Needs,
    /// The handlers that listen to it.
    pub(crate) handlers: Vec<HandlerSpec>,
    pub(crate) retention: Duration,
    /// How long a message of it can come again, as the builder was told.
    pub(crate) redelivery_window: Option<Duration>,
    /// The largest payload that the database stores, once that is known.
    pub(crate) storable: Option<Storable>,
}

/// The largest payload that a database stores.
#[derive(Debug, Clone)]
pub(crate) struct Storable {
    pub(crate) database: &'static str,
    pub(crate) bytes: u64,
    pub(crate) limited_by: &'static str,
}

impl Demands {
    /// What is wrong with a source that is as its broker says.
    pub(crate) fn unmet(&self, learned: &Learned) -> Vec<String> {
        let of_broker = learned.problems.iter();
        let mut problems: Vec<_> = of_broker
            .map(|problem| format!("source `{}`: {problem}", self.source))
            .collect();
        problems.extend(self.settling(&learned.capabilities));
        problems.extend(self.remembering(&learned.capabilities));
        problems.extend(self.storing(&learned.capabilities));
        problems
    }

    /// A handler must be able to end before the broker delivers its message once more.
    fn settling(&self, capabilities: &Capabilities) -> Vec<String> {
        let Some(window) = capabilities.settle_window else {
            return Vec::new();
        };
        let slow = self.handlers.iter().filter(|spec| spec.timeout > window);
        slow.map(|spec| {
            format!(
                "source `{}`: the broker takes a delivery away after {}{}, but {} may run for {}: its message would be \
                 delivered again meanwhile; raise the one at the broker, or lower the handler's `timeout`",
                self.source,
                in_words(window),
                setting(capabilities.settle_setting),
                place(spec),
                in_words(spec.timeout),
            )
        })
        .collect()
    }

    /// Claims must outlive the last redelivery of their message.
    fn remembering(&self, capabilities: &Capabilities) -> Option<String> {
        let (stated, known) = (self.redelivery_window, capabilities.redelivery_window);
        // Without a window nothing is known that could contradict.
        let window = stated.max(known).filter(|window| !window.is_zero())?;
        let needed = window.saturating_add(RETENTION_MARGIN);
        let is_possible = (SHORTEST_RETENTION..=LONGEST_RETENTION).contains(&self.retention);
        if self.retention >= needed || !is_possible {
            return None;
        }
        let remedy = if needed <= LONGEST_RETENTION {
            format!("give `.retention(..)` at least {}", in_words(needed))
        } else {
            "let the broker forget its messages earlier".to_owned()
        };
        Some(format!(
            "source `{}` can deliver a message again {}{}, but the retention of {} forgets it earlier (a margin of {} \
             included), and it would be processed twice; {remedy}",
            self.source,
            if window == Duration::MAX {
                "for ever".to_owned()
            } else {
                format!("for {}", in_words(window))
            },
            setting(
                capabilities
                    .redelivery_setting
                    .filter(|_| known == Some(window))
            ),
            in_words(self.retention),
            in_words(RETENTION_MARGIN),
        ))
    }

    /// What the database cannot store can be neither parked nor kept.
    fn storing(&self, capabilities: &Capabilities) -> Option<String> {
        let storable = self.storable.as_ref()?;
        let bytes = capabilities.largest_payload?;
        (bytes > storable.bytes).then(|| {
            format!(
                "source `{}` delivers payloads of up to {bytes} bytes, but {} stores at most {} ({}): a larger one could \
                 be neither parked nor kept as a dead letter; raise that limit, or lower the broker's",
                self.source, storable.database, storable.bytes, storable.limited_by
            )
        })
    }
}

/// What the broker calls it, to be put behind the value.
fn setting(name: Option<&str>) -> String {
    name.map(|name| format!(" (`{name}`)")).unwrap_or_default()
}

/// `name (file:line)`: where a person finds the handler.
pub(crate) fn place(spec: &HandlerSpec) -> String {
    format!("`{}` ({}:{})", spec.name, spec.file, spec.line)
}

pub(crate) fn handlers(
    specs: &[HandlerSpec],
    sources: &[SourceFacts],
    levels: &[Isolation],
    database: &str,
) -> Vec<String> {
    let mut problems = Vec::new();
    if specs.is_empty() {
        problems.push("no handler is registered; add `.register(name::handler())`".to_owned());
    }
    for spec in specs {
        let place = place(spec);
        if let Err(error) = ConsumerName::new(spec.consumer) {
            problems.push(format!("{place}: {error}"));
        }
        for from in spec.from {
            if !sources.iter().any(|source| source.name == *from) {
                problems.push(format!(
                    "{place} listens to the source `{from}`, which does not exist; the sources are {}",
                    list(sources.iter().map(|source| source.name.as_str()))
                ));
            }
        }
        if let DedupKey::Header(name) = spec.key
            && let Some(why) = broker_side_identifier(name)
        {
            problems.push(format!(
                "{place}: the header `{name}` cannot identify a message: {why}"
            ));
        }
        if spec.timeout.is_zero() {
            problems.push(format!(
                "{place}: a timeout of 0 ends every call; give it some time"
            ));
        }
        if spec.max_attempts == 0 {
            problems.push(format!(
                "{place}: max_attempts = 0 would try no message; give 1 or more"
            ));
        }
        if !levels.contains(&spec.isolation) {
            problems.push(format!(
                "{place} asks for isolation {}, which {database} does not have; remove `isolation`",
                spec.isolation.as_sql().to_lowercase()
            ));
        }
    }
    for (position, one) in specs.iter().enumerate() {
        for other in specs.iter().skip(position + 1) {
            if one.consumer == other.consumer
                && meet(one.from, other.from)
                && meet(one.on, other.on)
            {
                problems.push(format!(
                    "two handlers of consumer `{}` take the same messages, and each message would reach only one \
                     of them: {} and {}; give one of them another consumer, or tell them apart with `on` or `from`",
                    one.consumer,
                    place(one),
                    place(other)
                ));
            }
        }
    }
    problems
}

/// Delays of a handler that make no sense by themselves, or with what the builder says where the handler does not.
pub(crate) fn retries(specs: &[HandlerSpec], builders: &RetryPolicy) -> Vec<String> {
    let problem = |spec: &HandlerSpec| {
        let problem = retry_problem(spec.retry, builders)?;
        Some(format!("{}: {problem}", place(spec)))
    };
    specs.iter().filter_map(problem).collect()
}

fn retry_problem(own: RetryDelays, builders: &RetryPolicy) -> Option<String> {
    for (name, delay) in [("first", own.first), ("longest", own.longest)] {
        if let Some(delay) = delay.filter(|delay| delay.is_zero() || *delay > backoff::DAY) {
            return Some(format!(
                "a {name} retry delay of {delay:?}; it must be above zero and at most a day"
            ));
        }
    }
    let RetryPolicy { first, longest, .. } = builders.of_handler(own);
    if first <= longest {
        return None;
    }
    match (own.first, own.longest) {
        (Some(_), Some(_)) => Some(format!(
            "the first retry delay of {first:?} is above the longest of {longest:?}; lower the one or raise the other"
        )),
        (Some(_), None) => Some(format!(
            "the first retry delay of {first:?} is above the builder's longest of {longest:?}; give the handler a \
             `longest` too, or raise `longest_delay(..)` of the builder's policy"
        )),
        (None, Some(_)) => Some(format!(
            "the longest retry delay of {longest:?} is below the builder's first of {first:?}; give the handler a \
             `first` too, or lower `first_delay(..)` of the builder's policy"
        )),
        // Told of the builder's policy by itself.
        (None, None) => None,
    }
}

/// Whether two lists that mean "everything" when they are empty have something in common.
fn meet(one: &[&str], other: &[&str]) -> bool {
    one.is_empty() || other.is_empty() || one.iter().any(|name| other.contains(name))
}

pub(crate) fn sources(sources: &[SourceFacts], specs: &[HandlerSpec]) -> Vec<String> {
    let mut problems = Vec::new();
    if sources.is_empty() {
        problems.push("no source is given; add `.source(\"name\", ..)`".to_owned());
    }
    let mut seen = BTreeSet::new();
    for source in sources {
        let name = &source.name;
        if name.trim().is_empty() {
            problems.push("a source has an empty name".to_owned());
        }
        if name.contains(char::is_control) {
            problems.push(format!(
                "the source name {name:?} has a control character, which not every database can store with a dead \
                 letter"
            ));
        }
        if !seen.insert(name) {
            problems.push(format!("two sources are named `{name}`; names are stored with dead letters, so give each its own"));
        }
        problems.extend(
            source
                .problems
                .iter()
                .map(|problem| format!("source `{name}`: {problem}")),
        );
        problems.extend(id_places(name, &source.id_sources));
        if let Some(scope) = &source.id_scope
            && (scope.is_empty() || scope.contains('/') || scope.contains('\0') || scope.len() > 64)
        {
            problems.push(format!(
                "source `{name}`: the id scope {scope:?} must have 1 to 64 bytes and no `/`: it becomes the first part \
                 of every id"
            ));
        }
        let listened = specs
            .iter()
            .any(|spec| spec.from.is_empty() || spec.from.contains(&name.as_str()));
        if !listened && !specs.is_empty() {
            problems.push(format!(
                "no handler listens to the source `{name}`: every message of it would become a dead letter; register \
                 a handler for it or remove it"
            ));
        }
    }
    problems
}

/// What is wrong with the places in which a source looks for a message's id, whatever its adapter is.
fn id_places(source: &str, places: &[IdSource]) -> Vec<String> {
    if places.is_empty() {
        return vec![format!(
            "source `{source}` looks for the message id nowhere: name at least one place in `id_from`"
        )];
    }
    places
        .iter()
        .filter_map(|place| match place {
            IdSource::Header(name) if name.is_empty() => Some(format!(
                "source `{source}` looks for the message id in a header without a name: name it in `id_header`"
            )),
            IdSource::Header(name) => broker_side_identifier(name).map(|why| {
                format!(
                    "source `{source}` looks for the message id in the header `{name}`, but {why}: take a header that \
                     the producer sets once per message and repeats on every retry"
                )
            }),
            _ => None,
        })
        .collect()
}

/// A consumer that is fed by two sources must know whether one id means one message in both.
pub(crate) fn id_spaces(
    specs: &[HandlerSpec],
    sources: &[SourceFacts],
    shared: &[BTreeSet<String>],
) -> Vec<String> {
    let mut problems = Vec::new();
    let mut fed: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for spec in specs
        .iter()
        .filter(|spec| spec.key != DedupKey::CloudEvents)
    {
        let of = sources
            .iter()
            .filter(|source| spec.from.is_empty() || spec.from.contains(&source.name.as_str()));
        fed.entry(spec.consumer)
            .or_default()
            .extend(of.map(|source| source.name.as_str()));
    }
    for names in shared {
        for name in names
            .iter()
            .filter(|name| !sources.iter().any(|source| source.name == **name))
        {
            problems.push(format!(
                "shared_id_space names the source `{name}`, which does not exist"
            ));
        }
    }
    for (consumer, fed_by) in fed {
        let all_scoped = fed_by.iter().all(|name| {
            sources
                .iter()
                .any(|source| source.name == *name && source.id_scope.is_some())
        });
        let all_shared = shared
            .iter()
            .any(|names| fed_by.iter().all(|name| names.contains(*name)));
        if fed_by.len() > 1 && !all_scoped && !all_shared {
            problems.push(format!(
                "consumer `{consumer}` is fed by several sources ({}): if one id means the same message in all of \
                 them, add `.shared_id_space([{}])`; if not, give each an `.id_scope(..)` or use `key = \"cloudevents\"`",
                list(fed_by.iter().copied()),
                fed_by.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
            ));
        }
    }
    problems
}

/// Sizes that do not fit together.
pub(crate) fn sizes(
    concurrency: usize,
    prefetch: usize,
    pool: usize,
    limit: Option<usize>,
    database: &str,
) -> Vec<String> {
    let mut problems = Vec::new();
    if concurrency == 0 {
        problems.push("concurrency(0): nothing would be processed; give 1 or more".to_owned());
    }
    if prefetch == 0 {
        problems.push(
            "prefetch(0): nothing would be delivered; give at least the concurrency".to_owned(),
        );
    } else if prefetch < concurrency {
        problems.push(format!(
            "prefetch({prefetch}) is less than the concurrency of {concurrency}: workers would idle"
        ));
    }
    if let Some(limit) = limit.filter(|limit| concurrency > *limit) {
        problems.push(format!(
            "concurrency({concurrency}): {database} writes one transaction at a time, so at most {limit} is of use"
        ));
    }
    let needed = concurrency + MAINTENANCE_CONNECTIONS;
    if pool < needed {
        problems.push(format!(
            "the pool has at most {pool} connections, but {concurrency} workers and {MAINTENANCE_CONNECTIONS} for \
             maintenance need {needed}; raise `max_connections` or lower the concurrency"
        ));
    }
    problems
}

/// How long claims are kept must make sense by itself.
pub(crate) fn retention(retention: Duration) -> Vec<String> {
    let told = in_words(retention);
    if retention < SHORTEST_RETENTION {
        return vec![format!(
            "retention({told}) is shorter than {}: messages would be forgotten while they are delivered again; the \
             default is 14 days, and `.without_purge()` keeps everything",
            in_words(SHORTEST_RETENTION)
        )];
    }
    if retention > LONGEST_RETENTION {
        return vec![format!(
            "retention({told}) is longer than {}; to keep everything use `.without_purge()`",
            in_words(LONGEST_RETENTION)
        )];
    }
    Vec::new()
}

/// A time as a person would say it, where it comes out even.
fn in_words(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds == 0 || time.subsec_nanos() != 0 {
        return format!("{time:?}");
    }
    let (count, unit) = [(24 * 60 * 60, "day"), (60 * 60, "hour"), (60, "minute")]
        .into_iter()
        .find(|(unit, _)| seconds.is_multiple_of(*unit))
        .map_or((seconds, "second"), |(unit, name)| (seconds / unit, name));
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {unit}{plural}")
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.map(|name| format!("`{name}`")).collect();
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::time::Duration;

    use super::*;

    fn spec(consumer: &'static str) -> HandlerSpec {
        HandlerSpec::new(consumer, "app::handler", "src/app.rs", 7)
    }

    fn source(name: &str) -> SourceFacts {
        SourceFacts {
            name: name.to_owned(),
            id_sources: vec![IdSource::Property],
            id_scope: None,
            problems: vec![],
        }
    }

    fn problems_of(specs: &[HandlerSpec], names: &[&str]) -> Vec<String> {
        let sources: Vec<_> = names.iter().map(|name| source(name)).collect();
        handlers(specs, &sources, &[Isolation::ReadCommitted], "SQLite")
    }

    #[test]
    fn overlapping_handlers_of_one_consumer_are_named() {
        let found = problems_of(&[spec("billing"), spec("billing").on(&["A"])], &["orders"]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].matches("src/app.rs:7").count() == 2, "{found:?}");
        assert!(
            problems_of(
                &[spec("billing").on(&["A"]), spec("billing").on(&["B"])],
                &["orders"]
            )
            .is_empty()
        );
        assert!(problems_of(&[spec("billing"), spec("stock")], &["orders"]).is_empty());
    }

    #[test]
    fn unknown_sources_levels_and_keys_are_named() {
        let bad = spec("billing")
            .from(&["oders"])
            .isolation(Isolation::Serializable)
            .key(DedupKey::Header("x-delivery-count"));
        let found = problems_of(&[bad], &["orders"]).join("\n");
        for word in ["`oders`", "`orders`", "serializable", "x-delivery-count"] {
            assert!(found.contains(word), "{word}: {found}");
        }
    }

    #[test]
    fn delays_that_do_not_fit_the_builders_are_named_with_both_values() {
        let (first, longest) = (Duration::from_secs(7), Duration::from_secs(9));
        let builders = RetryPolicy::default()
            .first_delay(first)
            .longest_delay(longest);
        let found = |delays: RetryDelays| retries(&[spec("billing").retry(delays)], &builders);
        let seconds = Duration::from_secs;
        for fitting in [
            RetryDelays::new(),
            RetryDelays::new().first(seconds(9)),
            RetryDelays::new().longest(seconds(7)),
            RetryDelays::new().first(seconds(20)).longest(seconds(20)),
        ] {
            assert_eq!(found(fitting), [""; 0], "{fitting:?}");
        }
        for (delays, words) in [
            (
                RetryDelays::new().first(seconds(10)),
                ["10s", "builder's longest of 9s"],
            ),
            (
                RetryDelays::new().longest(seconds(6)),
                ["6s", "builder's first of 7s"],
            ),
            (
                RetryDelays::new().first(seconds(3)).longest(seconds(2)),
                ["3s", "longest of 2s"],
            ),
            (RetryDelays::new().first(seconds(0)), ["0ns", "first"]),
            (
                RetryDelays::new().longest(seconds(90_000)),
                ["90000s", "longest"],
            ),
        ] {
            let found = found(delays);
            assert!(
                found.len() == 1 && found[0].contains("src/app.rs:7"),
                "{found:?}"
            );
            assert!(
                words.iter().all(|word| found[0].contains(word)),
                "{found:?}"
            );
        }
        // Of a policy that contradicts itself, the builder speaks.
        let builders = builders.longest_delay(seconds(1));
        assert_eq!(retries(&[spec("billing")], &builders), [""; 0]);
    }

    #[test]
    fn places_without_a_producers_id_are_named() {
        let header = |name: &str| vec![IdSource::Header(name.to_owned())];
        for (places, word) in [
            (vec![], "id_from"),
            (header(""), "id_header"),
            (header("x-death"), "`x-death`"),
        ] {
            let facts = SourceFacts {
                id_sources: places,
                ..source("orders")
            };
            let found = sources(&[facts], &[spec("billing")]);
            assert!(found.len() == 1 && found[0].contains(word), "{found:?}");
        }
        assert!(sources(&[source("orders")], &[spec("billing")]).is_empty());
    }

    #[test]
    fn two_sources_of_one_consumer_need_a_word_about_their_ids() {
        let two = [source("eu"), source("us")];
        let one = [spec("billing")];
        assert_eq!(id_spaces(&one, &two, &[]).len(), 1);
        let shared = [BTreeSet::from(["eu".to_owned(), "us".to_owned()])];
        assert!(id_spaces(&one, &two, &shared).is_empty());
        let scoped = ["eu", "us"].map(|name| SourceFacts {
            id_scope: Some(name.to_owned()),
            ..source(name)
        });
        assert!(id_spaces(&one, &scoped, &[]).is_empty());
        assert!(id_spaces(&[spec("billing").from(&["eu"])], &two, &[]).is_empty());
        assert!(id_spaces(&[spec("billing").key(DedupKey::CloudEvents)], &two, &[]).is_empty());
    }

    fn demands(retention: Duration) -> Demands {
        Demands {
            source: "orders".to_owned(),
            needs: Needs::new(NonZeroUsize::MIN, Duration::from_secs(30), 5),
            handlers: vec![spec("billing")],
            retention,
            redelivery_window: None,
            storable: None,
        }
    }

    #[test]
    fn a_retention_within_the_redelivery_window_is_refused_with_both_values() {
        let days = |days: u64| Duration::from_secs(days * 24 * 60 * 60);
        let found = |retention: Duration, window: Option<Duration>| {
            let mut capabilities = Capabilities::new().redelivery_setting("max_age");
            capabilities.redelivery_window = window;
            let of_broker = demands(retention).unmet(&Learned::new(capabilities));
            let stated = Demands {
                redelivery_window: window,
                ..demands(retention)
            };
            let stated = stated.unmet(&Learned::new(Capabilities::new()));
            assert_eq!(of_broker.len(), stated.len());
            for (of_broker, stated) in of_broker.iter().zip(&stated) {
                assert_eq!(*stated, of_broker.replace(" (`max_age`)", ""));
            }
            of_broker
        };
        let five_minutes = found(Duration::from_secs(300), Some(days(14)));
        assert_eq!(five_minutes.len(), 1, "{five_minutes:?}");
        for word in [
            "`orders`",
            "14 days (`max_age`)",
            "5 minutes",
            "337 hours",
            ".retention(",
        ] {
            assert!(five_minutes[0].contains(word), "{word}: {five_minutes:?}");
        }
        // The window alone is not enough, and the margin is.
        assert_eq!(found(days(14), Some(days(14))).len(), 1);
        let enough = days(14) + RETENTION_MARGIN;
        assert!(found(enough, Some(days(14))).is_empty());
        assert_eq!(
            found(enough - Duration::from_nanos(1), Some(days(14))).len(),
            1
        );
        assert!(found(SHORTEST_RETENTION, None).is_empty());
        let never = found(days(365), Some(Duration::MAX));
        assert_eq!(never.len(), 1);
        assert!(never[0].contains("again for ever"), "{never:?}");
    }

    #[test]
    fn a_handler_that_outlasts_the_brokers_patience_is_refused_with_both_values() {
        let window = Duration::from_secs(20);
        let capabilities = Capabilities::new()
            .settle_window(window)
            .settle_setting("ack_wait");
        let of = |timeout| Demands {
            handlers: vec![spec("billing").timeout(timeout)],
            ..demands(Duration::MAX)
        };
        let found = of(window * 2).unmet(&Learned::new(capabilities.clone()));
        assert_eq!(found.len(), 1, "{found:?}");
        for word in [
            "`orders`",
            "20 seconds (`ack_wait`)",
            "app::handler",
            "40 seconds",
        ] {
            assert!(found[0].contains(word), "{word}: {found:?}");
        }
        assert!(of(window).unmet(&Learned::new(capabilities)).is_empty());
    }

    #[test]
    fn what_the_broker_finds_is_told_with_the_sources_name() {
        let learned = Learned::new(Capabilities::new()).problems(["no ack policy".to_owned()]);
        assert_eq!(
            demands(Duration::MAX).unmet(&learned),
            ["source `orders`: no ack policy"]
        );
    }

    #[test]
    fn a_retention_that_cannot_be_meant_is_named_with_the_remedy() {
        for (value, word) in [
            (Duration::ZERO, "retention(0ns)"),
            (Duration::from_secs(59), "retention(59 seconds)"),
            (
                Duration::from_secs(1_000_000 * 24 * 60 * 60),
                "retention(1000000 days)",
            ),
            (Duration::MAX, "retention("),
        ] {
            let found = retention(value);
            assert_eq!(found.len(), 1, "{found:?}");
            for word in [word, "without_purge"] {
                assert!(found[0].contains(word), "{word}: {found:?}");
            }
        }
        assert!(retention(LONGEST_RETENTION).is_empty());
    }

    #[test]
    fn sizes_that_do_not_fit_are_named_with_both_values() {
        let found = sizes(8, 4, 5, Some(1), "SQLite").join("\n");
        for word in [
            "prefetch(4)",
            "concurrency(8)",
            "at most 5 connections",
            "need 9",
        ] {
            assert!(found.contains(word), "{word}: {found}");
        }
        assert!(sizes(4, 8, 5, None, "PostgreSQL").is_empty());
    }
}
