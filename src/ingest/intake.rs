//! Intake: bounded queues that collect the sends and logins of all shards, with a limit in bytes on the sends.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use tidegate_protocol::{
    Code,
    id::ConversationId,
    record::{Body, Record},
};
use tokio::sync::mpsc;

use crate::{bus::partition_of, cluster::Cluster, mail::ConnKey, routes::Route};

/// Limit on queued batches; at the limit a shard keeps its batch and offers it again.
const QUEUED_BATCHES_MAX: usize = 256;

/// Bounded queues from the shards to the log and to the owner.
pub struct Intake {
    records: mpsc::Sender<Vec<Record>>,
    logins: mpsc::Sender<Vec<(ConnKey, Route)>>,
    waiting_bytes: AtomicUsize,
    bytes_max: usize,
    /// Whether memory is short, so that no further records are accepted.
    short: AtomicBool,
}

/// Receiving ends of an [`Intake`].
pub struct Outlets {
    /// Batches of records, for [`append_all`](super::appender::append_all).
    pub records: mpsc::Receiver<Vec<Record>>,
    /// Logins that wait for their memberships.
    pub logins: mpsc::Receiver<Vec<(ConnKey, Route)>>,
}

impl Intake {
    /// Creates an intake in which at most `bytes_max` bytes of records wait for the log.
    pub fn new(bytes_max: usize) -> (Arc<Self>, Outlets) {
        let (records, record_outlet) = mpsc::channel(QUEUED_BATCHES_MAX);
        let (logins, login_outlet) = mpsc::channel(QUEUED_BATCHES_MAX);
        let (waiting_bytes, short) = (AtomicUsize::new(0), AtomicBool::new(false));
        let intake = Self { records, logins, waiting_bytes, bytes_max, short };
        (Arc::new(intake), Outlets { records: record_outlet, logins: login_outlet })
    }

    /// Returns the bytes of records that wait for the log.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes.load(Ordering::Relaxed)
    }

    /// Sets whether memory is short.
    pub fn note_memory(&self, short: bool) {
        self.short.store(short, Ordering::Relaxed);
    }

    /// Returns whether messages must be refused `OVERLOADED` because memory is short.
    pub fn is_short(&self) -> bool {
        self.short.load(Ordering::Relaxed)
    }

    /// Reserves capacity for a record of about `bytes`, or returns the code to refuse it with.
    pub fn reserve(&self, bytes: usize) -> Result<(), Code> {
        if self.is_short() {
            return Err(Code::Overloaded);
        }
        let before = self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = before + bytes <= self.bytes_max;
        if !fits {
            self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        if fits { Ok(()) } else { Err(Code::Busy) }
    }

    /// Queues records that have a reservation; returns them if the queue is full.
    pub fn offer_records(&self, records: Vec<Record>) -> Vec<Record> {
        match self.records.try_send(records) {
            Ok(()) => Vec::new(),
            Err(mpsc::error::TrySendError::Full(records) | mpsc::error::TrySendError::Closed(records)) => {
                records
            }
        }
    }

    /// Queues logins that wait for their memberships; returns them if the queue is full.
    pub fn offer_logins(&self, logins: Vec<(ConnKey, Route)>) -> Vec<(ConnKey, Route)> {
        match self.logins.try_send(logins) {
            Ok(()) => Vec::new(),
            Err(mpsc::error::TrySendError::Full(logins) | mpsc::error::TrySendError::Closed(logins)) => {
                logins
            }
        }
    }

    /// Queues one record that no client sent, waiting for capacity; returns false if the node shuts down.
    ///
    /// A cancelled call has sent nothing and holds no reservation, because a drain waits until no bytes are left here.
    pub async fn send(&self, record: Record) -> bool {
        let reservation = Reservation { intake: self, bytes: weight(&record) };
        self.waiting_bytes.fetch_add(reservation.bytes, Ordering::Relaxed);
        let is_sent = self.records.send(vec![record]).await.is_ok();
        if is_sent {
            // Released after the append.
            std::mem::forget(reservation);
        }
        is_sent
    }

    /// Waits for capacity for a message that no client sent, with so many bytes of content.
    ///
    /// # Errors
    /// The code to refuse it with: its bytes do not fit, or the node shuts down. A cancelled call holds no capacity.
    pub async fn slot(&self, content_bytes: usize) -> Result<IntakeSlot<'_>, Code> {
        let bytes = content_bytes + OVERHEAD_BYTES;
        self.reserve(bytes)?;
        let reservation = Reservation { intake: self, bytes };
        let permit = self.records.reserve().await.map_err(|_| Code::Draining)?;
        Ok(IntakeSlot { permit, reservation })
    }

    /// Releases the capacity of records that are appended or refused.
    pub fn release(&self, bytes: usize) {
        self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Capacity for one message, in bytes and in the queue. Dropped, it is free again.
pub struct IntakeSlot<'a> {
    permit: mpsc::Permit<'a, Vec<Record>>,
    reservation: Reservation<'a>,
}

