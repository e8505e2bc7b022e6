//! Servers that one test may crash, pause and reconfigure because nobody else uses them.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::{environment, unique};

/// A server of one test; killed and deleted with this, unless it was started for the test by somebody else.
#[derive(Debug)]
pub struct OwnServer {
    name: &'static str,
    script: String,
    folder: PathBuf,
    settings: Option<(&'static str, &'static str)>,
    is_lent: bool,
}

impl OwnServer {
    /// Starts one of the servers that `tests/services` knows.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    #[must_use]
    pub fn start(name: &'static str) -> Self {
        Self::with(name, None)
    }

    /// Starts one with the value of a variable that the script reads, such as `RABBITMQ_EXTRA_CONF`.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    #[must_use]
    pub fn start_with(name: &'static str, variable: &'static str, value: &'static str) -> Self {
        Self::with(name, Some((variable, value)))
    }

    fn with(name: &'static str, settings: Option<(&'static str, &'static str)>) -> Self {
        let server = Self {
            name,
            script: environment("INBOX_TEST_SERVICES"),
            folder: std::env::temp_dir().join(unique("inbox-server")),
            settings,
            is_lent: false,
        };
        server.again();
        server
    }

    /// One that runs in `folder` already, for this program alone. Whoever started it also deletes it.
    #[must_use]
    pub fn lent(name: &'static str, folder: impl Into<PathBuf>) -> Self {
        Self {
            name,
            script: environment("INBOX_TEST_SERVICES"),
            folder: folder.into(),
            settings: None,
            is_lent: true,
        }
    }

    /// Starts it again, on the same port and with the same data, after [`stop`](Self::stop) or
    /// [`crash`](Self::crash).
    pub fn again(&self) {
        self.command("start");
    }

    /// Shuts it down in an orderly way.
    pub fn stop(&self) {
        self.command("stop");
    }

    /// Kills it.
    pub fn crash(&self) {
        self.command("crash");
    }

    /// Stops its processes where they are; its connections stay open.
    pub fn pause(&self) {
        self.command("pause");
    }

    /// Ends [`pause`](Self::pause).
    pub fn resume(&self) {
        self.command("resume");
    }

    /// An address of it, by the name that the test command uses for the shared servers.
    ///
    /// # Panics
    ///
    /// When the server has no such address.
    #[must_use]
    pub fn url(&self, variable: &str) -> String {
        // The script quotes for a shell, so a shell reads it.
        let output = Command::new("bash")
            .arg("-c")
            .arg(r#"unset "$2"; eval "$("$0" env "$1")"; printf %s "${!2}""#)
            .arg(&self.script)
            .arg(&self.folder)
            .arg(variable)
            .output()
            .expect("no bash");
        let url = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!url.is_empty(), "{} has no {variable}", self.name);
        url
    }

    fn command(&self, verb: &str) {
        let status = Command::new(&self.script)
            .arg(verb)
            .arg(&self.folder)
            .arg(self.name)
            .envs(self.settings)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .expect("the script of the test servers does not run");
        assert!(status.success(), "{verb} {}: {status}", self.name);
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        if self.is_lent {
            return;
        }
        let _ = Command::new(&self.script)
            .arg("destroy")
            .arg(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}
