//! Bringing an index up from the store: by what happened since, or by all members; those of a very large group are read beside
//! everything else, so that no login waits for them.

use std::{collections::HashSet, sync::Arc};

use tidegate_protocol::id::{ConversationId, UserId};

use super::{Done, Index, Keeper, Reading, State, Unread};
use crate::{
    large_group::subscriber::members::{self, Here},
    store::StoreError,
};

/// So many pages of members are read in place: those of a group that has just become large.
const PAGES: usize = 2;

impl State {
    /// Whether a user who logs in may be in the index, by what the store had at `as_of`.
    pub(super) fn login(&mut self, user: &UserId, as_of: u64) -> bool {
        if let Some(reading) = &mut self.reading {
            if as_of < reading.to {
                return false;
            }
            reading.came.push(user.clone());
        }
        self.index.login(user, as_of)
    }
}

impl Keeper {
    /// Has a state of the group, right up to `known` at the least; what comes at or below `seen` was not for this node.
    pub(super) async fn found(
        &mut self,
        group: &ConversationId,
        known: u64,
        seen: u64,
    ) -> Result<(), Unread> {
        if self.groups.contains_key(group) {
            return Ok(());
        }
        let mut state = State { index: Index::new(known, seen), ..State::default() };
        if !self.directory.conversation(group).is_empty() {
            // It was small, and its members here came from elsewhere.
            self.read_all(group, known, &mut state).await?;
        }
        self.recent.remove(group);
        state.declared = self.shared.declared.contains(group);
        self.groups.insert(group.clone(), state);
        Ok(())
    }

    /// Puts the indexes right up to `to`, by what happened since, or else by all members.
    pub(super) async fn read_on(&mut self, group: &ConversationId, from: u64, to: u64) -> Result<(), Unread> {
        let changes = members::changes(&*self.ports.store, group, from, to).await?;
        let Some(mut state) = self.groups.remove(group) else { return Ok(()) };
        let done = match changes {
            None => self.read_all(group, to, &mut state).await,
            Some(changes) => {
                self.metrics.indexes_read.increment(1);
                for (seq, change) in changes {
                    let (come, go) = members::moved(&change);
                    let news = |users: Vec<UserId>| -> Arc<[UserId]> {
                        users.into_iter().filter(|user| state.index.is_news(user, seq)).collect()
                    };
                    self.out.come(group, news(come));
                    self.out.go(group, news(go));
                }
                state.index.is_known(to);
                Ok(())
            }
        };
        let is_reading = state.reading.is_some();
        self.groups.insert(group.clone(), state);
        done.and(if is_reading { Err(Unread) } else { Ok(()) })
    }

    /// Puts the indexes right by all members, as of `known` or later; those of a very large group later.
    async fn read_all(
        &mut self,
        group: &ConversationId,
        known: u64,
        state: &mut State,
    ) -> Result<(), Unread> {
        self.metrics.indexes_read.increment(1);
        let (directory, ports) = (Arc::clone(&self.directory), Arc::clone(&self.ports));
        let is_here = move |user: &UserId| !directory.user(user).is_empty();
        if let Some(here) = members::members_here(&*ports.store, group, &is_here, PAGES).await? {
            self.are_members(group, known, state, here, Vec::new());
            return Ok(());
        }
        state.reading = Some(Reading { to: known, came: Vec::new() });
        let group = group.clone();
        self.jobs.spawn(async move {
            let here = members::members_here(&*ports.store, &group, &is_here, usize::MAX).await;
            Done::Members(group, here.map(Option::unwrap_or_default))
        });
        Ok(())
    }

    /// All members were read beside.
    pub(super) fn read(&mut self, group: &ConversationId, here: Result<Here, StoreError>) {
        let Some(mut state) = self.groups.remove(group) else { return };
        match (state.reading.take(), here) {
            (Some(Reading { to, came }), Ok(here)) => self.are_members(group, to, &mut state, here, came),
            (_, Err(error)) => {
                // Who is a member is not known, whatever the index says: the group is looked at anew.
                tracing::debug!(%error, %group, "all members can't be read: it is tried again");
                self.strange.insert(group.clone());
                return;
            }
            (None, Ok(_)) => {}
        }
        self.groups.insert(group.clone(), state);
    }

    /// Of those here these are members, and those who came since.
    fn are_members(
        &mut self,
        group: &ConversationId,
        known: u64,
        state: &mut State,
        here: Here,
        came: Vec<UserId>,
    ) {
        let users: HashSet<UserId> = here.iter().map(|(user, _)| user.clone()).chain(came).collect();
        for (user, member) in &here {
            if member.joined_seq > known {
                state.index.come(user, member.joined_seq - 1);
            }
        }
        self.out.keep(group, Arc::new(users));
        self.out.come(group, here.into_iter().map(|(user, _)| user).collect());
        state.index.is_known(known);
    }
}
