use inbox_core::SourceError;
use lapin::options::{QueueBindOptions, QueueDeclareOptions};
use lapin::protocol::AMQPSoftError;
use lapin::types::{AMQPValue, FieldTable, ShortString};

use super::{is_soft, reason, short};

/// The kind of a queue that a source declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueKind {
    /// Replicated and always durable; counts the deliveries of each message.
    Quorum,
    /// On one node; does not count.
    Classic,
}

/// A queue as a source declares it: made if it is missing, checked if it is there.
///
/// ```
/// use inbox_runtime::brokers::{Declaration, QueueKind, RabbitMq};
///
/// let orders = RabbitMq::new("amqp://localhost").queue("orders").declare(
///     Declaration::new(QueueKind::Quorum)
///         .delivery_limit(50)
///         .dead_letter_exchange("dead")
///         .bind("shop", "order.*"),
/// );
/// ```
///
/// From RabbitMQ 4.0 on, a quorum queue without a delivery limit of its own has one of 20, and drops what was
/// delivered more often: give it a limit and a dead letter exchange there, or set both by policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Declaration {
    kind: QueueKind,
    durable: bool,
    arguments: Vec<(String, Argument)>,
    bindings: Vec<(String, String)>,
}

/// The value of a queue's argument.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Argument {
    /// A number, such as a limit or milliseconds.
    Number(i64),
    /// A text, such as the name of an exchange.
    Text(String),
    /// A switch.
    Switch(bool),
}

impl From<i64> for Argument {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<i32> for Argument {
    fn from(number: i32) -> Self {
        Self::Number(number.into())
    }
}

impl From<u32> for Argument {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<&str> for Argument {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Argument {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<bool> for Argument {
    fn from(switch: bool) -> Self {
        Self::Switch(switch)
    }
}

impl From<QueueKind> for Declaration {
    fn from(kind: QueueKind) -> Self {
        Self::new(kind)
    }
}

const DELIVERY_LIMIT: &str = "x-delivery-limit";
const DEAD_LETTER_EXCHANGE: &str = "x-dead-letter-exchange";
const QUEUE_TYPE: &str = "x-queue-type";

impl Declaration {
    /// A durable queue of this kind.
    #[must_use]
    pub const fn new(kind: QueueKind) -> Self {
        Self {
            kind,
            durable: true,
            arguments: Vec::new(),
            bindings: Vec::new(),
        }
    }

    /// Whether the queue outlives a restart of the server. It does by default; only a classic queue can be
    /// without.
    #[must_use]
    pub const fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// How often a quorum queue redelivers a message before it dead-letters it. Needs a
    /// [`dead_letter_exchange`](Self::dead_letter_exchange), without which the message would be dropped.
    ///
    /// A redelivery also counts where no handler failed: after a lost connection, a restart, a crash. So keep it
    /// far above `max_attempts` of the handlers, whose failures end in the inbox's own dead letters.
    #[must_use]
    pub fn delivery_limit(self, limit: u32) -> Self {
        self.argument(DELIVERY_LIMIT, limit)
    }

    /// The exchange that gets what the queue gives up.
    #[must_use]
    pub fn dead_letter_exchange(self, exchange: impl Into<String>) -> Self {
        self.argument(DEAD_LETTER_EXCHANGE, exchange.into())
    }

    /// Any other argument of the queue, such as `x-single-active-consumer`.
    #[must_use]
    pub fn argument(mut self, name: impl Into<String>, value: impl Into<Argument>) -> Self {
        self.arguments.push((name.into(), value.into()));
        self
    }

    /// Binds the queue to an exchange, which must exist. Bindings are only added, never removed.
    #[must_use]
    pub fn bind(mut self, exchange: impl Into<String>, routing_key: impl Into<String>) -> Self {
        self.bindings.push((exchange.into(), routing_key.into()));
        self
    }

    /// The least delivery limit among the arguments.
    pub(super) fn limit_of_deliveries(&self) -> Option<i64> {
        let limits = self
            .arguments
            .iter()
            .filter_map(|(name, value)| match value {
                Argument::Number(limit) if name == DELIVERY_LIMIT => Some(*limit),
                _ => None,
            });
        limits.min()
    }

    pub(super) const fn kind(&self) -> QueueKind {
        self.kind
    }

