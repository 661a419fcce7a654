//! References that keep a group subscribed for a shard until the shard knows of its members.

use tidegate_protocol::id::ConversationId;

use crate::{directory::Directory, mail::Item};

/// Group references for a shard that does not have its mail yet. Dropping the guard releases them, as when an owner is
/// aborted before it posts.
pub(super) struct ReferenceGuard<'a> {
    pub(super) directory: &'a Directory,
    pub(super) shard: usize,
    pub(super) groups: Vec<ConversationId>,
}

impl<'a> ReferenceGuard<'a> {
    /// Takes over the references that these items of a shard hold.
    pub(super) fn new(directory: &'a Directory, shard: usize, items: &[Item]) -> Self {
        Self { directory, shard, groups: joined_groups(items) }
    }

    /// Leaves the references to the shard, which has its mail and releases them itself.
    pub(super) fn hand_over(mut self) {
        self.groups.clear();
    }
}

impl Drop for ReferenceGuard<'_> {
    fn drop(&mut self) {
        self.groups.iter().for_each(|group| self.directory.release_conversation(group, self.shard));
    }
}

/// Returns the groups that these items hold references to, one entry per reference.
fn joined_groups(items: &[Item]) -> Vec<ConversationId> {
    let group = |item: &Item| match item {
        Item::Join(group, _) => Some(group.clone()),
        Item::Push(_) | Item::Part(..) | Item::Keep(..) | Item::Behind(_) => None,
    };
    items.iter().filter_map(group).collect()
}
