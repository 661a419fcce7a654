//! Groups that are held open for a shard until it knows of its members there.

use tidegate_protocol::id::ConversationId;

use crate::{directory::Directory, mail::Item};

/// What is held open for a shard that has not been told yet. An owner that is ended where it stands tells nobody: then it
/// is given back.
pub(super) struct Held<'a> {
    pub(super) directory: &'a Directory,
    pub(super) shard: usize,
    pub(super) groups: Vec<ConversationId>,
}

impl<'a> Held<'a> {
    /// Of the shard that these items are for.
    pub(super) fn new(directory: &'a Directory, shard: usize, items: &[Item]) -> Self {
        Self { directory, shard, groups: comers(items) }
    }

    /// The shard was told, and gives them back itself.
    pub(super) fn are_the_shards(mut self) {
        self.groups.clear();
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.groups.iter().for_each(|group| self.directory.release_conversation(group, self.shard));
    }
}

/// The groups that are held open by these items, as often as they are.
fn comers(items: &[Item]) -> Vec<ConversationId> {
    let group = |item: &Item| match item {
        Item::Join(group, _) => Some(group.clone()),
        Item::Push(_) | Item::Part(..) | Item::Keep(..) | Item::Behind(_) => None,
    };
    items.iter().filter_map(group).collect()
}
