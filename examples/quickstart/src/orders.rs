//! The input, line by line, and what must come of it: computed from the lines alone, without the inbox.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{BufRead as _, BufReader, Read};
use std::path::Path;

use inbox_runtime::MessageId;
use serde_json::Value;
use sqlx::SqlitePool;

use crate::OrderPlaced;

const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/orders.ndjson");

/// A longer line is a mistake rather than an order, and a broker would not take it.
const LONGEST_LINE: usize = 1 << 20;

/// The lines of the input and what is known of them.
pub(crate) struct Orders {
    name: String,
    reader: BufReader<Box<dyn Read>>,
    number: u64,
    blank: u64,
    fates: HashMap<String, Fate>,
    bad: Vec<Bad>,
}

/// One line to send.
pub(crate) struct Line {
    /// The id, where one can be read. The producer gives it to the broker as the message's id.
    pub(crate) id: Option<String>,
    pub(crate) payload: Vec<u8>,
    /// Why this line is not booked although its id is, or the other way round.
    pub(crate) conflict: Option<String>,
}

/// What must become of an id: its first line decides.
struct Fate {
    /// What is booked; `None`: a dead letter holds the id.
    amount: Option<i64>,
    /// The line that decided; `None`: an earlier run did.
    line: Option<u64>,
    payload: u64,
}

/// A line that is no order.
pub(crate) struct Bad {
    pub(crate) number: u64,
    pub(crate) why: String,
    pub(crate) payload: u64,
    /// It must be among the dead letters; if not, its id was decided by another line.
    pub(crate) to_be_kept: bool,
}

