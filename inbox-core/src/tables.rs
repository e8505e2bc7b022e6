/// The names of the framework's tables and of the schema that they live in.
///
/// A name may be anything the database accepts between quotes: `order`, `In Box` and `my-app` work. Refused
/// are names that are empty, longer than [`Tables::MAX_BYTES`], or contain quotes, semicolons, backslashes or
/// control characters.
///
/// ```
/// use inbox_core::Tables;
///
/// let tables = Tables::default().schema("my-app").processed("inbox");
/// assert!(tables.check().is_ok());
/// assert!(Tables::default().processed("x\"; DROP TABLE y; --").check().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tables {
    schema: Option<String>,
    processed: String,
    dead_letters: String,
    attempts: String,
    messages: String,
    migrations: String,
}

impl Default for Tables {
    fn default() -> Self {
        Self {
            schema: None,
            processed: "inbox_processed_messages".to_owned(),
            dead_letters: "inbox_dead_letters".to_owned(),
            attempts: "inbox_attempts".to_owned(),
            messages: "inbox_messages".to_owned(),
            migrations: "_inbox_migrations".to_owned(),
        }
    }
}

impl Tables {
    /// The longest name, in bytes: PostgreSQL cuts at 63, and names of indexes are made by adding to it.
    pub const MAX_BYTES: usize = 48;

    /// Sets the schema. Without one the connection's own default is looked up once, at start-up.
    #[must_use]
    pub fn schema(mut self, name: impl Into<String>) -> Self {
        self.schema = Some(name.into());
        self
    }

    /// Names the table of claims (default `inbox_processed_messages`).
    #[must_use]
    pub fn processed(mut self, name: impl Into<String>) -> Self {
        self.processed = name.into();
        self
    }

    /// Names the table of dead letters (default `inbox_dead_letters`).
    #[must_use]
    pub fn dead_letters(mut self, name: impl Into<String>) -> Self {
        self.dead_letters = name.into();
        self
    }

    /// Names the table of counted failures (default `inbox_attempts`).
    #[must_use]
    pub fn attempts(mut self, name: impl Into<String>) -> Self {
        self.attempts = name.into();
        self
    }

    /// Names the table of messages that wait for their next attempt (default `inbox_messages`).
    #[must_use]
    pub fn messages(mut self, name: impl Into<String>) -> Self {
        self.messages = name.into();
        self
    }

    /// Names the ledger of our own migrations (default `_inbox_migrations`).
    #[must_use]
    pub fn migrations(mut self, name: impl Into<String>) -> Self {
        self.migrations = name.into();
        self
    }

    /// The schema that was asked for.
    #[must_use]
    pub fn schema_name(&self) -> Option<&str> {
        self.schema.as_deref()
    }

    /// The name of the table of claims.
    #[must_use]
    pub fn processed_name(&self) -> &str {
        &self.processed
    }

    /// The name of the table of dead letters.
    #[must_use]
    pub fn dead_letters_name(&self) -> &str {
        &self.dead_letters
    }

    /// The name of the table of counted failures.
    #[must_use]
    pub fn attempts_name(&self) -> &str {
        &self.attempts
    }

    /// The name of the table of messages that wait for their next attempt.
    #[must_use]
    pub fn messages_name(&self) -> &str {
        &self.messages
    }

    /// The name of the ledger of migrations.
    #[must_use]
    pub fn migrations_name(&self) -> &str {
        &self.migrations
    }

    /// Checks every name.
    ///
    /// # Errors
    ///
    /// [`InvalidTableNames`] lists all that cannot be used. No statement is sent before this has passed.
    pub fn check(&self) -> Result<(), InvalidTableNames> {
        let mut problems = Vec::new();
        let tables = self.all();
        for (role, name) in self
            .schema
            .iter()
            .map(|schema| ("schema", schema.as_str()))
            .chain(tables)
        {
            if let Some(problem) = problem_of(name) {
                problems.push(format!(
                    "the {role} name {name:?} cannot be used: {problem}"
                ));
            }
        }
        for (position, (role, name)) in tables.iter().enumerate() {
            for (other_role, other) in tables.iter().skip(position + 1) {
                // SQLite and MySQL (on some systems) compare table names without regard to case.
                if name.eq_ignore_ascii_case(other) {
                    problems.push(format!(
                        "the {role} and the {other_role} are both named {name:?}"
                    ));
                }
            }
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(InvalidTableNames(problems))
        }
    }

    const fn all(&self) -> [(&'static str, &str); 5] {
        [
            ("table of claims", self.processed.as_str()),
            ("table of dead letters", self.dead_letters.as_str()),
            ("table of attempts", self.attempts.as_str()),
            ("table of stored messages", self.messages.as_str()),
            ("ledger of migrations", self.migrations.as_str()),
        ]
    }
}

fn problem_of(name: &str) -> Option<String> {
    if name.trim().is_empty() {
        return Some("it is empty".to_owned());
    }
    if name.len() > Tables::MAX_BYTES {
        return Some(format!(
            "it has {} bytes, at most {} are allowed",
            name.len(),
            Tables::MAX_BYTES
        ));
    }
    name.chars()
        .find(|c| c.is_control() || matches!(c, '"' | '\'' | '`' | ';' | '\\' | '[' | ']'))
        .map(|c| format!("it contains {c:?}"))
}

/// Names that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidTableNames(Vec<String>);

impl InvalidTableNames {
    /// One sentence for each name.
    #[must_use]
    pub fn problems(&self) -> &[String] {
        &self.0
    }
}

impl std::fmt::Display for InvalidTableNames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

impl std::error::Error for InvalidTableNames {}

/// Replaces whole words of a published SQL file: `(word in the file, what stands for it)`.
pub(crate) fn substitute(sql: &str, words: &[(&str, String)]) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut out = String::with_capacity(sql.len());
    let mut rest = sql;
    while let Some(start) = rest.find(is_word) {
        let (before, from_word) = rest.split_at(start);
        out.push_str(before);
        let end = from_word.find(|c| !is_word(c)).unwrap_or(from_word.len());
        let (word, after) = from_word.split_at(end);
        match words.iter().find(|(from, _)| *from == word) {
            Some((_, to)) => out.push_str(to),
            None => out.push_str(word),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Puts a checked name between double quotes.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_work_and_dangerous_ones_are_refused() {
        for name in ["order", "In Box", "inbox", "größe"] {
            assert!(Tables::default().processed(name).check().is_ok(), "{name}");
        }
        assert!(
            Tables::default()
                .schema("my-app")
                .processed("inbox")
                .check()
                .is_ok()
        );
        for name in [
            "x\"; DROP TABLE y; --",
            "",
            " ",
            &"a".repeat(200),
            "a;b",
            "a\0b",
            "a\nb",
            "a'b",
            "a`b",
        ] {
            let problems = Tables::default().processed(name).check().unwrap_err();
            assert_eq!(problems.problems().len(), 1, "{name}");
        }
    }

    #[test]
    fn tables_of_one_name_are_refused() {
        let problems = Tables::default()
            .processed("Inbox")
            .attempts("inbox")
            .check()
            .unwrap_err();
        assert!(problems.to_string().contains("both named"), "{problems}");
    }

    #[test]
    fn only_whole_words_are_replaced() {
        let words = [("inbox", "\"a\".\"b\"".to_owned())];
        assert_eq!(
            substitute("CREATE inbox_x inbox(inbox);", &words),
            "CREATE inbox_x \"a\".\"b\"(\"a\".\"b\");"
        );
    }
}
