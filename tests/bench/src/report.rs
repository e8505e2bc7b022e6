//! Ratios inside rounds, and the table of them.

use std::fmt;
use std::time::Duration;

use crate::Variant;
use crate::stopwatch::Taken;

/// The runs of one concurrency: by variant (the base first), then by round.
#[derive(Debug)]
pub(crate) struct Results {
    variants: Vec<(Variant, Vec<Taken>)>,
    messages: usize,
}

impl Results {
    pub(crate) fn new(variants: &[Variant], messages: usize) -> Self {
        Self {
            variants: variants
                .iter()
                .map(|variant| (*variant, Vec::new()))
                .collect(),
            messages,
        }
    }

    pub(crate) fn add(&mut self, variant: usize, taken: Taken) {
        self.variants[variant].1.push(taken);
    }

    /// How much faster than the base, in each round.
    fn ratios(&self, runs: &[Taken]) -> Spread {
        let base = self.variants[0].1.iter();
        Spread::of(
            base.zip(runs)
                .map(|(base, run)| base.elapsed.as_secs_f64() / run.elapsed.as_secs_f64()),
        )
    }

    fn micros_per_message(&self, runs: &[Taken], time: impl Fn(&Taken) -> Duration) -> Spread {
        Spread::of(
            runs.iter()
                .map(|run| time(run).as_secs_f64() * 1e6 / self.messages as f64),
        )
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| variant | ratio min / median / max | messages/s | client us/message | server us/message |"
        )?;
        writeln!(f, "|---|---|---|---|---|")?;
        for (variant, runs) in &self.variants {
            let ratio = self.ratios(runs);
            let rate = Spread::of(
                runs.iter()
                    .map(|run| per_second(self.messages, run.elapsed)),
            );
            let client = self.micros_per_message(runs, |run| run.client);
            let server = self.micros_per_message(runs, |run| run.server);
            writeln!(
                f,
                "| {} | {:.2} / {:.2} / {:.2} | {:.0} | {:.0} | {:.0} |",
                variant.name(),
                ratio.least,
                ratio.median,
                ratio.most,
                rate.median,
                client.median,
                server.median,
            )?;
        }
        Ok(())
    }
}

struct Spread {
    least: f64,
    median: f64,
    most: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let at = |place: usize| values.get(place).copied().unwrap_or(f64::NAN);
        let last = values.len().saturating_sub(1);
        Self {
            least: at(0),
            median: (at(last / 2) + at(last.div_ceil(2))) / 2.0,
            most: at(last),
        }
    }
}

pub(crate) fn per_second(messages: usize, elapsed: Duration) -> f64 {
    messages as f64 / elapsed.as_secs_f64()
}

/// How many messages `seconds` have room for, when `messages` took this long.
pub(crate) fn messages_in(seconds: f64, messages: usize, taken: Taken) -> usize {
    ((per_second(messages, taken.elapsed) * seconds) as usize).max(100)
}