impl Orders {
    /// Opens a file, `-` for the standard input, or the file that comes with the example.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, String> {
        let path = path.unwrap_or(Path::new(SHIPPED));
        let (name, reader): (_, Box<dyn Read>) = if path == Path::new("-") {
            ("the standard input".to_owned(), Box::new(std::io::stdin()))
        } else {
            let opened = File::open(path).and_then(|file| match file.metadata()?.is_dir() {
                true => Err(std::io::ErrorKind::IsADirectory.into()),
                false => Ok(file),
            });
            let file = opened.map_err(|error| {
                format!(
                    "the input {} cannot be opened: {error}\n  help: give a file with one JSON object per line, or `-` \
                     for the standard input",
                    path.display()
                )
            })?;
            (path.display().to_string(), Box::new(file))
        };
        Ok(Self {
            name,
            reader: BufReader::new(reader),
            number: 0,
            blank: 0,
            fates: HashMap::new(),
            bad: Vec::new(),
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) const fn lines(&self) -> u64 {
        self.number
    }

    pub(crate) const fn blank(&self) -> u64 {
        self.blank
    }

    pub(crate) fn bad(&self) -> &[Bad] {
        &self.bad
    }

    /// How many different orders must be in the ledger, and their sum.
    pub(crate) fn expected(&self) -> (usize, i128) {
        let amounts = self.fates.values().filter_map(|fate| fate.amount);
        (amounts.clone().count(), amounts.map(i128::from).sum())
    }

    /// Whether the input has this id.
    pub(crate) fn has(&self, id: &str) -> bool {
        self.fates.contains_key(id)
    }

    /// The next line that is not blank.
    pub(crate) fn next(&mut self, before: &Ledger) -> Result<Option<Line>, String> {
        loop {
            let mut line = Vec::new();
            let mut limited = (&mut self.reader).take(LONGEST_LINE as u64 + 2);
            let read = limited.read_until(b'\n', &mut line).map_err(|error| {
                format!(
                    "{} cannot be read after line {}: {error}",
                    self.name, self.number
                )
            })?;
            if read == 0 {
                return Ok(None);
            }
            self.number += 1;
            while matches!(line.last(), Some(b'\n' | b'\r')) {
                line.pop();
            }
            if line.len() > LONGEST_LINE {
                return Err(format!(
                    "line {} of {} is longer than {LONGEST_LINE} bytes: is it one JSON object per line?\n  help: split \
                     or remove it; the lines before it are done, and starting again does not book them twice",
                    self.number, self.name
                ));
            }
            if line.iter().all(u8::is_ascii_whitespace) {
                self.blank += 1;
                continue;
            }
            return Ok(Some(self.judge(line, before)));
        }
    }

    fn judge(&mut self, payload: Vec<u8>, before: &Ledger) -> Line {
        let (id, order) = read(&payload);
        let hash = hash(&payload);
        let mut conflict = None;
        let mut to_be_kept = true;
        // An id that cannot be one is refused before anything is looked up under it.
        if let Some(id) = id.as_deref().filter(|id| MessageId::new(id).is_ok()) {
            let amount = order.as_ref().ok().map(|order| order.amount_cents);
            match self.fates.entry(id.to_owned()) {
                Entry::Occupied(known) => {
                    let known = known.get();
                    to_be_kept = false;
                    if known.payload != hash {
                        conflict = Some(known.says(id));
                    }
                }
                Entry::Vacant(place) => {
                    let (amount, line) = match before.fate(id) {
                        None => (amount, Some(self.number)),
                        Some(earlier) => (earlier, None),
                    };
                    let fate = place.insert(Fate {
                        amount,
                        line,
                        payload: hash,
                    });
                    if line.is_none() {
                        to_be_kept = false;
                        if order.as_ref().ok().map(|order| order.amount_cents) != fate.amount {
                            conflict = Some(fate.says(id));
                        }
                    }
                }
            }
        }
        if let Err(why) = order {
            self.bad.push(Bad {
                number: self.number,
                why,
                payload: hash,
                to_be_kept,
            });
        }
        let number = self.number;
        Line {
            id,
            payload,
            conflict: conflict.map(|why| format!("line {number} is another message under {why}")),
        }
    }
}

impl Fate {
    fn says(&self, id: &str) -> String {
        let by = match self.line {
            Some(line) => format!("of line {line}"),
            None => "of an earlier run".to_owned(),
        };
        match self.amount {
            Some(amount) => format!("the id {id:?}: the {amount} cents {by} stand"),
            None => format!("the id {id:?}, which the dead letter {by} holds"),
        }
    }
}

/// The id, if there is one, and the order or why it is none.
fn read(payload: &[u8]) -> (Option<String>, Result<OrderPlaced, String>) {
    let id = match serde_json::from_slice::<Value>(payload) {
        Err(error) => return (None, Err(format!("not JSON: {error}"))),
        Ok(Value::Object(mut fields)) => fields.remove("id"),
        Ok(_) => return (None, Err("not a JSON object".to_owned())),
    };
    let id = match id {
        None | Some(Value::Null) => return (None, Err("no field `id`".to_owned())),
        Some(Value::String(id)) => id,
        Some(_) => return (None, Err("the field `id` is not text".to_owned())),
    };
    let order = MessageId::new(&id)
        .map_err(|problem| problem.to_string())
        .and_then(|_| serde_json::from_slice(payload).map_err(|error| error.to_string()))
        .and_then(|order: OrderPlaced| match order.amount_cents {
            ..0 => Err("a negative amount".to_owned()),
            _ => Ok(order),
        });
    (Some(id), order)
}

pub(crate) fn hash(payload: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    payload.hash(&mut hasher);
    hasher.finish()
}

/// What the database held before this run.
pub(crate) struct Ledger {
    booked: HashMap<String, i64>,
    /// Ids that an open dead letter holds.
    held: HashSet<String>,
}

impl Ledger {
    pub(crate) async fn read(pool: &SqlitePool) -> Result<Self, sqlx::Error> {
        let booked: Vec<(String, i64)> =
            sqlx::query_as("SELECT order_id, amount_cents FROM ledger")
                .fetch_all(pool)
                .await?;
        let held: Vec<String> = sqlx::query_scalar(
            "SELECT message_id FROM inbox_dead_letters \
             WHERE consumer_name = 'billing' AND message_id IS NOT NULL AND replayed_at IS NULL",
        )
        .fetch_all(pool)
        .await?;
        Ok(Self {
            booked: booked.into_iter().collect(),
            held: held.into_iter().collect(),
        })
    }

    /// What an earlier run decided about an id: booked with an amount, or held by a dead letter.
    fn fate(&self, id: &str) -> Option<Option<i64>> {
        match self.booked.get(id) {
            Some(amount) => Some(Some(*amount)),
            None => self.held.contains(id).then_some(None),
        }
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.booked.len() {
            0 => f.write_str("no orders yet"),
            booked => write!(f, "{booked} orders from earlier runs"),
        }
    }
}
