//! The last few ids of a kind, in order, with a quick answer to "is it among them".

use super::REMEMBERED_MAX;
use crate::id::MsgId;
use foldhash::HashSet;
use std::collections::VecDeque;

#[derive(Clone, Debug, Default)]
pub(super) struct Ring {
    order: VecDeque<MsgId>,
    /// The same ids as `order`, once each.
    set: HashSet<MsgId>,
}

impl Ring {
    pub(super) fn push(&mut self, id: MsgId) {
        if !self.set.insert(id.clone()) {
            return;
        }
        if self.order.len() == REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.set.remove(&oldest);
        }
        self.order.push_back(id);
    }

    pub(super) fn pop(&mut self) {
        if let Some(id) = self.order.pop_back() {
            self.set.remove(&id);
        }
    }

    pub(super) fn last(&self) -> Option<&MsgId> {
        self.order.back()
    }

    pub(super) fn contains(&self, id: &MsgId) -> bool {
        self.set.contains(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &MsgId> {
        self.order.iter()
    }
}
