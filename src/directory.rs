//! Directory: the shards of this node that have a user or a conversation's members.
//! The only index shared by all threads.
//!
//! Its values are copied out as plain bit masks at once. No guard is held over an await or a second call to the map.

use dashmap::DashMap;
use smallvec::SmallVec;
use std::hash::RandomState;
use tidegate_protocol::id::{ConversationId, ConversationKind, UserId};

/// Most shards of a node, one bit each.
pub const SHARDS_MAX: usize = 64;

/// Set of shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardSet(u64);

impl ShardSet {
    /// Returns the shards in the set, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let next = rest.trailing_zeros() as usize;
            rest &= rest.wrapping_sub(1);
            (next < SHARDS_MAX).then_some(next)
        })
    }

    /// Returns whether the set has no shard.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Adds the shards of `other`.
    pub fn extend(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// Index of user → shards and conversation → shards.
#[derive(Default)]
pub struct Directory {
    users: DashMap<UserId, u64, RandomState>,
    conversations: DashMap<ConversationId, ShardRefs, RandomState>,
}

/// References that keep shards subscribed to a conversation: (shard, count).
///
/// A shard holds a reference while it has members. A caller that posts a first member to a shard holds one until the
/// shard has it; otherwise a message in between would miss the shard.
type ShardRefs = SmallVec<[(u8, u32); 2]>;

impl Directory {
    /// Returns the shards on which `user` has connections.
    pub fn user(&self, user: &UserId) -> ShardSet {
        ShardSet(self.users.get(user).map_or(0, |mask| *mask))
    }

    /// Returns the shards on which `conversation` (a group or a room) has members online, or is about to have.
    pub fn conversation(&self, conversation: &ConversationId) -> ShardSet {
        let refs = self.conversations.get(conversation);
        ShardSet(refs.map_or(0, |refs| refs.iter().fold(0, |mask, (shard, _)| mask | 1 << shard)))
    }

    /// Adds the shard, which has its first connection of `user`.
    pub fn add_user(&self, user: &UserId, shard: usize) {
        *self.users.entry(user.clone()).or_default() |= 1 << shard;
    }

    /// Removes the shard, which has lost its last connection of `user`.
    pub fn remove_user(&self, user: &UserId, shard: usize) {
        self.users.remove_if_mut(user, |_, mask| {
            *mask &= !(1 << shard);
            *mask == 0
        });
    }

    /// Adds a reference that keeps `shard` subscribed to `conversation`; release it once.
    pub fn hold_conversation(&self, conversation: &ConversationId, shard: usize) {
        let mut refs = self.conversations.entry(conversation.clone()).or_default();
        match refs.iter_mut().find(|(holder, _)| usize::from(*holder) == shard) {
            Some((_, count)) => *count += 1,
            None => refs.push((shard as u8, 1)),
        }
    }

    /// Releases one reference.
    pub fn release_conversation(&self, conversation: &ConversationId, shard: usize) {
        self.conversations.remove_if_mut(conversation, |_, refs| {
            if let Some((_, count)) = refs.iter_mut().find(|(holder, _)| usize::from(*holder) == shard) {
                *count = count.saturating_sub(1);
            }
            refs.retain(|(_, count)| *count > 0);
            refs.is_empty()
        });
    }

    /// Returns the groups with members online on this node, sorted.
    pub fn groups(&self) -> Vec<ConversationId> {
        let all = self.conversations.iter().map(|entry| entry.key().clone());
        let mut groups: Vec<ConversationId> =
            all.filter(|it| matches!(it.kind(), ConversationKind::Group(_))).collect();
        groups.sort_unstable();
        groups
    }

    /// Returns the number of users online on this node.
    pub fn users(&self) -> usize {
        self.users.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_is_on_the_added_shards_until_they_are_removed() {
        let (directory, ann) = (Directory::default(), UserId::new("ann").unwrap());
        directory.add_user(&ann, 1);
        directory.add_user(&ann, 63);
        assert_eq!(directory.user(&ann).iter().collect::<Vec<_>>(), [1, 63]);
        directory.remove_user(&ann, 1);
        assert_eq!(directory.user(&ann).iter().collect::<Vec<_>>(), [63]);
        directory.remove_user(&ann, 63);
        assert!(directory.user(&ann).is_empty());
        assert_eq!(directory.users(), 0, "no entry is left for offline users");
    }

    #[test]
    fn conversation_stays_until_its_last_reference_is_released() {
        let (directory, group) = (Directory::default(), ConversationId::parse("g:g").unwrap());
        directory.hold_conversation(&group, 2);
        directory.hold_conversation(&group, 2);
        directory.release_conversation(&group, 2);
        assert_eq!(directory.conversation(&group).iter().collect::<Vec<_>>(), [2]);
        directory.hold_conversation(&ConversationId::parse("r:r").unwrap(), 1);
        assert_eq!(directory.groups(), std::slice::from_ref(&group));
        directory.release_conversation(&ConversationId::parse("r:r").unwrap(), 1);
        directory.release_conversation(&group, 2);
        assert!(directory.conversation(&group).is_empty());
        assert_eq!(directory.conversations.len(), 0);
    }
}
