//! The smallest and the median of what was measured.

use std::fmt::Write as _;
use std::time::Duration;

use crate::stopwatch::Taken;

/// `taken` by crate, two for each size (the plain one first), then by round.
pub(crate) fn of(sizes: &[usize], taken: &[Vec<Taken>]) -> String {
    let mut table = "| functions | | plain | handlers | difference | per handler |\n|---|---|---|---|---|---|\n".to_owned();
    for (size, pair) in sizes.iter().zip(taken.chunks_exact(2)) {
        row(&mut table, *size, "wall", pair, |taken| taken.wall);
        row(&mut table, *size, "processor", pair, |taken| {
            taken.processor
        });
    }
    table.push_str("\nSeconds, smallest / median; the last column is milliseconds, median.\n");
    table
}

fn row(
    table: &mut String,
    size: usize,
    name: &str,
    pair: &[Vec<Taken>],
    time: impl Fn(&Taken) -> Duration,
) {
    let seconds = |runs: &[Taken]| -> Vec<f64> {
        runs.iter().map(|taken| time(taken).as_secs_f64()).collect()
    };
    let (plain, handlers) = (seconds(&pair[0]), seconds(&pair[1]));
    let difference: Vec<f64> = plain
        .iter()
        .zip(&handlers)
        .map(|(plain, handlers)| handlers - plain)
        .collect();
    let (plain, handlers, difference) = (
        Spread::of(plain),
        Spread::of(handlers),
        Spread::of(difference),
    );
    let _ = writeln!(
        table,
        "| {size} | {name} | {:.2} / {:.2} | {:.2} / {:.2} | {:.2} / {:.2} | {:.2} |",
        plain.least,
        plain.median,
        handlers.least,
        handlers.median,
        handlers.least - plain.least,
        difference.median,
        difference.median * 1e3 / size as f64,
    );
}

struct Spread {
    least: f64,
    median: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |place: usize| values.get(place).copied().unwrap_or(f64::NAN);
        let last = values.len().saturating_sub(1);
        Self {
            least: at(0),
            median: f64::midpoint(at(last / 2), at(last.div_ceil(2))),
        }
    }
}
