//! Rows of the ledger's state, as the store keeps them, and the delta that one archive transaction writes.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::{
    code::Code,
    id::{ConversationId, DeviceId, UserId},
    record::{Body, Edit, Hash16, MemberChange, Message, Position, Role, Rules, truncated},
};

/// Head of a conversation: its last seq, counts and settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Last assigned seq.
    pub last_seq: u64,
    /// Number of seqs that are messages, which is the ordinal of the last message.
    pub messages: u64,
    /// Last seq that retention removed; 0: none.
    pub pruned_to: u64,
    /// Seq at which the group was deleted; 0: it exists.
    pub deleted_seq: u64,
    /// Settings of the group.
    pub settings: Arc<BTreeMap<String, String>>,
}

/// Present or former member of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Role of the user.
    pub role: Role,
    /// First seq of the current (or last) stay: that of the join; 1 in a direct conversation, and where the group's
    /// settings gave the new member all earlier history.
    pub joined_seq: u64,
    /// Seq at which the user left; 0: is a member.
    pub left_seq: u64,
    /// Number of the conversation's messages that the user sent.
    pub sent: u64,
    /// Number of messages before the current (or last) join; they never count as unread.
    pub joined_messages: u64,
    /// Number of messages when the user left; 0: is a member.
    pub left_messages: u64,
    /// Number of earlier [`Stay`]s.
    pub stays: u32,
    /// Whether the user is muted. Ends with the membership: a user who joins again is not muted.
    pub muted: bool,
}

/// Ended membership of a user; the member's row no longer has it once the user has joined again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stay {
    /// First seq, from [`Member::joined_seq`]; several stays may have the same one.
    pub joined_seq: u64,
    /// Seq of the change that ended the membership.
    pub left_seq: u64,
    /// Number of messages when the user joined.
    pub joined_messages: u64,
    /// Number of messages at `left_seq`.
    pub left_messages: u64,
}

impl Member {
    /// Returns whether the user is a member now.
    pub const fn is_in(&self) -> bool {
        self.left_seq == 0
    }

    /// Creates the row of a user who joins for the first time.
    pub(super) const fn new(role: Role, joined_seq: u64, joined_messages: u64) -> Self {
        Self {
            role,
            joined_seq,
            left_seq: 0,
            sent: 0,
            joined_messages,
            left_messages: 0,
            stays: 0,
            muted: false,
        }
    }

    /// Returns the ended stay, `None` while the user is a member.
    pub(super) fn stay(&self) -> Option<Stay> {
        (!self.is_in()).then_some(Stay {
            joined_seq: self.joined_seq,
            left_seq: self.left_seq,
            joined_messages: self.joined_messages,
            left_messages: self.left_messages,
        })
    }
}

/// Order state of a device in one conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Newest connection epoch in the log.
    pub epoch: u64,
    /// Next number of the chain in that epoch.
    pub next_n: u64,
}

/// Dedup key of a decided id: accepted, or refused permanently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Assigned seq; 0 if the id was refused.
    pub seq: u64,
    /// Receive time of the deciding record, which is the time of the ack.
    pub time: u64,
    /// Hash of the content.
    pub body_hash: Hash16,
    /// Offset of the deciding record.
    pub offset: u64,
    /// Code of the refusal, `None` if the id was accepted.
    pub refused: Option<Code>,
}

/// Part of a history row that the ledger needs for recalls and edits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowHead {
    /// Sender of the message, `None` if the row is not a message.
    pub sender: Option<UserId>,
    /// Seq and receive time of its recall.
    pub recalled: Option<(u64, u64)>,
    /// Whether it is a message whose content is not stored, so that there is nothing to edit.
    pub is_transient: bool,
}

