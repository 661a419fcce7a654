//! Group sizes, for the owner of a single node: they decide whether a push is tracked until its ack.
//!
//! The node's indexes have all members there, so the owner needs their number only. It is kept as two bounds, because a
//! join may name users who are members already, and a removal may name users who are not. The store is read at the first
//! push of a group, and again only while the limit of small groups lies between the bounds.

use std::collections::HashMap;

use tidegate_protocol::{
    id::ConversationId,
    record::{MemberAction, MemberChange},
};

use crate::store::{Store, StoreError};

/// Limit on the groups cached between batches. Above it the groups least recently named are dropped until three quarters
/// remain; they are read again when needed.
const GROUPS_MAX: usize = 100_000;

/// Sizes of the groups that recent batches named.
pub(super) struct GroupSizes {
    /// Most members of a small group.
    small_max: u64,
    groups: HashMap<ConversationId, Size>,
    /// Number of the current batch.
    batch: u64,
}

/// Bounds on the member count of one group.
struct Size {
    /// Number of the last batch that named the group.
    batch: u64,
    at_least: u64,
    at_most: u64,
}

impl GroupSizes {
    /// Creates an empty cache.
    pub(super) fn new(small_max: usize) -> Self {
        Self { small_max: small_max as u64, groups: HashMap::new(), batch: 0 }
    }

    /// Applies an accepted change. A group that is read later has the change in the store, because an owner archives
    /// changes before it publishes them.
    pub(super) fn change(&mut self, change: &MemberChange) {
        let Some(size) = self.groups.get_mut(&change.conversation) else { return };
        let named = change.users.len() as u64;
        match change.action {
            MemberAction::Join => size.at_most = size.at_most.saturating_add(named),
            MemberAction::Leave | MemberAction::Kick => size.at_least = size.at_least.saturating_sub(named),
            // A new group is read with its first members; one that was read before did not exist yet.
            MemberAction::Create => drop(self.groups.remove(&change.conversation)),
            MemberAction::Delete
            | MemberAction::Role
            | MemberAction::Settings
            | MemberAction::Mute
            | MemberAction::Unmute => {}
        }
    }

    /// Returns whether the group is small, after every change in the store or in [`Self::change`].
    pub(super) async fn is_small(
        &mut self,
        store: &dyn Store,
        group: &ConversationId,
    ) -> Result<bool, StoreError> {
        if let Some(size) = self.groups.get_mut(group) {
            size.batch = self.batch;
            if size.at_most <= self.small_max {
                return Ok(true);
            }
            if size.at_least > self.small_max {
                return Ok(false);
            }
        }
        let members = store.summary(group, None).await?.map_or(0, |summary| summary.members);
        let size = Size { batch: self.batch, at_least: members, at_most: members };
        self.groups.insert(group.clone(), size);
        Ok(members <= self.small_max)
    }

    /// Drops the groups least recently named if there are too many. To be called between two batches.
    pub(super) fn trim(&mut self) {
        self.trim_to(GROUPS_MAX);
    }

    fn trim_to(&mut self, most: usize) {
        self.batch += 1;
        if self.groups.len() <= most {
            return;
        }
        let mut batches: Vec<u64> = self.groups.values().map(|size| size.batch).collect();
        batches.sort_unstable_by(|a, b| b.cmp(a));
        // All groups of the oldest batch that is dropped go, so that the order of the map decides nothing.
        let oldest = batches[most / 4 * 3];
        self.groups.retain(|_, size| size.batch > oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    #[tokio::test]
    async fn trim_keeps_the_groups_named_last() {
        let (store, mut sizes) = (MemoryStore::default(), GroupSizes::new(2));
        let id = |n: u32| ConversationId::parse(&format!("g:x{n}")).unwrap();
        for n in [0, 1, 2, 3, 0, 4] {
            assert!(sizes.is_small(&store, &id(n)).await.unwrap());
            sizes.trim_to(4);
        }
        let kept: Vec<u32> = (0..5).filter(|n| sizes.groups.contains_key(&id(*n))).collect();
        assert_eq!(kept, [0, 3, 4], "the newest three quarters");
    }
}
