//! Group membership as of the record being published, for owners of a cluster, where members are on many nodes.
//!
//! The members of a small group are read from the store before a batch is archived, then updated by each change as it
//! is published. So a push goes to the members at its seq: never to a user removed before it or added after it. Of a
//! large group only the size is known, because each node indexes its own members (ADR 15).

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

use crate::store::{ReadClass, Store, StoreError};

/// Limit on the users cached between batches. Above it the groups least recently named are dropped until three quarters
/// remain; they are read again when needed.
const USERS_MAX: usize = 200_000;

/// Weight of a group without its users, in users. Also groups that do not exist are cached, which anybody may name.
const GROUP_WEIGHT: usize = 16;

/// Time after a group is found to be large in which its pushes go to all nodes. Nodes with members learn of the group
/// from them and declare their interest.
const INTEREST_SETTLE_TIME: Duration = Duration::from_secs(5);

/// Members of the groups that recent batches named.
pub(crate) struct Members {
    /// Most members of a small group.
    small_max: usize,
    groups: HashMap<ConversationId, Group>,
    /// Number of the current batch.
    batch: u64,
    /// Upper bound on the weight of all `groups`.
    weight: usize,
}

struct Group {
    /// Number of the last batch that named the group.
    batch: u64,
    kind: Kind,
}

enum Kind {
    Small { users: BTreeSet<UserId>, list: Option<Arc<[UserId]>> },
    Large(LargeState),
}

struct LargeState {
    /// Lower bound on the member count.
    at_least: u64,
    /// Seq of a state of the members; no membership change lies between it and the next record.
    member_seq: u64,
    /// Seq from which the group is published as large; 0 if that began before this owner read it.
    from: u64,
    since: Instant,
}

/// Recipients of a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Recipients {
    /// Only the named users.
    Named(Arc<[UserId]>),
    /// All members of a large group, on any node.
    LargeGroup(GroupPushMeta),
}

/// Metadata of a push to the members of a large group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupPushMeta {
    /// Seq of a state of the members; no membership change lies between it and the push.
    pub member_seq: u64,
    /// Seq from which the group has been published as large without interruption; 0 if that began before its owner read
    /// the group.
    pub from: u64,
    /// Whether the push goes to all nodes, not only to those that declared interest.
    pub to_all: bool,
}

impl Group {
    fn weight(&self) -> usize {
        match &self.kind {
            Kind::Small { users, .. } => users.len() + GROUP_WEIGHT,
            Kind::Large(_) => GROUP_WEIGHT,
        }
    }
}

impl Members {
    /// Creates an empty cache.
    pub(crate) fn new(small_max: usize) -> Self {
        Self { small_max, groups: HashMap::new(), batch: 0, weight: 0 }
    }

    /// Drops the groups least recently named if there are too many users. To be called between two batches.
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
        let weight_kept = most / 4 * 3;
        self.weight = 0;
        for (_, weight, id) in by_age {
            if self.weight + weight > weight_kept {
                self.groups.remove(&id);
            } else {
                self.weight += weight;
            }
        }
    }

    /// Reads the groups that are not cached, in one call. To be called before the batch that names them is archived.
    ///
    /// A group that does not exist is cached too, so messages to it cost no second read.
    pub(crate) async fn read(
        &mut self,
        store: &dyn Store,
        groups: &BTreeSet<&ConversationId>,
    ) -> Result<(), StoreError> {
        let groups: Vec<ConversationId> =
            groups.iter().filter(|group| self.must_read(group)).map(|group| (*group).clone()).collect();
        if groups.is_empty() {
            return Ok(());
        }
        let found = store.group_members(&groups, self.small_max, ReadClass::Owner).await?;
        for (group, found) in groups.into_iter().zip(found) {
            let kind = match found {
                Some(found) if found.members > self.small_max as u64 => {
                    let (from, since) = match self.groups.get(&group).map(|cached| &cached.kind) {
                        Some(Kind::Large(large)) => (large.from, large.since),
                        _ => (0, Instant::now()),
                    };
                    let (at_least, member_seq) = (found.members, found.last_seq);
                    Kind::Large(LargeState { at_least, member_seq, from, since })
                }
                Some(found) => Kind::Small { users: found.users.into_iter().collect(), list: None },
                None => Kind::Small { users: BTreeSet::new(), list: None },
            };
            let read = Group { batch: self.batch, kind };
            self.weight += read.weight();
            self.groups.insert(group, read);
        }
        Ok(())
    }

    /// Returns whether the group must be read, and notes that the current batch names it.
    fn must_read(&mut self, group: &ConversationId) -> bool {
        let small_max = self.small_max as u64;
        let Some(cached) = self.groups.get_mut(group) else { return true };
        cached.batch = self.batch;
        // Only here may a large group become small again: it must not change within a batch.
        matches!(&cached.kind, Kind::Large(large) if large.at_least <= small_max)
    }

    /// Returns the recipients of a push that changes no members; none if the group was not read.
    pub(crate) fn recipients(&mut self, group: &ConversationId) -> Recipients {
        match self.groups.get_mut(group).map(|group| &mut group.kind) {
            None => Recipients::Named(Arc::default()),
            Some(Kind::Small { users, list }) => {
                let list = list.get_or_insert_with(|| users.iter().cloned().collect());
                Recipients::Named(Arc::clone(list))
            }
            Some(Kind::Large(large)) => {
                let to_all = large.since.elapsed() < INTEREST_SETTLE_TIME;
                Recipients::LargeGroup(GroupPushMeta {
                    member_seq: large.member_seq,
                    from: large.from,
                    to_all,
                })
            }
        }
    }

    /// Applies an accepted change and returns its recipients: the members after it, and those it removed.
    pub(crate) fn change(&mut self, change: &MemberChange, seq: u64) -> Recipients {
        let before = self.recipients(&change.conversation);
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
                            // The group crosses the limit: this change goes to all nodes, later pushes only to nodes
                            // with members. Those nodes read their members from the store, which has this change.
                            let (at_least, since) = (now as u64, Instant::now());
                            group.kind =
                                Kind::Large(LargeState { at_least, member_seq: seq, from: seq, since });
                            let member_seq = seq.saturating_sub(1);
                            return Recipients::LargeGroup(GroupPushMeta {
                                member_seq,
                                from: seq,
                                to_all: true,
                            });
                        }
                        self.weight += now - before;
                        self.recipients(&change.conversation)
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

impl LargeState {
    /// Applies a change and returns its recipients. Membership changes go to all nodes, because the node of a new
    /// member may have no other member.
    fn change(&mut self, change: &MemberChange, seq: u64) -> Recipients {
        let meta = GroupPushMeta { member_seq: self.member_seq, from: self.from, to_all: true };
        match change.action {
            MemberAction::Create | MemberAction::Join | MemberAction::Delete => self.member_seq = seq,
            MemberAction::Leave | MemberAction::Kick => {
                self.member_seq = seq;
                self.at_least = self.at_least.saturating_sub(change.users.len() as u64);
            }
            MemberAction::Role | MemberAction::Settings | MemberAction::Mute | MemberAction::Unmute => {
                return Recipients::LargeGroup(GroupPushMeta {
                    to_all: self.since.elapsed() < INTEREST_SETTLE_TIME,
                    ..meta
                });
            }
        }
        Recipients::LargeGroup(meta)
    }
}

#[cfg(test)]
mod tests;
