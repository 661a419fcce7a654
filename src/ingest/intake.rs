//! Intake: collects the sends of all shards into appends to the log, with a limit in bytes on what waits.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use tidegate_protocol::{
    Code,
    id::ConversationId,
    machine::session::SubmitAnswer,
    record::{Body, Record},
};
use tokio::sync::mpsc;

use crate::{
    bus::{AppendError, Appended, partition_of},
    cluster::Cluster,
    delivery::local::LocalDispatcher,
    mail::ConnKey,
    routes::Route,
    trace::{Facts, Step, Tracer},
};

/// Limit on queued batches; at the limit a shard keeps its batch and offers it again.
const QUEUED_BATCHES_MAX: usize = 256;

/// Record count from which an append takes no further batch from the queue.
const APPEND_RECORDS_MAX: usize = 4_096;

/// Limit on the bytes of one append, unless a single record is larger. A log refuses an append that exceeds its buffer,
/// and with it the records of all its senders (`kafka.append_bytes_max`).
const APPEND_BYTES_MAX: usize = 1024 * 1024;

/// Limit on unconfirmed appends, for each partition of the log.
const APPENDS_PER_PARTITION_MAX: usize = 16;

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
    /// Batches of records, for [`append_all`].
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

    fn release(&self, bytes: usize) {
        self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
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

/// Returns the bytes that a record takes of the intake's limit.
pub fn weight(record: &Record) -> usize {
    /// Approximate bytes of ids, origin and similar fields.
    const OVERHEAD_BYTES: usize = 256;
    match &record.body {
        Body::Message(message) => message.content.len() + OVERHEAD_BYTES,
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

/// Appends records from the queue until it closes. Answers those that could not be appended; owners answer the rest.
pub async fn append_all(
    mut records: mpsc::Receiver<Vec<Record>>,
    intake: Arc<Intake>,
    cluster: Arc<Cluster>,
    mut out: LocalDispatcher,
) {
    // Appends to one partition are confirmed in order, and a stalled partition delays no other.
    let mut appends = FuturesUnordered::new();
    let appends_max = APPENDS_PER_PARTITION_MAX * cluster.ports.bus.partitions() as usize;
    loop {
        tokio::select! {
            // Confirmed appends first, because they free capacity. The order is fixed, so that a simulation seed
            // reproduces a run.
            biased;
            Some((batch, result)) = appends.next() => {
                complete_append(batch, result, &intake, &cluster.trace, &mut out).await;
            }
            batch = records.recv(), if appends.len() < appends_max => {
                let Some(mut batch) = batch else { break };
                while batch.len() < APPEND_RECORDS_MAX
                    && let Ok(more) = records.try_recv()
                {
                    batch.extend(more);
                }
                for (partition, batch) in group_by_partition(batch, cluster.ports.bus.partitions()) {
                    if cluster.peers.lags().is_behind(partition) {
                        refuse(&batch, &SubmitAnswer::Refused { code: Code::ArchiveBehind, message: "".into() }, &mut out);
                        intake.release(batch.iter().map(weight).sum());
                        continue;
                    }
                    for (batch, encoded) in split_by_bytes(batch) {
                        out.in_flight().appending(partition, &batch);
                        let bus = Arc::clone(&cluster.ports.bus);
                        // First polled in the order of these calls, which becomes the order in the log.
                        appends.push(async move { (batch, bus.append(partition, encoded).await) });
                    }
                }
                out.flush().await;
            }
        }
    }
    while let Some((batch, result)) = appends.next().await {
        complete_append(batch, result, &intake, &cluster.trace, &mut out).await;
    }
}

fn group_by_partition(batch: Vec<Record>, partitions: u32) -> BTreeMap<u32, Vec<Record>> {
    let mut by_partition: BTreeMap<u32, Vec<Record>> = BTreeMap::new();
    for record in batch {
        let partition = record.conversation().map_or(0, |id| partition_of(id, partitions));
        by_partition.entry(partition).or_default().push(record);
    }
    by_partition
}

/// Encodes the records, and splits them into appends within the byte limit.
fn split_by_bytes(batch: Vec<Record>) -> Vec<(Vec<Record>, Vec<Bytes>)> {
    let mut parts: Vec<(Vec<Record>, Vec<Bytes>)> = Vec::new();
    let mut bytes_left = 0;
    for record in batch {
        let encoded = record.encode();
        match parts.last_mut().filter(|_| encoded.len() <= bytes_left) {
            Some((records, bytes)) => {
                bytes_left -= encoded.len();
                records.push(record);
                bytes.push(encoded);
            }
            None => {
                bytes_left = APPEND_BYTES_MAX.saturating_sub(encoded.len());
                parts.push((vec![record], vec![encoded]));
            }
        }
    }
    parts
}

async fn complete_append(
    batch: Vec<Record>,
    result: Result<Appended, AppendError>,
    intake: &Intake,
    tracer: &Tracer,
    out: &mut LocalDispatcher,
) {
    trace_append(&batch, &result, tracer);
    let error = match result {
        Ok(appended) => {
            out.in_flight().appended(&batch, appended.last);
            None
        }
        Err(error) => Some(error),
    };
    if let Some(error) = error {
        if matches!(error, AppendError::Unavailable(_)) {
            // Repeated while the log is unavailable; the log itself reports when that begins and ends.
            tracing::debug!(%error, records = batch.len(), "append refused; its records are refused too");
        } else {
            tracing::warn!(%error, records = batch.len(), "append failed; its records end refused or unknown");
        }
        let answer = match error {
            AppendError::Unavailable(_) | AppendError::Rejected(_) => {
                SubmitAnswer::Refused { code: Code::BusUnavailable, message: "".into() }
            }
            AppendError::Unknown(_) => SubmitAnswer::Unknown,
        };
        refuse(&batch, &answer, out);
        out.flush().await;
    }
    intake.release(batch.iter().map(weight).sum());
}

/// Adds the result of the append to the traces of its records.
fn trace_append(batch: &[Record], result: &Result<Appended, AppendError>, tracer: &Tracer) {
    for trace in batch.iter().filter_map(|record| record.trace) {
        let facts = Facts::default();
        match result {
            Ok(Appended { first, last }) => {
                tracer.note(
                    &trace,
                    Step::Appended,
                    facts,
                    format_args!("between offsets {first} and {last}"),
                );
            }
            Err(error) => tracer.note(&trace, Step::NotAppended, facts, format_args!("{error}")),
        }
    }
}

/// Answers the records of a failed append. A chained message ends its connection, because the log would let its
/// successors pass.
fn refuse(batch: &[Record], answer: &SubmitAnswer, out: &mut LocalDispatcher) {
    for record in batch {
        let chained = matches!(&record.body, Body::Message(message) if message.order.chained);
        out.answer_failed(record, if chained { SubmitAnswer::AppendFailed } else { answer.clone() });
    }
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::{
        id::{DeviceId, MsgId, NodeId, UserId},
        record::{Message, Origin, SenderOrder, body_hash},
    };

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
    fn batch_is_split_by_bytes_and_keeps_its_order() {
        let origin = Origin { node: NodeId::new("n1").unwrap(), boot: 1, conn: 1, request: 1 };
        let sized = |size: usize, n: u64| {
            let content = Bytes::from(vec![b'x'; size]);
            let body = Body::Message(Message {
                conversation: ConversationId::parse("d:ann:bob").unwrap(),
                sender: UserId::new("ann").unwrap(),
                device: DeviceId::new("phone").unwrap(),
                msg_id: MsgId::new(&format!("m{n}")).unwrap(),
                attempt: 0,
                body_hash: body_hash(&content),
                content,
                order: SenderOrder::default(),
                flags: 0,
            });
            Record { origin: origin.clone(), received_at: 1, body, trace: None }
        };
        let sizes = [600 << 10, 600 << 10, 10, 2 << 20, 10];
        let batch: Vec<Record> = sizes.iter().zip(0..).map(|(size, n)| sized(*size, n)).collect();
        let parts = split_by_bytes(batch.clone());
        let counts: Vec<usize> = parts.iter().map(|(records, _)| records.len()).collect();
        assert_eq!(counts, [1, 2, 1, 1]);
        let bytes: Vec<Bytes> = parts.into_iter().flat_map(|(_, bytes)| bytes).collect();
        assert_eq!(bytes, batch.iter().map(Record::encode).collect::<Vec<_>>());
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