/// Accepted record in the history of its conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Seq in the conversation.
    pub seq: u64,
    /// Number of messages in the conversation up to and including this row.
    pub ordinal: u64,
    /// Number of the sender's messages up to and including this row; 0 if the row is not a message. Those that are
    /// not [`Message::is_own`] do not count.
    pub own: u64,
    /// Receive time of the broker.
    pub time: u64,
    /// Offset of the record in the log.
    pub offset: u64,
    /// Message, change, recall or edit; a transient message and an edit have no content here.
    pub body: Body,
}

/// Edited message, whose row gets another content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edited {
    /// Conversation of the message.
    pub conversation: ConversationId,
    /// Seq of the message.
    pub seq: u64,
    /// Seq and receive time of the edit.
    pub at: (u64, u64),
    /// New content, encoded.
    pub content: Bytes,
}

/// Recalled message, which loses its content but keeps its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recalled {
    /// Conversation of the message.
    pub conversation: ConversationId,
    /// Seq of the message.
    pub seq: u64,
    /// Seq and receive time of the recall.
    pub by: (u64, u64),
}

/// Conversation whose oldest rows a `Prune` has removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pruned {
    /// Conversation of the rows.
    pub conversation: ConversationId,
    /// Last removed seq.
    pub up_to: u64,
    /// Offset of the record in the log.
    pub offset: u64,
    /// Receive time of the record.
    pub time: u64,
}

/// Changes that the archive writes in one transaction, `WHERE fence = mine AND position = from`.
///
/// Rows are complete new values (upserts). `rows` are always new: if a (conversation, seq) already exists, the log or
/// the store has been replaced, and the partition must stop with an error. Apply `rows` before `edited`, and that in its order
/// before `recalled`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta {
    /// Required position of the store before the transaction.
    pub from: Position,
    /// Position of the store after the transaction.
    pub to: Position,
    /// Rules in force at `to`. Keys below `rules.keys_from` may be dropped from the store at any time.
    pub rules: Rules,
    /// New history rows, in log order.
    pub rows: Vec<Row>,
    /// Messages that get another content, in log order.
    pub edited: Vec<Edited>,
    /// Messages that lose their content.
    pub recalled: Vec<Recalled>,
    /// Pruned conversations, in log order; one that was pruned several times is there as often.
    pub pruned: Vec<Pruned>,
    /// Changed heads.
    pub heads: Vec<(ConversationId, Head)>,
    /// Changed members.
    pub members: Vec<(ConversationId, UserId, Member)>,
    /// Ended stays of users who joined again; the store keeps them permanently, in addition to the member's row.
    pub stays: Vec<(ConversationId, UserId, Stay)>,
    /// Changed devices.
    pub devices: Vec<(ConversationId, UserId, DeviceId, Device)>,
    /// Keys of decided ids. There is one key per id: the newest decision replaces an older one.
    pub keys: Vec<(Hash16, Key)>,
}

impl Delta {
    /// Creates the move of the position without changes, with rules that compare with all keys.
    pub fn new(from: Position, to: Position) -> Self {
        Self {
            from,
            to,
            rules: Rules::default(),
            rows: Vec::new(),
            edited: Vec::new(),
            recalled: Vec::new(),
            pruned: Vec::new(),
            heads: Vec::new(),
            members: Vec::new(),
            stays: Vec::new(),
            devices: Vec::new(),
            keys: Vec::new(),
        }
    }
}

/// Name of a row that is not cached.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Need {
    /// A [`Head`].
    Head(ConversationId),
    /// A [`Member`].
    Member(ConversationId, UserId),
    /// A [`Device`].
    Device(ConversationId, UserId, DeviceId),
    /// A [`Key`].
    Key(Hash16),
    /// A [`RowHead`].
    Row(ConversationId, u64),
}

