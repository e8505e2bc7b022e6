//! The options of the attribute. The parser, the suggestions and the documentation come from this table.

use crate::suggest;

/// One option.
pub(crate) struct AttrOption {
    pub(crate) name: &'static str,
    /// A use of it that can be pasted.
    pub(crate) example: &'static str,
    /// What an absent option means.
    pub(crate) default: &'static str,
    /// What it decides, for the documentation.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "read by the test of the documentation's table")
    )]
    pub(crate) meaning: &'static str,
    /// Words that people write instead.
    words: &'static [&'static str],
}

pub(crate) const OPTIONS: &[AttrOption] = &[
    AttrOption {
        name: "consumer",
        example: r#"consumer = "billing""#,
        default: "required",
        meaning: "The name under which every processed message is stored. Messages are deduplicated per consumer, so it \
                  must not change: 1 to 128 ASCII letters, digits, `_`, `-`, `.`.",
        words: &[
            "name",
            "group",
            "group_id",
            "consumer_name",
            "consumer_group",
            "subscriber",
            "subscription",
            "handler",
        ],
    },
    AttrOption {
        name: "on",
        example: r#"on = "OrderPlaced""#,
        default: "every message of its sources",
        meaning: "The message type that the handler takes, or a list: `on = [\"OrderPlaced\", \"OrderChanged\"]`.",
        words: &[
            "event",
            "events",
            "event_type",
            "type",
            "types",
            "message",
            "message_type",
            "kind",
        ],
    },
    AttrOption {
        name: "from",
        example: r#"from = "orders""#,
        default: "every source",
        meaning: "The source of the builder that the handler listens to, or a list: `from = [\"orders\", \"returns\"]`.",
        words: &["source", "sources"],
    },
    AttrOption {
        name: "key",
        example: r#"key = "message_id""#,
        default: "`\"message_id\"`",
        meaning: "What identifies a message: `\"message_id\"` (set by its producer), `\"cloudevents\"` (source and id), \
                  `\"header:NAME\"`, or `\"payload:/json/pointer\"` (RFC 6901).",
        words: &[
            "id",
            "message_id",
            "dedup",
            "dedup_key",
            "dedup_id",
            "dedupe",
            "idempotency_key",
            "unique",
        ],
    },
    AttrOption {
        name: "timeout",
        example: r#"timeout = "30s""#,
        default: "`\"30s\"`",
        meaning: "How long one run may take before it is rolled back: a whole number with `ms`, `s`, `m` or `h`, at most \
                  `\"12h\"`.",
        words: &["deadline", "time_limit", "max_duration", "duration"],
    },
    AttrOption {
        name: "max_attempts",
        example: "max_attempts = 5",
        default: "`5`",
        meaning: "How many runs may fail before the message becomes a dead letter, from 1 to 1000.",
        words: &[
            "retries",
            "retry",
            "max_retries",
            "attempts",
            "tries",
            "max_tries",
        ],
    },
    AttrOption {
        name: "isolation",
        example: r#"isolation = "read committed""#,
        default: "`\"read committed\"`",
        meaning: "The isolation of the transaction: `\"read committed\"`, `\"repeatable read\"` or `\"serializable\"`. SQLite \
                  has only one, so there the builder refuses this option.",
        words: &["isolation_level", "transaction", "tx", "level"],
    },
    AttrOption {
        name: "crate",
        example: r#"crate = "::inbox_core""#,
        default: "the crate that the attribute was imported from",
        meaning: "Where the framework is found when it was renamed or re-exported: an absolute path, as a string or a path.",
        words: &["path", "root", "krate"],
    },
];

/// Words that name a subscription, which the builder's sources have.
const SUBSCRIPTION: &[&str] = &[
    "queue",
    "queues",
    "topic",
    "topics",
    "subject",
    "stream",
    "exchange",
    "routing_key",
    "channel",
];

/// Words that name a setting of the whole inbox, and the method of the builder that sets it.
const OF_THE_BUILDER: [(&str, &str); 8] = [
    ("concurrency", "concurrency(4)"),
    ("workers", "concurrency(4)"),
    ("prefetch", "prefetch(8)"),
    ("backoff", "retry(policy)"),
    ("retry_policy", "retry(policy)"),
    ("state", "state(value)"),
    ("table", "tables(tables)"),
    ("tables", "tables(tables)"),
];

/// What to write instead of an option that does not exist.
pub(crate) fn remedy(unknown: &str) -> String {
    let word = snake_case(unknown);
    let word = word.as_str();
    if let Some(meant) = OPTIONS.iter().find(|option| option.words.contains(&word)) {
        return format!("here use `{}`", meant.example);
    }
    if SUBSCRIPTION.contains(&word) {
        return r#"the subscription belongs to the runtime builder; here use `consumer = "..."`"#
            .to_owned();
    }
    if let Some((_, method)) = OF_THE_BUILDER.iter().find(|(name, _)| *name == word) {
        return format!("this belongs to the runtime builder: `.{method}`");
    }
    if let Some(near) = suggest::nearest(word, OPTIONS.iter().map(|option| option.name)) {
        return format!("did you mean `{near}`?");
    }
    let names: Vec<String> = OPTIONS
        .iter()
        .map(|option| format!("`{}`", option.name))
        .collect();
    format!("the options are {}", names.join(", "))
}

/// `maxAttempts`, `MaxAttempts` and `max-attempts` as `max_attempts`.
pub(crate) fn snake_case(word: &str) -> String {
    let mut snake = String::with_capacity(word.len());
    for letter in word.chars() {
        if letter.is_uppercase() && snake.ends_with(char::is_lowercase) {
            snake.push('_');
        }
        match letter {
            '-' => snake.push('_'),
            other => snake.extend(other.to_lowercase()),
        }
    }
    snake
}
