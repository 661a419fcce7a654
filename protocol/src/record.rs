//! Records of the durable log, typed and validated, and log positions.
//!
//! A record that can't be decoded voids only itself: the owner quarantines and counts it ([`RecordError`] is the
//! reason). All checks depend on the bytes alone, so every owner skips the same records.

mod decode;
mod edit;
pub mod mode;

use std::{collections::BTreeMap, fmt};

use bytes::Bytes;
use prost::Message as _;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use self::{
    decode::RecordError,
    edit::Edit,
    mode::{MessageMode, flag_words},
};
use crate::{
    id::{ConversationId, DeviceId, MsgId, NodeId, UserId},
    pb,
    trace::TraceContext,
};

/// Version of the record schema that this crate writes and reads.
pub const RECORD_VERSION: u32 = 1;
/// Maximum number of users in one [`MemberChange`].
pub const USERS_MAX: usize = 1_000;
/// Maximum number of settings of a group, and of one change.
pub const SETTINGS_MAX: usize = 64;
/// Maximum value of a setting, in bytes.
pub const SETTING_BYTES_MAX: usize = 4_096;
/// Maximum content of a message, in bytes.
pub const CONTENT_BYTES_MAX: usize = 1 << 20;

/// First 16 bytes of a SHA-256.
pub type Hash16 = [u8; 16];

/// Returns the hash that distinguishes a retry from a conflict: over the client's content, before any hook.
pub fn body_hash(content: &[u8]) -> Hash16 {
    truncated(Sha256::digest(content).into())
}

pub(crate) fn truncated(full: [u8; 32]) -> Hash16 {
    let mut short = Hash16::default();
    short.copy_from_slice(&full[..16]);
    short
}

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Node, connection and request that appended the record.
    pub origin: Origin,
    /// Receive time of the broker, in ms since 1970: for display only, never used to decide (flaws S16, S32).
    pub received_at: u64,
    /// Payload of the record.
    pub body: Body,
    /// Trace context, if the steps of this message are recorded; never used to decide.
    pub trace: Option<TraceContext>,
}

/// Origin of a record, which the owner's answer goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Id of the node.
    pub node: NodeId,
    /// Boot id of the node's run.
    pub boot: u64,
    /// Id of the connection on that node.
    pub conn: u64,
    /// Number of the request, assigned by the node.
    pub request: u64,
}

/// Payload of a record, by kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A message.
    Message(Message),
    /// A change of a group or its membership.
    Member(MemberChange),
    /// A recall of a message.
    Recall(Recall),
    /// A replacement of a message's content.
    Edit(Edit),
    /// A removal of a conversation's oldest entries by retention.
    Prune(Prune),
    /// A change of the ledger's rules.
    Rules(RuleChange),
}

/// Position of a message in the order of its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderOrder {
    /// Epoch of the connection; rises with every connection of the device.
    pub epoch: u64,
    /// Number in the chain of this epoch and conversation, from 0.
    pub n: u64,
    /// Whether the message is chained; otherwise `n` is ignored.
    pub chained: bool,
}

impl SenderOrder {
    /// Position of a message that no session of a client sends: no epoch is newer, so a row that a session left makes it not
    /// void. It is half of the range, because stores keep signed numbers.
    pub const WITHOUT_SESSION: Self = Self { epoch: u64::MAX >> 1, n: 0, chained: false };
}

/// Message to a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Conversation, never a room.
    pub conversation: ConversationId,
    /// Sending user.
    pub sender: UserId,
    /// Sending device.
    pub device: DeviceId,
    /// Id that the sender chose.
    pub msg_id: MsgId,
    /// Attempt number: 0 at first, higher if the id may have been sent before.
    pub attempt: u32,
    /// Encoded [`crate::content::Content`], as receivers get it.
    pub content: Bytes,
    /// Position in the device's order.
    pub order: SenderOrder,
    /// Flags, as the client set them. [`Self::mode`] says which of them are in force.
    pub flags: u32,
    /// Mode by which the ledger decides.
    pub mode: MessageMode,
    /// [`body_hash`] of the content that the client sent.
    pub body_hash: Hash16,
}

/// Kind of a change of a group; in JSON, its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberAction {
    /// Create the group with these members; `by` becomes its owner.
    Create,
    /// Add users.
    Join,
    /// Remove users at their own request.
    Leave,
    /// Remove users at another's request.
    Kick,
    /// Give users another role.
    Role,
    /// Change settings.
    Settings,
    /// Delete the group permanently: its id is never used again.
    Delete,
    /// Forbid users to send messages.
    Mute,
    /// Allow muted users to send messages again.
    Unmute,
}

