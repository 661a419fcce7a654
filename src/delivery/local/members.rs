//! Members of groups on this node: index changes and pushes to them, as the subscriber of large groups needs them.

use std::{collections::HashSet, sync::Arc};

use tidegate_protocol::id::{ConversationId, UserId};

use super::LocalDispatcher;
use crate::mail::{Audience, Delivery, Item, Lag};

impl LocalDispatcher {
    /// Pushes to the members of a group on this node.
    pub(crate) fn push_to_members(&mut self, delivery: Delivery) {
        let shards = self.directory.conversation(&delivery.conversation);
        self.item(shards, Item::Push(delivery));
    }

    /// Adds the users that are online on this node to the group.
    pub(crate) fn add_members(&mut self, group: &ConversationId, users: Arc<[UserId]>) {
        let online = self.online_users(&users);
        if !online.is_empty() {
            let shards = self.shards_of(&online);
            self.index_members(group, shards, &online);
        }
    }

    /// Removes the users that are online on this node from the group.
    pub(crate) fn remove_members(&mut self, group: &ConversationId, users: Arc<[UserId]>) {
        let online = self.online_users(&users);
        if !online.is_empty() {
            let shards = self.shards_of(&online);
            self.item(shards, Item::Part(group.clone(), online));
        }
    }

    /// Retains only these users among the local members of the group.
    pub(crate) fn retain_members(&mut self, group: &ConversationId, users: Arc<HashSet<UserId>>) {
        let shards = self.directory.conversation(group);
        self.item(shards, Item::Keep(group.clone(), users));
    }

    /// Notifies local members that pushes up to `seq` were left out. Named users may have left the group meanwhile.
    pub(crate) fn behind(&mut self, group: &ConversationId, seq: u64, audience: Audience) {
        let shards = match &audience {
            Audience::Users(users) => self.shards_of(users),
            Audience::Members | Audience::Sessions(_) => self.directory.conversation(group),
        };
        self.item(shards, Item::Behind(Lag { conversation: group.clone(), max_seq: seq, audience }));
    }

    fn online_users(&self, users: &[UserId]) -> Arc<[UserId]> {
        users.iter().filter(|user| !self.directory.user(user).is_empty()).cloned().collect()
    }
}
