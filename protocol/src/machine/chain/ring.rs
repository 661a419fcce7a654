//! The last few ids of a kind, as eight bytes each.
//!
//! Ids are compared by a hash, so that an idle connection keeps two kilobytes and not two hundred texts. Two ids of one
//! device with the same hash meet once in about 2^55 messages. An early one that looks done by that is sent on
//! unchained, where the ledger still knows that it is new, and the skip frees what waits for it; a link that looks used
//! is refused. The hash is predictable, and whoever makes ids that collide confuses the own chain only.

use super::REMEMBERED_MAX;
use crate::id::MsgId;
use foldhash::quality::FixedState;
use std::{collections::VecDeque, hash::BuildHasher};

/// What is remembered of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark(u64);

impl Mark {
    pub(super) fn of(id: &MsgId) -> Self {
        Self(FixedState::default().hash_one(id.as_str()))
    }
}

/// Each mark is here once.
#[derive(Clone, Debug, Default)]
pub(super) struct Ring(VecDeque<Mark>);

impl Ring {
    pub(super) fn push(&mut self, id: &MsgId) {
        let mark = Mark::of(id);
        if self.contains(mark) {
            return;
        }
        if self.0.len() == REMEMBERED_MAX {
            self.0.pop_front();
        }
        self.0.push_back(mark);
    }

    pub(super) fn pop(&mut self) {
        self.0.pop_back();
    }

    pub(super) fn last(&self) -> Option<Mark> {
        self.0.back().copied()
    }

    /// Looks at all of them: at most 256 numbers side by side.
    pub(super) fn contains(&self, mark: Mark) -> bool {
        let (front, back) = self.0.as_slices();
        front.contains(&mark) || back.contains(&mark)
    }
}