    pub(super) fn problems(&self, queue: &str) -> Vec<String> {
        let mut problems = Vec::new();
        let has = |name: &str| self.arguments.iter().any(|(n, _)| n == name);
        if self.kind == QueueKind::Quorum && !self.durable {
            problems.push(format!(
                "the quorum queue `{queue}` is declared as not durable, which RabbitMQ refuses: leave \
                 `durable(false)` off, or declare a classic queue"
            ));
        }
        if has(DELIVERY_LIMIT) {
            if self.kind == QueueKind::Classic {
                problems.push(format!(
                    "the classic queue `{queue}` is declared with a delivery limit, which only quorum queues have: \
                     leave `delivery_limit` off, or declare a quorum queue"
                ));
            } else if !has(DEAD_LETTER_EXCHANGE) {
                problems.push(format!(
                    "the queue `{queue}` is declared with a delivery limit and without a dead letter exchange, so \
                     RabbitMQ would drop messages: name one in `dead_letter_exchange`, or leave the limit off"
                ));
            }
        }
        if has(QUEUE_TYPE) {
            problems.push(format!(
                "the queue `{queue}` is declared with the argument `{QUEUE_TYPE}`: `declare` sets it by the \
                 queue's kind, leave it off"
            ));
        }
        for (index, (name, _)) in self.arguments.iter().enumerate() {
            if name.is_empty() || name.len() > 255 {
                problems.push(format!(
                    "the queue `{queue}` is declared with an argument whose name has {} bytes: AMQP names have 1 to \
                     255",
                    name.len()
                ));
            }
            if self.arguments[..index]
                .iter()
                .any(|(earlier, _)| earlier == name)
            {
                problems.push(format!(
                    "the queue `{queue}` is declared with the argument `{name}` twice: leave one off"
                ));
            }
        }
        for (exchange, routing_key) in &self.bindings {
            if exchange.is_empty() {
                problems.push(format!(
                    "the queue `{queue}` is bound to an exchange without a name, which RabbitMQ refuses: the default \
                     exchange reaches every queue by its name, leave that `bind` off"
                ));
            }
            for name in [exchange, routing_key] {
                if let Err(problem) = short(name) {
                    problems.push(format!("a binding of the queue `{queue}`: {problem}"));
                }
            }
        }
        problems
    }

    /// Makes the queue and its bindings.
    pub(super) async fn declare(
        &self,
        channel: &lapin::Channel,
        queue: &str,
        name: &ShortString,
    ) -> Result<(), SourceError> {
        let mut arguments = FieldTable::default();
        let kind = match self.kind {
            QueueKind::Quorum => "quorum",
            QueueKind::Classic => "classic",
        };
        arguments.insert(QUEUE_TYPE.into(), AMQPValue::LongString(kind.into()));
        for (name, value) in &self.arguments {
            let value = match value {
                Argument::Number(number) => AMQPValue::LongLongInt(*number),
                Argument::Text(text) => AMQPValue::LongString(text.as_str().into()),
                Argument::Switch(switch) => AMQPValue::Boolean(*switch),
            };
            arguments.insert(short(name).map_err(SourceError::new)?, value);
        }
        let options = QueueDeclareOptions {
            durable: self.durable,
            ..QueueDeclareOptions::default()
        };
        channel
            .queue_declare(name.clone(), options, arguments)
            .await
            .map_err(|error| {
                let remedy = if is_soft(&error, &AMQPSoftError::PRECONDITIONFAILED) {
                    ": it exists with other settings, or its arguments do not go together; make `declare` say what \
                     the queue is, or leave it off"
                } else {
                    ""
                };
                SourceError::new(format!(
                    "the queue `{queue}` cannot be declared ({}){remedy}",
                    reason(&error)
                ))
            })?;
        for (exchange, routing_key) in &self.bindings {
            channel
                .queue_bind(
                    name.clone(),
                    short(exchange).map_err(SourceError::new)?,
                    short(routing_key).map_err(SourceError::new)?,
                    QueueBindOptions::default(),
                    FieldTable::default(),
                )
                .await
                .map_err(|error| {
                    let remedy = if is_soft(&error, &AMQPSoftError::NOTFOUND) {
                        ": create the exchange first, or correct its name in `bind`"
                    } else {
                        ""
                    };
                    SourceError::new(format!(
                        "the queue `{queue}` cannot be bound to the exchange `{exchange}` ({}){remedy}",
                        reason(&error)
                    ))
                })?;
        }
        Ok(())
    }
}
