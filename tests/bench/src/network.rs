//! The program `delay_proxy`, started beside this one.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};

use crate::Result;

/// In microseconds, each way: half of what is usual between two machines of one zone.
const DELAY: &str = "250";

/// It ends with this process, or when this is dropped.
#[derive(Debug)]
pub(crate) struct DelayProxy {
    port: u16,
    _process: Child,
    /// Its end is the proxy's end.
    _lifeline: Option<ChildStdin>,
}

impl DelayProxy {
    pub(crate) async fn to(host: &str, port: u16) -> Result<Self> {
        let program = std::env::current_exe()?.with_file_name("delay_proxy");
        let mut process = Command::new(&program)
            .args([&format!("{host}:{port}"), DELAY])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        let output = process.stdout.take().ok_or("the proxy has no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).await?;
        Ok(Self {
            port: line.trim().parse().map_err(|_| "the proxy did not start")?,
            _lifeline: process.stdin.take(),
            _process: process,
        })
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }
}
