//! What is published, and what must become of it.

use std::time::Duration;

use fastrand::Rng;
use inbox_guarantees::OrderPlaced;
use inbox_runtime::{Envelope, HandlerError};
use serde::{Deserialize, Serialize};

/// Accounts of each consumer. Few enough that messages meet in their rows.
pub(crate) const ACCOUNTS: usize = 20;

/// The type of what the handlers take.
pub(crate) const TASK: &str = "Task";

/// One queue, and who listens to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// The source's name; the ids of its messages begin with it.
    pub(crate) name: &'static str,
    pub(crate) consumers: &'static [&'static str],
    /// Whether its handler takes batches, which know of no attempt.
    pub(crate) in_batches: bool,
}

impl Place {
    const fn new(name: &'static str, consumers: &'static [&'static str]) -> Self {
        Self {
            name,
            consumers,
            in_batches: false,
        }
    }
}

/// One queue for each way in which messages are handled.
pub(crate) const PLACES: [Place; 7] = [
    // Two consumers of one delivery.
    Place::new("orders", &["billing", "audit"]),
    // Each in a transaction of its own.
    Place::new("refunds", &["refunding"]),
    // Those of one account one after another, several in a transaction.
    Place::new("payments", &["bookkeeping"]),
    // Several in a transaction, in any order.
    Place::new("readings", &["metering"]),
    Place {
        in_batches: true,
        ..Place::new("events", &["statistics"])
    },
    // Acked after a flush, where the database has that.
    Place::new("transfers", &["clearing"]),
    // Some of them end the process. Few attempts, so that not too many processes die of them.
    Place::new("perils", &["peril"]),
];

/// The place of the messages that end their process.
const PERILS: &str = "perils";

/// What a handler does besides its booking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Act {
    Book,
    /// Books in a savepoint, takes that back, and books.
    Undo,
    Slow {
        ms: u64,
    },
    /// Fails at the first attempts.
    FailFirst {
        attempts: u32,
        retry_after_ms: Option<u64>,
    },
    /// Fails with this chance.
    Sometimes {
        percent: u8,
    },
    Fail,
    Reject,
    Panic,
    /// Ends the process.
    Kill,
}

impl Act {
    /// What comes before the booking.
    pub(crate) async fn begin(self) {
        if let Self::Slow { ms } = self {
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
    }

    /// What comes after it, and has to take it back where it fails. `attempt` is `None` in a batch.
    pub(crate) fn end(self, attempt: Option<u32>) -> Result<(), HandlerError> {
        match self {
            Self::Book | Self::Undo | Self::Slow { .. } => Ok(()),
            Self::FailFirst { attempts, .. } if attempt.is_none_or(|now| now > attempts) => Ok(()),
            Self::FailFirst {
                retry_after_ms: Some(ms),
                ..
            } => Err(HandlerError::retry_after(
                Duration::from_millis(ms),
                "not yet",
            )),
            Self::FailFirst { .. } => Err("fails at first".into()),
            Self::Sometimes { percent } if fastrand::u8(..100) >= percent => Ok(()),
            Self::Sometimes { .. } => Err("fails sometimes".into()),
            Self::Fail => Err("fails always".into()),
            Self::Reject => Err(HandlerError::reject("not for us")),
            Self::Panic => panic!("a handler that panics"),
            Self::Kill => std::process::abort(),
        }
    }
}

/// The payload.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Task {
    /// What identifies the message here, also without an id.
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) order: OrderPlaced,
    pub(crate) act: Act,
}

impl Task {
    /// What `consumer` books.
    pub(crate) fn booking(&self, consumer: &str) -> OrderPlaced {
        OrderPlaced {
            account: account(consumer, &self.order.account),
            amount: self.order.amount,
        }
    }
}

/// The account as a consumer has it: what it booked can be told from what others did.
pub(crate) fn account(consumer: &str, account: &str) -> String {
    format!("{consumer}/{account}")
}

/// The name of the `number`th account.
pub(crate) fn account_name(number: usize) -> String {
    format!("acc-{number}")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Good,
    /// It cannot be decoded.
    Broken,
    Nameless,
    /// Nobody takes its type.
    Stranger,
}

