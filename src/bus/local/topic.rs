//! In-memory node topic: bounded queue of records for one run of a node.

use std::{collections::VecDeque, mem, pin::pin};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::super::{AppendError, NodeEvent};

pub(super) struct Topic {
    max_records: usize,
    max_bytes: usize,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    records: VecDeque<Bytes>,
    bytes: usize,
    /// Whether records were lost before the first queued one.
    gap: bool,
    closed: bool,
}

impl Topic {
    pub(super) fn new(max_records: usize, max_bytes: usize) -> Self {
        Self { max_records, max_bytes, state: Mutex::default(), changed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn publish(&self, records: Vec<Bytes>) -> Result<(), AppendError> {
        let mut state = self.lock();
        if records.iter().any(|record| record.len() > self.max_bytes) {
            return Err(AppendError::Rejected("record exceeds the node topic's limit; send less".to_owned()));
        }
        for record in records {
            state.bytes += record.len();
            state.records.push_back(record);
            while state.records.len() > self.max_records || state.bytes > self.max_bytes {
                let Some(lost) = state.records.pop_front() else { break };
                state.bytes -= lost.len();
                state.gap = true;
            }
        }
        drop(state);
        self.changed.notify_waiters();
        Ok(())
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_waiters();
    }

    pub(super) async fn next(&self) -> Option<NodeEvent> {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let mut state = self.lock();
                if state.closed {
                    return None;
                }
                if mem::take(&mut state.gap) {
                    return Some(NodeEvent::Gap);
                }
                if !state.records.is_empty() {
                    state.bytes = 0;
                    return Some(NodeEvent::Records(mem::take(&mut state.records).into()));
                }
            }
            changed.await;
        }
    }
}
