//! The command line.

use std::ffi::{OsStr, OsString};
use std::num::NonZeroU64;
use std::path::PathBuf;

pub(crate) const HELP: &str = "\
Delivers order events through a misbehaving broker in memory into a SQLite file, and books each order once.

usage: quickstart [OPTIONS] [FILE]

  FILE                one JSON object per line: {\"id\": text, \"account\": text, \"amount_cents\": whole number};
                      `-` is the standard input (default: the file that comes with the example)
  --database FILE     the SQLite file, made if it is not there (default: quickstart.db in the current folder)
  --crash-after N     end the process, as a crash does, between COMMIT and ack of the Nth order that is booked
  --verbose           show every message; without it the first ones
  --help              this text

Exit status: 0 when every order was booked once and every bad line was kept, 1 when not, 2 when it could not run.";

pub(crate) enum Command {
    Run(Options),
    Help,
}

pub(crate) struct Options {
    /// `None`: the file that comes with the example.
    pub(crate) input: Option<PathBuf>,
    pub(crate) database: PathBuf,
    pub(crate) crash_after: Option<NonZeroU64>,
    pub(crate) verbose: bool,
}

impl Options {
    pub(crate) fn parse(args: impl Iterator<Item = OsString>) -> Result<Command, String> {
        let mut options = Self {
            input: None,
            database: PathBuf::from("quickstart.db"),
            crash_after: None,
            verbose: false,
        };
        let mut args = args;
        while let Some(arg) = args.next() {
            let mut value = |of: &str| {
                let value = args.next().filter(|value| !value.is_empty());
                value.ok_or_else(|| format!("{of} needs a value"))
            };
            match arg.to_str() {
                Some("--help" | "-h") => return Ok(Command::Help),
                Some("--verbose") => options.verbose = true,
                Some("--database") => {
                    options.database = value("--database")?.into();
                    if options
                        .database
                        .as_os_str()
                        .as_encoded_bytes()
                        .starts_with(b":")
                    {
                        return Err(format!(
                            "--database {} is no file, and another start could not find it again",
                            options.database.display()
                        ));
                    }
                }
                Some("--crash-after") => {
                    let number = value("--crash-after")?;
                    let parsed = number.to_str().and_then(|number| number.parse().ok());
                    options.crash_after = Some(parsed.ok_or_else(|| {
                        format!(
                            "--crash-after {} is not a whole number above 0",
                            number.display()
                        )
                    })?);
                }
                Some(option) if option.starts_with('-') && option != "-" => {
                    return Err(format!("unknown option `{option}`"));
                }
                _ if options.input.is_some() => {
                    return Err(format!("a second input `{}`; give one", arg.display()));
                }
                _ if arg == OsStr::new("") => {
                    return Err("the name of the input is empty".to_owned());
                }
                _ => options.input = Some(arg.into()),
            }
        }
        Ok(Command::Run(options))
    }
}