/// What must become of a message for one consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    Processed,
    /// A dead letter for this reason.
    Dead(&'static str),
    /// Either, but used up if dead.
    ProcessedOrExhausted,
}

/// One message as its producer has it. Published again, it is the same.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    /// Its index in [`PLACES`].
    pub(crate) place: usize,
    form: Form,
    pub(crate) task: Task,
}

impl Message {
    /// The `number`th message, of any kind.
    pub(crate) fn random(rng: &mut Rng, number: usize, killers: bool) -> Self {
        let index = rng.usize(..PLACES.len());
        let place = PLACES[index];
        let kills = rng.u32(..100) < 3 && place.name == PERILS && killers;
        let (form, act) = match rng.u32(..1000) {
            _ if kills => (Form::Good, Act::Kill),
            // Bystanders.
            _ if place.name == PERILS => (Form::Good, Act::Book),
            0..40 => (
                Form::Good,
                Act::FailFirst {
                    attempts: rng.u32(1..=2),
                    retry_after_ms: rng.bool().then(|| rng.u64(100..2_000)),
                },
            ),
            40..80 => (Form::Good, Act::Sometimes { percent: 50 }),
            80..100 => (Form::Good, Act::Fail),
            100..115 => (Form::Good, Act::Reject),
            115..125 => (Form::Good, Act::Panic),
            125..185 => (Form::Good, Act::Undo),
            185..200 => (
                Form::Good,
                Act::Slow {
                    ms: rng.u64(50..500),
                },
            ),
            200..215 => (Form::Broken, Act::Book),
            215..225 => (Form::Nameless, Act::Book),
            225..235 => (Form::Stranger, Act::Book),
            _ => (Form::Good, Act::Book),
        };
        let act = match act {
            Act::FailFirst { .. } if place.in_batches => Act::Sometimes { percent: 50 },
            act => act,
        };
        Self {
            place: index,
            form,
            task: Task {
                name: format!("{}-{number}", place.name),
                order: OrderPlaced {
                    account: account_name(rng.usize(..ACCOUNTS)),
                    amount: rng.i64(1..1000),
                },
                act,
            },
        }
    }

    pub(crate) fn envelope(&self) -> Envelope {
        let payload = match self.form {
            Form::Broken => serde_json::json!({ "name": self.task.name }).to_string(),
            _ => serde_json::to_string(&self.task).expect("a task without JSON"),
        };
        let envelope = Envelope::new(payload);
        let envelope = match self.form {
            Form::Stranger => envelope.message_type("Rumour"),
            _ => envelope.message_type(TASK),
        };
        match self.form {
            Form::Nameless => envelope,
            _ => envelope.id(&self.task.name),
        }
    }

    /// What must become of it, for each consumer; "" where nobody takes it.
    pub(crate) fn expected(&self) -> impl Iterator<Item = (&'static str, Expected)> {
        let nobody: &'static [&'static str] = &[""];
        let (consumers, expected) = match (self.form, self.task.act) {
            (Form::Stranger, _) => (nobody, Expected::Dead("unknown_type")),
            (Form::Nameless, _) => (self.consumers(), Expected::Dead("invalid_id")),
            (Form::Broken, _) => (self.consumers(), Expected::Dead("undecodable")),
            (Form::Good, Act::Fail | Act::Panic | Act::Kill) => {
                (self.consumers(), Expected::Dead("attempts_exhausted"))
            }
            (Form::Good, Act::Reject) => (self.consumers(), Expected::Dead("rejected")),
            (Form::Good, Act::Sometimes { .. }) => {
                (self.consumers(), Expected::ProcessedOrExhausted)
            }
            // Three times in work when its process was killed from outside: nobody can tell that from its own doing.
            (Form::Good, _) if PLACES[self.place].name == PERILS => {
                (self.consumers(), Expected::ProcessedOrExhausted)
            }
            (Form::Good, _) => (self.consumers(), Expected::Processed),
        };
        consumers.iter().map(move |consumer| (*consumer, expected))
    }

    const fn consumers(&self) -> &'static [&'static str] {
        PLACES[self.place].consumers
    }
}
