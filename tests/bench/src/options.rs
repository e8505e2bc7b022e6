//! The command line.

use std::fmt::Display;
use std::str::FromStr;

const KNOWN: &str = "--seconds N, --rounds N, --concurrency N,N,.., --memory-broker";

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Options {
    /// About how long the base takes for one run.
    pub(crate) seconds: f64,
    pub(crate) rounds: usize,
    pub(crate) concurrency: Vec<usize>,
    /// Whether the framework also runs on the in-memory broker.
    pub(crate) memory_broker: bool,
}

impl Options {
    pub(crate) fn from_arguments(
        mut arguments: impl Iterator<Item = String>,
    ) -> Result<Self, String> {
        let mut options = Self {
            seconds: 3.0,
            rounds: 5,
            concurrency: vec![1, 4, 16],
            memory_broker: false,
        };
        while let Some(name) = arguments.next() {
            if name == "--memory-broker" {
                options.memory_broker = true;
                continue;
            }
            let mut value = || arguments.next().ok_or(format!("{name} needs a value"));
            match name.as_str() {
                "--seconds" => options.seconds = within(&name, &value()?, 0.1, 20.0)?,
                "--rounds" => options.rounds = within(&name, &value()?, 1, 1_000)?,
                "--concurrency" => {
                    options.concurrency = value()?
                        .split(',')
                        .map(|number| within(&name, number, 1, 200))
                        .collect::<Result<_, _>>()?;
                }
                _ => return Err(format!("unknown option `{name}`\n  help: {KNOWN}")),
            }
        }
        Ok(options)
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
