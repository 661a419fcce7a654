//! In-flight records: appended by this node and without a reply. The recovery task queries their owners.
//!
//! Replies travel over a link that may lose them. A missing reply is queried every 300 ms, so that a client waits that
//! long and not until its deadline. Bounded in number and time; the client of an untracked record gets *unknown* (SPEC,
//! section 5).

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use std::hash::RandomState;
use tidegate_protocol::{
    machine::ledger::{edit_key, message_key, request_key},
    record::{Body, Record},
};
use tokio::time::Instant;

use crate::link::{Ask, AskKey};

/// Age at which a missing reply is queried, and interval between queries.
pub(crate) const REPLY_QUERY_INTERVAL: Duration = Duration::from_millis(300);

/// Deadline of a reply (SPEC, section 4). By then the client has got *unknown*, and no caller waits.
const REPLY_DEADLINE: Duration = Duration::from_secs(5);

/// Records tracked at once; further ones are not tracked.
const RECORDS_MAX: usize = 1 << 17;

/// Records of one partition queried in one call: the oldest, because owners reply in log order.
const QUERIES_MAX: usize = 256;

/// Origin of a record on this node: connection, request.
type OriginKey = (u64, u64);

/// Appended records without a reply.
#[derive(Default)]
pub(crate) struct InFlight {
    /// Whether records are tracked: only once a task queries for their replies.
    is_tracking: AtomicBool,
    records: Mutex<HashMap<OriginKey, PendingRecord, RandomState>>,
}

struct PendingRecord {
    partition: u32,
    /// Last offset of the record's append; `None` until the log has confirmed it.
    offset: Option<u64>,
    key: Option<AskKey>,
    since: Instant,
    queried: Instant,
    /// Number of queries for the reply.
    queries: u32,
}

/// Records that got no reply before [`REPLY_DEADLINE`], for one log line.
#[derive(Debug, Default)]
struct Unanswered {
    records: usize,
    /// Records whose append the log has not confirmed.
    unconfirmed: usize,
    /// Records of whose reply an owner was asked.
    queried: usize,
    partitions: BTreeSet<u32>,
}

impl Unanswered {
    fn add(&mut self, record: &PendingRecord) {
        self.records += 1;
        self.unconfirmed += usize::from(record.offset.is_none());
        self.queried += usize::from(record.queries > 0);
        self.partitions.insert(record.partition);
    }

    /// Logs what a late ack waited for: the log, the owner, or the way of the reply.
    fn log(&self) {
        if self.records > 0 {
            let Self { records, unconfirmed, queried, partitions } = self;
            tracing::warn!(
                records,
                unconfirmed,
                queried,
                ?partitions,
                "records without a reply; their senders get unknown"
            );
        }
    }
}

impl InFlight {
    /// Starts tracking the records that are appended from now on.
    pub(crate) fn track(&self) {
        self.is_tracking.store(true, Ordering::Relaxed);
    }

    fn records(&self) -> MutexGuard<'_, HashMap<OriginKey, PendingRecord, RandomState>> {
        self.records.lock()
    }

    /// Tracks records that are about to be appended.
    pub(crate) fn appending(&self, partition: u32, batch: &[Record]) {
        if !self.is_tracking.load(Ordering::Relaxed) {
            return;
        }
        let now = Instant::now();
        let mut records = self.records();
        for record in batch.iter().take(RECORDS_MAX.saturating_sub(records.len())) {
            let pending = PendingRecord {
                partition,
                offset: None,
                key: dedup_key_of(record),
                since: now,
                queried: now,
                queries: 0,
            };
            records.insert(origin_of(record), pending);
        }
    }

    /// Sets the highest offset of records that the log has confirmed. Records that already have a reply stay untracked.
    pub(crate) fn appended(&self, batch: &[Record], last: u64) {
        if !self.is_tracking.load(Ordering::Relaxed) {
            return;
        }
        let mut records = self.records();
        for record in batch {
            if let Some(pending) = records.get_mut(&origin_of(record)) {
                pending.offset = Some(last);
            }
        }
    }

    /// Stops tracking a record that has its reply.
    pub(crate) fn answered(&self, conn: u64, request: u64) {
        if self.is_tracking.load(Ordering::Relaxed) {
            self.records().remove(&(conn, request));
        }
    }

    /// Returns the queries that are due, by partition, oldest first; drops records past their deadline.
    pub(crate) fn due(&self, now: Instant) -> BTreeMap<u32, Vec<Ask>> {
        let mut records = self.records();
        let mut unanswered = Unanswered::default();
        records.retain(|_, it| {
            let may_wait = now.saturating_duration_since(it.since) < REPLY_DEADLINE;
            if !may_wait {
                unanswered.add(it);
            }
            may_wait
        });
        unanswered.log();
        if records.is_empty() {
            // Free the table that a burst has left.
            records.shrink_to(1_024);
        }
        let mut due: BTreeMap<u32, Vec<Ask>> = BTreeMap::new();
        for ((conn, request), it) in records.iter() {
            if let Some(offset) = it.offset
                && now.saturating_duration_since(it.queried) >= REPLY_QUERY_INTERVAL
            {
                let ask =
                    Ask { partition: it.partition, offset, conn: *conn, request: *request, key: it.key };
                due.entry(it.partition).or_default().push(ask);
            }
        }
        for asks in due.values_mut() {
            asks.sort_unstable_by_key(|ask| (ask.offset, ask.conn, ask.request));
            asks.truncate(QUERIES_MAX);
            for ask in asks {
                if let Some(it) = records.get_mut(&(ask.conn, ask.request)) {
                    it.queried = now;
                    it.queries += 1;
                }
            }
        }
        due
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.records().len()
    }
}

