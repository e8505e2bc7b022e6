//! rust-analyzer as a process that speaks the Language Server Protocol on its standard input and output.

use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// To load the crate, which builds its procedural macros and build scripts.
const LOAD_LIMIT: Duration = Duration::from_secs(900);
/// To answer. The first answer analyses all dependencies.
const ANSWER_LIMIT: Duration = Duration::from_secs(300);
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);

/// The server no longer knows, or does not yet know, the text that was asked about.
const CONTENT_MODIFIED: i64 = -32801;
const SERVER_CANCELLED: i64 = -32802;

pub(crate) struct Server {
    process: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    requests: u64,
    log: PathBuf,
    settings: Value,
}

impl Server {
    /// Starts `program` on the crate in `root` and waits until all of it is loaded.
    pub(crate) fn start(program: &Path, root: &Path, settings: Value) -> Result<Self, String> {
        let log = root.join("rust-analyzer.log");
        let errors = File::create(&log).map_err(|error| error.to_string())?;
        let mut process = Command::new(program)
            .current_dir(root)
            .env("CARGO_TARGET_DIR", root.join("target"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err("rust-analyzer has no standard input or output".to_owned());
        };
        let (sender, messages) = mpsc::channel();
        thread::spawn(move || {
            let mut output = BufReader::new(output);
            while let Ok(message) = receive(&mut output) {
                if sender.send(message).is_err() {
                    break;
                }
            }
        });
        let mut server = Self {
            process,
            input,
            messages,
            requests: 0,
            log,
            settings,
        };
        server.initialize(root)?;
        server.wait_until_loaded()?;
        Ok(server)
    }

    fn initialize(&mut self, root: &Path) -> Result<(), String> {
        let folder = uri(root);
        let parameters = json!({
            "processId": std::process::id(),
            "rootUri": folder,
            "workspaceFolders": [{ "uri": folder, "name": "shop" }],
            "initializationOptions": self.settings,
            "capabilities": {
                "workspace": { "configuration": true },
                "textDocument": { "hover": { "contentFormat": ["markdown"] } },
                "experimental": { "serverStatusNotification": true },
            },
        });
        self.request("initialize", &parameters)?;
        self.notify("initialized", &json!({}))
    }

    fn wait_until_loaded(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + LOAD_LIMIT;
        loop {
            let message = self.next("load the crate", deadline)?;
            if message["method"] != "experimental/serverStatus" {
                continue;
            }
            let status = &message["params"];
            if status["health"] != "ok" {
                return Err(self.failure(&format!("rust-analyzer is not well: {status}")));
            }
            if status["quiescent"] == true {
                return Ok(());
            }
        }
    }

    /// Asks, and asks again if the server was still busy with the text before.
    pub(crate) fn request(&mut self, method: &str, parameters: &Value) -> Result<Value, String> {
        let deadline = Instant::now() + ANSWER_LIMIT;
        loop {
            self.requests += 1;
            let id = self.requests;
            self.send(&json!({
                "jsonrpc": "2.0", "id": id, "method": method, "params": parameters,
            }))?;
            let mut answer = loop {
                let message = self.next(&format!("answer {method}"), deadline)?;
                if message["id"] == id && message.get("method").is_none() {
                    break message;
                }
            };
            match answer["error"]["code"].as_i64() {
                None => return Ok(answer["result"].take()),
                Some(CONTENT_MODIFIED | SERVER_CANCELLED) => {
                    thread::sleep(Duration::from_millis(100));
                }
                Some(_) => {
                    let error = &answer["error"]["message"];
                    return Err(self.failure(&format!("rust-analyzer refuses {method}: {error}")));
                }
            }
        }
    }

    pub(crate) fn notify(&mut self, method: &str, parameters: &Value) -> Result<(), String> {
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": parameters }))
    }

    /// The next message of the server. What it asks itself is answered here.
    fn next(&mut self, task: &str, deadline: Instant) -> Result<Value, String> {
        let left = deadline.saturating_duration_since(Instant::now());
        let message = match self.messages.recv_timeout(left) {
            Ok(message) => message,
            Err(RecvTimeoutError::Timeout) => {
                return Err(self.failure(&format!("rust-analyzer did not {task} in time")));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(self.failure(&format!("rust-analyzer ended; it was to {task}")));
            }
        };
        if let (Some(id), Some(method)) = (message.get("id"), message.get("method")) {
            let result = if method == "workspace/configuration" {
                let items = message["params"]["items"].as_array().map_or(0, Vec::len);
                json!(vec![&self.settings; items])
            } else {
                Value::Null
            };
            self.send(&json!({ "jsonrpc": "2.0", "id": id, "result": result }))?;
        }
        Ok(message)
    }

    fn send(&mut self, message: &Value) -> Result<(), String> {
        let body = message.to_string();
        let written = write!(self.input, "Content-Length: {}\r\n\r\n{body}", body.len());
        written
            .and_then(|()| self.input.flush())
            .map_err(|error| self.failure(&format!("cannot write to rust-analyzer: {error}")))
    }

    /// `what`, and the end of the server's log.
    fn failure(&self, what: &str) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(20)..].join("\n");
        format!("{what}\n{}:\n{last}", self.log.display())
    }

    fn has_ended(&mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            match self.process.try_wait() {
                Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(20)),
                Ok(None) => return false,
                Ok(Some(_)) | Err(_) => return true,
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It stops by itself, and with it the server of the procedural macros, if it is told so. It need not answer.
        let shutdown = json!({ "jsonrpc": "2.0", "id": 0, "method": "shutdown" });
        let told = self
            .send(&shutdown)
            .and_then(|()| self.notify("exit", &Value::Null));
        if told.is_err() || !self.has_ended(SHUTDOWN_LIMIT) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

fn receive(output: &mut impl BufRead) -> io::Result<Value> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if output.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("Content-Length:") {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
    let mut body = vec![0; length];
    output.read_exact(&mut body)?;
    serde_json::from_slice(&body).map_err(io::Error::other)
}

pub(crate) fn uri(path: &Path) -> String {
    format!("file://{}", path.display())
}
