//! Places in a source text: `$0` is the cursor, and a line of `^^^` marks what lies above it, perhaps with a message.

use std::fmt::Write;

const CURSOR: &str = "$0";

/// A source text that showed where the cursor is.
#[derive(Debug)]
pub struct Marked {
    /// The text as the editor has it.
    pub source: String,
    /// Where the cursor is.
    pub cursor: Option<Place>,
    /// The text with the `^^^` lines that it had, to compare [`annotated`] with.
    pub expected: String,
}

/// A line and a column, both from 0. The texts are ASCII, so a column is a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

/// What is marked and why.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    /// The first character.
    pub start: Place,
    /// Behind the last character.
    pub end: Place,
    /// Stands behind the `^^^`.
    pub message: String,
}

impl Marked {
    /// Takes the marks out of `text`.
    #[must_use]
    pub fn read(text: &str) -> Self {
        assert!(text.is_ascii(), "columns are counted in ASCII: {text}");
        let expected = text.replacen(CURSOR, "", 1);
        let mut lines = text.lines().filter(|line| !is_marks(line));
        let cursor = lines.clone().enumerate().find_map(|(line, text)| {
            let column = text.find(CURSOR)?;
            Some(Place { line, column })
        });
        let source = lines.by_ref().fold(String::new(), |source, line| {
            source + &line.replacen(CURSOR, "", 1) + "\n"
        });
        Self {
            source,
            cursor,
            expected,
        }
    }
}

fn is_marks(line: &str) -> bool {
    line.trim_start().starts_with('^')
}

/// The text with a `^^^` line under each mark. A mark of several lines shows the first, and says so; one outside the
/// text stands at its end.
#[must_use]
pub fn annotated(source: &str, marks: &[Mark]) -> String {
    let mut marks = marks.to_vec();
    marks.sort();
    let mut text = String::new();
    for (number, line) in source.lines().enumerate() {
        text.push_str(line);
        text.push('\n');
        for mark in marks.iter().filter(|mark| mark.start.line == number) {
            let (column, is_long) = (mark.start.column, mark.end.line != number);
            let end = if is_long { line.len() } else { mark.end.column };
            // An empty range is shown as one character.
            let width = end.saturating_sub(column).max(1);
            let _ = write!(text, "{:column$}{:^<width$}", "", "");
            if is_long {
                text.push_str("...");
            }
            if !mark.message.is_empty() {
                let _ = write!(text, " {}", mark.message);
            }
            text.push('\n');
        }
    }
    let lines = source.lines().count();
    for mark in marks.iter().filter(|mark| mark.start.line >= lines) {
        let _ = writeln!(text, "outside the text: {}", mark.message);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
let a = $0one;
        ^^^ first
let two;
    ^^^^... second
";

    #[test]
    fn marks_are_taken_out_of_a_text() {
        let marked = Marked::read(TEXT);
        assert_eq!(marked.source, "let a = one;\nlet two;\n");
        assert_eq!(marked.cursor, Some(Place { line: 0, column: 8 }));
    }

    #[test]
    fn marks_are_put_back_where_they_were() {
        let place = |line, column| Place { line, column };
        let mark = |start, end, message: &str| Mark {
            start,
            end,
            message: message.to_owned(),
        };
        let marks = [
            mark(place(7, 0), place(7, 1), "third"),
            mark(place(1, 4), place(2, 1), "second"),
            mark(place(0, 8), place(0, 11), "first"),
        ];
        let expected = Marked::read(TEXT).expected + "outside the text: third\n";
        assert_eq!(annotated("let a = one;\nlet two;\n", &marks), expected);
    }
}
