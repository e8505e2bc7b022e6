//! The command line.

use std::fmt::Display;
use std::str::FromStr;

const KNOWN: &str = "--quick, --seconds N, --rounds N, --concurrency N,N,.., --only PART,PART,.., --no-latency, \
     --latency, --memory-broker, --write-docs";

/// What can be measured on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Messages,
    Duplicates,
    Sqlite,
    Idle,
    Brokers,
}

impl Part {
    const ALL: [(&'static str, Self); 5] = [
        ("messages", Self::Messages),
        ("duplicates", Self::Duplicates),
        ("sqlite", Self::Sqlite),
        ("idle", Self::Idle),
        ("brokers", Self::Brokers),
    ];

    fn named(name: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name);
        found.map(|(_, part)| *part).ok_or_else(|| {
            format!(
                "--only {name}: the parts are {}",
                Self::ALL.map(|(name, _)| name).join(", ")
            )
        })
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Options {
    /// About how long the base takes for one run.
    pub(crate) seconds: f64,
    pub(crate) rounds: usize,
    pub(crate) concurrency: Vec<usize>,
    pub(crate) parts: Vec<Part>,
    /// Without and with the delay in front of PostgreSQL.
    pub(crate) direct: bool,
    pub(crate) delayed: bool,
    /// Whether the framework also runs on the in-memory broker.
    pub(crate) memory_broker: bool,
    pub(crate) write_docs: bool,
    pub(crate) quick: bool,
}

impl Options {
    pub(crate) fn from_arguments(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut arguments: Vec<String> = arguments.collect();
        let all = arguments.len();
        arguments.retain(|argument| argument != "--quick");
        let quick = arguments.len() < all;
        let mut options = Self {
            seconds: if quick { 0.5 } else { 1.0 },
            rounds: 3,
            concurrency: if quick { vec![4] } else { vec![1, 4, 16] },
            parts: Part::ALL.map(|(_, part)| part).to_vec(),
            direct: true,
            delayed: true,
            memory_broker: false,
            write_docs: false,
            quick,
        };
        let mut arguments = arguments.into_iter();
        while let Some(name) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{name} needs a value"));
            match name.as_str() {
                "--memory-broker" => options.memory_broker = true,
                "--write-docs" => options.write_docs = true,
                "--no-latency" => options.delayed = false,
                "--latency" => options.direct = false,
                "--seconds" => options.seconds = within(&name, &value()?, 0.1, 20.0)?,
                "--rounds" => options.rounds = within(&name, &value()?, 1, 1_000)?,
                "--concurrency" => {
                    options.concurrency = value()?
                        .split(',')
                        .map(|number| within(&name, number, 1, 200))
                        .collect::<Result<_, _>>()?;
                }
                "--only" => {
                    options.parts = value()?
                        .split(',')
                        .map(Part::named)
                        .collect::<Result<_, _>>()?;
                }
                _ => return Err(format!("unknown option `{name}`\n  help: {KNOWN}")),
            }
        }
        if !options.direct && !options.delayed {
            return Err("--latency and --no-latency leave nothing to measure".to_owned());
        }
        Ok(options)
    }

    /// The one of the chart and of the duplicates.
    pub(crate) fn main_concurrency(&self) -> usize {
        let first = self.concurrency.first().copied().unwrap_or(1);
        if self.concurrency.contains(&4) {
            4
        } else {
            first
        }
    }

    pub(crate) fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }
}

fn within<T: FromStr + PartialOrd + Display + Copy>(
    name: &str,
    text: &str,
    least: T,
    most: T,
) -> Result<T, String> {
    text.parse()
        .ok()
        .filter(|value| *value >= least && *value <= most)
        .ok_or(format!(
            "{name} {text}: give a number from {least} to {most}"
        ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> Result<Options, String> {
        Options::from_arguments(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn what_is_said_beside_quick_wins_wherever_it_stands() {
        let quick = options("--seconds 2 --quick --only idle,sqlite").unwrap();
        assert_eq!((quick.seconds, quick.concurrency), (2.0, vec![4]));
        assert_eq!(quick.parts, [Part::Idle, Part::Sqlite]);
    }

    #[test]
    fn wrong_options_are_refused_with_what_there_is() {
        for (line, says) in [
            ("--rounds 0", "from 1"),
            ("--rounds", "needs a value"),
            ("--only idel", "idle"),
            ("--fast", "--quick"),
            ("--latency --no-latency", "nothing to measure"),
        ] {
            let error = options(line).unwrap_err();
            assert!(error.contains(says), "{line}: {error}");
        }
    }
}