/// Role of a member, in ascending order of rights; in JSON, its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Sends messages.
    Member,
    /// Also adds, removes and mutes members, and changes settings.
    Admin,
    /// Also acts on admins and owners, and deletes the group.
    Owner,
}

impl Role {
    /// All roles, in ascending order of rights.
    pub const ALL: [Self; 3] = [Self::Member, Self::Admin, Self::Owner];

    /// Returns the word that clients and the admin API use for the role.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Member => "member",
            Self::Admin => "admin",
            Self::Owner => "owner",
        }
    }

    /// Returns the role with this word, `None` if there is none.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.word() == word)
    }
}

/// Change of a group or its membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberChange {
    /// Conversation, always a group.
    pub conversation: ConversationId,
    /// Kind of the change.
    pub action: MemberAction,
    /// Affected users, at most [`USERS_MAX`], each once.
    pub users: Vec<UserId>,
    /// New role of the users.
    pub role: Option<Role>,
    /// User who requested the change, `None` for the admin API.
    pub by: Option<UserId>,
    /// Settings to merge into the present ones; an empty value removes a setting.
    pub settings: BTreeMap<String, String>,
    /// Idempotency key, per (conversation, by).
    pub request_id: MsgId,
}

/// Recall of a message for all users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recall {
    /// Conversation of the message.
    pub conversation: ConversationId,
    /// Seq of the message.
    pub seq: u64,
    /// User who recalls it, `None` for the admin API.
    pub by: Option<UserId>,
}

/// Removal of a conversation's oldest entries by retention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prune {
    /// Conversation to prune.
    pub conversation: ConversationId,
    /// Last seq that is removed.
    pub up_to: u64,
}

/// Rules of the ledger, in force from the record that sets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Version of the ledger function.
    pub ledger_version: u32,
    /// Number of last positions whose keys a message with `attempt = 0` is compared with; 0: all positions.
    pub dedup_window: u64,
    /// Offset below which the keys of records are dropped. Never falls.
    pub keys_from: u64,
}

/// Change of the rules by a `Rules` record. The version and `keys_from` only rise, so no change undoes another in any
/// order (ADR 13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleChange {
    /// Minimum version in force from this record on; 1: unchanged.
    pub ledger_version: u32,
    /// New [`Rules::dedup_window`]; `None` leaves it unchanged (under version 1: sets it to 0).
    pub dedup_window: Option<u64>,
    /// New [`Rules::keys_from`]; 0: unchanged.
    pub keys_from: u64,
}

impl Default for RuleChange {
    /// Returns a change without effect.
    fn default() -> Self {
        Self { ledger_version: 1, dedup_window: None, keys_from: 0 }
    }
}

impl Default for Rules {
    /// Returns the rules in force before the first `Rules` record.
    fn default() -> Self {
        Self { ledger_version: 1, dedup_window: 0, keys_from: 0 }
    }
}

/// Position between two records of a partition; all records below `offset` are before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Position {
    /// Minimum offset of the next record; a log may have gaps.
    pub offset: u64,
    /// Hash of the last record before the position, zeros if there is none; reveals that the log was replaced.
    pub hash: Hash16,
}

impl Position {
    /// Start of a log.
    pub const START: Self = Self { offset: 0, hash: [0; 16] };

    /// Returns the position directly after the record with these bytes.
    pub fn behind(offset: u64, record: &[u8]) -> Self {
        Self { offset: offset.saturating_add(1), hash: body_hash(record) }
    }

    /// Returns whether this position belongs to a log whose record at `self.offset - 1` has the bytes `last`.
    ///
    /// A new owner checks this before it starts; a mismatch means `LOG_REPLACED`, never a reset.
    pub fn matches(&self, last: Option<&[u8]>) -> bool {
        match last {
            Some(bytes) => self.offset > 0 && self.hash == body_hash(bytes),
            None => *self == Self::START,
        }
    }
}

impl fmt::Debug for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, ..] = self.hash;
        write!(f, "{}#{a:02x}{b:02x}", self.offset)
    }
}

impl Rules {
    /// Returns whether users get the same refusal for a group that they are not in as for one that does not exist.
    pub(crate) const fn hides_groups(&self) -> bool {
        self.ledger_version >= 4
    }
}

impl Record {
    /// Returns the conversation of the record, `None` for `Rules`, which go to every partition.
    pub fn conversation(&self) -> Option<&ConversationId> {
        self.body.conversation()
    }

    /// Encodes the record for the log.
    pub fn encode(&self) -> Bytes {
        let origin = pb::Origin {
            node: self.origin.node.to_string(),
            boot: self.origin.boot,
            conn: self.origin.conn,
            request: self.origin.request,
        };
        let record = pb::Record {
            version: RECORD_VERSION,
            origin: Some(origin),
            received_at: self.received_at,
            body: Some(self.body.to_pb()),
            trace: self.trace.map_or_else(Bytes::new, |it| Bytes::copy_from_slice(&it.to_bytes())),
        };
        record.encode_to_vec().into()
    }
}

