//! What is owed to members of large groups: up to which seq pushes were left out, for a bounded number of groups.

use std::collections::HashMap;

use bytes::Bytes;
use prost::Message as _;
use tidegate_protocol::pb;

use super::hint;

/// Groups remembered one by one; with more it is owed to all.
const GROUPS_MAX: usize = 4_096;

/// Pushes that were left out.
#[derive(Debug, Default)]
pub(crate) struct Owed {
    groups: HashMap<String, u64>,
    /// There were too many: everybody is to look.
    all: bool,
}

impl Owed {
    /// The pushes of that group up to the seq.
    pub(crate) fn add(&mut self, group: &str, seq: u64) {
        if let Some(owed) = self.groups.get_mut(group) {
            *owed = seq.max(*owed);
        } else if self.groups.len() < GROUPS_MAX {
            self.groups.insert(group.to_owned(), seq);
        } else {
            self.all = true;
        }
    }

    /// An encoded `FanOut`, which may be such a hint itself.
    pub(crate) fn add_record(&mut self, record: Bytes) {
        match pb::FanOut::decode(record) {
            Ok(record) if !record.conversation.is_empty() => self.add(&record.conversation, record.seq),
            _ => self.all = true,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty() && !self.all
    }

    /// The hints that pay it, encoded; one without a group is for all.
    pub(crate) fn take(&mut self) -> Vec<Bytes> {
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
    fn the_last_seq_of_each_group_is_owed_and_of_too_many_groups_everything() {
        let mut owed = Owed::default();
        assert!(owed.is_empty());
        for (group, seq) in [("g:a", 3), ("g:b", 9), ("g:a", 2), ("g:a", 4)] {
            owed.add_record(hint(group, seq));
        }
        let mut told = read(owed.take());
        told.sort();
        assert_eq!(told, [("g:a".to_owned(), 4), ("g:b".to_owned(), 9)]);
        assert!(owed.is_empty() && owed.take().is_empty(), "it is paid once");
        (0..=GROUPS_MAX as u64).for_each(|n| owed.add(&format!("g:{n}"), 1));
        owed.add_record(hint("", 0));
        let told = read(owed.take());
        assert_eq!(told.len(), GROUPS_MAX + 1);
        assert_eq!(told.last(), Some(&(String::new(), 0)), "whoever is not named is to look");
    }
}
