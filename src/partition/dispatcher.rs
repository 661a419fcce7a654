//! Dispatcher of an owner: publishes what it decided to the connections of this node and to other nodes, in log order.

use std::{collections::BTreeMap, sync::Arc};

use prost::Message as _;
use tidegate_protocol::{
    codec::PushFrame,
    id::{ConversationId, DeviceId, UserId},
    machine::ledger::Outcome,
    pb::{self, server_frame::Body as Frame},
    record::{Body, Edit, MemberAction, MemberChange, Message, Recall, Record},
};

use super::membership::GroupPushMeta;
use crate::{
    delivery::{
        local::{LocalDispatcher, Users},
        pending::ADMIN_CONN,
        push::{self, event_push, live_edit_push, recall_push},
        router::{RemotePush, Router},
    },
    large_group::publisher::{GroupPublisher, GroupRecord},
    link::{self, SentBy},
    mail::{Audience, ConnKey, Delivery, Item},
    routes::NodeBoot,
    trace::traceparent,
};

/// Batch of replies and pushes of one owner: those of this node and those of other nodes.
pub struct Dispatcher {
    local: LocalDispatcher,
    /// `None` on a single node.
    remote: Option<Remote>,
}

/// Part of a batch that goes to other nodes.
struct Remote {
    router: Router,
    /// Publisher of large groups; `None` where all groups count as small.
    publisher: Option<Arc<GroupPublisher>>,
    group_records: Vec<GroupRecord>,
    peer_answers: BTreeMap<NodeBoot, Vec<link::Answer>>,
    pushes: Vec<RemotePush>,
}

impl Dispatcher {
    /// Creates an empty batch of a single node.
    pub fn new(local: LocalDispatcher) -> Self {
        Self { local, remote: None }
    }

    /// Creates an empty batch of a node with peers.
    pub fn clustered(local: LocalDispatcher, router: Router, publisher: Option<Arc<GroupPublisher>>) -> Self {
        let (group_records, peer_answers, pushes) = (Vec::new(), BTreeMap::new(), Vec::new());
        let remote = Remote { router, publisher, group_records, peer_answers, pushes };
        Self { local, remote: Some(remote) }
    }

    /// Returns whether there are other nodes. Recipients must then be named, because no node has all members in its
    /// indexes.
    pub fn is_clustered(&self) -> bool {
        self.remote.is_some()
    }

    /// Adds the outcome of a record, for the node that appended it.
    pub fn outcome(&mut self, record: &Record, outcome: Outcome) {
        if self.local.is_mine(record) {
            self.local.answer_here(record.origin.conn, record.origin.request, outcome);
        } else if let Some(remote) = &mut self.remote {
            let to = NodeBoot { node: record.origin.node.clone(), boot: record.origin.boot };
            let (conn, request) = (record.origin.conn, record.origin.request);
            let answer = link::Answer { conn, request, outcome, traceparent: traceparent(record.trace) };
            remote.peer_answers.entry(to).or_default().push(answer);
        }
        // Otherwise an earlier run of this node appended it: its clients are gone and retry by id.
    }

    /// Adds a message with its seq, for all members except the connection that sent it. `members` names those of a
    /// group; `None` means that this node's indexes have them all.
    pub fn message(
        &mut self,
        record: &Record,
        message: &Message,
        seq: u64,
        tracked: bool,
        members: Users<'_>,
    ) {
        let frame = PushFrame::from_parts(
            message.conversation.as_str(),
            seq,
            message.sender.as_str(),
            message.msg_id.as_str(),
            record.received_at,
            &message.content,
            message.shown_flags(),
        )
        .traced(record.trace);
        let mine = self.local.is_mine(record);
        let (audience, shards) = self.local.audience_of(&message.conversation, members);
        let delivery = Delivery {
            conversation: message.conversation.clone(),
            seq,
            audience,
            frame: Arc::new(frame),
            origin: mine.then(|| ConnKey::unpack(record.origin.conn)),
            tracked,
            class: 0,
        };
        let sender = || (message.sender.clone(), message.device.clone(), message.order.epoch);
        let at = || NodeBoot { node: record.origin.node.clone(), boot: record.origin.boot };
        let sent_by = || SentBy { at: at(), conn: record.origin.conn };
        self.push_remote(&delivery, || Some((sender(), sent_by())));
        self.local.item(shards, Item::Push(delivery));
    }

    /// Adds a recall with its seq, for all members, the requester included.
    pub fn recall(&mut self, record: &Record, recall: &Recall, seq: u64, tracked: bool, members: Users<'_>) {
        self.push_all(&recall.conversation, recall_push(record.received_at, recall, seq), tracked, members);
    }

    /// Adds an edit with its seq, for all members, the requester included.
    pub fn edit(&mut self, record: &Record, edit: &Edit, seq: u64, tracked: bool, members: Users<'_>) {
        self.push_all(&edit.conversation, live_edit_push(record.received_at, edit, seq), tracked, members);
    }

