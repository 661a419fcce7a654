//! Sending: from the shards to the log, in batches, with a bound in bytes on what waits.

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
    machine::session::Answer,
    record::{Body, Record, body_hash},
};
use tokio::sync::mpsc;

use crate::{
    bus::{AppendError, Appended},
    delivery::local::Outbound,
    mail::ConnKey,
    ports::Ports,
    routes::Route,
    trace::{Facts, Step, Tracer},
};

/// Batches that may wait; full, a shard keeps its batch and offers it again.
const BATCHES_MAX: usize = 256;

/// Most records appended at once.
const APPEND_MAX: usize = 4_096;

/// Bytes of one append, unless one record is larger. A log refuses more than it can hold at once, and with it everybody's records (`kafka.append_bytes_max`).
const APPEND_BYTES: usize = 1024 * 1024;

/// Most appends that may wait for the log to confirm them, for each of its partitions.
const APPENDS_MAX: usize = 16;

/// The shards' way to the log and to the owner.
pub struct Intake {
    records: mpsc::Sender<Vec<Record>>,
    logins: mpsc::Sender<Vec<(ConnKey, Route)>>,
    waiting_bytes: AtomicUsize,
    bytes_max: usize,
    /// Memory is short: nothing is taken in that would have to be kept.
    short: AtomicBool,
}

/// The other ends of an [`Intake`].
pub struct Outlets {
    /// For [`append_all`].
    pub records: mpsc::Receiver<Vec<Record>>,
    /// For the owner, who knows memberships in log order.
    pub logins: mpsc::Receiver<Vec<(ConnKey, Route)>>,
}

impl Intake {
    /// An intake that lets at most `bytes_max` bytes of records wait for the log.
    pub fn new(bytes_max: usize) -> (Arc<Self>, Outlets) {
        let (records, record_outlet) = mpsc::channel(BATCHES_MAX);
        let (logins, login_outlet) = mpsc::channel(BATCHES_MAX);
        let (waiting_bytes, short) = (AtomicUsize::new(0), AtomicBool::new(false));
        let intake = Self { records, logins, waiting_bytes, bytes_max, short };
        (Arc::new(intake), Outlets { records: record_outlet, logins: login_outlet })
    }

    /// Bytes of records that wait for the log.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes.load(Ordering::Relaxed)
    }

    /// From now on nothing is taken in, or it is again.
    pub fn note_memory(&self, short: bool) {
        self.short.store(short, Ordering::Relaxed);
    }

    /// Whether messages are to be refused `OVERLOADED` because memory is short.
    pub fn is_short(&self) -> bool {
        self.short.load(Ordering::Relaxed)
    }

    /// Takes room for a record of about `bytes`, or says with which code to refuse it before it has a place anywhere.
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

    /// Offers records for which room was taken; gives back what the queue can't take now.
    pub fn offer_records(&self, records: Vec<Record>) -> Vec<Record> {
        match self.records.try_send(records) {
            Ok(()) => Vec::new(),
            Err(mpsc::error::TrySendError::Full(records) | mpsc::error::TrySendError::Closed(records)) => {
                records
            }
        }
    }

    /// Offers logins that wait for their memberships; gives back what the queue can't take now.
    pub fn offer_logins(&self, logins: Vec<(ConnKey, Route)>) -> Vec<(ConnKey, Route)> {
        match self.logins.try_send(logins) {
            Ok(()) => Vec::new(),
            Err(mpsc::error::TrySendError::Full(logins) | mpsc::error::TrySendError::Closed(logins)) => {
                logins
            }
        }
    }

    /// Sends one record that is nobody's frame, waiting for room in the queue; false = the node stops.
    ///
    /// Cancelled, it has sent nothing and holds no room: a drain waits until there are no bytes here.
    pub async fn send(&self, record: Record) -> bool {
        let room = Room { intake: self, bytes: weight(&record) };
        self.waiting_bytes.fetch_add(room.bytes, Ordering::Relaxed);
        let is_sent = self.records.send(vec![record]).await.is_ok();
        if is_sent {
            // The append gives it back.
            std::mem::forget(room);
        }
        is_sent
    }

    fn release(&self, bytes: usize) {
        self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Room that was taken for a record not yet in the queue; dropped, it is given back.
struct Room<'a> {
    intake: &'a Intake,
    bytes: usize,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.intake.release(self.bytes);
    }
}

