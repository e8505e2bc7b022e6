//! The questions of an editor about a text, and the answers as a test needs them.

use crate::markup::{Mark, Marked, Place};
use crate::server::{Server, uri};
use crate::shop::{self, PRELUDE};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

const ANALYZER: &str = "bin/rust-analyzer";

/// How often a question is asked that makes the server panic.
const ATTEMPTS: usize = 3;

/// What a toolchain must have. Without the source of the standard library rust-analyzer knows neither `Result` nor
/// `compile_error!`.
const COMPONENTS: [(&str, &str); 2] = [
    ("rust-analyzer", ANALYZER),
    ("rust-src", "lib/rustlib/src/rust/library"),
];

/// rust-analyzer, with the library of one crate open.
pub struct Editor {
    server: Server,
    document: String,
    version: u64,
}

impl std::fmt::Debug for Editor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Editor")
            .field("document", &self.document)
            .finish_non_exhaustive()
    }
}

impl Editor {
    /// Opens the crate, which is written below `folder`.
    ///
    /// # Errors
    ///
    /// What is missing, or what rust-analyzer does not do, in words.
    pub fn open(folder: &Path) -> Result<Self, String> {
        let toolchain = toolchain()?;
        let root =
            shop::write(folder).map_err(|error| format!("cannot write the crate: {error}"))?;
        let settings = json!({
            "cachePriming": { "enable": false },
            "cargo": { "sysroot": toolchain },
            "checkOnSave": false,
            // What it counts as experimental is all that says "unresolved".
            "diagnostics": { "experimental": { "enable": true } },
        });
        let server = Server::start(&toolchain.join(ANALYZER), &root, settings)?;
        let mut editor = Self {
            server,
            document: uri(&root.join("src/lib.rs")),
            version: 1,
        };
        let document = json!({
            "uri": editor.document, "languageId": "rust", "version": 1, "text": PRELUDE,
        });
        editor
            .server
            .notify("textDocument/didOpen", &json!({ "textDocument": document }))?;
        Ok(editor)
    }

    /// Replaces all that stands below the imports and types of the crate.
    fn write(&mut self, text: &str) -> Result<(), String> {
        self.version += 1;
        self.server.notify(
            "textDocument/didChange",
            &json!({
                "textDocument": { "uri": self.document, "version": self.version },
                "contentChanges": [{ "text": format!("{PRELUDE}{text}") }],
            }),
        )
    }

    fn ask(&mut self, method: &str, text: &Marked) -> Result<Value, String> {
        let mut parameters = json!({ "textDocument": { "uri": self.document } });
        if let Some(cursor) = text.cursor {
            let line = cursor.line + prelude_lines();
            parameters["position"] = json!({ "line": line, "character": cursor.column });
        }
        // At times an assertion of its own fails in its store of results ("changed_at"), which no user notices: an
        // editor asks again at the next key.
        let mut failure = String::new();
        for _ in 0..ATTEMPTS {
            self.write(&text.source)?;
            match self.server.request(method, &parameters) {
                Err(error) if error.contains("request handler panicked") => failure = error,
                answer => return answer,
            }
        }
        Err(failure)
    }

    /// The names that are offered at the cursor.
    ///
    /// # Errors
    ///
    /// What rust-analyzer does not do, in words.
    pub fn completion(&mut self, text: &Marked) -> Result<Vec<String>, String> {
        let answer = self.ask("textDocument/completion", text)?;
        let items = answer["items"].as_array().or(answer.as_array());
        let name = |item: &Value| {
            let label = item["label"].as_str().unwrap_or_default();
            let is_name = |c: char| c.is_alphanumeric() || c == '_';
            label.chars().take_while(|c| is_name(*c)).collect()
        };
        Ok(items.into_iter().flatten().map(name).collect())
    }

    /// What is shown under the mouse at the cursor.
    ///
    /// # Errors
    ///
    /// What rust-analyzer does not do, in words.
    pub fn hover(&mut self, text: &Marked) -> Result<String, String> {
        let answer = self.ask("textDocument/hover", text)?;
        Ok(answer["contents"]["value"]
            .as_str()
            .unwrap_or_default()
            .to_owned())
    }

    /// Where one is taken from the cursor.
    ///
    /// # Errors
    ///
    /// What rust-analyzer does not do, in words.
    pub fn definition(&mut self, text: &Marked) -> Result<Vec<Mark>, String> {
        let answer = self.ask("textDocument/definition", text)?;
        let targets = answer.as_array().into_iter().flatten();
        targets
            .map(|target| {
                if target["uri"] == self.document {
                    Ok(mark(target, String::new()))
                } else {
                    Err(format!("the definition is elsewhere: {target}"))
                }
            })
            .collect()
    }

    /// The headlines of what is wrong.
    ///
    /// # Errors
    ///
    /// What rust-analyzer does not do, in words.
    pub fn diagnostics(&mut self, text: &Marked) -> Result<Vec<Mark>, String> {
        let answer = self.ask("textDocument/diagnostic", text)?;
        let Some(items) = answer["items"].as_array() else {
            return Err(format!("not a list of diagnostics: {answer}"));
        };
        let headline = |item: &Value| {
            let message = item["message"].as_str().unwrap_or_default();
            message.lines().next().unwrap_or_default().to_owned()
        };
        Ok(items
            .iter()
            .map(|item| mark(item, headline(item)))
            .collect())
    }
}

fn mark(found: &Value, message: String) -> Mark {
    let range = &found["range"];
    Mark {
        start: place(&range["start"]),
        end: place(&range["end"]),
        message,
    }
}

fn place(position: &Value) -> Place {
    let number = |value: &Value| {
        value
            .as_u64()
            .and_then(|number| usize::try_from(number).ok())
            .unwrap_or_default()
    };
    Place {
        line: number(&position["line"]).wrapping_sub(prelude_lines()),
        column: number(&position["character"]),
    }
}

fn prelude_lines() -> usize {
    PRELUDE.lines().count()
}

/// The folder of the toolchain whose rust-analyzer is tested: `INBOX_IDE_TOOLCHAIN`, or the one that compiles this.
fn toolchain() -> Result<PathBuf, String> {
    let sysroot = match std::env::var_os("INBOX_IDE_TOOLCHAIN") {
        Some(folder) => PathBuf::from(folder),
        None => {
            let asked = Command::new("rustc").args(["--print", "sysroot"]).output();
            let output = asked.map_err(|error| format!("cannot start rustc: {error}"))?;
            PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
        }
    };
    for (component, file) in COMPONENTS {
        if !sysroot.join(file).exists() {
            return Err(format!(
                "the toolchain {} has no {component}\n  help: `tests/run --test ide` installs one beside yours",
                sysroot.display()
            ));
        }
    }
    Ok(sysroot)
}