impl Body {
    /// Returns the conversation, `None` for `Rules`.
    pub fn conversation(&self) -> Option<&ConversationId> {
        match self {
            Self::Message(it) => Some(&it.conversation),
            Self::Member(it) => Some(&it.conversation),
            Self::Recall(it) => Some(&it.conversation),
            Self::Edit(it) => Some(&it.conversation),
            Self::Prune(it) => Some(&it.conversation),
            Self::Rules(_) => None,
        }
    }

    fn to_pb(&self) -> pb::record::Body {
        match self {
            Self::Message(it) if it.mode.is_ordinary() => pb::record::Body::Message(it.to_pb()),
            Self::Message(it) => pb::record::Body::ModedMessage(it.to_pb()),
            Self::Edit(it) => pb::record::Body::Edit(it.to_pb()),
            Self::Member(it) => pb::record::Body::Member(it.to_pb()),
            Self::Recall(it) => pb::record::Body::Recall(pb::RecallRecord {
                conversation: it.conversation.to_string(),
                seq: it.seq,
                by: it.by.as_ref().map(ToString::to_string).unwrap_or_default(),
            }),
            Self::Prune(it) => pb::record::Body::Prune(pb::PruneRecord {
                conversation: it.conversation.to_string(),
                up_to: it.up_to,
            }),
            Self::Rules(it) => pb::record::Body::Rules(pb::RulesRecord {
                ledger_version: it.ledger_version,
                dedup_window: it.dedup_window,
                keys_from: it.keys_from,
            }),
        }
    }
}

impl Message {
    /// Returns whether the message counts as unread, and has an ordinal.
    pub const fn counts(&self) -> bool {
        !self.mode.is_silent
    }

    /// Returns whether the message is one of its sender's own, which are no unread ones. A message of the operator is not, except
    /// in its own direct conversations: elsewhere it may have no row to count it in.
    pub fn is_own(&self) -> bool {
        self.counts() && (!self.mode.is_operator || self.conversation.is_direct_of(&self.sender))
    }

    /// Returns the flags that receivers get.
    pub const fn shown_flags(&self) -> u32 {
        self.mode.shown_flags(self.flags)
    }

    fn to_pb(&self) -> pb::MessageRecord {
        pb::MessageRecord {
            conversation: self.conversation.to_string(),
            sender: self.sender.to_string(),
            device: self.device.to_string(),
            msg_id: self.msg_id.to_string(),
            attempt: self.attempt,
            content: self.content.clone(),
            order: Some(pb::SenderOrder {
                epoch: self.order.epoch,
                n: self.order.n,
                chained: self.order.chained,
            }),
            flags: if self.mode.is_ordinary() { self.flags } else { self.mode.shown_flags(self.flags) },
            operator: self.mode.is_operator,
            denied: self.mode.denied.map_or(0, |code| code.number().into()),
            body_hash: Bytes::copy_from_slice(&self.body_hash),
        }
    }
}

impl MemberChange {
    fn to_pb(&self) -> pb::MemberRecord {
        pb::MemberRecord {
            conversation: self.conversation.to_string(),
            action: pb::MemberAction::from(self.action) as i32,
            users: self.users.iter().map(ToString::to_string).collect(),
            role: self.role.map_or(pb::Role::Unspecified, pb::Role::from) as i32,
            by: self.by.as_ref().map(ToString::to_string).unwrap_or_default(),
            settings: self.settings.clone(),
            request_id: self.request_id.to_string(),
        }
    }

    /// Returns the hash that distinguishes a repeated request from another one under the same id.
    pub fn body_hash(&self) -> Hash16 {
        // A BTreeMap encodes in key order and the rest is a list, so equal changes have equal bytes.
        body_hash(&self.to_pb().encode_to_vec())
    }
}

impl From<MemberAction> for pb::MemberAction {
    fn from(action: MemberAction) -> Self {
        match action {
            MemberAction::Create => Self::Create,
            MemberAction::Join => Self::Join,
            MemberAction::Leave => Self::Leave,
            MemberAction::Kick => Self::Kick,
            MemberAction::Role => Self::Role,
            MemberAction::Settings => Self::Settings,
            MemberAction::Delete => Self::Delete,
            MemberAction::Mute => Self::Mute,
            MemberAction::Unmute => Self::Unmute,
        }
    }
}

impl From<Role> for pb::Role {
    fn from(role: Role) -> Self {
        match role {
            Role::Member => Self::Member,
            Role::Admin => Self::Admin,
            Role::Owner => Self::Owner,
        }
    }
}
