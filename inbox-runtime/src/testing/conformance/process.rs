//! A consumer in a process of its own: the test program itself, started once more for this one purpose.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use inbox_core::BoxError;

use super::ledger;
use super::rig::Rig;
use super::scene::{Scene, inbox};
use crate::testing::Step;

/// Says to a test program that it is such a process, and what it consumes.
const TASK: &str = "INBOX_CONFORMANCE_CONSUMER";

const REACHED: &str = "inbox conformance: reached";

/// The name of the test that the macro makes for it.
const ENTRY: &str = "consumer_process";

/// A running process; killed with this.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    output: Option<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts the test `consumer_process` of the module `entry` of this program.
    pub(super) fn start(
        entry: &str,
        address: &str,
        ledger: &Path,
        step: Option<Step>,
    ) -> Result<Self, BoxError> {
        // Without the name of the crate, as the test program says it.
        let module = entry.split_once("::").map(|(_, module)| module);
        let test = module.map_or_else(|| ENTRY.to_owned(), |module| format!("{module}::{ENTRY}"));
        let step = step.and_then(|step| Step::ALL.iter().position(|other| *other == step));
        let task = serde_json::json!({
            "address": address,
            "ledger": ledger.to_str().ok_or("the temporary folder's name is no text")?,
            "step": step,
        });
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--exact", &test, "--nocapture", "--test-threads=1"])
            .env(TASK, task.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().map(BufReader::new);
        Ok(Self { child, output })
    }

    /// Waits until it has come to its step, where it stays.
    pub(super) async fn until_reached(mut self, patience: Duration) -> Result<Self, BoxError> {
        let output = self.output.take().ok_or("its output was read before")?;
        let reading = tokio::task::spawn_blocking(move || {
            let mut said = Vec::new();
            for line in output.lines().map_while(Result::ok) {
                // What the test program says stands in front of it on the line.
                if line.ends_with(REACHED) {
                    return Ok(());
                }
                said.push(line);
            }
            Err(format!(
                "the process ended before it came to its step; it said {said:?}. Is there a test `{ENTRY}` in the \
                 module that runs the suite?"
            ))
        });
        match tokio::time::timeout(patience, reading).await {
            Ok(read) => read??,
            Err(_) => {
                self.kill()?;
                return Err(
                    format!("the process did not come to its step within {patience:?}").into(),
                );
            }
        }
        Ok(self)
    }

    /// As the rows have it that it wrote.
    pub(super) fn id(&self) -> i64 {
        self.child.id().into()
    }

    /// Kills it (SIGKILL where there are signals): nothing of it runs after this.
    pub(super) fn kill(&mut self) -> Result<(), BoxError> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// What the process does; returns at once in a test program that is none.
pub(super) fn consume<R: Rig>() -> Result<(), BoxError> {
    let Ok(task) = std::env::var(TASK) else {
        return Ok(());
    };
    let task: serde_json::Value = serde_json::from_str(&task)?;
    let text = |name: &str| task[name].as_str().unwrap_or_default().to_owned();
    let step = task["step"]
        .as_u64()
        .and_then(|step| usize::try_from(step).ok());
    let step = step.and_then(|step| Step::ALL.get(step).copied());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let rig = R::attach(&text("address")).await?;
        let pool = ledger::open(text("ledger").as_ref()).await?;
        let inbox = inbox(&pool, rig.source(), &Scene::new()).on_step(move |at, id| {
            if Some(at) == step && id == "m-1" {
                let mut output = std::io::stdout().lock();
                let _ = output.write_all(format!("{REACHED}\n").as_bytes());
                let _ = output.flush();
                drop(output);
                loop {
                    std::thread::park();
                }
            }
        });
        inbox.build().await?.run_until(std::future::pending()).await;
        Ok(())
    })
}
