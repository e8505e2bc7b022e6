//! Ratios inside rounds, and the tables of them.

use std::fmt::{self, Write as _};

use crate::Result;
use crate::progress;
use crate::stopwatch::Taken;

/// One table: what was compared, and under which conditions.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) title: String,
    /// The base is the first one.
    pub(crate) rows: Vec<Row>,
}

/// The runs of one variant, by round.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    runs: Vec<Taken>,
}

impl Table {
    /// Runs all variants in each round, beginning with another one each time.
    pub(crate) async fn of<V: Copy>(
        title: String,
        rounds: usize,
        variants: &[(V, &'static str)],
        mut run: impl AsyncFnMut(V) -> Result<Taken>,
    ) -> Result<Self> {
        progress::tell(format_args!("{title}"));
        let mut rows: Vec<Row> = variants
            .iter()
            .map(|(_, name)| Row {
                name,
                runs: Vec::new(),
            })
            .collect();
        for round in 0..rounds {
            for place in 0..variants.len() {
                let index = (round + place) % variants.len();
                let (variant, name) = variants[index];
                let taken = run(variant)
                    .await
                    .map_err(|error| format!("{title}: {name}: {error}"))?;
                progress::tell(format_args!(
                    "  round {} of {rounds}, {name}: {} messages, {:.0}/s",
                    round + 1,
                    taken.messages,
                    taken.per_second()
                ));
                rows[index].runs.push(taken);
            }
        }
        Ok(Self { title, rows })
    }

    /// How much faster than the base, in each round.
    pub(crate) fn ratio(&self, row: &Row) -> Spread {
        let base = self.rows[0].runs.iter();
        Spread::of(
            base.zip(&row.runs)
                .map(|(base, run)| run.per_second() / base.per_second()),
        )
    }
}

impl Row {
    /// The median over the rounds of something for each message; `None` where it cannot be counted.
    fn per_message(&self, count: impl Fn(&Taken) -> Option<f64>) -> Option<f64> {
        let values: Option<Vec<f64>> = self
            .runs
            .iter()
            .map(|run| Some(count(run)? / run.messages as f64))
            .collect();
        Some(Spread::of(values?.into_iter()).median)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "### {}\n", self.title)?;
        writeln!(
            f,
            "| variant | ratio min / median / max | messages/s | client us/message | allocations/message | server us/message |"
        )?;
        writeln!(f, "|---|---|---|---|---|---|")?;
        for row in &self.rows {
            let rate = Spread::of(row.runs.iter().map(Taken::per_second));
            let micros = |time: std::time::Duration| time.as_secs_f64() * 1e6;
            writeln!(
                f,
                "| {} | {} | {:.0} | {} | {} | {} |",
                row.name,
                self.ratio(row),
                rate.median,
                figure(row.per_message(|run| Some(micros(run.client)))),
                figure(row.per_message(|run| Some(run.allocations? as f64))),
                figure(row.per_message(|run| Some(micros(run.server?)))),
            )?;
        }
        Ok(())
    }
}

/// A number where there is one.
fn figure(value: Option<f64>) -> String {
    let mut text = String::new();
    let _ = match value {
        Some(value) => write!(text, "{value:.1}"),
        None => write!(text, "–"),
    };
    text
}

/// The smallest, the median and the largest of some values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) least: f64,
    pub(crate) median: f64,
    pub(crate) most: f64,
}

impl Spread {
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let at = |place: usize| values.get(place).copied().unwrap_or(f64::NAN);
        let last = values.len().saturating_sub(1);
        Self {
            least: at(0),
            median: f64::midpoint(at(last / 2), at(last.div_ceil(2))),
            most: at(last),
        }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.2} / {:.2} / {:.2}",
            self.least, self.median, self.most
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn taken(messages: usize, millis: u64) -> Taken {
        Taken {
            messages,
            elapsed: Duration::from_millis(millis),
            client: Duration::from_millis(10),
            server: None,
            allocations: Some(40),
        }
    }

    #[tokio::test]
    async fn a_ratio_is_computed_inside_its_round_and_per_message() {
        let mut runs = vec![
            // Round 1: base, then twice as fast with twice the messages; round 2: begins with the other one.
            taken(10, 100),
            taken(20, 100),
            taken(20, 50),
            taken(10, 50),
        ]
        .into_iter();
        let table = Table::of("t".into(), 2, &[(1, "base"), (2, "other")], async |_| {
            Ok(runs.next().unwrap())
        })
        .await
        .unwrap();
        let ratio = table.ratio(&table.rows[1]);
        assert_eq!((ratio.least, ratio.median, ratio.most), (2.0, 2.0, 2.0));
        let text = table.to_string();
        assert!(
            text.contains("| base | 1.00 / 1.00 / 1.00 | 150 | 1000.0 | 4.0 | – |"),
            "{text}"
        );
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        let spread = Spread::of([4.0, 1.0, 2.0, 3.0].into_iter());
        assert_eq!((spread.least, spread.median, spread.most), (1.0, 2.5, 4.0));
    }
}
