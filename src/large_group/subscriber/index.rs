//! What a node knows of one large group: up to which seq its index is right, and whose login has read further than that.
//!
//! Pure. Records of a group come in the order of their seqs, but may be lost, come twice or late; logins come at any time
//! with what they read from the store. No push ever goes to a user who is no member at its seq (DESIGN 6.4).

use std::collections::BTreeMap;

use tidegate_protocol::id::UserId;

/// One large group that has members here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Index {
    /// The last change of members that is in the indexes of the shards, or what was read of them: who logs in has to know it.
    known: u64,
    /// Every change up to this seq is in them; moves on with what is told, so that little is ever to be read.
    sure: u64,
    /// The last seq that was told here.
    seen: u64,
    /// Users who logged in, and up to which seq the store was when they read that they are members: in the index, but no
    /// push at or below it is for them.
    ahead: BTreeMap<UserId, u64>,
}

/// What to do with a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It was told before, or what came after it was: nothing.
    Late,
    /// Changes of members up to this seq are missing: read on from the store, then ask again.
    Read {
        /// What is known.
        from: u64,
        /// What is to be known.
        to: u64,
    },
    /// Tell it, but not to these users: they have read further.
    Tell(Vec<UserId>),
}

impl Index {
    /// Right up to `known`, with nothing told above `seen`.
    pub(super) fn new(known: u64, seen: u64) -> Self {
        Self { known, sure: known, seen: seen.max(known), ahead: BTreeMap::new() }
    }

    /// A user is a member by what the store had at `as_of`; false = the index is newer than that: read again.
    pub(super) fn login(&mut self, user: &UserId, as_of: u64) -> bool {
        if as_of < self.known {
            return false;
        }
        self.come(user, as_of);
        true
    }

    /// A user is in the index from here on, and no push at or below `as_of` is for it.
    pub(super) fn come(&mut self, user: &UserId, as_of: u64) {
        if as_of > self.seen {
            let ahead = self.ahead.entry(user.clone()).or_default();
            *ahead = as_of.max(*ahead);
        }
    }

    /// What to do with the record of that seq, between which and `member_seq` no member came or went.
    pub(super) fn record(&mut self, seq: u64, member_seq: u64) -> Step {
        if seq <= self.seen {
            return Step::Late;
        }
        if member_seq > self.sure {
            return Step::Read { from: self.sure, to: member_seq };
        }
        self.seen = seq;
        self.sure = self.sure.max(seq.saturating_sub(1));
        self.ahead.retain(|_, as_of| *as_of >= seq);
        Step::Tell(self.ahead.keys().cloned().collect())
    }

    /// The record of that seq, and what is before it, was for nobody here.
    pub(super) fn pass(&mut self, seq: u64) {
        self.seen = self.seen.max(seq);
    }

    /// The changes up to that seq are in the index.
    pub(super) fn is_known(&mut self, seq: u64) {
        self.known = self.known.max(seq);
        self.sure = self.sure.max(seq);
    }

    /// Whether a change of that seq is news of the user.
    pub(super) fn is_news(&self, user: &UserId, seq: u64) -> bool {
        seq > self.known && self.ahead.get(user).is_none_or(|as_of| seq > *as_of)
    }

    /// Up to which seq the index is right.
    pub(super) fn known(&self) -> u64 {
        self.known
    }

    /// The last seq that was told.
    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    /// Forgets users who are not here any more.
    pub(super) fn keep(&mut self, is_here: impl Fn(&UserId) -> bool) {
        self.ahead.retain(|user, _| is_here(user));
    }
}

#[cfg(test)]
mod tests;
