//! Adapter of the kit: hands the events of each case's clients to its board.

use std::{collections::HashMap, sync::Arc, time::Instant};

use anyhow::Result;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::board::{Board, EventLog};
pub(super) use crate::adapter::Description;
use crate::adapter::{AdapterEvents, AdapterProcess};

type Boards = Arc<Mutex<HashMap<usize, Arc<Board>>>>;

/// A running adapter.
pub(super) struct Adapter {
    process: AdapterProcess,
    boards: Boards,
}

impl Adapter {
    /// Starts the command, and asks what it is.
    pub(super) async fn start(command: &str) -> Result<(Self, Description)> {
        let (process, events, description) = AdapterProcess::start(command).await?;
        let boards = Boards::default();
        tokio::spawn(read_events(events, Arc::clone(&boards)));
        Ok((Self { process, boards }, description))
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
        self.process.commands().send(command)
    }

    /// Ends the input of the adapter, and waits for its exit.
    pub(super) async fn finish(self) -> Result<()> {
        self.process.finish().await
    }
}

async fn read_events(mut events: AdapterEvents, boards: Boards) {
    let reason = loop {
        let event = match events.next().await {
            Ok(Some(event)) => event,
            Ok(None) => break "the adapter has ended".to_owned(),
            Err(error) => break format!("{error:#}"),
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
