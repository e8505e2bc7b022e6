//! `cargo run -p inbox-instructions`: how many instructions a message takes, counted by callgrind, and whether
//! that is within the bounds in `bounds.txt`. With `--renew` it writes the bounds anew.
//!
//! Each case runs in a process of its own, once for some messages and once for more: the difference is theirs,
//! without what starting and stopping takes. A count knows no noisy neighbours, so a bound can be narrow; it depends on
//! the compiler and on the versions of the dependencies, so a new one may ask for new bounds. It is built like the tests,
//! without optimisation: what takes more instructions there takes more everywhere, and a build for it alone would take
//! longer than all that it counts.

#![allow(clippy::unwrap_used, clippy::expect_used)] // What goes wrong here has to end the run.

mod cases;
mod count;

use std::fmt::Write as _;
use std::process::ExitCode;

use cases::Case;

/// Above what was measured, in percent.
const MARGIN: u64 = 10;

/// Measured this much below the bound, and the bound is no bound any more.
const STALE: u64 = 30;

const BOUNDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/bounds.txt");

const HEAD: &str = "\
# Instructions for each message, at most: what was measured and a tenth more. Written by
#     cargo run -p inbox-instructions -- --renew
# A change that raises one says in its message what the instructions are for.
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => compare(),
        ["--renew"] => renew(),
        // What callgrind is started with.
        ["run", case, messages, folder] => {
            let case = Case::named(case).expect("a case");
            case.run(messages.parse().expect("a number"), folder.as_ref());
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("error: unknown arguments\n  help: none, or --renew");
            ExitCode::from(2)
        }
    }
}

fn compare() -> ExitCode {
    let bounds = std::fs::read_to_string(BOUNDS).unwrap_or_default();
    let mut is_within = true;
    for case in Case::ALL {
        let measured = count::for_each_message(case);
        let line = bounds.lines().find_map(|line| {
            let (name, bound) = line.split_once(' ')?;
            (name == case.name()).then(|| bound.trim().parse::<u64>().ok())?
        });
        let judgement = match line {
            None => Err("no bound in bounds.txt".to_owned()),
            Some(bound) if measured > bound => Err(format!("more than the bound, {bound}")),
            Some(bound) if measured * 100 < bound * (100 - STALE) => Err(format!(
                "far below the bound, {bound}: a bound that far away binds nothing"
            )),
            Some(bound) => Ok(format!("within the bound, {bound}")),
        };
        is_within &= judgement.is_ok();
        let judgement = judgement.unwrap_or_else(|error| format!("ERROR: {error}"));
        println!(
            "{:24} {measured:>9} instructions for each message, {judgement}",
            case.name()
        );
    }
    if is_within {
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "error: the instructions for each message are not within their bounds\n  help: find what takes them \
         (callgrind_annotate); if they are worth it: cargo run -p inbox-instructions -- --renew"
    );
    ExitCode::FAILURE
}

fn renew() -> ExitCode {
    let mut text = HEAD.to_owned();
    for case in Case::ALL {
        let measured = count::for_each_message(case);
        println!(
            "{:24} {measured:>9} instructions for each message",
            case.name()
        );
        let _ = writeln!(text, "{} {}", case.name(), measured * (100 + MARGIN) / 100);
    }
    std::fs::write(BOUNDS, text).expect("bounds.txt cannot be written");
    ExitCode::SUCCESS
}