fn origin_of(record: &Record) -> OriginKey {
    (record.origin.conn, record.origin.request)
}

/// Returns the key by which an owner finds an earlier owner's outcome in the store. A recall has none, and is harmless
/// to repeat.
fn dedup_key_of(record: &Record) -> Option<AskKey> {
    match &record.body {
        Body::Message(it) => Some(AskKey { hash: message_key(it), body_hash: it.body_hash }),
        Body::Member(it) => Some(AskKey { hash: request_key(it), body_hash: it.body_hash() }),
        Body::Edit(it) => Some(AskKey { hash: edit_key(it), body_hash: it.key_hash() }),
        Body::Recall(_) | Body::Prune(_) | Body::Rules(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::{
        id::{ConversationId, NodeId},
        record::{Origin, Recall},
    };

    use super::*;

    fn record(request: u64) -> Record {
        let origin = Origin { node: NodeId::new("n1").unwrap(), boot: 1, conn: 7, request };
        let conversation = ConversationId::parse("d:ann:bob").unwrap();
        Record {
            origin,
            received_at: 1,
            body: Body::Recall(Recall { conversation, seq: 1, by: None }),
            trace: None,
        }
    }

    fn requests(due: &BTreeMap<u32, Vec<Ask>>, partition: u32) -> Vec<u64> {
        due.get(&partition).into_iter().flatten().map(|ask| ask.request).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn lost_reply_is_queried_every_300_ms_until_it_arrives() {
        let it = InFlight::default();
        it.appending(0, &[record(0)]);
        assert_eq!(it.len(), 0, "no task queries yet");
        it.track();
        let batch = [record(1), record(2), record(3)];
        it.appending(4, &batch);
        // Its reply arrived before the log's confirmation.
        it.answered(7, 3);
        it.appended(&batch, 90);
        it.appending(5, &[record(4)]);
        let begun = Instant::now();
        assert_eq!(it.due(begun + Duration::from_millis(299)).len(), 0);
        let due = it.due(begun + REPLY_QUERY_INTERVAL);
        assert_eq!((requests(&due, 4), requests(&due, 5)), (vec![1, 2], vec![]));
        assert!(due[&4].iter().all(|ask| (ask.offset, ask.conn) == (90, 7)));
        assert_eq!(it.due(begun + REPLY_QUERY_INTERVAL + Duration::from_millis(299)).len(), 0);
        it.answered(7, 1);
        assert_eq!(requests(&it.due(begun + 2 * REPLY_QUERY_INTERVAL), 4), [2]);
        assert_eq!((it.due(begun + REPLY_DEADLINE).len(), it.len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn oldest_are_queried_first_and_records_are_bounded() {
        let it = InFlight::default();
        it.track();
        for n in 0..3_u64 {
            let batch: Vec<Record> = (0..1_000).map(|nth| record(n * 1_000 + nth)).collect();
            it.appending(0, &batch);
            it.appended(&batch, 3_000 - n);
        }
        let due = requests(&it.due(Instant::now() + REPLY_QUERY_INTERVAL), 0);
        assert_eq!((due.len(), due[0]), (QUERIES_MAX, 2_000));
        let due = requests(&it.due(Instant::now() + REPLY_QUERY_INTERVAL), 0);
        assert_eq!((due.len(), due[0]), (QUERIES_MAX, 2_256), "then the next ones");
        let flood: Vec<Record> = (0..RECORDS_MAX as u64 + 10).map(|n| record(10_000 + n)).collect();
        it.appending(1, &flood);
        assert_eq!(it.len(), RECORDS_MAX);
    }
}
