//! Bounded memory of recent ids, with an eight-byte hash for each.
//!
//! Ids are compared by hash, so an idle connection keeps two kilobytes instead of two hundred texts. Two remembered ids
//! of one device collide about once in 2^55 messages. An early id that therefore looks done is forwarded unchained;
//! the ledger still recognises it as new, and the skip releases its successors. A link that looks used is refused. The
//! hash is predictable, but a client that constructs collisions confuses only its own chain.

use super::REMEMBERED_MAX;
use crate::id::MsgId;
use foldhash::quality::FixedState;
use std::{collections::VecDeque, hash::BuildHasher};

/// Hash of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IdHash(u64);

impl IdHash {
    pub(super) fn of(id: &MsgId) -> Self {
        Self(FixedState::default().hash_one(id.as_str()))
    }
}

/// Last [`REMEMBERED_MAX`] id hashes, each once, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Ring(VecDeque<IdHash>);

impl Ring {
    pub(super) fn push(&mut self, id: &MsgId) {
        let hash = IdHash::of(id);
        if self.contains(hash) {
            return;
        }
        if self.0.len() == REMEMBERED_MAX {
            self.0.pop_front();
        }
        self.0.push_back(hash);
    }

    pub(super) fn pop(&mut self) {
        self.0.pop_back();
    }

    pub(super) fn last(&self) -> Option<IdHash> {
        self.0.back().copied()
    }

    /// Returns whether the hash is remembered, by a linear scan of at most 256 adjacent numbers.
    pub(super) fn contains(&self, hash: IdHash) -> bool {
        let (front, back) = self.0.as_slices();
        front.contains(&hash) || back.contains(&hash)
    }
}
