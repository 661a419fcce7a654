//! Replies that wait for a sync: marks and user settings are written unsynced, and confirmed after the next sync.

use std::time::{Duration, Instant};

use super::Reply;
use crate::store::StoreError;

/// How long replies wait for the sync of an archive; after that one sync confirms all of them.
const SYNC_DELAY_MAX: Duration = Duration::from_millis(5);

/// Function that sends one reply, given the outcome of the sync.
type Confirm = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// Writes that are not confirmed yet.
#[derive(Default)]
pub(super) struct PendingConfirms {
    confirms: Vec<Confirm>,
    since: Option<Instant>,
}

impl PendingConfirms {
    /// Replies with `result` after the next sync, or with its error.
    pub(super) fn add<T: Send + 'static>(&mut self, reply: Reply<T>, result: T) {
        self.since.get_or_insert_with(Instant::now);
        // The caller may have stopped waiting.
        self.confirms.push(Box::new(|synced| drop(reply.send(synced.map(|()| result)))));
    }

    /// Returns the time left until a sync is due; `None` if no reply waits.
    pub(super) fn due_in(&self) -> Option<Duration> {
        self.since.map(|since| SYNC_DELAY_MAX.saturating_sub(since.elapsed()))
    }

    /// Confirms all waiting replies: their writes are on the disk.
    pub(super) fn confirm(&mut self) {
        self.end(&Ok(()));
    }

    /// Fails all waiting replies: their writes may or may not be on the disk.
    pub(super) fn fail(&mut self, why: &StoreError) {
        self.end(&Err(why.clone()));
    }

    fn end(&mut self, outcome: &Result<(), StoreError>) {
        self.since = None;
        for confirm in self.confirms.drain(..) {
            confirm(outcome.clone());
        }
    }
}