/// What a record takes of the intake's room, in bytes.
pub fn weight(record: &Record) -> usize {
    /// Ids, origin and the like.
    const OVERHEAD: usize = 256;
    match &record.body {
        Body::Message(message) => message.content.len() + OVERHEAD,
        Body::Member(_) | Body::Recall(_) | Body::Prune(_) | Body::Rules(_) => OVERHEAD,
    }
}

/// Whether a record is the message with that id; for planned faults.
pub(crate) fn is_message(record: &Record, msg_id: &str) -> bool {
    matches!(&record.body, Body::Message(message) if message.msg_id.as_str() == msg_id)
}

/// The partition in which a conversation lives; the same on every node and for ever, so by SHA-256: a hash for tables
/// may be another one in the next version of its library.
pub fn partition_of(conversation: &ConversationId, partitions: u32) -> u32 {
    if partitions <= 1 {
        return 0;
    }
    let hash = u128::from_be_bytes(body_hash(conversation.as_str().as_bytes()));
    (hash % u128::from(partitions)) as u32
}

/// Why the log takes nothing for that conversation now, if so; to be asked before anything is handed over.
pub fn refusal(ports: &Ports, conversation: &ConversationId) -> Option<Code> {
    if ports.bus.state().refuses_all {
        return Some(Code::BusUnavailable);
    }
    let lags = ports.peers.lags();
    // Without a look at the conversation as long as there is none.
    let is_behind = lags.count() > 0 && lags.is_behind(partition_of(conversation, ports.bus.partitions()));
    is_behind.then_some(Code::ArchiveBehind)
}

/// Appends what the shards send until they are gone. Answers what could not be appended; the owner answers the rest.
pub async fn append_all(
    mut records: mpsc::Receiver<Vec<Record>>,
    intake: Arc<Intake>,
    ports: Arc<Ports>,
    mut out: Outbound,
) {
    // Answers of one partition keep their order by themselves; a partition that stands still holds up no other.
    let mut appends = FuturesUnordered::new();
    let appends_max = APPENDS_MAX * ports.bus.partitions() as usize;
    loop {
        tokio::select! {
            // What is confirmed makes room for the next; a simulation runs the same way each time.
            biased;
            Some((batch, result)) = appends.next() => settle(batch, result, &intake, &ports.trace, &mut out).await,
            batch = records.recv(), if appends.len() < appends_max => {
                let Some(mut batch) = batch else { break };
                while batch.len() < APPEND_MAX
                    && let Ok(more) = records.try_recv()
                {
                    batch.extend(more);
                }
                for (partition, batch) in apart(batch, ports.bus.partitions()) {
                    if ports.peers.lags().is_behind(partition) {
                        refuse(&batch, &Answer::Refused { code: Code::ArchiveBehind, message: "".into() }, &mut out);
                        intake.release(batch.iter().map(weight).sum());
                        continue;
                    }
                    for (batch, encoded) in in_parts(batch) {
                        out.unanswered().appending(partition, &batch);
                        let bus = Arc::clone(&ports.bus);
                        // Polled first in the order of these calls, which is the order in the log.
                        appends.push(async move { (batch, bus.append(partition, encoded).await) });
                    }
                }
                out.flush().await;
            }
        }
    }
    while let Some((batch, result)) = appends.next().await {
        settle(batch, result, &intake, &ports.trace, &mut out).await;
    }
}

fn apart(batch: Vec<Record>, partitions: u32) -> BTreeMap<u32, Vec<Record>> {
    let mut by_partition: BTreeMap<u32, Vec<Record>> = BTreeMap::new();
    for record in batch {
        let partition = record.conversation().map_or(0, |id| partition_of(id, partitions));
        by_partition.entry(partition).or_default().push(record);
    }
    by_partition
}

