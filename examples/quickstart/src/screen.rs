//! What is shown: the runtime's own events, one line each, and the table at the end.

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::SqlitePool;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::orders::{self, Orders};

/// How many lines of detail are shown without `--verbose`.
const DETAILS: u64 = 100;

/// How many bad lines are listed.
const LISTED: usize = 20;

/// Texts of the runtime about troubles that this example makes itself, and shows itself.
const EXPECTED: [&str; 4] = [
    "kept as a dead letter",
    "another payload under an id",
    "the delivery was not settled",
    "the source was lost",
];

pub(crate) struct Screen {
    verbose: bool,
    details: AtomicU64,
    last_progress: Mutex<Instant>,
    processed: AtomicU64,
    duplicates: AtomicU64,
    failed: AtomicU64,
}

impl Screen {
    /// Shows what the runtime reports from here on.
    pub(crate) fn install(verbose: bool) -> &'static Self {
        let screen: &Self = Box::leak(Box::new(Self {
            verbose,
            details: AtomicU64::new(0),
            last_progress: Mutex::new(Instant::now()),
            processed: AtomicU64::new(0),
            duplicates: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }));
        // Fails only when there is one already.
        let _ = tracing::subscriber::set_global_default(Events(screen));
        screen
    }

    /// Something to be seen in any case.
    pub(crate) fn line(&self, text: &str) {
        // A reader that went away (`| head`) is no reason to stop half-way.
        let _ = writeln!(std::io::stdout(), "{text}");
    }

    /// What the producer or the broker does with a message.
    pub(crate) fn sent(&self, id: Option<&str>, what: &str) {
        self.detail(id.unwrap_or_default(), &format!("    {what}"));
    }

    /// What happens to a message in the inbox.
    pub(crate) fn happened(&self, id: &str, what: &str) {
        self.detail(id, &format!("--> {what}"));
    }

    pub(crate) fn noted(&self, what: &str) {
        self.detail("", &format!("    {what}"));
    }

    fn detail(&self, id: &str, what: &str) {
        match self.details.fetch_add(1, Ordering::Relaxed) {
            DETAILS if !self.verbose => self.line("... and so on; --verbose shows everything"),
            DETAILS.. if !self.verbose => {}
            _ => self.line(&format!("{:<10}{what}", name(id))),
        }
    }

    /// Now and then, how far it is.
    pub(crate) fn progress(&self, lines: u64) {
        let mut last = self
            .last_progress
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if last.elapsed() > Duration::from_secs(5) {
            *last = Instant::now();
            self.line(&format!(
                "line {lines}, {} booked",
                self.processed.load(Ordering::Relaxed)
            ));
        }
    }
}

/// An id to show: whatever it holds, it cannot steer the terminal or fill it.
fn name(id: &str) -> String {
    match id {
        "" => "(no id)".to_owned(),
        _ => id.chars().take(30).flat_map(char::escape_debug).collect(),
    }
}

