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
    /// The options in its parentheses, if it has any instead of a value.
    pub(crate) parts: &'static [Self],
}

const REQUIRED: &str = "required";

impl AttrOption {
    fn is_required(&self) -> bool {
        self.default == REQUIRED
    }

    /// Whether its value is a string.
    pub(crate) fn takes_text(&self) -> bool {
        self.example.ends_with('"')
    }
}

pub(crate) const OPTIONS: &[AttrOption] = &[
    AttrOption {
        name: "consumer",
        example: r#"consumer = "billing""#,
        default: REQUIRED,
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
        parts: &[],
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
        parts: &[],
    },
    AttrOption {
        name: "from",
        example: r#"from = "orders""#,
        default: "every source",
        meaning: "The source of the builder that the handler listens to, or a list: `from = [\"orders\", \"returns\"]`.",
        words: &["source", "sources"],
        parts: &[],
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
        parts: &[],
    },
    AttrOption {
        name: "timeout",
        example: r#"timeout = "30s""#,
        default: "`\"30s\"`",
        meaning: "How long one run may take before it is rolled back: a whole number with `ms`, `s`, `m` or `h`, at most \
                  `\"12h\"`.",
        words: &["deadline", "time_limit", "max_duration", "duration"],
        parts: &[],
    },
    AttrOption {
        name: "max_attempts",
        example: "max_attempts = 5",
        default: "`5`",
        meaning: "How many runs may fail before the message becomes a dead letter, from 1 to 1000.",
        words: &["retries", "max_retries", "attempts", "tries", "max_tries"],
        parts: &[],
    },
    AttrOption {
        name: "retry",
        example: r#"retry(first = "200ms", longest = "5m")"#,
        default: "as the builder's policy says",
        meaning: "How long a message waits after a failed run until the next one; see [Retries](#retries).",
        words: &[
            "backoff",
            "retry_policy",
            "retry_backoff",
            "retry_delay",
            "retry_delays",
            "retry_after",
            "retry_wait",
            "retry_interval",
            "delay",
            "delays",
            "initial_delay",
            "first_delay",
            "max_delay",
            "longest_delay",
        ],
        parts: RETRY,
    },
    AttrOption {
        name: "isolation",
        example: r#"isolation = "read committed""#,
        default: "`\"read committed\"`",
        meaning: "The isolation of the transaction: `\"read committed\"`, `\"repeatable read\"` or `\"serializable\"`. SQLite \
                  has only one, so there the builder refuses this option.",
        words: &["isolation_level", "transaction", "tx", "level"],
        parts: &[],
    },
    AttrOption {
        name: "order_by",
        example: r#"order_by = "payload:/account""#,
        default: "the source's own key, where it has one",
        meaning: "What orders messages among each other: `\"payload:/json/pointer\"` (RFC 6901), `\"header:NAME\"`, or \
                  `\"key\"`, the broker's own. Messages with the same value go to one worker, one after another; see \
                  [Order](#order).",
        words: &[
            "ordered_by",
            "order",
            "order_key",
            "ordering",
            "ordering_key",
            "partition_by",
            "partition_key",
            "group_by",
            "sort_by",
            "affinity",
            "shard_by",
            "shard_key",
        ],
        parts: &[],
    },
    AttrOption {
        name: "batch",
        example: "batch(max = 100)",
        default: "one message for each call",
        meaning: "The handler takes a [`Batch`](crate::Batch) of messages; see [Batches](#batches).",
        words: &[
            "batch_size",
            "batch_max",
            "batches",
            "batched",
            "batching",
            "max_batch",
            "max_batch_size",
            "max",
            "linger",
            "bulk",
            "bulk_size",
            "chunk",
            "chunk_size",
            "chunks",
        ],
        parts: BATCH,
    },
    AttrOption {
        name: "own_transaction",
        example: "own_transaction = true",
        default: "`false`",
        meaning: "Whether each message gets a transaction of its own, `true` or `false`. Else messages that wait for the \
                  handler may share one, and when that fails each is tried alone: what the handler does outside of its \
                  transaction, such as a call to another service, can happen once more.",
        words: &[
            "own_tx",
            "isolated",
            "single",
            "exclusive",
            "separate_transaction",
            "separate_transactions",
            "no_batch",
            "no_batching",
            "unbatched",
        ],
        parts: &[],
    },
    AttrOption {
        name: "crate",
        example: r#"crate = "::inbox_core""#,
        default: "the crate that the attribute was imported from",
        meaning: "Where the framework is found when it was renamed or re-exported: an absolute path, as a string or a path.",
        words: &["path", "root", "krate"],
        parts: &[],
    },
];