impl IntakeSlot<'_> {
    /// Queues the message for which the capacity was taken.
    pub fn fill(self, record: Record) {
        let Self { permit, reservation } = self;
        debug_assert_eq!(weight(&record), reservation.bytes, "capacity of another message");
        permit.send(vec![record]);
        // Released after the append.
        std::mem::forget(reservation);
    }
}

/// Capacity taken by a record that is not queued yet; released on drop.
struct Reservation<'a> {
    intake: &'a Intake,
    bytes: usize,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.intake.release(self.bytes);
    }
}

/// Approximate bytes of ids, origin and similar fields of a record.
const OVERHEAD_BYTES: usize = 256;

/// Returns the bytes that a record takes of the intake's limit.
pub fn weight(record: &Record) -> usize {
    match &record.body {
        Body::Message(message) => message.content.len() + OVERHEAD_BYTES,
        Body::Edit(edit) => edit.content.len() + OVERHEAD_BYTES,
        Body::Member(_) | Body::Recall(_) | Body::Prune(_) | Body::Rules(_) => OVERHEAD_BYTES,
    }
}

/// Returns whether the record is the message with that id; for injected faults.
pub(crate) fn is_message(record: &Record, msg_id: &str) -> bool {
    matches!(&record.body, Body::Message(message) if message.msg_id.as_str() == msg_id)
}

/// Returns the code to refuse a message with, if the log can't take it now. To be checked before it is queued.
pub fn refusal(cluster: &Cluster, conversation: &ConversationId) -> Option<Code> {
    if cluster.ports.bus.state().refuses_all {
        return Some(Code::BusUnavailable);
    }
    let lags = cluster.peers.lags();
    // Does not hash the conversation while no partition is behind.
    let is_behind =
        lags.count() > 0 && lags.is_behind(partition_of(conversation, cluster.ports.bus.partitions()));
    is_behind.then_some(Code::ArchiveBehind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intake_refuses_records_above_its_byte_limit() {
        let (intake, _outlets) = Intake::new(100);
        assert_eq!(intake.reserve(60), Ok(()));
        assert_eq!(intake.reserve(41), Err(Code::Busy));
        assert_eq!(intake.reserve(40), Ok(()), "a refusal reserves nothing");
        intake.release(100);
        intake.note_memory(true);
        assert_eq!(intake.reserve(1), Err(Code::Overloaded));
        intake.note_memory(false);
        assert_eq!(intake.reserve(100), Ok(()));
    }

    #[test]
    fn partition_of_a_conversation_never_changes() {
        // Pinned: another result would strand every stored message.
        for (id, of_64, of_12) in [("d:alice:bob", 36, 0), ("g:team", 33, 9), ("d:zoe:zoe", 27, 7)] {
            let id = ConversationId::parse(id).unwrap();
            assert_eq!([1, 12, 64].map(|count| partition_of(&id, count)), [0, of_12, of_64], "{id}");
        }
    }
}
