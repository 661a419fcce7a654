//! How much an owner archives in one transaction: little after a take-over, more while the store is quick about it.
//!
//! A record is worth as many rows as it names users, so records alone say little: a full batch of imports would be some
//! hundred thousand rows in one statement. What the store broke off for its size is never offered again as it was: the owner
//! takes over anew, and so begins small.

use std::time::Duration;

use tidegate_protocol::record::{Body, Position, Record, RecordError};

use super::{lag::Heard, retention};
use crate::bus::{Bounds, LogRecord};

/// Rows of a portion, about: at first, and at the most. A record that is worth more is a portion of its own.
const FIRST: usize = 512;
const MOST: usize = 8_192;

/// A transaction that was quicker than this may grow to twice of it.
const QUICK: Duration = Duration::from_secs(1);

/// One that failed after so long may have failed for its size; one that failed sooner was not worked on.
const LONG: Duration = Duration::from_secs(2);

/// The bound of the next portion.
#[derive(Debug)]
pub(crate) struct Portion {
    rows: usize,
}

/// Records that are decided, archived and told together.
pub(crate) struct Cut {
    /// At their offsets, as far as they can be read.
    pub(crate) records: Vec<(u64, Result<Record, RecordError>)>,
    /// What they are worth.
    pub(crate) rows: usize,
    /// The place behind them.
    pub(crate) to: Position,
    /// What they say of the log.
    pub(crate) heard: Heard,
}

impl Default for Portion {
    fn default() -> Self {
        Self { rows: FIRST }
    }
}

impl Portion {
    /// Cuts a portion off the beginning of what was read; none when nothing is left.
    pub(crate) fn cut(&self, bounds: Bounds, rest: &mut &[LogRecord]) -> Option<Cut> {
        let to = |it: &LogRecord| Position::behind(it.offset, &it.bytes);
        let first = to(rest.first()?);
        let mut cut = Cut { records: Vec::new(), rows: 0, to: first, heard: Heard::of(bounds) };
        while let Some((next, behind)) = rest.split_first() {
            let record = Record::decode(next.bytes.clone());
            let rows = record.as_ref().map_or(1, rows_of);
            if !cut.records.is_empty() && cut.rows + rows > self.rows {
                break;
            }
            cut.heard.record(next.bytes.len(), record.as_ref().map(|record| record.received_at).ok());
            cut.records.push((next.offset, record));
            (cut.rows, cut.to, *rest) = (cut.rows + rows, to(next), behind);
        }
        Some(cut)
    }

    /// How many rows one has at the most, unless it is a single record.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// One was archived in that time.
    pub(crate) fn archived(&mut self, took: Duration) {
        if took < QUICK {
            self.rows = (self.rows * 2).min(MOST);
        }
    }
}

/// Whether what failed after that time is to be tried again in smaller portions: those of a new owner are.
pub(crate) fn is_too_large(rows: usize, records: usize, took: Duration) -> bool {
    records > 1 && rows > FIRST && took >= LONG
}

/// How many rows of the store the record changes, about.
fn rows_of(record: &Record) -> usize {
    match &record.body {
        Body::Member(change) => 1 + change.users.len(),
        Body::Prune(_) => retention::ROWS,
        Body::Message(_) | Body::Recall(_) | Body::Rules(_) => 1,
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

    /// A group of so many users; none = a record that can't be read.
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

    fn cuts(it: &Portion, users: &[Option<usize>]) -> Vec<(u64, usize, usize)> {
        let all: Vec<LogRecord> = (10..).zip(users).map(|(offset, users)| record(offset, *users)).collect();
        let mut rest = &all[..];
        let cuts = std::iter::from_fn(|| it.cut(BOUNDS, &mut rest));
        cuts.map(|cut| (cut.to.offset, cut.records.len(), cut.rows)).collect()
    }

    #[test]
    fn a_batch_is_cut_by_the_users_it_names_in_order_and_whole() {
        let it = Portion::default();
        assert_eq!(cuts(&it, &[]), []);
        assert_eq!(cuts(&it, &[Some(1), None, Some(508)]), [(13, 3, 512)]);
        let large = [Some(1), Some(509), None, Some(1_000), Some(1)];
        assert_eq!(cuts(&it, &large), [(12, 2, 512), (13, 1, 1), (14, 1, 1_001), (15, 1, 2)]);
    }

    #[test]
    fn portions_grow_while_the_store_is_quick_and_stay_bounded() {
        let mut it = Portion::default();
        it.archived(QUICK);
        assert_eq!(it.rows, FIRST, "no larger: that one took its time");
        for _ in 0..20 {
            it.archived(QUICK / 2);
        }
        assert_eq!(it.rows, MOST);
    }

    #[test]
    fn only_what_took_long_and_can_be_less_is_tried_in_smaller_portions() {
        assert!(is_too_large(MOST, 2, LONG));
        assert!(!is_too_large(MOST, 2, LONG / 2), "the store is away");
        assert!(!is_too_large(FIRST, 2, LONG), "the first of a new owner is as large");
        assert!(!is_too_large(MOST, 1, LONG), "a record can't be cut");
    }
}
