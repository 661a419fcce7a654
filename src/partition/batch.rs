//! Batch sizing for the archive: small transactions after a take-over, larger ones while the store is fast.
//!
//! The size is counted in rows, estimated by the users that a record names. The number of records says little: a full
//! batch of imports would be several hundred thousand rows in one statement. A batch that failed because of its size is
//! not retried unchanged: the owner takes over again, and so starts with small batches.

use std::time::Duration;

use tidegate_protocol::record::{Body, Position, Record, RecordError};

use super::{lag::LogSpan, retention};
use crate::bus::{Bounds, LogRecord};

/// Approximate rows of a batch after a take-over. A record with more rows is a batch of its own.
const ROWS_INITIAL: usize = 512;

/// Approximate limit on the rows of a batch.
const ROWS_MAX: usize = 8_192;

/// A transaction faster than this doubles the row limit.
const FAST_TRANSACTION_MAX: Duration = Duration::from_secs(1);

/// A transaction that fails after at least this long may be too large. The store did not work on one that fails sooner.
const SIZE_FAILURE_MIN: Duration = Duration::from_secs(2);

/// Adaptive limit on the rows of one archive transaction.
#[derive(Debug)]
pub(super) struct BatchSizer {
    rows: usize,
}

/// Records that are decided, archived and published together.
pub(super) struct RecordBatch {
    /// Records with their offsets; an error marks a record that can't be decoded.
    pub(super) records: Vec<(u64, Result<Record, RecordError>)>,
    /// Estimated row count.
    pub(super) rows: usize,
    /// Log position after the batch.
    pub(super) to: Position,
    /// Log range that the batch covers.
    pub(super) span: LogSpan,
}

impl Default for BatchSizer {
    fn default() -> Self {
        Self { rows: ROWS_INITIAL }
    }
}

impl BatchSizer {
    /// Takes the next batch from the front of `rest`; `None` if nothing is left.
    pub(super) fn next_batch(&self, bounds: Bounds, rest: &mut &[LogRecord]) -> Option<RecordBatch> {
        let to = |it: &LogRecord| Position::behind(it.offset, &it.bytes);
        let first = to(rest.first()?);
        let mut batch = RecordBatch { records: Vec::new(), rows: 0, to: first, span: LogSpan::of(bounds) };
        while let Some((next, remaining)) = rest.split_first() {
            let record = Record::decode(next.bytes.clone());
            let rows = record.as_ref().map_or(1, rows_of);
            if !batch.records.is_empty() && batch.rows + rows > self.rows {
                break;
            }
            batch.span.add_record(next.bytes.len(), record.as_ref().map(|record| record.received_at).ok());
            batch.records.push((next.offset, record));
            (batch.rows, batch.to, *rest) = (batch.rows + rows, to(next), remaining);
        }
        Some(batch)
    }

    /// Returns the row limit, which a batch of one record may exceed.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Adjusts the limit to the duration of a successful transaction.
    pub(super) fn note_duration(&mut self, took: Duration) {
        if took < FAST_TRANSACTION_MAX {
            self.rows = (self.rows * 2).min(ROWS_MAX);
        }
    }
}

/// Returns whether a batch that failed after `took` should be retried in smaller parts, as after a take-over.
pub(super) fn is_too_large(rows: usize, records: usize, took: Duration) -> bool {
    records > 1 && rows > ROWS_INITIAL && took >= SIZE_FAILURE_MIN
}

/// Estimates how many store rows the record changes.
fn rows_of(record: &Record) -> usize {
    match &record.body {
        Body::Member(change) => 1 + change.users.len(),
        Body::Prune(_) => retention::PRUNE_ROWS_MAX,
        Body::Message(_) | Body::Recall(_) | Body::Edit(_) | Body::Rules(_) => 1,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tidegate_protocol::{
        id::{ConversationId, MsgId, NodeId, UserId},
        record::{MemberAction, MemberChange, Origin},
    };

    use super::*;
    use crate::bus::TopicId;

    const BOUNDS: Bounds = Bounds { topic: TopicId(1), first: 0, next: 100 };

    /// Record that creates a group of `users` members; undecodable if `None`.
    fn record(offset: u64, users: Option<usize>) -> LogRecord {
        let change = |users| MemberChange {
            conversation: ConversationId::parse("g:a").unwrap(),
            action: MemberAction::Create,
            users: (0..users).map(|n| UserId::new(&format!("u{n}")).unwrap()).collect(),
            role: None,
            by: None,
            settings: Default::default(),
            request_id: MsgId::new("r").unwrap(),
        };
        let origin = Origin { node: NodeId::new("n").unwrap(), boot: 1, conn: 1, request: 1 };
        let record = |body| Record { origin: origin.clone(), received_at: 1, body, trace: None }.encode();
        let bytes = users.map_or(Bytes::from_static(b"?"), |users| record(Body::Member(change(users))));
        LogRecord { offset, bytes }
    }

    fn split(it: &BatchSizer, users: &[Option<usize>]) -> Vec<(u64, usize, usize)> {
        let all: Vec<LogRecord> = (10..).zip(users).map(|(offset, users)| record(offset, *users)).collect();
        let mut rest = &all[..];
        let batches = std::iter::from_fn(|| it.next_batch(BOUNDS, &mut rest));
        batches.map(|batch| (batch.to.offset, batch.records.len(), batch.rows)).collect()
    }

    #[test]
    fn batches_split_by_named_users_and_keep_the_order() {
        let it = BatchSizer::default();
        assert_eq!(split(&it, &[]), []);
        assert_eq!(split(&it, &[Some(1), None, Some(508)]), [(13, 3, 512)]);
        let large = [Some(1), Some(509), None, Some(1_000), Some(1)];
        assert_eq!(split(&it, &large), [(12, 2, 512), (13, 1, 1), (14, 1, 1_001), (15, 1, 2)]);
    }

    #[test]
    fn batches_grow_up_to_the_limit_while_the_store_is_fast() {
        let mut it = BatchSizer::default();
        it.note_duration(FAST_TRANSACTION_MAX);
        assert_eq!(it.rows, ROWS_INITIAL, "a slow transaction does not raise the limit");
        for _ in 0..20 {
            it.note_duration(FAST_TRANSACTION_MAX / 2);
        }
        assert_eq!(it.rows, ROWS_MAX);
    }

    #[test]
    fn only_slow_divisible_batches_are_too_large() {
        assert!(is_too_large(ROWS_MAX, 2, SIZE_FAILURE_MIN));
        assert!(!is_too_large(ROWS_MAX, 2, SIZE_FAILURE_MIN / 2), "store unavailable");
        assert!(!is_too_large(ROWS_INITIAL, 2, SIZE_FAILURE_MIN), "a new owner starts at this size");
        assert!(!is_too_large(ROWS_MAX, 1, SIZE_FAILURE_MIN), "one record can't be split");
    }
}
