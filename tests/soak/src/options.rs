//! The command line.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use crate::database::Engine;

const KNOWN: &str = "--seconds N, --seed N, --database NAME, --rate N, --no-killers, --log FILTER; tests/soak/run --help";

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Options {
    /// How long things die, all databases together.
    pub(crate) seconds: u64,
    pub(crate) seed: u64,
    pub(crate) databases: Vec<Engine>,
    /// Messages per second.
    pub(crate) rate: u32,
    /// Whether there are messages that end the process that handles them.
    pub(crate) killers: bool,
    /// What the consumers log, as `RUST_LOG` has it.
    pub(crate) log: String,
}

impl Options {
    pub(crate) fn from_arguments(
        mut arguments: impl Iterator<Item = String>,
    ) -> Result<Self, String> {
        let mut options = Self {
            seconds: 30,
            // Short enough to type.
            seed: fastrand::u64(..1_000_000),
            databases: Engine::ALL.to_vec(),
            rate: 60,
            killers: true,
            log: "info,inbox_runtime=debug".to_owned(),
        };
        while let Some(name) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{name} needs a value"));
            match name.as_str() {
                "--no-killers" => options.killers = false,
                "--seconds" => options.seconds = within(&name, &value()?, 2, 7 * 24 * 3600)?,
                "--seed" => options.seed = within(&name, &value()?, 0, u64::MAX)?,
                "--rate" => options.rate = within(&name, &value()?, 1, 10_000)?,
                "--log" => options.log = value()?,
                "--database" => {
                    let value = value()?;
                    if value != "all" {
                        options.databases = vec![Engine::named(&value)?];
                    }
                }
                _ => return Err(format!("unknown option `{name}`\n  help: {KNOWN}")),
            }
        }
        Ok(options)
    }

    /// How long things die on each database.
    pub(crate) fn time_for_each(&self) -> Duration {
        let databases = u32::try_from(self.databases.len()).unwrap_or(u32::MAX);
        Duration::from_secs(self.seconds) / databases.max(1)
    }

    /// The command that repeats this run on one of its databases.
    pub(crate) fn repeat(&self, database: Engine) -> String {
        let seconds = self.time_for_each().as_secs_f64().ceil();
        let mut command = format!(
            "tests/soak/run --seed {} --seconds {seconds} --database {} --rate {}",
            self.seed,
            database.name(),
            self.rate
        );
        if !self.killers {
            command.push_str(" --no-killers");
        }
        command
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
    fn the_command_that_repeats_a_run_is_one_that_makes_it() {
        let both = options("--seed 7 --seconds 9 --no-killers --rate 5").unwrap();
        let repeat = both.repeat(Engine::Sqlite);
        let repeated = options(repeat.trim_start_matches("tests/soak/run")).unwrap();
        assert_eq!(repeated.databases, [Engine::Sqlite]);
        assert!(repeated.time_for_each() >= both.time_for_each());
        assert_eq!(
            (repeated.seed, repeated.killers, repeated.rate),
            (7, false, 5)
        );
    }

    #[test]
    fn wrong_options_are_refused_with_what_there_is() {
        for (line, says) in [
            ("--seconds 1", "from 2"),
            ("--seed", "needs a value"),
            ("--database postgre", "postgres, mysql, sqlite"),
            ("--fast", "--seconds"),
        ] {
            let error = options(line).unwrap_err();
            assert!(error.contains(says), "{line}: {error}");
        }
    }
}
