//! Index state of one large group on a node: the seqs up to which it is right, and the logins that have read further.
//!
//! Pure. Records of a group arrive in the order of their seqs, but may be lost, repeated or late. Logins arrive at any
//! time, with the state of the store that they read. No push ever goes to a user who is no member at its seq.

use std::collections::BTreeMap;

use tidegate_protocol::id::UserId;

/// Index state of one large group with local members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Index {
    /// Last membership change that is in the shards' indexes, or that was read for them; a login must have read it.
    indexed_to: u64,
    /// Seq up to which the indexes have every change; advances with each push, so that little is ever read.
    complete_to: u64,
    /// Last seq that was pushed here.
    published_to: u64,
    /// Users that logged in with a newer state of the store, and the seq of that state. They are indexed, but get no
    /// push at or below it.
    ahead: BTreeMap<UserId, u64>,
}

/// Action for a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Drop the record: it, or a later one, was pushed before.
    Late,
    /// Read the membership changes up to `to` from the store, then try again.
    CatchUp {
        /// Seq that the index has.
        from: u64,
        /// Seq that the index needs.
        to: u64,
    },
    /// Push the record, except to these users, who have read further.
    Push(Vec<UserId>),
}

impl Index {
    /// Creates an index that is right up to `indexed_to`, with nothing pushed above `published_to`.
    pub(super) fn new(indexed_to: u64, published_to: u64) -> Self {
        Self {
            indexed_to,
            complete_to: indexed_to,
            published_to: published_to.max(indexed_to),
            ahead: BTreeMap::new(),
        }
    }

    /// Adds a user who is a member in the store at `as_of`; false if the index is newer, so that the login must read
    /// again.
    pub(super) fn login(&mut self, user: &UserId, as_of: u64) -> bool {
        if as_of < self.indexed_to {
            return false;
        }
        self.add(user, as_of);
        true
    }

    /// Adds a user to the index; no push at or below `as_of` is for that user.
    pub(super) fn add(&mut self, user: &UserId, as_of: u64) {
        if as_of > self.published_to {
            let ahead = self.ahead.entry(user.clone()).or_default();
            *ahead = as_of.max(*ahead);
        }
    }

    /// Returns the action for a record; no membership change lies between `member_seq` and `seq`.
    pub(super) fn record(&mut self, seq: u64, member_seq: u64) -> Step {
        if seq <= self.published_to {
            return Step::Late;
        }
        if member_seq > self.complete_to {
            return Step::CatchUp { from: self.complete_to, to: member_seq };
        }
        self.published_to = seq;
        self.complete_to = self.complete_to.max(seq.saturating_sub(1));
        self.ahead.retain(|_, as_of| *as_of >= seq);
        Step::Push(self.ahead.keys().cloned().collect())
    }

    /// Notes that the index has the changes up to `seq`.
    pub(super) fn set_indexed(&mut self, seq: u64) {
        self.indexed_to = self.indexed_to.max(seq);
        self.complete_to = self.complete_to.max(seq);
    }

    /// Returns whether a change at `seq` is newer than the user's entry in the index.
    pub(super) fn is_newer(&self, user: &UserId, seq: u64) -> bool {
        seq > self.indexed_to && self.ahead.get(user).is_none_or(|as_of| seq > *as_of)
    }

    /// Returns the seq up to which the index is right.
    pub(super) fn indexed_to(&self) -> u64 {
        self.indexed_to
    }

    /// Returns the seq up to which the indexes have every change.
    pub(super) fn complete_to(&self) -> u64 {
        self.complete_to
    }

    /// Returns the last seq that was pushed.
    pub(super) fn published_to(&self) -> u64 {
        self.published_to
    }

    /// Removes users that are no longer connected here.
    pub(super) fn retain_users(&mut self, is_here: impl Fn(&UserId) -> bool) {
        self.ahead.retain(|user, _| is_here(user));
    }
}

#[cfg(test)]
mod tests;
