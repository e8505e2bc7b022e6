//! Lets processes and servers die at random moments while messages are handled, and then counts: every message must have
//! had its effect exactly once, or be one dead letter. `tests/soak/run --help` tells how to start it.

#![allow(clippy::unwrap_used, clippy::expect_used)] // What goes wrong here has to fail the run.

mod consume;
mod counts;
mod database;
mod fleet;
mod message;
mod options;
mod producer;
mod progress;
mod run;
mod servers;
mod table;
mod tally;
mod verdict;

use std::process::ExitCode;

use sqlx::{MySql, Postgres, Sqlite};

use crate::database::Engine;
use crate::options::Options;
use crate::run::Report;

/// The most messages named for each kind of fault.
const NAMED: usize = 20;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    // A consumer gets what it has to do as its one argument.
    if let Some(duty) = arguments.next_if(|argument| argument.starts_with('{')) {
        return match consume::consume(&duty) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(&*error),
        };
    }
    let options = match Options::from_arguments(arguments) {
        Ok(options) => options,
        Err(problem) => return failed(&problem),
    };
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    runtime.block_on(all(options))
}

fn failed(why: &(impl std::fmt::Display + ?Sized)) -> ExitCode {
    eprintln!("error: {why}");
    ExitCode::from(2)
}

async fn all(options: Options) -> ExitCode {
    println!("seed {}", options.seed);
    let mut reports: Vec<Report> = Vec::new();
    for engine in &options.databases {
        let running = tokio::spawn({
            let options = options.clone();
            let engine = *engine;
            async move {
                match engine {
                    Engine::Postgres => run::run::<Postgres>(&options).await,
                    Engine::MySql => run::run::<MySql>(&options).await,
                    Engine::Sqlite => run::run::<Sqlite>(&options).await,
                }
            }
        });
        match running.await {
            Ok(report) => reports.push(report),
            Err(panic) => {
                eprintln!("error: the run on {} broke off: {panic}", engine.name());
                eprintln!("  help: to repeat it, {}", options.repeat(*engine));
                return ExitCode::FAILURE;
            }
        }
    }
    println!("\n{}", table::of(&reports));
    let mut code = ExitCode::SUCCESS;
    for report in reports.iter().filter(|report| !report.verdict.is_good()) {
        let name = report.engine.name();
        for (what, messages) in [
            ("lost", &report.verdict.lost),
            ("doubled", &report.verdict.doubled),
            ("wrong", &report.verdict.wrong),
        ] {
            for message in messages.iter().take(NAMED) {
                eprintln!("error: {name}, {what}: {message}");
            }
            if messages.len() > NAMED {
                eprintln!("error: {name}, {what}: {} more", messages.len() - NAMED);
            }
        }
        if let Some(log) = &report.log_file {
            eprintln!("  help: what its consumers logged is in {}", log.display());
        }
        eprintln!("  help: to repeat it, {}", options.repeat(report.engine));
        code = ExitCode::FAILURE;
    }
    code
}
