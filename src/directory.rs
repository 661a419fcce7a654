//! Which shards of this node have a user or a conversation's members: the only index that all threads share.
//!
//! Values are plain bit masks, copied out at once: a guard is never held over an await or a second map call.

use dashmap::DashMap;
use foldhash::quality::RandomState;
use smallvec::SmallVec;
use tidegate_protocol::id::{ConversationId, ConversationKind, UserId};

/// The most shards a node can have: one bit each.
pub const SHARDS_MAX: usize = 64;

/// A set of shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardSet(u64);

impl ShardSet {
    /// The shards in the set, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let next = rest.trailing_zeros() as usize;
            rest &= rest.wrapping_sub(1);
            (next < SHARDS_MAX).then_some(next)
        })
    }

    /// Whether no shard is in it.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Adds the shards of `other`.
    pub fn extend(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// User → shards and conversation → shards.
#[derive(Default)]
pub struct Directory {
    users: DashMap<UserId, u64, RandomState>,
    conversations: DashMap<ConversationId, Holds, RandomState>,
}

/// Who holds a conversation open: (shard, how often).
///
/// The shard itself holds it while it has members, and whoever is about to tell the shard of a first member holds it
/// until the shard knows: otherwise a message between the two would pass the shard by.
type Holds = SmallVec<[(u8, u32); 2]>;

impl Directory {
    /// The shards on which `user` has connections.
    pub fn user(&self, user: &UserId) -> ShardSet {
        ShardSet(self.users.get(user).map_or(0, |mask| *mask))
    }

    /// The shards on which `conversation` (a group or a room) has members online, or is about to.
    pub fn conversation(&self, conversation: &ConversationId) -> ShardSet {
        let holds = self.conversations.get(conversation);
        ShardSet(holds.map_or(0, |holds| holds.iter().fold(0, |mask, (shard, _)| mask | 1 << shard)))
    }

    /// Shard `shard` has its first connection of `user`.
    pub fn add_user(&self, user: &UserId, shard: usize) {
        *self.users.entry(user.clone()).or_default() |= 1 << shard;
    }

    /// Shard `shard` lost its last connection of `user`.
    pub fn remove_user(&self, user: &UserId, shard: usize) {
        self.users.remove_if_mut(user, |_, mask| {
            *mask &= !(1 << shard);
            *mask == 0
        });
    }

    /// From now on `shard` is told what happens in `conversation`; to be given back once.
    pub fn hold_conversation(&self, conversation: &ConversationId, shard: usize) {
        let mut holds = self.conversations.entry(conversation.clone()).or_default();
        match holds.iter_mut().find(|(holder, _)| usize::from(*holder) == shard) {
            Some((_, count)) => *count += 1,
            None => holds.push((shard as u8, 1)),
        }
    }

    /// Gives one hold back.
    pub fn release_conversation(&self, conversation: &ConversationId, shard: usize) {
        self.conversations.remove_if_mut(conversation, |_, holds| {
            if let Some((_, count)) = holds.iter_mut().find(|(holder, _)| usize::from(*holder) == shard) {
                *count = count.saturating_sub(1);
            }
            holds.retain(|(_, count)| *count > 0);
            holds.is_empty()
        });
    }

    /// The groups that have members online here, in no order.
    pub fn groups(&self) -> Vec<ConversationId> {
        let all = self.conversations.iter().map(|entry| entry.key().clone());
        all.filter(|it| matches!(it.kind(), ConversationKind::Group(_))).collect()
    }

    /// Users online here.
    pub fn users(&self) -> usize {
        self.users.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_on_the_shards_that_said_so_until_the_last_one_leaves() {
        let (directory, ann) = (Directory::default(), UserId::new("ann").unwrap());
        directory.add_user(&ann, 1);
        directory.add_user(&ann, 63);
        assert_eq!(directory.user(&ann).iter().collect::<Vec<_>>(), [1, 63]);
        directory.remove_user(&ann, 1);
        assert_eq!(directory.user(&ann).iter().collect::<Vec<_>>(), [63]);
        directory.remove_user(&ann, 63);
        assert!(directory.user(&ann).is_empty());
        assert_eq!(directory.users(), 0, "nothing is kept for users who left");
    }

    #[test]
    fn a_conversation_stays_while_anybody_holds_it() {
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