/// Row that the store returned for a [`Need`]; `None` if there is no such row, which is cached too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// Row for [`Need::Head`].
    Head(ConversationId, Option<Head>),
    /// Row for [`Need::Member`].
    Member(ConversationId, UserId, Option<Member>),
    /// Row for [`Need::Device`].
    Device(ConversationId, UserId, DeviceId, Option<Device>),
    /// Row for [`Need::Key`].
    Key(Hash16, Option<Key>),
    /// Row for [`Need::Row`].
    Row(ConversationId, u64, Option<RowHead>),
}

/// Outcome of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The record was added to the history.
    Accepted {
        /// Assigned seq.
        seq: u64,
        /// Ordinal among the messages; of the last message before it, if the record is not a message.
        ordinal: u64,
        /// Receive time of the record, which the ack reports.
        time: u64,
    },
    /// The record was accepted before and gets the same ack again.
    Duplicate {
        /// Seq that was assigned then.
        seq: u64,
        /// Time of the first ack.
        time: u64,
    },
    /// The record is refused.
    Refused {
        /// Code of the refusal.
        code: Code,
    },
    /// The id was refused permanently before and gets the same refusal, whatever is allowed now.
    ///
    /// The content needs a new id.
    RefusedBefore {
        /// Code of the first refusal.
        code: Code,
    },
    /// The record comes from a connection that a newer one of the same device has replaced.
    ///
    /// The client never gets this: the origin takes an epoch above `newest` and appends once more, if the client is
    /// still connected.
    Void {
        /// Newest epoch of the device in this conversation.
        newest: u64,
    },
    /// The record changed something that has no seq (`Prune`, `Rules`).
    Noted,
}

/// Reason why the ledger stops. Nothing has changed; the record was not applied and gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// Rows are not cached: load the rows of [`Ledger::needs`](super::Ledger::needs), then apply again.
    #[error("rows must be loaded first")]
    Missing,
    /// The offset is not above the last one.
    #[error("offset {got} is below the next one, {next}")]
    OutOfOrder {
        /// Lowest valid offset.
        next: u64,
        /// Offset of the record.
        got: u64,
    },
    /// The rules have a version that this node does not implement: release the partition.
    #[error(
        "RULES_UNKNOWN: the partition has version {0} of the ledger's rules, unknown to this tidegate; run the \
         version that the other nodes run"
    )]
    UnknownRules(u32),
    /// The store is at a position that this owner did not write: it lost the partition, or the store was rolled back.
    /// Stop and answer nothing.
    #[error("store is at a position that this owner did not write")]
    NotMine,
}

/// Returns the key of a message: 16 bytes of SHA-256 over (conversation, sender, device, msg_id).
///
/// Among 10^12 keys, two collide with probability 10^-15; constructing a collision takes 2^64 hashes. Even then nothing
/// is lost silently: the contents differ, so every owner refuses the second message as a conflict.
pub fn message_key(message: &Message) -> Hash16 {
    let (sender, device) = (message.sender.as_str(), message.device.as_str());
    hash(b"m", [message.conversation.as_str(), sender, device, message.msg_id.as_str()])
}

/// Returns the key of a membership request: like [`message_key`], over (conversation, by, request_id).
pub fn request_key(change: &MemberChange) -> Hash16 {
    let by = change.by.as_ref().map_or("", UserId::as_str);
    hash(b"q", [change.conversation.as_str(), by, change.request_id.as_str(), ""])
}

/// Returns the key of an edit: like [`message_key`], over (conversation, by, device, msg_id).
pub fn edit_key(edit: &Edit) -> Hash16 {
    let by = edit.by.as_ref().map_or("", UserId::as_str);
    hash(b"e", [edit.conversation.as_str(), by, edit.device.as_str(), edit.msg_id.as_str()])
}

fn hash(domain: &[u8], parts: [&str; 4]) -> Hash16 {
    // Ids and conversation keys contain no spaces, so the parts are unambiguous.
    let mut hasher = Sha256::new_with_prefix(domain);
    for part in parts {
        hasher.update(part);
        hasher.update(b" ");
    }
    truncated(hasher.finalize().into())
}