/// Hears the events of the runtime.
struct Events(&'static Screen);

impl Subscriber for Events {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::DEBUG
            && metadata.is_event()
            && metadata.target().starts_with("inbox_runtime")
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let counted = match fields.outcome.as_str() {
            "processed" => Some((&self.0.processed, "processed")),
            "duplicate" => Some((&self.0.duplicates, "duplicate")),
            "dead_letter" => Some((&self.0.failed, "failed")),
            _ => None,
        };
        if let Some((count, what)) = counted {
            count.fetch_add(1, Ordering::Relaxed);
            self.0.happened(&fields.message_id, what);
        } else if *event.metadata().level() <= Level::WARN
            && !EXPECTED.iter().any(|text| fields.message.starts_with(text))
        {
            let _ = writeln!(
                std::io::stderr(),
                "warning: {}{}",
                fields.message,
                fields.others
            );
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Fields {
    message: String,
    message_id: String,
    outcome: String,
    others: String,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        match field.name() {
            "message" => self.message = text,
            "message_id" => self.message_id = text,
            "outcome" => self.outcome = text,
            // Writing to a string cannot fail.
            name => drop(write!(self.others, ", {name}: {text}")),
        }
    }
}

/// Shows the table and answers whether it is as it must be.
pub(crate) async fn summary(
    pool: &SqlitePool,
    orders: &Orders,
    delivered: u64,
    screen: &Screen,
) -> Result<bool, sqlx::Error> {
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (processed, duplicates, failed) = (
        of(&screen.processed),
        of(&screen.duplicates),
        of(&screen.failed),
    );
    let taken_back = delivered.saturating_sub(processed + duplicates + failed);
    let row = |name: &str, number: i128, what: &str| {
        screen.line(&format!("{name:<12}{number:>12}  {what}"))
    };
    screen.line("");
    row(
        "delivered",
        delivered.into(),
        "messages handed out by the broker, all copies and repetitions",
    );
    row("processed", processed.into(), "booked");
    row(
        "duplicates",
        duplicates.into(),
        "known already: not booked again",
    );
    row("failed", failed.into(), "no orders: kept as dead letters");
    if orders.blank() > 0 {
        row("blank lines", orders.blank().into(), "skipped");
    }
    if taken_back > 0 {
        row(
            "taken back",
            taken_back.into(),
            "by the broker, before they were looked at; they came again",
        );
    }
    let all_kept = bad_lines(pool, orders, screen).await?;

    let (count, expected) = orders.expected();
    let ledger: Vec<(String, i64)> = sqlx::query_as("SELECT order_id, amount_cents FROM ledger")
        .fetch_all(pool)
        .await?;
    let sum: i128 = ledger
        .iter()
        .filter(|(id, _)| orders.has(id))
        .map(|(_, amount)| i128::from(*amount))
        .sum();
    screen.line("");
    row("ledger sum", sum, "cents, in the database");
    row(
        "expected",
        expected,
        &format!("cents, from the input: {count} different orders"),
    );
    if sum != expected {
        screen.line("\nTHE LEDGER IS WRONG: an order was booked twice or not at all.");
    }
    if delivered == 0 {
        screen.line("\nThe input holds no lines.");
    }
    if sum == expected && processed > 0 {
        screen.line(
            "\nStart it again on the same database: every order is a duplicate, and the sum stays.",
        );
    }
    Ok(sum == expected && all_kept)
}

/// Lists the lines that are no orders, and answers whether all of them were kept.
async fn bad_lines(
    pool: &SqlitePool,
    orders: &Orders,
    screen: &Screen,
) -> Result<bool, sqlx::Error> {
    if orders.bad().is_empty() {
        return Ok(true);
    }
    let kept: Vec<(String, Vec<u8>)> =
        sqlx::query_as("SELECT reason, payload FROM inbox_dead_letters")
            .fetch_all(pool)
            .await?;
    let kept: std::collections::HashMap<u64, String> = kept
        .into_iter()
        .map(|(reason, payload)| (orders::hash(&payload), reason))
        .collect();
    let mut all_kept = true;
    screen.line("\nbad lines, as they are in the table inbox_dead_letters:");
    for (place, bad) in orders.bad().iter().enumerate() {
        let reason = match kept.get(&bad.payload) {
            Some(reason) => reason.as_str(),
            None if bad.to_be_kept => {
                all_kept = false;
                "NOT KEPT"
            }
            // Its id was decided by an earlier line, so it was a duplicate.
            None => "duplicate",
        };
        if place < LISTED {
            screen.line(&format!(
                "  line {:<6} {reason:<12} {}",
                bad.number, bad.why
            ));
        }
    }
    if orders.bad().len() > LISTED {
        screen.line(&format!("  and {} more", orders.bad().len() - LISTED));
    }
    if !all_kept {
        screen.line("\nA BAD LINE IS MISSING among the dead letters.");
    }
    Ok(all_kept)
}
