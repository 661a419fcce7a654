//! Process of the adapter: commands to its stdin, events from its stdout to the boards of the cases (docs/clients/adapter.md).

use std::{
    collections::HashMap,
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdout, Command},
    sync::mpsc,
};

use super::board::{Board, EventLog};

/// Time of the adapter to start and describe itself: that of a browser which no program has read from the disk yet.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Time of the adapter to exit at the end of its stdin.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Commands that wait to be written.
const COMMANDS_MAX: usize = 4_096;

/// Description that an adapter gives of itself.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Description {
    pub(super) name: String,
    #[serde(default)]
    pub(super) version: String,
    #[serde(default)]
    pub(super) levels: Vec<String>,
    pub(super) transports: Vec<String>,
    #[serde(default)]
    pub(super) can: Vec<String>,
}

type Boards = Arc<Mutex<HashMap<usize, Arc<Board>>>>;

/// A running adapter.
pub(super) struct Adapter {
    child: Child,
    commands: mpsc::Sender<String>,
    boards: Boards,
}

impl Adapter {
    /// Starts the command, and asks what it is.
    pub(super) async fn start(command: &str) -> Result<(Self, Description)> {
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
        let boards = Boards::default();
        tokio::spawn(read_events(stdout, Arc::clone(&boards)));
        Ok((Self { child, commands, boards }, description))
    }

    /// Sends the events of this case's clients to its board.
    pub(super) fn join(&self, case: usize, board: &Arc<Board>) {
        self.boards.lock().insert(case, Arc::clone(board));
    }

    /// Ends the clients of a case, and forgets its board.
    pub(super) fn leave(&self, case: usize, clients: &[String]) {
        for client in clients {
            self.send(&json!({"do": "drop", "client": client})).ok();
        }
        self.boards.lock().remove(&case);
    }

    /// Sends a command.
    pub(super) fn send(&self, command: &Value) -> Result<(), String> {
        self.commands
            .try_send(format!("{command}\n"))
            .map_err(|_| "the adapter has ended, or reads no commands".to_owned())
    }

    /// Ends the input of the adapter, and waits for its exit.
    pub(super) async fn finish(self) -> Result<()> {
        let Self { mut child, commands, .. } = self;
        drop(commands);
        match tokio::time::timeout(EXIT_TIMEOUT, child.wait()).await {
            Ok(status) => {
                status?;
                Ok(())
            }
            Err(_) => bail!("the adapter does not exit at the end of its stdin"),
        }
    }
}

async fn read_events(mut stdout: BufReader<ChildStdout>, boards: Boards) {
    let mut line = String::new();
    let reason = loop {
        line.clear();
        match stdout.read_line(&mut line).await {
            Ok(0) => break "the adapter has ended".to_owned(),
            Ok(_) => {}
            Err(error) => break format!("stdout of the adapter: {error}"),
        }
        let Ok(event) = serde_json::from_str::<Value>(&line) else {
            eprintln!("not JSON on the adapter's stdout: {}", line.trim_end());
            continue;
        };
        let at = Instant::now();
        let name = event["client"].as_str().unwrap_or_default();
        let Some((case, client)) = name.split_once('.') else { continue };
        let client = client.to_owned();
        let board = case.parse().ok().and_then(|case: usize| boards.lock().get(&case).cloned());
        if let Some(board) = board {
            board.update(|log| log.events.push(EventLog { at, client, event, is_taken: false }));
        }
    };
    for board in boards.lock().values() {
        board.update(|log| log.dead = Some(reason.clone()));
    }
}
