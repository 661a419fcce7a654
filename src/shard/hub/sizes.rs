//! Sizes of groups, as far as they were looked up.

use tidegate_protocol::{Time, id::ConversationId};

use super::Hub;
use crate::mail::GroupSize;

impl Hub {
    /// Returns the size of a group, if it was looked up after `since`.
    pub(in crate::shard) fn size(&self, conversation: &ConversationId, since: Time) -> Option<&GroupSize> {
        let group = self.ids.get(conversation).map(|group| &self.groups[*group as usize])?;
        group.size.as_ref().filter(|(_, seen)| *seen > since).map(|(size, _)| size)
    }

    /// Records the size of a group.
    pub(in crate::shard) fn record_size(
        &mut self,
        conversation: &ConversationId,
        size: GroupSize,
        now: Time,
    ) {
        if let Some(group) = self.ids.get(conversation) {
            self.groups[*group as usize].size = Some((size, now));
        }
    }
}
