//! Pushes that members of large groups missed: the last seq left out, for a bounded number of groups.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message as _;
use tidegate_protocol::pb;

use super::hint;

/// Groups noted one by one; beyond that, members of all groups get a hint.
const GROUPS_MAX: usize = 4_096;

/// Pushes that were left out, by group.
#[derive(Debug, Default)]
pub(crate) struct MissedRanges {
    groups: BTreeMap<String, u64>,
    /// Whether there were too many groups, so that members of every group must check.
    all: bool,
}

impl MissedRanges {
    /// Adds the pushes of a group up to `seq`.
    pub(crate) fn add(&mut self, group: &str, seq: u64) {
        if let Some(missed) = self.groups.get_mut(group) {
            *missed = seq.max(*missed);
        } else if self.groups.len() < GROUPS_MAX {
            self.groups.insert(group.to_owned(), seq);
        } else {
            self.all = true;
        }
    }

    /// Adds an encoded `FanOut`, which may be a hint itself.
    pub(crate) fn add_record(&mut self, record: Bytes) {
        match pb::FanOut::decode(record) {
            Ok(record) if !record.conversation.is_empty() => self.add(&record.conversation, record.seq),
            _ => self.all = true,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty() && !self.all
    }

    /// Takes the hints for everything missed, encoded; one without a group is for all groups.
    pub(crate) fn take_hints(&mut self) -> Vec<Bytes> {
        let all = std::mem::take(&mut self.all).then(|| hint("", 0));
        let groups = std::mem::take(&mut self.groups);
        groups.into_iter().map(|(group, seq)| hint(&group, seq)).chain(all).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(hints: Vec<Bytes>) -> Vec<(String, u64)> {
        let read = |hint| pb::FanOut::decode(hint).map(|it| (it.conversation, it.seq)).unwrap();
        hints.into_iter().map(read).collect()
    }

    #[test]
    fn last_seq_of_each_group_is_missed_or_everything() {
        let mut missed = MissedRanges::default();
        assert!(missed.is_empty());
        for (group, seq) in [("g:a", 3), ("g:b", 9), ("g:a", 2), ("g:a", 4)] {
            missed.add_record(hint(group, seq));
        }
        let mut hints = read(missed.take_hints());
        hints.sort();
        assert_eq!(hints, [("g:a".to_owned(), 4), ("g:b".to_owned(), 9)]);
        assert!(missed.is_empty() && missed.take_hints().is_empty(), "hints are taken once");
        (0..=GROUPS_MAX as u64).for_each(|n| missed.add(&format!("g:{n}"), 1));
        missed.add_record(hint("", 0));
        let hints = read(missed.take_hints());
        assert_eq!(hints.len(), GROUPS_MAX + 1);
        assert_eq!(hints.last(), Some(&(String::new(), 0)), "members of other groups must check");
    }
}