/// The options of `batch(..)`.
const BATCH: &[AttrOption] = &[
    AttrOption {
        name: "max",
        example: "max = 100",
        default: REQUIRED,
        meaning: "The most messages of one call, from 1 to 10000.",
        words: &[
            "maximum",
            "max_size",
            "max_len",
            "max_messages",
            "size",
            "batch_size",
            "max_batch_size",
            "count",
            "limit",
            "len",
            "length",
            "n",
            "up_to",
        ],
        parts: &[],
    },
    AttrOption {
        name: "linger",
        example: r#"linger = "5ms""#,
        default: "no wait: the messages that are there already",
        meaning: "How long a batch that is not full waits for more messages, at most `\"10s\"`.",
        words: &[
            "wait",
            "max_wait",
            "delay",
            "max_delay",
            "linger_ms",
            "timeout",
            "deadline",
            "window",
            "interval",
            "flush_interval",
            "every",
            "fill_time",
        ],
        parts: &[],
    },
];

/// The options of `retry(..)`.
const RETRY: &[AttrOption] = &[
    AttrOption {
        name: "first",
        example: r#"first = "200ms""#,
        default: "as the builder's policy says",
        meaning: "The delay after the first failed run, which doubles with every further one, at most `\"24h\"`.",
        words: &[
            "initial",
            "initial_delay",
            "first_delay",
            "base",
            "base_delay",
            "start",
            "delay",
            "wait",
            "after",
            "interval",
            "every",
            "min",
            "minimum",
            "min_delay",
            "shortest",
        ],
        parts: &[],
    },
    AttrOption {
        name: "longest",
        example: r#"longest = "5m""#,
        default: "as the builder's policy says",
        meaning: "The longest delay, at least `first`, at most `\"24h\"`.",
        words: &[
            "longest_delay",
            "last",
            "max",
            "maximum",
            "max_delay",
            "max_wait",
            "max_interval",
            "cap",
            "limit",
            "ceiling",
            "up_to",
        ],
        parts: &[],
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

/// Words for what a handler does unless it has an `own_transaction`.
const SHARING: &[&str] = &[
    "share",
    "shared",
    "shared_tx",
    "shared_transaction",
    "shared_transactions",
    "share_transaction",
    "share_transactions",
];

/// Words that name a setting of the whole inbox, and the method of the builder that sets it.
const OF_THE_BUILDER: [(&str, &str); 6] = [
    ("concurrency", "concurrency(4)"),
    ("workers", "concurrency(4)"),
    ("prefetch", "prefetch(8)"),
    ("state", "state(value)"),
    ("table", "tables(tables)"),
    ("tables", "tables(tables)"),
];

/// The option that is meant by a value alone.
pub(crate) fn main(options: &'static [AttrOption]) -> Option<&'static AttrOption> {
    let required = options.iter().find(|option| option.is_required());
    required.or(options.first())
}

/// The option of that name.
pub(crate) fn named(options: &'static [AttrOption], name: &str) -> Option<&'static AttrOption> {
    options.iter().find(|option| option.name == name)
}

/// The option that is meant by a word that is none.
pub(crate) fn meant(options: &'static [AttrOption], word: &str) -> Option<&'static AttrOption> {
    let word = snake_case(word);
    options
        .iter()
        .find(|option| option.words.contains(&word.as_str()))
        .or_else(|| {
            let near = suggest::nearest(&word, options.iter().map(|option| option.name))?;
            named(options, near)
        })
}

/// What to write instead of an option of the attribute that does not exist.
pub(crate) fn remedy(unknown: &str) -> String {
    let word = snake_case(unknown);
    let word = word.as_str();
    if SUBSCRIPTION.contains(&word) {
        return r#"the subscription belongs to the runtime builder; here use `consumer = "..."`"#
            .to_owned();
    }
    if let Some((_, method)) = OF_THE_BUILDER.iter().find(|(name, _)| *name == word) {
        return format!("this belongs to the runtime builder: `.{method}`");
    }
    for whole in OPTIONS {
        if let Some(part) = named(whole.parts, word) {
            let others = whole.parts.iter().filter(|other| other.is_required());
            let examples: Vec<&str> = others
                .chain([part].into_iter().filter(|part| !part.is_required()))
                .map(|part| part.example)
                .collect();
            return format!("write it as `{}({})`", whole.name, examples.join(", "));
        }
    }
    if SHARING.contains(&word) {
        return "messages share a transaction unless a handler has `own_transaction = true`"
            .to_owned();
    }
    instead(OPTIONS, word)
}

/// What to write instead of an option in the parentheses of `whole` that does not exist.
pub(crate) fn remedy_within(whole: &AttrOption, unknown: &str) -> String {
    let word = snake_case(unknown);
    let has_word = |option: &AttrOption| option.words.contains(&word.as_str());
    let is_outer = |option: &&AttrOption| {
        option.name != whole.name && (option.name == word || has_word(option))
    };
    if !whole.parts.iter().any(has_word)
        && let Some(outer) = OPTIONS.iter().find(is_outer)
    {
        return format!("write it behind the parentheses: `, {}`", outer.example);
    }
    instead(whole.parts, &word)
}

fn instead(options: &'static [AttrOption], word: &str) -> String {
    match meant(options, word) {
        Some(meant) if meant.words.contains(&word) => format!("here use `{}`", meant.example),
        Some(near) => format!("did you mean `{}`?", near.name),
        None => {
            let names: Vec<String> = options
                .iter()
                .map(|option| format!("`{}`", option.name))
                .collect();
            format!("the options are {}", names.join(", "))
        }
    }
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
