//! Telling of large groups: as their owner, to the nodes that have members; and as such a node, to its shards.

use std::{collections::HashSet, sync::Arc};

use bytes::Bytes;
use prost::Message as _;
use tidegate_protocol::{
    codec::PushFrame,
    id::{ConversationId, UserId},
    pb,
    record::{Body, MemberAction, Record},
};

use super::{Outbound, event_push, recall_push, traceparent};
use crate::{
    ingest::admin::ADMIN_CONN,
    large_group::publisher::{Fan, Spread},
    mail::{Audience, Delivery, Item, Lag},
    partition::membership::Crowd,
};

impl Outbound {
    /// The same, for an owner of large groups among other nodes.
    #[must_use]
    pub fn with_spread(mut self, spread: Arc<Spread>) -> Self {
        self.spread = Some(spread);
        self
    }

    /// What has its seq, for everybody in a large group but the connection that sent it.
    pub(crate) fn fan_out(&mut self, record: &Record, seq: u64, crowd: Crowd) {
        let Some((group, push)) = record.conversation().zip(push_of(record, seq)) else { return };
        let origin = &record.origin;
        let is_from_conn = matches!(record.body, Body::Message(_)) && origin.conn != ADMIN_CONN;
        let fan_out = pb::FanOut {
            conversation: group.to_string(),
            seq,
            push,
            member_seq: crowd.member_seq,
            large_from: crowd.from,
            change: matches!(&record.body, Body::Member(change) if moves_members(change.action)),
            node: if is_from_conn { origin.node.to_string() } else { String::new() },
            boot: origin.boot,
            conn: origin.conn,
            traceparent: traceparent(record.trace),
        };
        let bytes = fan_out.encode_to_vec().into();
        self.fans.push(Fan { group: group.clone(), seq, bytes, to_all: crowd.to_all });
    }

    /// A push for the members of a group that are here.
    pub(crate) fn crowd(&mut self, delivery: Delivery) {
        let shards = self.directory.conversation(&delivery.conversation);
        self.item(shards, Item::Push(delivery));
    }

    /// Of these users those who are here are members from here on.
    pub(crate) fn come(&mut self, group: &ConversationId, users: Arc<[UserId]>) {
        let here = self.those_here(&users);
        if !here.is_empty() {
            let shards = self.shards_of(&here);
            self.come_in(group, shards, &here);
        }
    }

    /// These users are no members from here on.
    pub(crate) fn go(&mut self, group: &ConversationId, users: Arc<[UserId]>) {
        let here = self.those_here(&users);
        if !here.is_empty() {
            let shards = self.shards_of(&here);
            self.item(shards, Item::Part(group.clone(), here));
        }
    }

    /// Of the members here only these are members from here on.
    pub(crate) fn keep(&mut self, group: &ConversationId, users: Arc<HashSet<UserId>>) {
        let shards = self.directory.conversation(group);
        self.item(shards, Item::Keep(group.clone(), users));
    }

    /// Pushes up to the seq were left out, for members or for some of them.
    pub(crate) fn behind(&mut self, group: &ConversationId, seq: u64, audience: Audience) {
        let shards = self.directory.conversation(group);
        self.item(shards, Item::Behind(Lag { conversation: group.clone(), max_seq: seq, audience }));
    }

    fn those_here(&self, users: &[UserId]) -> Arc<[UserId]> {
        users.iter().filter(|user| !self.directory.user(user).is_empty()).cloned().collect()
    }
}

/// Whether users come or go by it.
fn moves_members(action: MemberAction) -> bool {
    match action {
        MemberAction::Create
        | MemberAction::Join
        | MemberAction::Leave
        | MemberAction::Kick
        | MemberAction::Delete => true,
        MemberAction::Role | MemberAction::Settings | MemberAction::Mute | MemberAction::Unmute => false,
    }
}

/// The encoded `Push` of a record that has its seq.
fn push_of(record: &Record, seq: u64) -> Option<Bytes> {
    match &record.body {
        Body::Message(message) => PushFrame::from_parts(
            message.conversation.as_str(),
            seq,
            message.sender.as_str(),
            message.msg_id.as_str(),
            record.received_at,
            &message.content,
        )
        .push(),
        Body::Member(change) => Some(event_push(record.received_at, change, seq).encode_to_vec().into()),
        Body::Recall(recall) => Some(recall_push(record.received_at, recall, seq).encode_to_vec().into()),
        Body::Prune(_) | Body::Rules(_) => None,
    }
}
