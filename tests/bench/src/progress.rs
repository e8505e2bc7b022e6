//! What runs now, on the error output.

use std::fmt::Arguments;
use std::sync::LazyLock;
use std::time::Instant;

static STARTED: LazyLock<Instant> = LazyLock::new(Instant::now);

/// A line, with the time since the first one.
pub(crate) fn tell(line: Arguments<'_>) {
    let seconds = STARTED.elapsed().as_secs();
    eprintln!("{:2}:{:02} {line}", seconds / 60, seconds % 60);
}
