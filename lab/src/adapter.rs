//! Process of an adapter: commands to its stdin, events from its stdout (docs/clients/adapter.md).

use std::{
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde::Deserialize;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdout, Command},
    sync::mpsc,
};

/// Time of the adapter to start and describe itself: that of a browser which no program has read from the disk yet.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Time of the adapter to exit at the end of its stdin.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Commands that wait to be written.
const COMMANDS_MAX: usize = 4_096;

/// Description that an adapter gives of itself.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Description {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) version: String,
    #[serde(default)]
    pub(crate) levels: Vec<String>,
    pub(crate) transports: Vec<String>,
    #[serde(default)]
    pub(crate) can: Vec<String>,
}

/// Sender of commands to an adapter.
#[derive(Clone)]
pub(crate) struct Commands(mpsc::Sender<String>);

/// Events of an adapter.
pub(crate) struct AdapterEvents {
    stdout: BufReader<ChildStdout>,
    line: String,
}

/// A running adapter, which is killed when this is dropped.
pub(crate) struct AdapterProcess {
    child: Child,
    commands: Commands,
}

impl Commands {
    /// Sends a command.
    pub(crate) fn send(&self, command: &Value) -> Result<(), String> {
        self.0
            .try_send(format!("{command}\n"))
            .map_err(|_| "the adapter has ended, or reads no commands".to_owned())
    }

    /// Returns whether the adapter has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

impl AdapterEvents {
    /// Returns the next event; `None` at the end of the adapter's stdout.
    pub(crate) async fn next(&mut self) -> Result<Option<Value>> {
        loop {
            self.line.clear();
            let read = self.stdout.read_line(&mut self.line).await.context("stdout of the adapter")?;
            if read == 0 {
                return Ok(None);
            }
            match serde_json::from_str(&self.line) {
                Ok(event) => return Ok(Some(event)),
                Err(_) => eprintln!("not JSON on the adapter's stdout: {}", self.line.trim_end()),
            }
        }
    }
}

impl AdapterProcess {
    /// Starts the command, and asks what it is.
    pub(crate) async fn start(command: &str) -> Result<(Self, AdapterEvents, Description)> {
        let mut child = Command::new("sh")
            .args(["-c", &format!("exec {command}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("the shell does not start")?;
        let mut stdin = child.stdin.take().context("no stdin")?;
        let mut stdout = BufReader::new(child.stdout.take().context("no stdout")?);
        stdin.write_all(b"{\"do\":\"describe\"}\n").await.context("the adapter has ended")?;
        let mut line = String::new();
        let read = tokio::time::timeout(START_TIMEOUT, stdout.read_line(&mut line)).await;
        read.map_err(|_| anyhow!("the adapter does not describe itself within {START_TIMEOUT:?}"))??;
        let value: Value = serde_json::from_str(&line)
            .with_context(|| format!("the first line of the adapter is {line:?}"))?;
        if value["event"] != "description" {
            bail!("the first event of the adapter is not `description`: {value}");
        }
        let description = serde_json::from_value(value).context("the description of the adapter")?;
        let (commands, mut inbox) = mpsc::channel::<String>(COMMANDS_MAX);
        tokio::spawn(async move {
            while let Some(line) = inbox.recv().await {
                if stdin.write_all(line.as_bytes()).await.is_err() {
                    return;
                }
            }
        });
        let commands = Commands(commands);
        Ok((Self { child, commands }, AdapterEvents { stdout, line }, description))
    }

    /// Returns a sender of commands. The adapter's stdin stays open as long as one exists.
    pub(crate) fn commands(&self) -> &Commands {
        &self.commands
    }

    /// Returns the exit status of an adapter that has ended by itself.
    pub(crate) fn status(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Kills the process. What it has written stays readable.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        self.child.kill().await.context("the adapter was not killed")
    }

    /// Ends the input of the adapter, and waits for its exit, which has to be a success.
    pub(crate) async fn finish(self) -> Result<()> {
        let Self { mut child, commands } = self;
        drop(commands);
        let exit = tokio::time::timeout(EXIT_TIMEOUT, child.wait()).await;
        let status = exit.map_err(|_| anyhow!("the adapter does not exit at the end of its stdin"))??;
        ensure!(status.success(), "the adapter ended with {status}");
        Ok(())
    }
}
