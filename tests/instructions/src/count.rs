//! Counting by callgrind.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::cases::Case;

const FEW: usize = 100;
const MANY: usize = 300;

/// Instructions for each message.
pub(crate) fn for_each_message(case: Case) -> u64 {
    let few = instructions(case, FEW);
    let many = instructions(case, MANY);
    many.saturating_sub(few) / (MANY - FEW) as u64
}

fn instructions(case: Case, messages: usize) -> u64 {
    let name = format!(
        "inbox-instructions-{}-{}-{messages}",
        std::process::id(),
        case.name()
    );
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).expect("no folder for the database");
    let counted = count(case, messages, &folder);
    let _ = std::fs::remove_dir_all(&folder);
    counted.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        std::process::exit(1);
    })
}

fn count(case: Case, messages: usize, folder: &Path) -> Result<u64, String> {
    let profile = folder.join("profile");
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new("valgrind");
    command
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(this)
        .args(["run", case.name(), &messages.to_string()])
        .arg(folder)
        .stdin(Stdio::null());
    let ended = command.output().map_err(|error| {
        format!("valgrind cannot be started ({error})\n  help: apt-get install valgrind")
    })?;
    if !ended.status.success() {
        let told = String::from_utf8_lossy(&ended.stderr);
        return Err(format!("{command:?}: {}\n{told}", ended.status));
    }
    let profile = std::fs::read_to_string(&profile)
        .map_err(|error| format!("callgrind wrote no profile: {error}"))?;
    let totals = profile
        .lines()
        .find_map(|line| line.strip_prefix("totals: "));
    totals
        .and_then(|total| total.trim().parse().ok())
        .ok_or_else(|| "no totals in callgrind's profile".to_owned())
}
