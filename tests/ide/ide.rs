//! The editor keeps working where `#[inbox_handler]` is written, also while it is being typed.

mod cases;

use cases::{COMPLETIONS, DEFINITIONS, DIAGNOSTICS, HOVERS};
use ide::{Editor, Mark, Marked, annotated};
use std::path::Path;
use std::time::Instant;

/// One test: the server that answers all questions takes a while to load.
#[test]
fn the_editor_keeps_working() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let begin = Instant::now();
    let mut editor = Editor::open(folder).unwrap_or_else(|error| panic!("{error}"));
    println!("loaded after {:.1?}", begin.elapsed());
    let mut report = Report::default();
    for case in COMPLETIONS {
        let found = editor.completion(&Marked::read(case.text));
        report.add(
            "completion",
            case.name,
            found.and_then(|found| offers(&found, case.offered)),
        );
    }
    for case in HOVERS {
        let found = editor.hover(&Marked::read(case.text));
        report.add(
            "hover",
            case.name,
            found.and_then(|found| shows(&found, case.shown)),
        );
    }
    for case in DEFINITIONS {
        let text = Marked::read(case.text);
        let found = editor.definition(&text);
        report.add(
            "definition",
            case.name,
            found.and_then(|found| is(&text, &found)),
        );
    }
    for case in DIAGNOSTICS {
        let text = Marked::read(case.text);
        let found = editor.diagnostics(&text);
        report.add(
            "diagnostics",
            case.name,
            found.and_then(|found| is(&text, &found)),
        );
    }
    println!("answered after {:.1?}", begin.elapsed());
    report.finish();
}

fn offers(names: &[String], expected: &[&str]) -> Result<(), String> {
    let missing: Vec<&str> = expected
        .iter()
        .filter(|name| !names.iter().any(|offered| offered == *name))
        .copied()
        .collect();
    if missing.is_empty() && !expected.is_empty() {
        return Ok(());
    }
    Err(format!(
        "not offered: {}\noffered: {}\n",
        missing.join(", "),
        names.join(", ")
    ))
}

fn shows(shown: &str, expected: &[&str]) -> Result<(), String> {
    match expected.iter().find(|part| !shown.contains(**part)) {
        Some(missing) => Err(format!("not shown: {missing}\nshown:\n{shown}\n")),
        None => Ok(()),
    }
}

fn is(text: &Marked, marks: &[Mark]) -> Result<(), String> {
    let found = annotated(&text.source, marks);
    if found == text.expected {
        return Ok(());
    }
    Err(format!(
        "---- expected{}---- found{found}----\n",
        text.expected
    ))
}

#[derive(Default)]
struct Report {
    cases: usize,
    failures: Vec<String>,
}

impl Report {
    fn add(&mut self, question: &str, name: &str, result: Result<(), String>) {
        self.cases += 1;
        println!(
            "{question}, {name}: {}",
            if result.is_ok() { "ok" } else { "FAILED" }
        );
        if let Err(failure) = result {
            self.failures.push(format!("{question}, {name}\n{failure}"));
        }
    }

    fn finish(self) {
        let Self { cases, failures } = self;
        assert!(
            failures.is_empty(),
            "{} of {cases} cases failed\n\n{}",
            failures.len(),
            failures.join("\n")
        );
    }
}
