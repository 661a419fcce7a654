//! Requests of administrators that wait for their outcome, and the table of all records in flight.

use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use tidegate_protocol::machine::session::SubmitAnswer;
use tokio::sync::oneshot;

use super::in_flight::InFlight;

/// Origin of records that no connection sent; no [`crate::mail::ConnKey`] packs to it (shards end at 63).
pub const ADMIN_CONN: u64 = u64::MAX;

/// Requests that wait for the ledger's answer.
#[derive(Default)]
pub struct Pending {
    next: AtomicU64,
    waiting: DashMap<u64, oneshot::Sender<SubmitAnswer>>,
    in_flight: InFlight,
}

impl Pending {
    /// Returns the records of this node without an answer, sends included.
    pub(crate) fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }

    /// Adds a request, and returns its entry and where its answer arrives.
    pub(crate) fn begin(&self) -> (PendingEntry<'_>, oneshot::Receiver<SubmitAnswer>) {
        let request = self.next.fetch_add(1, Ordering::Relaxed);
        let (caller, answer) = oneshot::channel();
        self.waiting.insert(request, caller);
        (PendingEntry { pending: self, request }, answer)
    }

    /// Returns the number of requests that wait.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Passes the answer to the caller, if it still waits.
    pub fn complete(&self, request: u64, answer: SubmitAnswer) {
        if let Some((_, caller)) = self.waiting.remove(&request) {
            // The caller may have stopped waiting; the change is in force anyway.
            caller.send(answer).ok();
        }
    }
}

/// Entry in [`Pending`] that is removed on drop.
pub(crate) struct PendingEntry<'a> {
    pending: &'a Pending,
    /// Number of the request, the one of its origin.
    pub(crate) request: u64,
}

impl Drop for PendingEntry<'_> {
    fn drop(&mut self) {
        self.pending.waiting.remove(&self.request);
    }
}
