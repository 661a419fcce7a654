//! Board of a case: everything that arrived from the client, and the connections to it, for the player to wait on.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Instant,
};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use super::{answers::Answers, step::Cut};

/// Orders of a connection that wait; a case has fewer steps.
pub(super) const ORDERS_MAX: usize = 64;

/// What the player has a connection do.
#[derive(Debug)]
pub(super) enum Order {
    /// Writes these parts, with a pause between them.
    Write(Vec<Vec<u8>>),
    Cut(Cut),
    Stall(bool),
}

/// A frame of the client.
pub(super) struct Arrived {
    pub(super) at: Instant,
    pub(super) kind: String,
    pub(super) frame: Value,
    /// Whether a step has expected it.
    pub(super) is_taken: bool,
}

/// A connection of the client.
pub(super) struct ConnectionLog {
    pub(super) listener: String,
    pub(super) accepted: Instant,
    /// Whether the transport is established, and it is the expected one.
    pub(super) is_ready: bool,
    /// Why the connection breaks the protocol.
    pub(super) fault: Option<String>,
    pub(super) frames: Vec<Arrived>,
    /// When the client ended it, or the node did.
    pub(super) ended: Option<Instant>,
    pub(super) orders: mpsc::Sender<Order>,
    /// Whether a step has expected it.
    pub(super) is_taken: bool,
}

/// An event of the adapter.
pub(super) struct EventLog {
    pub(super) at: Instant,
    pub(super) client: String,
    pub(super) event: Value,
    pub(super) is_taken: bool,
}

/// Everything that a case has seen.
#[derive(Default)]
pub(super) struct Log {
    pub(super) connections: Vec<ConnectionLog>,
    pub(super) events: Vec<EventLog>,
    pub(super) answers: Answers,
    /// What the next connections to an address get instead of a login.
    pub(super) refusals: BTreeMap<String, VecDeque<Value>>,
    /// What the node sent, for the report of a failure.
    pub(super) sent: Vec<(Instant, usize, Value)>,
    /// Why no further event can come.
    pub(super) dead: Option<String>,
}

/// Log of a case that can be waited on.
pub(super) struct Board {
    log: Mutex<Log>,
    changed: watch::Sender<()>,
}

impl Board {
    /// Creates an empty board.
    pub(super) fn new(log: Log) -> Self {
        Self { log: Mutex::new(log), changed: watch::Sender::new(()) }
    }

    /// Changes the log, and wakes the player.
    pub(super) fn update<T>(&self, change: impl FnOnce(&mut Log) -> T) -> T {
        let result = change(&mut self.log.lock());
        self.changed.send_replace(());
        result
    }

    /// Looks at the log, or takes something from it, without waking the player.
    pub(super) fn look<T>(&self, look: impl FnOnce(&mut Log) -> T) -> T {
        look(&mut self.log.lock())
    }

    /// Returns the first result of `probe`, which is called after each change. `None` at the deadline.
    pub(super) async fn until<T>(
        &self,
        deadline: Instant,
        mut probe: impl FnMut(&mut Log) -> Option<T>,
    ) -> Option<T> {
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(found) = probe(&mut self.log.lock()) {
                return Some(found);
            }
            let woken = tokio::time::timeout_at(deadline.into(), changed.changed()).await;
            if woken.is_err() {
                return probe(&mut self.log.lock());
            }
        }
    }
}
