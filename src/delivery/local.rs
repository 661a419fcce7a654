//! Local dispatcher: replies and pushes for the connections of this node, one mail of each kind per shard, in log order.

use std::{collections::HashMap, sync::Arc};

use tidegate_protocol::{
    Code,
    id::{ConversationId, ConversationKind, UserId},
    machine::{ledger::Outcome, session::SubmitAnswer},
    pb,
    record::Record,
};

use self::holds::ReferenceGuard;
use super::{
    in_flight::InFlight,
    pending::{ADMIN_CONN, Pending},
};
use crate::{
    directory::{Directory, ShardSet},
    mail::{Audience, ConnKey, Delivery, Item, Lag, Mail, Outdated, ShardHandle, ShardHandles},
    routes::NodeBoot,
};

mod holds;
mod members;

/// Message for an id that was refused before; it is refused again even if it would be allowed now.
const REFUSED_BEFORE: &str = "this id was refused before: send the content under a new id";

/// Batch of replies and pushes for the connections of this node: one mail of each kind per shard.
pub struct LocalDispatcher {
    me: NodeBoot,
    directory: Arc<Directory>,
    shards: ShardHandles,
    pending: Arc<Pending>,
    answers: Vec<Vec<(ConnKey, u64, SubmitAnswer)>>,
    outdated: Vec<Vec<Outdated>>,
    items: Vec<Vec<Item>>,
}

impl LocalDispatcher {
    /// Creates an empty batch. `shards` must be filled before the first [`Self::flush`].
    pub fn new(me: NodeBoot, directory: Arc<Directory>, shards: ShardHandles, pending: Arc<Pending>) -> Self {
        let (answers, outdated, items) = (Vec::new(), Vec::new(), Vec::new());
        Self { me, directory, shards, pending, answers, outdated, items }
    }

    /// Adds the outcome of a record that this node appended, addressed by its origin.
    pub(crate) fn answer_here(&mut self, conn: u64, request: u64, outcome: Outcome) {
        if let Outcome::Void { newest } = outcome
            && conn != ADMIN_CONN
        {
            self.pending.in_flight().answered(conn, request);
            let key = ConnKey::unpack(conn);
            slot(&mut self.outdated, usize::from(key.shard)).push(Outdated { key, ticket: request, newest });
        } else if outcome == Outcome::Noted && conn == ADMIN_CONN {
            // A pruning is in force without a seq of its own.
            self.answer(conn, request, SubmitAnswer::Accepted { seq: 0, time: 0 });
        } else if let Some(answer) = answer_of(outcome) {
            self.answer(conn, request, answer);
        }
    }

    /// Adds the answer to a record that this node appended and that got no outcome.
    pub fn answer_failed(&mut self, record: &Record, answer: SubmitAnswer) {
        self.answer(record.origin.conn, record.origin.request, answer);
    }

    pub(crate) fn answer(&mut self, conn: u64, request: u64, answer: SubmitAnswer) {
        self.pending.in_flight().answered(conn, request);
        if conn == ADMIN_CONN {
            self.pending.complete(request, answer);
            return;
        }
        let key = ConnKey::unpack(conn);
        slot(&mut self.answers, usize::from(key.shard)).push((key, request, answer));
    }

    /// Returns the records of this node that wait for a reply.
    pub(crate) fn in_flight(&self) -> &InFlight {
        self.pending.in_flight()
    }

    pub(crate) fn is_mine(&self, record: &Record) -> bool {
        record.origin.node == self.me.node && record.origin.boot == self.me.boot
    }

