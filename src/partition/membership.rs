//! Who is in the groups at hand, as of the record that is told: for owners whose groups' members are on many nodes.
//!
//! Small groups are read from the store before a batch is archived, then moved on by each change as it is told, so that a
//! push goes to those who were members at its seq: never to one removed before it, or come after it. Of a large one only
//! the size is known: each node that has members of it knows who they are (ADR 15).

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use tidegate_protocol::{
    id::{ConversationId, UserId},
    record::{MemberAction, MemberChange},
};
use tokio::time::Instant;

use crate::store::{Store, StoreError};

/// Users of groups kept between batches; above it those of the groups that were not told anything for the longest time are
/// forgotten, down to three quarters of it, and read again when they are needed.
const USERS_MAX: usize = 200_000;

/// Members read at a time.
const PAGE: usize = 1_000;

/// For so long after a group was found to be large all nodes are told what happens in it: those that have members hear of
/// it then, and declare their interest.
const SETTLE: Duration = Duration::from_secs(5);

/// The groups at hand.
pub(crate) struct Members {
    /// Groups up to this many members are small.
    small_max: usize,
    groups: HashMap<ConversationId, Group>,
    /// Which batch this is.
    batch: u64,
    /// What `groups` weighs, as of the last look or more.
    weight: usize,
}

struct Group {
    /// The last batch that named it.
    batch: u64,
    kind: Kind,
}

enum Kind {
    Small { users: BTreeSet<UserId>, list: Option<Arc<[UserId]>> },
    Large(Large),
}

struct Large {
    /// It has so many members, or more.
    at_least: u64,
    /// No change of members lies between this seq and the next record.
    member_seq: u64,
    /// It is told as a large group from this seq on; 0 = from before it was seen here.
    from: u64,
    since: Instant,
}

/// To whom something is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// To these.
    Named(Arc<[UserId]>),
    /// To the members of a large group, on whatever node.
    Everybody(Crowd),
}

/// What goes with a push to the members of a large group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crowd {
    /// No change of members lies between it and the push.
    pub member_seq: u64,
    /// From this seq on the group is told to nodes without a break; 0 = from before its owner knew it.
    pub from: u64,
    /// All nodes are told, not only those that declared interest.
    pub to_all: bool,
}

impl Group {
    fn weight(&self) -> usize {
        match &self.kind {
            Kind::Small { users, .. } => users.len() + 1,
            Kind::Large(_) => 1,
        }
    }
}

impl Members {
    /// No group at hand.
    pub(crate) fn new(small_max: usize) -> Self {
        Self { small_max, groups: HashMap::new(), batch: 0, weight: 0 }
    }

    /// Makes room, between two batches.
    pub(crate) fn trim(&mut self) {
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
    pub(crate) async fn read(&mut self, store: &dyn Store, group: &ConversationId) -> Result<(), StoreError> {
        let small_max = self.small_max as u64;
        if let Some(known) = self.groups.get_mut(group) {
            known.batch = self.batch;
            // A large one that may have become small is looked at again, and only here: within a batch it stays what it was.
            if !matches!(&known.kind, Kind::Large(large) if large.at_least <= small_max) {
                return Ok(());
            }
        }
        let summary = store.summary(group, None).await?;
        let kind = match summary {
            Some(summary) if summary.members > small_max => {
                let (from, since) = match self.groups.get(group).map(|known| &known.kind) {
                    Some(Kind::Large(large)) => (large.from, large.since),
                    _ => (0, Instant::now()),
                };
                let (at_least, member_seq) = (summary.members, summary.head.last_seq);
                Kind::Large(Large { at_least, member_seq, from, since })
            }
            Some(_) => Kind::Small { users: users_of(store, group).await?, list: None },
            None => Kind::Small { users: BTreeSet::new(), list: None },
        };
        let read = Group { batch: self.batch, kind };
        self.weight += read.weight();
        self.groups.insert(group.clone(), read);
        Ok(())
    }

    /// Whom a push goes to that changes no members; nobody for a group that was not read.
    pub(crate) fn told(&mut self, group: &ConversationId) -> Told {
        match self.groups.get_mut(group).map(|group| &mut group.kind) {
            None => Told::Named(Arc::default()),
            Some(Kind::Small { users, list }) => {
                let list = list.get_or_insert_with(|| users.iter().cloned().collect());
                Told::Named(Arc::clone(list))
            }
            Some(Kind::Large(large)) => {
                let to_all = large.since.elapsed() < SETTLE;
                Told::Everybody(Crowd { member_seq: large.member_seq, from: large.from, to_all })
            }
        }
    }

    /// Carries an accepted change out, and says whom it is told to: the members after it, and those whom it removed.
    pub(crate) fn change(&mut self, change: &MemberChange, seq: u64) -> Told {
        let before = self.told(&change.conversation);
        let Some(group) = self.groups.get_mut(&change.conversation) else { return before };
        match &mut group.kind {
            Kind::Large(large) => large.change(change, seq),
            Kind::Small { users, list } => {
                *list = None;
                match change.action {
                    MemberAction::Create | MemberAction::Join => {
                        let before = users.len();
                        users.extend(change.users.iter().cloned());
                        let now = users.len();
                        if now > self.small_max {
                            self.weight = self.weight.saturating_sub(before);
                            // It crosses the limit here: this change is told to all nodes, and what follows to those that have
                            // members. Whom they have they read from the store, which has this change.
                            let (at_least, since) = (now as u64, Instant::now());
                            group.kind = Kind::Large(Large { at_least, member_seq: seq, from: seq, since });
                            let member_seq = seq.saturating_sub(1);
                            return Told::Everybody(Crowd { member_seq, from: seq, to_all: true });
                        }
                        self.weight += now - before;
                        self.told(&change.conversation)
                    }
                    MemberAction::Leave | MemberAction::Kick => {
                        for user in &change.users {
                            users.remove(user);
                        }
                        before
                    }
                    MemberAction::Delete => {
                        users.clear();
                        before
                    }
                    MemberAction::Role
                    | MemberAction::Settings
                    | MemberAction::Mute
                    | MemberAction::Unmute => before,
                }
            }
        }
    }
}

impl Large {
    /// All nodes hear who comes and goes: one that has a user who comes may have no member yet.
    fn change(&mut self, change: &MemberChange, seq: u64) -> Told {
        let told = Crowd { member_seq: self.member_seq, from: self.from, to_all: true };
        match change.action {
            MemberAction::Create | MemberAction::Join | MemberAction::Delete => self.member_seq = seq,
            MemberAction::Leave | MemberAction::Kick => {
                self.member_seq = seq;
                self.at_least = self.at_least.saturating_sub(change.users.len() as u64);
            }
            MemberAction::Role | MemberAction::Settings | MemberAction::Mute | MemberAction::Unmute => {
                return Told::Everybody(Crowd { to_all: self.since.elapsed() < SETTLE, ..told });
            }
        }
        Told::Everybody(told)
    }
}

/// Those of a small group.
async fn users_of(store: &dyn Store, group: &ConversationId) -> Result<BTreeSet<UserId>, StoreError> {
    let (mut users, mut after): (BTreeSet<UserId>, Option<UserId>) = (BTreeSet::new(), None);
    loop {
        let page = store.members(group, after.as_ref(), PAGE).await?;
        let Some((last, _)) = page.last() else { return Ok(users) };
        after = Some(last.clone());
        let whole = page.len() < PAGE;
        users.extend(page.into_iter().map(|(user, _)| user));
        if whole {
            return Ok(users);
        }
    }
}

#[cfg(test)]
mod tests;
