//! Delivering what the ledger accepted: who is where, one encoded frame, one mail a shard, in log order.

use std::{collections::HashMap, sync::Arc};

use tidegate_protocol::{
    codec::PushFrame,
    id::{ConversationId, ConversationKind, UserId},
    machine::session::Answer,
    pb::{self, server_frame::Body as Frame},
    record::{MemberAction, MemberChange, Message, Recall, Record, Role},
};

use super::admin::{ADMIN_CONN, Pending};
use crate::{
    directory::{Directory, ShardSet},
    mail::{Audience, ConnKey, Delivery, Item, Lag, Mail, ShardHandle, ShardHandles},
    routes::NodeBoot,
};

/// Gathers what is to be told to the shards and sends it, one mail of a kind for each shard and batch.
pub struct Outbound {
    me: NodeBoot,
    directory: Arc<Directory>,
    shards: ShardHandles,
    pending: Arc<Pending>,
    answers: Vec<Vec<(ConnKey, u64, Answer)>>,
    items: Vec<Vec<Item>>,
}

impl Outbound {
    /// Nothing gathered yet. `shards` must be filled before the first [`Self::flush`].
    pub fn new(me: NodeBoot, directory: Arc<Directory>, shards: ShardHandles, pending: Arc<Pending>) -> Self {
        Self { me, directory, shards, pending, answers: Vec::new(), items: Vec::new() }
    }

    /// The answer to a record, for whoever appended it.
    pub fn answer(&mut self, record: &Record, answer: Answer) {
        let origin = &record.origin;
        if origin.node != self.me.node || origin.boot != self.me.boot {
            // An earlier run of this node: its clients are gone and retry by id.
            return;
        }
        if origin.conn == ADMIN_CONN {
            self.pending.complete(origin.request, answer);
            return;
        }
        let key = ConnKey::unpack(origin.conn);
        slot(&mut self.answers, usize::from(key.shard)).push((key, origin.request, answer));
    }

    /// A message that has its seq, for everybody in its conversation but the connection that sent it.
    pub fn message(&mut self, record: &Record, message: &Message, seq: u64, tracked: bool) {
        let frame = PushFrame::from_parts(
            message.conversation.as_str(),
            seq,
            message.sender.as_str(),
            message.msg_id.as_str(),
            record.received_at,
            &message.content,
        );
        let mine = record.origin.node == self.me.node && record.origin.boot == self.me.boot;
        let (audience, shards) = self.everybody(&message.conversation);
        let delivery = Delivery {
            conversation: message.conversation.clone(),
            seq,
            audience,
            frame: Arc::new(frame),
            origin: mine.then(|| ConnKey::unpack(record.origin.conn)),
            tracked,
        };
        self.item(shards, Item::Push(delivery));
    }

    /// A recall that has its seq, for everybody in the conversation; who asked for it, too.
    pub fn recall(&mut self, record: &Record, recall: &Recall, seq: u64, tracked: bool) {
        let (audience, shards) = self.everybody(&recall.conversation);
        let push = recall_push(record.received_at, recall, seq);
        let delivery = Delivery {
            conversation: recall.conversation.clone(),
            seq,
            audience,
            frame: Arc::new(PushFrame::new(&pb::ServerFrame { id: 0, body: Some(Frame::Push(push)) })),
            origin: None,
            tracked,
        };
        self.item(shards, Item::Push(delivery));
    }

    /// A change of members that has its seq: the index changes and everybody concerned is told, in order.
    pub fn change(&mut self, record: &Record, change: &MemberChange, seq: u64, tracked: bool) {
        let conversation = &change.conversation;
        let users: Arc<[UserId]> = change.users.clone().into();
        let mut shards = ShardSet::default();
        for user in users.iter() {
            shards.extend(self.directory.user(user));
        }
        if matches!(change.action, MemberAction::Create | MemberAction::Join) {
            for shard in shards.iter() {
                self.directory.hold_conversation(conversation, shard);
            }
            self.item(shards, Item::Join(conversation.clone(), Arc::clone(&users)));
        }
        let push = Delivery {
            conversation: conversation.clone(),
            seq,
            audience: Audience::Members,
            frame: Arc::new(PushFrame::new(&pb::ServerFrame {
                id: 0,
                body: Some(Frame::Push(event_push(record.received_at, change, seq))),
            })),
            origin: None,
            tracked,
        };
        self.item(self.directory.conversation(conversation), Item::Push(push));
        if matches!(change.action, MemberAction::Leave | MemberAction::Kick) {
            self.item(shards, Item::Part(conversation.clone(), users));
        }
    }

    /// These users are in the conversation no more.
    pub fn part(&mut self, conversation: &ConversationId, users: Arc<[UserId]>) {
        let shards = self.directory.conversation(conversation);
        self.item(shards, Item::Part(conversation.clone(), users));
    }

