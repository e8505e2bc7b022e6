//! The attribute adds nothing that a lint of rustc or clippy complains about: clippy finds in handlers what it finds
//! in the same functions without the attribute.

// clippy sees no test in a helper of tests.
#![allow(clippy::expect_used)]

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const HANDLERS: &str = include_str!("lints/handlers.rs");
const EDITIONS: [&str; 3] = ["2018", "2021", "2024"];

/// Lints of the group `restriction` that see the types of the signature where the expansion repeats them.
const OF_RESTRICTION: [&str; 7] = [
    "clippy::absolute_paths",
    "clippy::arbitrary_source_item_ordering",
    "clippy::missing_inline_in_public_items",
    "clippy::question_mark_used",
    "clippy::shadow_reuse",
    "clippy::single_call_fn",
    "clippy::single_char_lifetime_names",
];

/// A lint and where it points: the line, and the text under it.
type Found = BTreeSet<(String, u64, String)>;

/// The attribute written over, so that everything else keeps its line.
fn without_attribute(source: &str) -> String {
    let line = |line: &str| match line.trim_start() {
        attribute if attribute.starts_with("#[inbox_handler(") => String::new(),
        _ => line.to_owned(),
    };
    source.lines().map(|text| line(text) + "\n").collect()
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a directory")).expect("a directory for the crate");
    // An unchanged file keeps its time, and what was built from it.
    if fs::read_to_string(path).unwrap_or_default() != text {
        fs::write(path, text).expect("the crate is writable");
    }
}

/// Crates with and without the attribute, one for each edition, in a workspace of their own.
fn crates() -> PathBuf {
    let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("lints");
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let repository = repository.canonicalize().expect("the repository");
    let mut members = Vec::new();
    for edition in EDITIONS {
        for (kind, source) in [
            ("with", HANDLERS),
            ("without", &*without_attribute(HANDLERS)),
        ] {
            let name = format!("{kind}-{edition}");
            let manifest = format!(
                "[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \"{edition}\"\n\n\
                 [dependencies]\ninbox-core.workspace = true\nserde.workspace = true\nsqlx.workspace = true\n\
                 tracing.workspace = true\n"
            );
            write(&root.join(&name).join("Cargo.toml"), &manifest);
            write(&root.join(&name).join("src/lib.rs"), source);
            members.push(name);
        }
    }
    let manifest = format!(
        "[workspace]\nresolver = \"3\"\nmembers = {members:?}\n\n[workspace.dependencies]\n\
         inbox-core = {{ path = {:?}, default-features = false, features = [\"macros\", \"postgres\"] }}\n\
         serde = {{ version = \"1\", features = [\"derive\"] }}\n\
         sqlx = {{ version = \"0.9\", default-features = false, features = [\"postgres\"] }}\n\
         tracing = {{ version = \"0.1\", default-features = false, features = [\"std\", \"attributes\"] }}\n",
        repository.join("inbox-core"),
    );
    write(&root.join("Cargo.toml"), &manifest);
    // The versions that everything else is tested with.
    fs::copy(repository.join("Cargo.lock"), root.join("Cargo.lock")).expect("the lock file");
    root
}

/// Everything that clippy says, by the name of the crate.
fn clippy(root: &Path) -> Vec<(String, Value)> {
    let output = Command::new(env!("CARGO"))
        .args([
            "clippy",
            "--offline",
            "--workspace",
            "--message-format=json",
        ])
        .env("CARGO_TARGET_DIR", root.join("target"))
        .env_remove("RUSTFLAGS")
        .current_dir(root)
        .output()
        .expect("cargo clippy starts");
    assert!(
        output.status.success(),
        "cargo clippy: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|line| line["reason"] == "compiler-message")
        .map(|mut line| {
            let name = line["target"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            (name, line["message"].take())
        })
        .collect()
}

fn found(messages: &[(String, Value)], name: &str) -> Found {
    let of_crate = messages.iter().filter(|(of, _)| of == name);
    let place = |(_, message): &(String, Value)| {
        let code = message["code"]["code"].as_str()?.to_owned();
        let spans = message["spans"].as_array()?;
        let span = spans.iter().find(|span| span["is_primary"] == true)?;
        let text = &span["text"][0];
        let columns = |key: &str| {
            text[key]
                .as_u64()
                .and_then(|column| usize::try_from(column).ok())
        };
        let underlined: String = text["text"]
            .as_str()?
            .chars()
            .take(columns("highlight_end")? - 1)
            .skip(columns("highlight_start")? - 1)
            .collect();
        Some((code, span["line_start"].as_u64()?, underlined))
    };
    of_crate.filter_map(place).collect()
}

#[test]
fn clippy_finds_nothing_in_what_the_attribute_adds() {
    let root = crates();
    let messages = clippy(&root);
    for edition in EDITIONS {
        let with = found(&messages, &format!("with_{edition}"));
        let without = found(&messages, &format!("without_{edition}"));
        let added: Vec<_> = with
            .difference(&without)
            .filter(|(code, ..)| !OF_RESTRICTION.contains(&code.as_str()))
            .collect();
        assert!(added.is_empty(), "edition {edition}: {added:#?}");
    }
}

#[test]
fn clippy_looks_at_the_bodies_of_handlers() {
    let root = crates();
    let messages = clippy(&root);
    let line = |text: &str| {
        let line = HANDLERS.lines().position(|line| line.contains(text));
        line.map(|line| line as u64 + 1)
            .expect("a line of the handlers")
    };
    for edition in EDITIONS {
        let with = found(&messages, &format!("with_{edition}"));
        for (code, text, underlined) in [
            ("unused_variables", "let unused", "unused"),
            ("dead_code", "async fn unused", "unused"),
            ("clippy::redundant_clone", "let unused", ".clone()"),
            (
                "clippy::question_mark_used",
                "savepoint().await?",
                "tx.savepoint().await?.release().await?",
            ),
        ] {
            let expected = (code.to_owned(), line(text), underlined.to_owned());
            assert!(
                with.contains(&expected),
                "edition {edition}: {expected:?} is not in {with:#?}"
            );
        }
    }
}