    /// Adds a push from the owner's node, for sessions or users on this node. A membership change in it updates the
    /// local indexes too.
    pub(crate) fn push_from_peer(&mut self, push: &pb::Push, delivery: Delivery) {
        let event = push.event.as_ref();
        let kind = event.and_then(|event| pb::MemberChange::try_from(event.change).ok());
        let users: Arc<[UserId]> =
            event.into_iter().flat_map(|event| &event.users).filter_map(|id| UserId::new(id).ok()).collect();
        let shards = self.shards_of(&users);
        let conversation = delivery.conversation.clone();
        if matches!(kind, Some(pb::MemberChange::Created | pb::MemberChange::Joined)) {
            self.index_members(&conversation, shards, &users);
        }
        let recipients: Arc<[UserId]> = match &delivery.audience {
            Audience::Users(users) => Arc::clone(users),
            Audience::Sessions(sessions) => sessions.iter().map(|session| session.user.clone()).collect(),
            Audience::Members => Arc::default(),
        };
        let to = self.shards_of(&recipients);
        self.item(to, Item::Push(delivery));
        match kind {
            Some(pb::MemberChange::Left | pb::MemberChange::Kicked) => {
                self.item(shards, Item::Part(conversation, users));
            }
            Some(pb::MemberChange::Deleted) => self.item(to, Item::Part(conversation, recipients)),
            _ => {}
        }
    }

    /// Adds users to the indexes of their shards; the conversation stays subscribed until the shards have them.
    pub(crate) fn index_members(
        &mut self,
        conversation: &ConversationId,
        shards: ShardSet,
        users: &Arc<[UserId]>,
    ) {
        for shard in shards.iter() {
            self.directory.hold_conversation(conversation, shard);
        }
        self.item(shards, Item::Join(conversation.clone(), Arc::clone(users)));
    }

    /// Removes users from the conversation's indexes, on all shards that have members of it.
    pub(crate) fn unindex_members(&mut self, conversation: &ConversationId, users: Arc<[UserId]>) {
        let shards = self.directory.conversation(conversation);
        self.item(shards, Item::Part(conversation.clone(), users));
    }

    /// Sends everything that was added, then a user's groups to a connection that waits for them. The groups stay
    /// subscribed until its shard has them.
    pub async fn memberships(&mut self, key: ConnKey, groups: Vec<ConversationId>) {
        self.flush().await;
        let shard = usize::from(key.shard);
        for group in &groups {
            self.directory.hold_conversation(group, shard);
        }
        let references = ReferenceGuard { directory: &self.directory, shard, groups: groups.clone() };
        self.post(shard, Mail::Memberships(key, groups)).await;
        references.hand_over();
    }

    /// Posts mail to the shard of a connection.
    pub(crate) async fn post_to_conn(&mut self, key: ConnKey, mail: Mail) {
        self.post(usize::from(key.shard), mail).await;
    }

    /// Sends everything that was added.
    pub async fn flush(&mut self) {
        for shard in 0..self.items.len() {
            let items = std::mem::take(&mut self.items[shard]);
            if !items.is_empty() {
                self.deliver(shard, items).await;
            }
        }
        for shard in 0..self.answers.len() {
            let answers = std::mem::take(&mut self.answers[shard]);
            if !answers.is_empty() {
                self.post(shard, Mail::Answers(answers)).await;
            }
        }
        for shard in 0..self.outdated.len() {
            let outdated = std::mem::take(&mut self.outdated[shard]);
            if !outdated.is_empty() {
                self.post(shard, Mail::Outdated(outdated)).await;
            }
        }
    }

    /// Returns the audience of the conversation, and the shards that have some of it.
    pub(crate) fn audience_of(
        &self,
        conversation: &ConversationId,
        members: Users<'_>,
    ) -> (Audience, ShardSet) {
        let users: Arc<[UserId]> = match (conversation.kind(), members) {
            (ConversationKind::Direct(a, b), _) => {
                let both = [a, b].into_iter().take(if a == b { 1 } else { 2 });
                both.filter_map(|id| UserId::new(id).ok()).collect()
            }
            (_, Some(members)) => Arc::clone(members),
            (_, None) => return (Audience::Members, self.directory.conversation(conversation)),
        };
        let shards = self.shards_of(&users);
        (Audience::Users(users), shards)
    }

    pub(crate) fn shards_of(&self, users: &[UserId]) -> ShardSet {
        let mut shards = ShardSet::default();
        users.iter().for_each(|user| shards.extend(self.directory.user(user)));
        shards
    }

    pub(crate) fn item(&mut self, shards: ShardSet, item: Item) {
        for shard in shards.iter() {
            slot(&mut self.items, shard).push(item.clone());
        }
    }

