//! What this node has appended and nobody has answered yet: whom to ask again, and about what (DESIGN 6.1).
//!
//! Answers come over a link that may lose them. What it lost is asked for again every 300 ms, so that a client waits for
//! that long and not for its deadline. Bounded in number and time; what is not remembered ends *unknown*, as ever.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use foldhash::quality::RandomState;
use tidegate_protocol::{
    machine::ledger::{message_key, request_key},
    record::{Body, Record},
};
use tokio::time::Instant;

use crate::link::{Ask, AskKey};

/// After this an answer is asked for, and between two asks (DESIGN 6.1).
pub(crate) const ASK_AFTER: Duration = Duration::from_millis(300);

/// After this a client has heard *unknown* (DESIGN 6.2), and nobody waits any more.
const WAITED: Duration = Duration::from_secs(5);

/// Records remembered at once; of more, those that come last are not.
const RECORDS_MAX: usize = 1 << 17;

/// Records of one partition asked about in one call: the oldest, for answers come in order.
const ASKS_MAX: usize = 256;

/// A record by its origin here.
type Name = (u64, u64);

/// The records without an answer.
#[derive(Default)]
pub(crate) struct Unanswered {
    /// Nothing is remembered before somebody asks.
    tracks: AtomicBool,
    records: Mutex<HashMap<Name, Waiting, RandomState>>,
}

struct Waiting {
    partition: u32,
    /// The last one of its append; none until the log has confirmed that.
    offset: Option<u64>,
    key: Option<AskKey>,
    since: Instant,
    asked: Instant,
}

impl Unanswered {
    /// From here on what is appended is remembered.
    pub(crate) fn track(&self) {
        self.tracks.store(true, Ordering::Relaxed);
    }

    fn records(&self) -> MutexGuard<'_, HashMap<Name, Waiting, RandomState>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These are about to be appended.
    pub(crate) fn appending(&self, partition: u32, batch: &[Record]) {
        if !self.tracks.load(Ordering::Relaxed) {
            return;
        }
        let now = Instant::now();
        let mut records = self.records();
        for record in batch.iter().take(RECORDS_MAX.saturating_sub(records.len())) {
            let waiting = Waiting { partition, offset: None, key: key_of(record), since: now, asked: now };
            records.insert(name_of(record), waiting);
        }
    }

    /// They lie in the log, none above `last`. Those that have their answer already are gone from here.
    pub(crate) fn appended(&self, batch: &[Record], last: u64) {
        if !self.tracks.load(Ordering::Relaxed) {
            return;
        }
        let mut records = self.records();
        for record in batch {
            if let Some(waiting) = records.get_mut(&name_of(record)) {
                waiting.offset = Some(last);
            }
        }
    }

    /// That one has its answer.
    pub(crate) fn answered(&self, conn: u64, request: u64) {
        if self.tracks.load(Ordering::Relaxed) {
            self.records().remove(&(conn, request));
        }
    }

    /// What is to be asked now, by partition, the oldest first; forgets what nobody waits for any more.
    pub(crate) fn due(&self, now: Instant) -> BTreeMap<u32, Vec<Ask>> {
        let mut records = self.records();
        records.retain(|_, it| now.saturating_duration_since(it.since) < WAITED);
        if records.is_empty() {
            // A burst leaves no table behind.
            records.shrink_to(1_024);
        }
        let mut due: BTreeMap<u32, Vec<Ask>> = BTreeMap::new();
        for ((conn, request), it) in records.iter() {
            if let Some(offset) = it.offset
                && now.saturating_duration_since(it.asked) >= ASK_AFTER
            {
                let ask =
                    Ask { partition: it.partition, offset, conn: *conn, request: *request, key: it.key };
                due.entry(it.partition).or_default().push(ask);
            }
        }
        for asks in due.values_mut() {
            asks.sort_unstable_by_key(|ask| (ask.offset, ask.conn, ask.request));
            asks.truncate(ASKS_MAX);
            for ask in asks {
                if let Some(it) = records.get_mut(&(ask.conn, ask.request)) {
                    it.asked = now;
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

fn name_of(record: &Record) -> Name {
    (record.origin.conn, record.origin.request)
}

/// By what an owner finds in the store what an earlier owner decided. A recall has none, and is harmless to repeat.
fn key_of(record: &Record) -> Option<AskKey> {
    match &record.body {
        Body::Message(it) => Some(AskKey { hash: message_key(it), body_hash: it.body_hash }),
        Body::Member(it) => Some(AskKey { hash: request_key(it), body_hash: it.body_hash() }),
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
    async fn it_asks_every_300_ms_for_what_lies_in_the_log_until_it_is_answered_or_nobody_waits() {
        let it = Unanswered::default();
        it.appending(0, &[record(0)]);
        assert_eq!(it.len(), 0, "nobody asks");
        it.track();
        let batch = [record(1), record(2), record(3)];
        it.appending(4, &batch);
        // Its answer was quicker than the word of the log that it lies there.
        it.answered(7, 3);
        it.appended(&batch, 90);
        it.appending(5, &[record(4)]);
        let begun = Instant::now();
        assert_eq!(it.due(begun + Duration::from_millis(299)).len(), 0);
        let due = it.due(begun + ASK_AFTER);
        assert_eq!((requests(&due, 4), requests(&due, 5)), (vec![1, 2], vec![]));
        assert!(due[&4].iter().all(|ask| (ask.offset, ask.conn) == (90, 7)));
        assert_eq!(it.due(begun + ASK_AFTER + Duration::from_millis(299)).len(), 0);
        it.answered(7, 1);
        assert_eq!(requests(&it.due(begun + 2 * ASK_AFTER), 4), [2]);
        assert_eq!((it.due(begun + WAITED).len(), it.len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn it_asks_about_the_oldest_first_and_remembers_so_many_at_most() {
        let it = Unanswered::default();
        it.track();
        for n in 0..3_u64 {
            let batch: Vec<Record> = (0..1_000).map(|nth| record(n * 1_000 + nth)).collect();
            it.appending(0, &batch);
            it.appended(&batch, 3_000 - n);
        }
        let due = requests(&it.due(Instant::now() + ASK_AFTER), 0);
        assert_eq!((due.len(), due[0]), (ASKS_MAX, 2_000));
        let due = requests(&it.due(Instant::now() + ASK_AFTER), 0);
        assert_eq!((due.len(), due[0]), (ASKS_MAX, 2_256), "then about those behind");
        let flood: Vec<Record> = (0..RECORDS_MAX as u64 + 10).map(|n| record(10_000 + n)).collect();
        it.appending(1, &flood);
        assert_eq!(it.len(), RECORDS_MAX);
    }
}
