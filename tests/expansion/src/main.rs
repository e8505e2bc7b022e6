//! How long `cargo check` takes for a crate of handlers, beside a crate of the same functions without the attribute.
//!
//! ```text
//! cargo run -p inbox-expansion [-- --rounds 7 --sizes 1,50,500]
//! ```
//!
//! A plain function comes with a second one that calls it and returns the boxed future: what a dispatcher written by
//! hand needs too. The handler is the one of the macro's snapshot `measured`, so its expanded lines are known.
//!
//! Each crate is checked once per round, one after the other, beginning with another one each round; a difference is
//! taken inside its round. "After a change" is what a person waits for while working: the file was touched, and the
//! compiler has its incremental data. "From nothing" is the crate without such data, its dependencies being built.
//! Processor time is that of cargo, the compiler and the macro together; it suffers less from a busy machine.

mod crates;
mod stopwatch;
mod table;

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use crates::{Crate, Workspace};
use stopwatch::Taken;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What the compiler can start from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    Change,
    Nothing,
}

impl Start {
    const ALL: [Self; 2] = [Self::Change, Self::Nothing];

    const fn name(self) -> &'static str {
        match self {
            Self::Change => "After a change",
            Self::Nothing => "From nothing",
        }
    }
}

struct Options {
    rounds: usize,
    sizes: Vec<usize>,
}

impl Options {
    fn from_arguments(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self {
            rounds: 7,
            sizes: vec![1, 50, 500],
        };
        while let Some(option) = arguments.next() {
            let value = arguments.next().unwrap_or_default();
            let number = |text: &str| match text.parse() {
                Ok(number) if number > 0 => Ok(number),
                _ => Err(format!("`{option}` needs a number from 1, found `{text}`")),
            };
            match option.as_str() {
                "--rounds" => options.rounds = number(&value)?,
                "--sizes" => {
                    options.sizes = value
                        .split(',')
                        .map(number)
                        .collect::<std::result::Result<_, _>>()?
                }
                _ => {
                    return Err(format!(
                        "unknown option `{option}`; there are `--rounds 7` and `--sizes 1,50,500`"
                    )
                    .into());
                }
            }
        }
        Ok(options)
    }
}

fn main() -> ExitCode {
    match Options::from_arguments(std::env::args().skip(1)).and_then(|options| measure(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<()> {
    let workspace = Workspace::write(&options.sizes)?;
    println!("Expanded lines per handler: {}", crates::expanded_lines());
    for start in Start::ALL {
        // Builds the dependencies, and the incremental data of each crate.
        for member in workspace.crates() {
            check(&workspace, member, start)?;
        }
        let mut taken: Vec<Vec<Taken>> = vec![Vec::new(); workspace.crates().len()];
        for round in 0..options.rounds {
            for place in 0..taken.len() {
                let index = (round + place) % taken.len();
                taken[index].push(check(&workspace, &workspace.crates()[index], start)?);
            }
        }
        println!(
            "\n## {}\n\n{}",
            start.name(),
            table::of(&options.sizes, &taken)
        );
    }
    Ok(())
}

/// One `cargo check` of a crate whose file is newer than its last check.
fn check(workspace: &Workspace, member: &Crate, start: Start) -> Result<Taken> {
    member.touch()?;
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["check", "--quiet", "--package", &member.name()])
        .current_dir(workspace.folder())
        .env("CARGO_TARGET_DIR", workspace.folder().join("target"))
        .env(
            "CARGO_INCREMENTAL",
            if start == Start::Change { "1" } else { "0" },
        )
        .stdin(Stdio::null());
    let (status, taken) = stopwatch::time(|| cargo.status())?;
    if !status?.success() {
        return Err(format!("`{}` does not compile", member.name()).into());
    }
    Ok(taken)
}

/// The folder of the project.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
