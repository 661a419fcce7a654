//! Index catch-up from the store: by the changes since a seq, or by all members. Those of a very large group are read
//! in the background, so that no login waits for them.

use std::{collections::HashSet, sync::Arc};

use futures_util::future::try_join_all;
use tidegate_protocol::id::{ConversationId, UserId};

use super::{GroupState, Index, IndexUnavailable, JobResult, MembersRead, SubscriberTask};
use crate::{
    directory::Directory,
    large_group::subscriber::members::{self, LocalMembers, MembersQuery},
    mail::Audience,
    store::StoreError,
    supervised,
};

/// Pages of members that are read inline: enough for a group that has just become large.
const INLINE_PAGES_MAX: usize = 2;

impl GroupState {
    /// Adds a user who logs in, as of the store at `as_of`; false if the index needs a newer state.
    pub(super) fn login(&mut self, user: &UserId, as_of: u64) -> bool {
        if let Some(reading) = &mut self.reading {
            if as_of < reading.to {
                return false;
            }
            reading.logged_in.push(user.clone());
        }
        self.index.login(user, as_of)
    }

    /// Returns whether the group has no local member, perhaps because the index lacks the join of a connected user.
    pub(super) fn may_lack_join(&self, group: &ConversationId, directory: &Directory) -> bool {
        self.hint_to > self.index.complete_to() && directory.conversation(group).is_empty()
    }
}

impl SubscriberTask {
    /// Creates the state of a group, right up to `indexed_to` at least, unless it exists. Records at or below
    /// `published_to` were not for this node.
    pub(super) async fn ensure_state(
        &mut self,
        group: &ConversationId,
        indexed_to: u64,
        published_to: u64,
    ) -> Result<(), IndexUnavailable> {
        if self.groups.contains_key(group) {
            return Ok(());
        }
        let mut state = GroupState { index: Index::new(indexed_to, published_to), ..GroupState::default() };
        if !self.directory.conversation(group).is_empty() {
            // The group was small until now, and its local members were indexed by name.
            self.read_all(group, indexed_to, &mut state).await?;
        }
        self.recent.remove(group);
        state.declared = self.shared.declared.contains(group);
        self.groups.insert(group.clone(), state);
        Ok(())
    }

    /// Brings the indexes up to `to`, by the changes since `from` or, if those are not available, by all members.
    pub(super) async fn catch_up(
        &mut self,
        group: &ConversationId,
        from: u64,
        to: u64,
    ) -> Result<(), IndexUnavailable> {
        let changes = members::changes(&*self.cluster.ports.store, group, from, to).await?;
        let Some(mut state) = self.groups.remove(group) else { return Ok(()) };
        let done = match changes {
            None => self.read_all(group, to, &mut state).await,
            Some(changes) => {
                self.metrics.indexes_read.increment(1);
                for (seq, change) in changes {
                    let (joined, left) = members::joined_and_left(&change);
                    let newer = |users: Vec<UserId>| -> Arc<[UserId]> {
                        users.into_iter().filter(|user| state.index.is_newer(user, seq)).collect()
                    };
                    self.out.add_members(group, newer(joined));
                    let left = newer(left);
                    self.out.remove_members(group, Arc::clone(&left));
                    if !left.is_empty() {
                        // No later hint is for them, and they may lack pushes up to their last.
                        self.out.behind(group, seq, Audience::Users(left));
                    }
                }
                state.index.set_indexed(to);
                Ok(())
            }
        };
        let is_reading = state.reading.is_some();
        self.groups.insert(group.clone(), state);
        done.and(if is_reading { Err(IndexUnavailable) } else { Ok(()) })
    }

    /// Brings up the indexes of groups without local members that missed a record: no later one may come. Ends with the
    /// first one that can't be read; the next tick begins after it, so that its damaged rows delay no other group.
    pub(super) async fn catch_up_without_members(&mut self) {
        let mut lacking: Vec<(ConversationId, u64, u64)> = Vec::new();
        for (group, state) in &self.groups {
            if state.reading.is_none() && state.may_lack_join(group, &self.directory) {
                lacking.push((group.clone(), state.index.complete_to(), state.hint_to));
            }
        }
        lacking.sort_unstable();
        if let Some(failed) = self.catch_up_failed.take() {
            let next = lacking.partition_point(|(group, ..)| *group <= failed);
            lacking.rotate_left(next);
        }
        for (group, from, to) in lacking {
            if self.catch_up(&group, from, to).await.is_err() {
                // If the store does not answer, the others would wait as long.
                self.catch_up_failed = Some(group);
                return;
            }
        }
    }

