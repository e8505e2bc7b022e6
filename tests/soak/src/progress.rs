//! How a run goes, on the error output.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::counts::{Counts, Happened};
use crate::database::Engine;

/// Tells it until it is dropped: one line that changes, on a terminal, and else one every few seconds.
pub(crate) async fn show(engine: Engine, counts: Arc<Counts>) {
    let begin = Instant::now();
    let is_terminal = std::io::stderr().is_terminal();
    let every = Duration::from_millis(if is_terminal { 500 } else { 5_000 });
    loop {
        tokio::time::sleep(every).await;
        let line = line(engine, begin.elapsed(), &counts.now().clone());
        if is_terminal {
            eprint!("\r\x1b[K{line}");
            let _ = std::io::stderr().flush();
        } else {
            eprintln!("{line}");
        }
    }
}

/// The last line.
pub(crate) fn done(engine: Engine, happened: &Happened) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    eprintln!(
        "{}: done with {} messages",
        engine.name(),
        happened.produced
    );
}

fn line(engine: Engine, elapsed: Duration, happened: &Happened) -> String {
    format!(
        "{} {:>3} s: {} messages, {} processed, {} duplicates, {} redelivered; {} kills, {} server restarts",
        engine.name(),
        elapsed.as_secs(),
        happened.produced,
        happened.tally.processed,
        happened.tally.duplicates,
        happened.tally.redelivered,
        happened.kills + happened.aborts,
        happened.restarts,
    )
}