    /// The groups of a user, for a connection that waits for them; holds them open until the shard has them.
    pub async fn memberships(&mut self, key: ConnKey, groups: Vec<ConversationId>) {
        self.flush().await;
        for group in &groups {
            self.directory.hold_conversation(group, usize::from(key.shard));
        }
        self.post(usize::from(key.shard), Mail::Memberships(key, groups)).await;
    }

    /// Sends what was gathered.
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
    }

    /// Who is in the conversation, and the shards that have some of them.
    fn everybody(&self, conversation: &ConversationId) -> (Audience, ShardSet) {
        match conversation.kind() {
            ConversationKind::Direct(a, b) => self.two(a, b),
            ConversationKind::Group(_) | ConversationKind::Room(_) => {
                (Audience::Members, self.directory.conversation(conversation))
            }
        }
    }

    fn two(&self, a: &str, b: &str) -> (Audience, ShardSet) {
        let users: Arc<[UserId]> =
            [a, b].iter().take(if a == b { 1 } else { 2 }).filter_map(|id| UserId::new(id).ok()).collect();
        let mut shards = ShardSet::default();
        for user in users.iter() {
            shards.extend(self.directory.user(user));
        }
        (Audience::Users(users), shards)
    }

    fn item(&mut self, shards: ShardSet, item: Item) {
        for shard in shards.iter() {
            slot(&mut self.items, shard).push(item.clone());
        }
    }

    /// A shard that has no room left gets hints in place of pushes: it holds up neither the log nor the other shards.
    async fn deliver(&self, shard: usize, items: Vec<Item>) {
        let Some(handle) = self.handle(shard) else { return };
        let has_room = handle.has_room(items.iter().map(Item::weight).sum());
        let items = if has_room { items } else { hints(items) };
        self.post(shard, Mail::Deliver(items)).await;
    }

    fn handle(&self, shard: usize) -> Option<&ShardHandle> {
        self.shards.get().and_then(|shards| shards.get(shard))
    }

    async fn post(&self, shard: usize, mail: Mail) {
        let Some(handle) = self.handle(shard) else { return };
        if handle.post(mail).await.is_err() {
            tracing::debug!(shard, "a shard has stopped; its clients will come back elsewhere");
        }
    }
}

fn slot<T>(lists: &mut Vec<Vec<T>>, index: usize) -> &mut Vec<T> {
    if lists.len() <= index {
        lists.resize_with(index + 1, Vec::new);
    }
    &mut lists[index]
}

/// What is left of items without their pushes: for each conversation up to where it goes on, between the changes of its
/// members, which stay.
fn hints(items: Vec<Item>) -> Vec<Item> {
    let mut kept: Vec<Item> = Vec::new();
    let mut open: HashMap<ConversationId, usize> = HashMap::new();
    for item in items {
        let lag = match item {
            Item::Push(delivery) => Lag {
                conversation: delivery.conversation,
                max_seq: delivery.seq,
                audience: delivery.audience,
            },
            Item::Behind(lag) => lag,
            Item::Join(..) | Item::Part(..) => {
                if let Item::Join(conversation, _) | Item::Part(conversation, _) = &item {
                    open.remove(conversation);
                }
                kept.push(item);
                continue;
            }
        };
        match open.get(&lag.conversation).and_then(|at| kept.get_mut(*at)) {
            Some(Item::Behind(earlier)) => earlier.max_seq = earlier.max_seq.max(lag.max_seq),
            _ => {
                open.insert(lag.conversation.clone(), kept.len());
                kept.push(Item::Behind(lag));
            }
        }
    }
    kept
}

/// A recall as everybody in the conversation sees it.
pub(super) fn recall_push(time: u64, recall: &Recall, seq: u64) -> pb::Push {
    pb::Push {
        conversation: recall.conversation.to_string(),
        seq,
        sender: recall.by.as_ref().map(ToString::to_string).unwrap_or_default(),
        time,
        recall: Some(pb::RecallEvent { seq: recall.seq }),
        ..Default::default()
    }
}

/// A change of members as the members see it.
pub(super) fn event_push(time: u64, change: &MemberChange, seq: u64) -> pb::Push {
    let kind = match change.action {
        MemberAction::Create => pb::MemberChange::Created,
        MemberAction::Join => pb::MemberChange::Joined,
        MemberAction::Leave => pb::MemberChange::Left,
        MemberAction::Kick => pb::MemberChange::Kicked,
        MemberAction::Role => pb::MemberChange::Role,
        MemberAction::Settings => pb::MemberChange::Settings,
        MemberAction::Delete => pb::MemberChange::Deleted,
        MemberAction::Mute => pb::MemberChange::Muted,
        MemberAction::Unmute => pb::MemberChange::Unmuted,
    };
    let event = pb::MemberEvent {
        change: kind as i32,
        users: change.users.iter().map(ToString::to_string).collect(),
        role: change.role.map(Role::word).unwrap_or_default().to_owned(),
        settings: change.settings.clone(),
    };
    pb::Push {
        conversation: change.conversation.to_string(),
        seq,
        sender: change.by.as_ref().map(ToString::to_string).unwrap_or_default(),
        time,
        event: Some(event),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests;
