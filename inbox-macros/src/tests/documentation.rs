//! The documentation's table of options is the parser's.

use super::diagnostics::findings;
use crate::options::OPTIONS;
use std::fmt::Write as _;
use std::path::Path;

const FIRST_LINE: &str = "| option | default | meaning |";

#[test]
fn the_table_of_options_is_the_parsers() {
    let mut table = format!("{FIRST_LINE}\n|---|---|---|\n");
    for option in OPTIONS {
        writeln!(
            table,
            "| `{}` | {} | {} |",
            option.example, option.default, option.meaning
        )
        .expect("infallible");
        for part in option.parts {
            writeln!(
                table,
                "| `{}` in `{}(..)` | {} | {} |",
                part.example, option.name, part.default, part.meaning
            )
            .expect("infallible");
        }
    }
    assert!(document().contains(&table), "the options are:\n{table}");
}

#[test]
fn the_error_that_is_shown_is_the_macros() {
    let found = findings(
        "#[inbox_handler(consumer = \"billing\")] async fn charge(order: OrderPlaced) -> Result<(), E> { Ok(()) }",
    );
    let [(headline, help, _)] = found.as_slice() else {
        panic!("{found:?}");
    };
    let shown = format!("error: {headline}\n       help: {help}\n");
    assert!(document().contains(&shown), "the error is:\n{shown}");
}

fn document() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../inbox-core/docs/inbox_handler.md");
    std::fs::read_to_string(path).expect("the documentation of the attribute")
}
