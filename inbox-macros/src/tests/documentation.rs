//! The documentation's table of options is the parser's.

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
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../inbox-core/docs/inbox_handler.md");
    let document = std::fs::read_to_string(path).expect("the documentation of the attribute");
    assert!(document.contains(&table), "the options are:\n{table}");
}