    /// Notes the local users of a join that precedes the login which created the state: they have no entry of their
    /// own, and no later record names them.
    pub(super) fn note_late_joiners(
        &mut self,
        group: &ConversationId,
        seq: u64,
        users: impl Iterator<Item = UserId>,
    ) {
        let Some(state) = self.groups.get_mut(group).filter(|state| seq <= state.created_as_of) else {
            return;
        };
        state.late_joiners.extend(users.filter(|user| !self.directory.user(user).is_empty()));
    }

    /// Indexes the noted users who are members now. They get `Behind`, as they may lack every push since their join. So
    /// do those who have left since, up to the seq of that.
    pub(super) async fn add_late_joiners(&mut self, group: &ConversationId) -> Result<(), IndexUnavailable> {
        let Some(state) = self.groups.get_mut(group) else { return Ok(()) };
        state.late_joiners.retain(|user| !self.directory.user(user).is_empty());
        let users: Vec<UserId> = state.late_joiners.iter().cloned().collect();
        let store = &self.cluster.ports.store;
        let read = try_join_all(users.iter().map(|user| store.summary(group, Some(user)))).await?;
        let (mut members, mut read_to) = (Vec::new(), 0);
        for (user, summary) in users.into_iter().zip(read) {
            let seq = summary.as_ref().map_or(0, |it| it.head.last_seq);
            let member = summary.filter(|it| it.head.deleted_seq == 0).and_then(|it| it.member_view);
            let member = member.map(|view| view.member);
            let is_member = member.is_some_and(|member| member.is_in());
            if is_member && !state.login(&user, seq) {
                // The index is newer than this read.
                continue;
            }
            state.late_joiners.remove(&user);
            if is_member {
                read_to = read_to.max(seq);
                members.push(user);
            } else if let Some(member) = member {
                self.out.behind(group, member.left_seq, Audience::Users([user].into()));
            }
        }
        if !members.is_empty() {
            let members: Arc<[UserId]> = members.into();
            self.out.add_members(group, Arc::clone(&members));
            self.out.behind(group, read_to, Audience::Users(members));
        }
        Ok(())
    }

    /// Rebuilds the indexes from all members, as of `indexed_to` or later; for a very large group in the background.
    async fn read_all(
        &mut self,
        group: &ConversationId,
        indexed_to: u64,
        state: &mut GroupState,
    ) -> Result<(), IndexUnavailable> {
        self.metrics.indexes_read.increment(1);
        let (directory, cluster) = (Arc::clone(&self.directory), Arc::clone(&self.cluster));
        let is_here = move |user: &UserId| !directory.user(user).is_empty();
        let query = MembersQuery { group, to: indexed_to, pages: INLINE_PAGES_MAX };
        if let Some(here) = members::local_members(&*cluster.ports.store, query, &is_here).await? {
            self.rebuild_index(group, indexed_to, state, here, Vec::new());
            return Ok(());
        }
        state.reading = Some(MembersRead { to: indexed_to, logged_in: Vec::new() });
        let group = group.clone();
        supervised::spawn_in(&mut self.jobs, "a job of the subscriber", async move {
            let query = MembersQuery { group: &group, to: indexed_to, pages: usize::MAX };
            let here = members::local_members(&*cluster.ports.store, query, &is_here).await;
            JobResult::Members(group, here.map(Option::unwrap_or_default))
        });
        Ok(())
    }

    /// Takes the result of a background read of all members.
    pub(super) fn on_members(&mut self, group: &ConversationId, here: Result<LocalMembers, StoreError>) {
        let Some(mut state) = self.groups.remove(group) else { return };
        match (state.reading.take(), here) {
            (Some(MembersRead { to, logged_in }), Ok(here)) => {
                self.rebuild_index(group, to, &mut state, here, logged_in)
            }
            (_, Err(error)) => {
                tracing::debug!(%error, %group, "failed to read all members of a large group; retrying");
                if !state.may_lack_join(group, &self.directory) {
                    // The membership is unknown, whatever the index says: check the group again.
                    self.undiscovered.insert(group.clone());
                    return;
                }
            }
            (None, Ok(_)) => {}
        }
        self.groups.insert(group.clone(), state);
    }

    /// Replaces the group's local members with `here`, plus the users who logged in during the read.
    fn rebuild_index(
        &mut self,
        group: &ConversationId,
        indexed_to: u64,
        state: &mut GroupState,
        here: LocalMembers,
        logged_in: Vec<UserId>,
    ) {
        let users: HashSet<UserId> = here.iter().map(|(user, _)| user.clone()).chain(logged_in).collect();
        for (user, member) in &here {
            if member.joined_seq > indexed_to {
                state.index.add(user, member.joined_seq - 1);
            }
        }
        self.out.retain_members(group, Arc::new(users));
        self.out.add_members(group, here.into_iter().map(|(user, _)| user).collect());
        state.index.set_indexed(indexed_to);
    }
}
