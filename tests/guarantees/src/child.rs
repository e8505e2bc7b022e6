//! An inbox in a process of its own, which a test can let die.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use inbox_runtime::testing::Step;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// How long a test waits for something that a child process says.
const PATIENCE: Duration = Duration::from_secs(90);

/// What a child process consumes, and how it misbehaves.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
pub struct Orders {
    /// `postgres://..`, `mysql://..`, or the path of a SQLite file.
    pub database: String,
    /// The broker.
    pub amqp: String,
    /// The queue.
    pub queue: String,
    /// Brokers of Kafka: the queue is a topic there, and a group of the same name.
    pub kafka: Option<String>,
    /// Consume as "notifications", which books on acc-2, instead of "billing".
    pub notifications: bool,
    /// Die by SIGKILL at this step, by its number.
    pub die_at: Option<usize>,
    /// Wait at this step for [`Consumer::go`], by its number.
    pub wait_at: Option<usize>,
    /// The handler is quick and more is fetched, so that messages wait and several can share a transaction.
    pub under_load: bool,
    /// A shutdown cuts handlers off at once.
    pub no_grace: bool,
    /// The handler kills its process when it gets this message.
    pub killer: Option<String>,
    /// After its writes the handler runs a statement that takes a minute.
    pub long_statement: bool,
    /// Whoever makes this file is the first to enter the handler: it fails after 200 ms.
    pub first_fails: Option<PathBuf>,
}

/// The number of a step, from 1.
///
/// # Panics
///
/// Never: every step has one.
#[must_use]
pub fn number(step: Step) -> usize {
    let index = Step::ALL.iter().position(|other| *other == step);
    index.expect("a step without a number") + 1
}

/// Says a line to whoever started this process.
pub fn say(line: std::fmt::Arguments<'_>) {
    let mut output = std::io::stdout().lock();
    // One write for a line, so that a death cannot cut one in half. Nobody may be listening any more.
    let _ = output.write_all(format!("{line}\n").as_bytes());
    let _ = output.flush();
}

/// The crash: nothing of this process runs after it.
pub fn die() -> ! {
    signal(std::process::id(), "KILL");
    // The signal comes before `kill` is done.
    std::process::abort()
}

fn signal(process: u32, signal: &str) {
    let _ = std::process::Command::new("kill")
        .args(["-s", signal, &process.to_string()])
        .status();
}

/// A running child process.
#[derive(Debug)]
pub struct Consumer {
    process: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    said: Vec<String>,
}

impl Consumer {
    /// Starts a program, `env!("CARGO_BIN_EXE_consumer")` with [`Orders`] or one of its kind; it dies with this.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    #[must_use]
    pub fn start(program: impl AsRef<OsStr>, orders: &impl serde::Serialize) -> Self {
        let orders = serde_json::to_string(orders).expect("orders without JSON");
        let mut process = Command::new(program)
            .arg(orders)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the consumer does not start");
        let input = process.stdin.take();
        let output = process.stdout.take().expect("no output");
        Self {
            process,
            input,
            output: BufReader::new(output).lines(),
            said: Vec::new(),
        }
    }

    /// Waits until the process says `line`.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub async fn until(&mut self, line: &str) {
        let waiting = async {
            while let Ok(Some(said)) = self.output.next_line().await {
                let found = said == line;
                self.said.push(said);
                if found {
                    return true;
                }
            }
            false
        };
        let found = tokio::time::timeout(PATIENCE, waiting).await;
        assert_eq!(found, Ok(true), "no {line:?} after {:?}", self.said);
    }

    /// Waits until the process has said `lines` more lines that begin with `start`.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub async fn until_many(&mut self, start: &str, lines: usize) {
        let mut found = 0;
        let waiting = async {
            while found < lines
                && let Ok(Some(said)) = self.output.next_line().await
            {
                found += usize::from(said.starts_with(start));
                self.said.push(said);
            }
        };
        let _ = tokio::time::timeout(PATIENCE, waiting).await;
        assert_eq!(found, lines, "{start:?} after {:?}", self.said);
    }

    /// What the process says next; `None` when it is dead. Can be cancelled.
    pub async fn next_line(&mut self) -> Option<String> {
        self.output.next_line().await.ok().flatten()
    }

    /// What the process says within this time.
    pub async fn says_within(&mut self, time: Duration) -> Vec<String> {
        let before = self.said.len();
        let listening = async {
            while let Ok(Some(said)) = self.output.next_line().await {
                self.said.push(said);
            }
        };
        let _ = tokio::time::timeout(time, listening).await;
        self.said.split_at(before).1.to_vec()
    }

    /// Whether it can write to its files: without, as on a disk that is full.
    ///
    /// # Panics
    ///
    /// When the limit cannot be set.
    pub fn let_files_grow(&self, may_grow: bool) {
        let limit = if may_grow { "unlimited" } else { "0" };
        let process = self.process.id().expect("it is gone");
        let status = std::process::Command::new("prlimit")
            .arg(format!("--pid={process}"))
            .arg(format!("--fsize={limit}:"))
            .status()
            .expect("no prlimit");
        assert!(status.success(), "{status}");
    }

    /// Stops the process where it is, by SIGSTOP; its connections and locks stay.
    pub fn pause(&self) {
        self.signal("STOP");
    }

    /// Ends [`pause`](Self::pause).
    pub fn resume(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        if let Some(process) = self.process.id() {
            signal(process, name);
        }
    }

    /// Ends the wait at [`Orders::wait_at`].
    ///
    /// # Panics
    ///
    /// When the process is gone.
    pub async fn go(&mut self) {
        let input = self.input.as_mut().expect("it was stopped");
        input.write_all(b"go\n").await.expect("it is gone");
    }

    /// Kills the process by SIGKILL; what it said as far as that was waited for.
    ///
    /// # Panics
    ///
    /// When it was gone before.
    pub async fn kill(mut self) -> Vec<String> {
        self.process.start_kill().expect("it was gone before");
        let _ = self.process.wait().await;
        self.said
    }

    /// Waits until it has died by SIGKILL of its own.
    ///
    /// # Panics
    ///
    /// When it lives on or ends in another way.
    pub async fn until_dead(mut self) {
        use std::os::unix::process::ExitStatusExt as _;
        let status = self.end().await;
        assert_eq!(status.signal(), Some(9), "{status} after {:?}", self.said);
    }

    /// Whether it has ended by itself.
    pub fn is_dead(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(Some(_)))
    }

    /// Lets it shut down gracefully; everything that it said.
    ///
    /// # Panics
    ///
    /// When it does not end well.
    pub async fn stop(mut self) -> Vec<String> {
        // The end of its input is the signal.
        drop(self.input.take());
        let status = self.end().await;
        assert!(status.success(), "{status} after {:?}", self.said);
        self.said
    }

    /// Waits for its end: how it ended, and what it said besides.
    ///
    /// # Panics
    ///
    /// When it lives on.
    pub async fn ended(mut self) -> (ExitStatus, Vec<String>) {
        drop(self.input.take());
        (self.end().await, self.said)
    }

    async fn end(&mut self) -> ExitStatus {
        let ending = async {
            while let Ok(Some(line)) = self.output.next_line().await {
                self.said.push(line);
            }
            self.process.wait().await
        };
        tokio::time::timeout(PATIENCE, ending)
            .await
            .expect("it lives on")
            .expect("no status")
    }
}
