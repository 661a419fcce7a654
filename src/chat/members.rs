//! Who is in the groups at hand, as of the record that is told: for owners whose groups' members are on many nodes.
//!
//! Read from the store before a batch is archived, then moved on by each change as it is told, so that a push goes to
//! those who were members at its seq: never to one removed before it, or come after it.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use tidegate_protocol::{
    id::{ConversationId, UserId},
    record::{MemberAction, MemberChange},
};

use crate::store::{Store, StoreError};

/// Users of groups kept between batches; above it those of the groups that were not told anything for the longest time are
/// forgotten, down to three quarters of it, and read again when they are needed.
const USERS_MAX: usize = 200_000;

/// The largest group whose members are found one by one; members of larger ones learn of messages by their heartbeats.
pub const REACH_MAX: usize = 10_000;

/// Members read at a time.
const PAGE: usize = 1_000;

/// The groups at hand.
#[derive(Default)]
pub(super) struct Members {
    groups: HashMap<ConversationId, Group>,
    /// Which batch this is.
    batch: u64,
    /// What `groups` weighs, as of the last look or more.
    weight: usize,
}

struct Group {
    /// The last batch that named it.
    batch: u64,
    users: BTreeSet<UserId>,
    list: Option<Arc<[UserId]>>,
    /// More than [`REACH_MAX`]: not kept.
    is_huge: bool,
}

impl Group {
    fn weight(&self) -> usize {
        self.users.len() + 1
    }
}

impl Members {
    /// Makes room, between two batches.
    pub(super) fn trim(&mut self) {
        self.trim_to(USERS_MAX);
    }

    fn trim_to(&mut self, most: usize) {
        self.batch += 1;
        if self.weight <= most {
            return;
        }
        let mut by_age: Vec<(u64, usize, ConversationId)> =
            self.groups.iter().map(|(id, group)| (group.batch, group.weight(), id.clone())).collect();
        by_age.sort_unstable_by(|a, b| b.cmp(a));
        let kept = most / 4 * 3;
        self.weight = 0;
        for (_, weight, id) in by_age {
            if self.weight + weight > kept {
                self.groups.remove(&id);
            } else {
                self.weight += weight;
            }
        }
    }

    /// Reads a group, unless it is known; to be called before the batch that names it is archived.
    pub(super) async fn read(&mut self, store: &dyn Store, group: &ConversationId) -> Result<(), StoreError> {
        if let Some(known) = self.groups.get_mut(group) {
            known.batch = self.batch;
            return Ok(());
        }
        let (mut users, mut after): (BTreeSet<UserId>, Option<UserId>) = (BTreeSet::new(), None);
        let mut is_huge = false;
        loop {
            let page = store.members(group, after.as_ref(), PAGE).await?;
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            let whole = page.len() < PAGE;
            users.extend(page.into_iter().map(|(user, _)| user));
            is_huge = users.len() > REACH_MAX;
            if whole || is_huge {
                break;
            }
        }
        if is_huge {
            users.clear();
        }
        let read = Group { batch: self.batch, users, list: None, is_huge };
        self.weight += read.weight();
        self.groups.insert(group.clone(), read);
        Ok(())
    }

    /// The members now; nobody for a group that was not read, or is too large.
    pub(super) fn of(&mut self, group: &ConversationId) -> Arc<[UserId]> {
        let Some(group) = self.groups.get_mut(group) else { return Arc::default() };
        let list = group.list.get_or_insert_with(|| group.users.iter().cloned().collect());
        Arc::clone(list)
    }

    /// Whether the group has at most so many members.
    pub(super) fn is_small(&self, group: &ConversationId, max: usize) -> bool {
        self.groups.get(group).is_some_and(|group| !group.is_huge && group.users.len() <= max)
    }

    /// Carries an accepted change out, and says whom it is told to: the members after it, and those whom it removed.
    pub(super) fn change(&mut self, change: &MemberChange) -> Arc<[UserId]> {
        let before = self.of(&change.conversation);
        let Some(group) = self.groups.get_mut(&change.conversation) else { return before };
        group.list = None;
        match change.action {
            MemberAction::Create | MemberAction::Join => {
                let before = group.users.len();
                group.users.extend(change.users.iter().cloned());
                self.weight += group.users.len() - before;
                if group.users.len() > REACH_MAX {
                    (group.users, group.is_huge) = (BTreeSet::new(), true);
                }
                return self.of(&change.conversation);
            }
            MemberAction::Leave | MemberAction::Kick => {
                for user in &change.users {
                    group.users.remove(user);
                }
                if group.is_huge {
                    // It may be small enough now: it is read again when it is needed.
                    self.groups.remove(&change.conversation);
                }
            }
            MemberAction::Delete => group.users.clear(),
            MemberAction::Role | MemberAction::Settings | MemberAction::Mute | MemberAction::Unmute => {}
        }
        before
    }
}

#[cfg(test)]
mod tests;