    fn push_all(&mut self, conversation: &ConversationId, push: pb::Push, tracked: bool, members: Users<'_>) {
        let (audience, shards) = self.local.audience_of(conversation, members);
        let delivery = Delivery {
            conversation: conversation.clone(),
            seq: push.seq,
            audience,
            frame: Arc::new(PushFrame::new(&pb::ServerFrame { id: 0, body: Some(Frame::Push(push)) })),
            origin: None,
            tracked,
            class: 0,
        };
        self.push_remote(&delivery, || None);
        self.local.item(shards, Item::Push(delivery));
    }

    /// Adds a membership change with its seq: index updates and a push, in order. `members` are the members after the
    /// change and the users that it removes.
    pub fn change(
        &mut self,
        record: &Record,
        change: &MemberChange,
        seq: u64,
        tracked: bool,
        members: Users<'_>,
    ) {
        let conversation = &change.conversation;
        let users: Arc<[UserId]> = change.users.clone().into();
        let shards = self.local.shards_of(&users);
        if matches!(change.action, MemberAction::Create | MemberAction::Join) {
            self.local.index_members(conversation, shards, &users);
        }
        let (audience, all) = self.local.audience_of(conversation, members);
        let push = Delivery {
            conversation: conversation.clone(),
            seq,
            audience,
            frame: Arc::new(PushFrame::new(&pb::ServerFrame {
                id: 0,
                body: Some(Frame::Push(event_push(record.received_at, change, seq))),
            })),
            origin: None,
            tracked,
            class: 0,
        };
        self.push_remote(&push, || None);
        self.local.item(all, Item::Push(push));
        if matches!(change.action, MemberAction::Leave | MemberAction::Kick) {
            self.local.item(shards, Item::Part(conversation.clone(), users));
        }
    }

    /// Publishes a record with its seq to all members of a large group except the connection that sent it.
    pub(crate) fn fan_out(&mut self, record: &Record, seq: u64, meta: GroupPushMeta) {
        let Some(remote) = self.remote.as_mut().filter(|remote| remote.publisher.is_some()) else { return };
        let Some((group, push)) = record.conversation().zip(push::encode(record, seq)) else { return };
        let origin = &record.origin;
        let is_from_conn = matches!(record.body, Body::Message(_)) && origin.conn != ADMIN_CONN;
        let fan_out = pb::FanOut {
            conversation: group.to_string(),
            seq,
            push,
            member_seq: meta.member_seq,
            large_from: meta.from,
            change: matches!(&record.body, Body::Member(change) if changes_members(change.action)),
            node: if is_from_conn { origin.node.to_string() } else { String::new() },
            boot: origin.boot,
            conn: origin.conn,
            traceparent: traceparent(record.trace),
        };
        let bytes = fan_out.encode_to_vec().into();
        let (group, to_all) = (group.clone(), meta.to_all);
        remote.group_records.push(GroupRecord { group, seq, bytes, to_all });
    }

    /// Removes users from this node's indexes of a conversation that is deleted.
    pub fn unindex_members(&mut self, conversation: &ConversationId, users: Arc<[UserId]>) {
        self.local.unindex_members(conversation, users);
    }

    /// Sends the batch, then a user's groups to a connection of this node that waits for them.
    ///
    /// Only for a single node: on a cluster no owner knows all groups of a user, and the part of the batch for other
    /// nodes would stay behind.
    pub(super) async fn memberships(&mut self, key: ConnKey, groups: Vec<ConversationId>) {
        debug_assert!(!self.is_clustered(), "the subscriber of large groups answers logins on a cluster");
        self.local.memberships(key, groups).await;
    }

    /// Sends the batch: to the shards of this node, then to other nodes.
    pub async fn flush(&mut self) {
        self.local.flush().await;
        let Some(remote) = &mut self.remote else { return };
        // After the mails in which the shards got pushes of the same groups while those were small.
        if let Some(publisher) = remote.publisher.as_ref().filter(|_| !remote.group_records.is_empty()) {
            publisher.publish(std::mem::take(&mut remote.group_records));
        }
        for (to, answers) in std::mem::take(&mut remote.peer_answers) {
            remote.router.answers(&to, answers);
        }
        remote.router.pushes(std::mem::take(&mut remote.pushes)).await;
    }

    /// Adds a push for the users on other nodes.
    fn push_remote(&mut self, delivery: &Delivery, sender: impl FnOnce() -> Option<(SenderSession, SentBy)>) {
        let Audience::Users(users) = &delivery.audience else { return };
        if let Some(remote) = &mut self.remote
            && let Some(push) = delivery.frame.push()
        {
            let (users, tracked) = (Arc::clone(users), delivery.tracked);
            let trace = delivery.frame.trace().copied();
            let (except, sent_by) = sender().unzip();
            remote.pushes.push(RemotePush { push, users, tracked, except, sent_by, trace });
        }
    }
}

/// Session that sent a message: user, device, connection epoch.
type SenderSession = (UserId, DeviceId, u64);

/// Returns whether the action adds or removes members.
fn changes_members(action: MemberAction) -> bool {
    match action {
        MemberAction::Create
        | MemberAction::Join
        | MemberAction::Leave
        | MemberAction::Kick
        | MemberAction::Delete => true,
        MemberAction::Role | MemberAction::Settings | MemberAction::Mute | MemberAction::Unmute => false,
    }
}