    /// Delivers items to a shard. A full shard gets hints instead of pushes, so that it delays neither the log nor
    /// other shards.
    async fn deliver(&self, shard: usize, items: Vec<Item>) {
        let Some(handle) = self.handle(shard) else { return };
        let fits = handle.has_room(items.iter().map(Item::weight).sum());
        let items = if fits { items } else { hints(items) };
        let references = ReferenceGuard::new(&self.directory, shard, &items);
        self.post(shard, Mail::Deliver(items)).await;
        references.hand_over();
    }

    fn handle(&self, shard: usize) -> Option<&ShardHandle> {
        self.shards.get().and_then(|shards| shards.get(shard))
    }

    async fn post(&self, shard: usize, mail: Mail) {
        let Some(handle) = self.handle(shard) else { return };
        if handle.post(mail).await.is_err() {
            tracing::debug!(shard, "shard stopped; mail dropped, its clients reconnect elsewhere");
        }
    }
}

impl Drop for LocalDispatcher {
    fn drop(&mut self) {
        for (shard, items) in self.items.iter().enumerate() {
            drop(ReferenceGuard::new(&self.directory, shard, items));
        }
    }
}

/// Members of a group, if they must be named.
pub type Users<'a> = Option<&'a Arc<[UserId]>>;

/// Reason of the only temporary refusal by the ledger that is not about order.
const RULES_NOT_SWITCHED: &str =
    "the cluster switches to the rules that this needs a minute after all its nodes know them";

/// Converts an outcome to the client's answer; `None` if no client asked for it.
fn answer_of(outcome: Outcome) -> Option<SubmitAnswer> {
    Some(match outcome {
        Outcome::Accepted { seq, time, .. } => SubmitAnswer::Accepted { seq, time },
        Outcome::Duplicate { seq, time } => SubmitAnswer::Duplicate { seq, time },
        Outcome::Refused { code: Code::NotYet } => {
            SubmitAnswer::Refused { code: Code::NotYet, message: RULES_NOT_SWITCHED.into() }
        }
        Outcome::Refused { code } => SubmitAnswer::Refused { code, message: "".into() },
        Outcome::RefusedBefore { code } => SubmitAnswer::Refused { code, message: REFUSED_BEFORE.into() },
        // Only messages are void, and those of connections get [`Mail::Outdated`] instead of an answer.
        Outcome::Void { .. } => SubmitAnswer::AppendFailed,
        Outcome::Noted => return None,
    })
}

fn slot<T>(lists: &mut Vec<Vec<T>>, index: usize) -> &mut Vec<T> {
    if lists.len() <= index {
        lists.resize_with(index + 1, Vec::new);
    }
    &mut lists[index]
}

/// Replaces pushes by hints: one per conversation and audience, with the last seq left out. Membership changes stay,
/// and no hint covers pushes on both sides of one.
fn hints(items: Vec<Item>) -> Vec<Item> {
    let mut kept: Vec<Item> = Vec::new();
    let mut open: HashMap<ConversationId, Vec<usize>> = HashMap::new();
    for item in items {
        let lag = match item {
            Item::Push(delivery) => Lag {
                conversation: delivery.conversation,
                max_seq: delivery.seq,
                audience: delivery.audience,
            },
            Item::Behind(lag) => lag,
            Item::Join(ref conversation, _)
            | Item::Part(ref conversation, _)
            | Item::Keep(ref conversation, _) => {
                open.remove(conversation);
                kept.push(item);
                continue;
            }
        };
        let indexes = open.entry(lag.conversation.clone()).or_default();
        // Each audience has a hint of its own.
        let same = indexes.iter().copied().find(
            |at| matches!(kept.get(*at), Some(Item::Behind(earlier)) if earlier.audience == lag.audience),
        );
        match same.and_then(|at| kept.get_mut(at)) {
            Some(Item::Behind(earlier)) => earlier.max_seq = earlier.max_seq.max(lag.max_seq),
            _ => {
                indexes.push(kept.len());
                kept.push(Item::Behind(lag));
            }
        }
    }
    kept
}

#[cfg(test)]
mod tests;