/// As the log takes them, each part within its bytes.
fn in_parts(batch: Vec<Record>) -> Vec<(Vec<Record>, Vec<Bytes>)> {
    let mut parts: Vec<(Vec<Record>, Vec<Bytes>)> = Vec::new();
    let mut room = 0;
    for record in batch {
        let encoded = record.encode();
        match parts.last_mut().filter(|_| encoded.len() <= room) {
            Some((records, bytes)) => {
                room -= encoded.len();
                records.push(record);
                bytes.push(encoded);
            }
            None => {
                room = APPEND_BYTES.saturating_sub(encoded.len());
                parts.push((vec![record], vec![encoded]));
            }
        }
    }
    parts
}

async fn settle(
    batch: Vec<Record>,
    result: Result<Appended, AppendError>,
    intake: &Intake,
    tracer: &Tracer,
    out: &mut Outbound,
) {
    note(&batch, &result, tracer);
    let error = match result {
        Ok(appended) => {
            out.unanswered().appended(&batch, appended.last);
            None
        }
        Err(error) => Some(error),
    };
    if let Some(error) = error {
        if matches!(error, AppendError::Unavailable(_)) {
            // For as long as it lasts; the log itself says when that begins and ends.
            tracing::debug!(%error, records = batch.len(), "an append was refused");
        } else {
            tracing::warn!(%error, records = batch.len(), "an append failed");
        }
        let answer = match error {
            AppendError::Unavailable(_) | AppendError::Rejected(_) => {
                Answer::Refused { code: Code::BusUnavailable, message: "".into() }
            }
            AppendError::Unknown(_) => Answer::Unknown,
        };
        refuse(&batch, &answer, out);
        out.flush().await;
    }
    intake.release(batch.iter().map(weight).sum());
}

/// Where the traced ones of a batch are now.
fn note(batch: &[Record], result: &Result<Appended, AppendError>, tracer: &Tracer) {
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

/// A chained message whose append failed ends its connection, because the log would let its successors pass.
fn refuse(batch: &[Record], answer: &Answer, out: &mut Outbound) {
    for record in batch {
        let chained = matches!(&record.body, Body::Message(message) if message.order.chained);
        out.answer_failed(record, if chained { Answer::AppendFailed } else { answer.clone() });
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
    fn the_intake_refuses_before_it_holds_more_than_its_bound() {
        let (intake, _outlets) = Intake::new(100);
        assert_eq!(intake.reserve(60), Ok(()));
        assert_eq!(intake.reserve(41), Err(Code::Busy));
        assert_eq!(intake.reserve(40), Ok(()), "a refusal takes no room");
        intake.release(100);
        intake.note_memory(true);
        assert_eq!(intake.reserve(1), Err(Code::Overloaded));
        intake.note_memory(false);
        assert_eq!(intake.reserve(100), Ok(()));
    }

    #[test]
    fn what_many_said_is_appended_in_parts_and_in_order() {
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
        let parts = in_parts(batch.clone());
        let counts: Vec<usize> = parts.iter().map(|(records, _)| records.len()).collect();
        assert_eq!(counts, [1, 2, 1, 1]);
        let bytes: Vec<Bytes> = parts.into_iter().flat_map(|(_, bytes)| bytes).collect();
        assert_eq!(bytes, batch.iter().map(Record::encode).collect::<Vec<_>>());
    }

    #[test]
    fn a_conversation_keeps_its_partition() {
        // Pinned: another answer would strand every message stored so far.
        for (id, of_64, of_12) in [("d:alice:bob", 36, 0), ("g:team", 33, 9), ("d:zoe:zoe", 27, 7)] {
            let id = ConversationId::parse(id).unwrap();
            assert_eq!([1, 12, 64].map(|count| partition_of(&id, count)), [0, of_12, of_64], "{id}");
        }
    }
}
