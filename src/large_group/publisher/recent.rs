//! Records that recently went to all nodes, for nodes discovered later: a new member may be connected to one.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use super::GroupRecord;
use crate::routes::NodeBoot;

/// Retention of a record. By then peers have discovered any node that admits clients, because leases are renewed every
/// 3 s.
const RECENT_RETENTION: Duration = Duration::from_secs(10);

/// Records kept; beyond that, the oldest are dropped.
const RECORDS_MAX: usize = 1_024;

/// Bytes kept; beyond that, the oldest records are dropped.
const BYTES_MAX: usize = 1024 * 1024;

/// Records that recently went to all nodes, and the nodes discovered so far.
#[derive(Default)]
pub(super) struct RecentRecords {
    records: VecDeque<(Instant, GroupRecord)>,
    bytes: usize,
    nodes: BTreeSet<NodeBoot>,
}

impl RecentRecords {
    /// Adds records that go to all nodes now.
    pub(super) fn add<'a>(&mut self, records: impl Iterator<Item = &'a GroupRecord>, now: Instant) {
        for record in records {
            self.bytes += record.bytes.len();
            self.records.push_back((now, record.clone()));
        }
        while let Some((sent, record)) = self.records.front()
            && (self.records.len() > RECORDS_MAX || self.bytes > BYTES_MAX || *sent + RECENT_RETENTION <= now)
        {
            self.bytes -= record.bytes.len();
            self.records.pop_front();
        }
    }

    /// Returns the nodes discovered since the last call, with the records that they missed.
    pub(super) fn missed(&mut self, nodes: &[NodeBoot], now: Instant) -> Vec<(NodeBoot, Vec<GroupRecord>)> {
        self.add([].iter(), now);
        let before = std::mem::replace(&mut self.nodes, nodes.iter().cloned().collect());
        let new = self.nodes.difference(&before).filter(|_| !self.records.is_empty());
        new.map(|node| (node.clone(), self.records.iter().map(|(_, record)| record.clone()).collect()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tidegate_protocol::id::{ConversationId, NodeId};

    use super::*;

    fn record(seq: u64, bytes: usize) -> GroupRecord {
        let group = ConversationId::parse("g:x").unwrap();
        GroupRecord { group, seq, bytes: Bytes::from(vec![0; bytes]), to_all: true }
    }

    fn nodes(count: u64) -> Vec<NodeBoot> {
        (0..count).map(|boot| NodeBoot { node: NodeId::new("n").unwrap(), boot }).collect()
    }

    fn seqs(missed: &[(NodeBoot, Vec<GroupRecord>)]) -> Vec<(u64, Vec<u64>)> {
        missed
            .iter()
            .map(|(node, records)| (node.boot, records.iter().map(|record| record.seq).collect()))
            .collect()
    }

    #[test]
    fn new_node_gets_recent_records_once() {
        let (mut recent, now) = (RecentRecords::default(), Instant::now());
        assert!(recent.missed(&nodes(2), now).is_empty());
        recent.add([record(1, 9), record(2, 9)].iter(), now);
        recent.add([record(3, 9)].iter(), now + RECENT_RETENTION / 2);
        assert!(recent.missed(&nodes(2), now + RECENT_RETENTION / 2).is_empty());
        assert_eq!(seqs(&recent.missed(&nodes(3), now + RECENT_RETENTION / 2)), [(2, vec![1, 2, 3])]);
        assert!(recent.missed(&nodes(3), now + RECENT_RETENTION / 2).is_empty());
        assert_eq!(seqs(&recent.missed(&nodes(4), now + RECENT_RETENTION)), [(3, vec![3])]);
        assert!(recent.missed(&nodes(5), now + RECENT_RETENTION * 2).is_empty() && recent.bytes == 0);
    }

    #[test]
    fn recent_records_are_bounded() {
        let (mut recent, now) = (RecentRecords::default(), Instant::now());
        (0..2_000).for_each(|seq| recent.add([record(seq, 1)].iter(), now));
        assert_eq!((recent.records.len(), recent.bytes), (RECORDS_MAX, RECORDS_MAX));
        (0..9).for_each(|seq| recent.add([record(seq, BYTES_MAX / 4)].iter(), now));
        assert_eq!((recent.records.len(), recent.bytes), (4, BYTES_MAX));
    }
}
