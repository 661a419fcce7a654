//! What all nodes were told lately, for one that was not known yet: who comes into a group may be there.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use super::Fan;
use crate::routes::NodeBoot;

/// A node that takes clients is known to the others by then: it renews its lease every 3 s, and so do they.
const KEPT: Duration = Duration::from_secs(10);

/// Records kept, and bytes in them; of more, the oldest go first.
const FANS_MAX: usize = 1_024;
const BYTES_MAX: usize = 1024 * 1024;

/// What was told to all, and to whom.
#[derive(Default)]
pub(super) struct Recent {
    told: VecDeque<(Instant, Fan)>,
    bytes: usize,
    nodes: BTreeSet<NodeBoot>,
}

impl Recent {
    /// These are told to all nodes now.
    pub(super) fn add<'a>(&mut self, fans: impl Iterator<Item = &'a Fan>, now: Instant) {
        for fan in fans {
            self.bytes += fan.bytes.len();
            self.told.push_back((now, fan.clone()));
        }
        while let Some((told, fan)) = self.told.front()
            && (self.told.len() > FANS_MAX || self.bytes > BYTES_MAX || *told + KEPT <= now)
        {
            self.bytes -= fan.bytes.len();
            self.told.pop_front();
        }
    }

    /// The nodes that there are now: those that were not there before, and what they were not told.
    pub(super) fn missed(&mut self, nodes: &[NodeBoot], now: Instant) -> Vec<(NodeBoot, Vec<Fan>)> {
        self.add([].iter(), now);
        let before = std::mem::replace(&mut self.nodes, nodes.iter().cloned().collect());
        let new = self.nodes.difference(&before).filter(|_| !self.told.is_empty());
        new.map(|node| (node.clone(), self.told.iter().map(|(_, fan)| fan.clone()).collect())).collect()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tidegate_protocol::id::{ConversationId, NodeId};

    use super::*;

    fn fan(seq: u64, bytes: usize) -> Fan {
        let group = ConversationId::parse("g:x").unwrap();
        Fan { group, seq, bytes: Bytes::from(vec![0; bytes]), to_all: true }
    }

    fn nodes(count: u64) -> Vec<NodeBoot> {
        (0..count).map(|boot| NodeBoot { node: NodeId::new("n").unwrap(), boot }).collect()
    }

    fn seqs(missed: &[(NodeBoot, Vec<Fan>)]) -> Vec<(u64, Vec<u64>)> {
        missed.iter().map(|(node, fans)| (node.boot, fans.iter().map(|fan| fan.seq).collect())).collect()
    }

    #[test]
    fn a_new_node_is_told_what_all_were_told_lately_and_once() {
        let (mut recent, now) = (Recent::default(), Instant::now());
        assert!(recent.missed(&nodes(2), now).is_empty());
        recent.add([fan(1, 9), fan(2, 9)].iter(), now);
        recent.add([fan(3, 9)].iter(), now + KEPT / 2);
        assert!(recent.missed(&nodes(2), now + KEPT / 2).is_empty());
        assert_eq!(seqs(&recent.missed(&nodes(3), now + KEPT / 2)), [(2, vec![1, 2, 3])]);
        assert!(recent.missed(&nodes(3), now + KEPT / 2).is_empty());
        assert_eq!(seqs(&recent.missed(&nodes(4), now + KEPT)), [(3, vec![3])]);
        assert!(recent.missed(&nodes(5), now + KEPT * 2).is_empty() && recent.bytes == 0);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let (mut recent, now) = (Recent::default(), Instant::now());
        (0..2_000).for_each(|seq| recent.add([fan(seq, 1)].iter(), now));
        assert_eq!((recent.told.len(), recent.bytes), (FANS_MAX, FANS_MAX));
        (0..9).for_each(|seq| recent.add([fan(seq, BYTES_MAX / 4)].iter(), now));
        assert_eq!((recent.told.len(), recent.bytes), (4, BYTES_MAX));
    }
}
