//! What the durable log carries: typed, checked records, and the positions between them.
//!
//! A record that does not decode voids only itself: the owner skips and counts it ([`RecordError`] says why). All
//! checks here depend on the bytes alone, so every owner skips the same ones.

mod decode;

use std::{collections::BTreeMap, fmt};

use bytes::Bytes;
use prost::Message as _;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use self::decode::RecordError;
use crate::{
    id::{ConversationId, DeviceId, MsgId, NodeId, UserId},
    pb,
    trace::TraceContext,
};

/// The version of the record schema that this crate writes and reads.
pub const RECORD_VERSION: u32 = 1;
/// The most users that one [`MemberChange`] may name.
pub const USERS_MAX: usize = 1_000;
/// The most settings that a group may have, and that one change may name.
pub const SETTINGS_MAX: usize = 64;
/// The longest value of a setting, in bytes.
pub const SETTING_BYTES_MAX: usize = 4_096;
/// The longest content of a message, in bytes.
pub const CONTENT_BYTES_MAX: usize = 1 << 20;

/// The first 16 bytes of a SHA-256.
pub type Hash16 = [u8; 16];

/// The hash that tells a retry from a conflict: over the client's content, before any hook.
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
    /// Who appended it.
    pub origin: Origin,
    /// The broker's receive time in ms since 1970: shown to people, never used to decide (flaws S16, S32).
    pub received_at: u64,
    /// What it says.
    pub body: Body,
    /// How its steps are found again, where they are noted; never used to decide.
    pub trace: Option<TraceContext>,
}

/// Who appended a record, so that the owner can answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The node.
    pub node: NodeId,
    /// Its boot.
    pub boot: u64,
    /// The conn there.
    pub conn: u64,
    /// The request, as the node numbers it.
    pub request: u64,
}

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Somebody says something.
    Message(Message),
    /// A group or its membership changes.
    Member(MemberChange),
    /// A message is taken back.
    Recall(Recall),
    /// Retention takes the beginning of a conversation away.
    Prune(Prune),
    /// The rules of the ledger change.
    Rules(RuleChange),
}

/// Where in its own order a device stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderOrder {
    /// The conn epoch: rises with every connection of the device.
    pub epoch: u64,
    /// The number in the chain of this epoch and conversation, from 0.
    pub n: u64,
    /// Whether `n` counts.
    pub chained: bool,
}

/// Somebody says something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Where; never a room.
    pub conversation: ConversationId,
    /// Who.
    pub sender: UserId,
    /// With which device.
    pub device: DeviceId,
    /// The sender's name for it.
    pub msg_id: MsgId,
    /// 0 for the first time; more when the id may have been sent before.
    pub attempt: u32,
    /// An encoded [`crate::content::Content`], as it goes out.
    pub content: Bytes,
    /// Where in its own order the device stands.
    pub order: SenderOrder,
    /// As the client set them.
    pub flags: u32,
    /// [`body_hash`] of what the client sent.
    pub body_hash: Hash16,
}

/// What happens to a group. In JSON, its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberAction {
    /// The group begins, with these members; `by` becomes its owner.
    Create,
    /// Users come in.
    Join,
    /// Users go by their own will.
    Leave,
    /// Users are removed.
    Kick,
    /// Users get another role.
    Role,
    /// Settings change.
    Settings,
    /// The group ends, for good: its id is not used again.
    Delete,
    /// Users may not talk any more.
    Mute,
    /// Users may talk again.
    Unmute,
}

/// What a member may do; more to the right. In JSON, its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Talks.
    Member,
    /// Also adds, removes and mutes members, and changes settings.
    Admin,
    /// Also acts on admins and owners, and ends the group.
    Owner,
}

impl Role {
    /// All of them, the least first.
    pub const ALL: [Self; 3] = [Self::Member, Self::Admin, Self::Owner];

    /// The word for it, as clients and the admin API say it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Member => "member",
            Self::Admin => "admin",
            Self::Owner => "owner",
        }
    }

    /// The role with that word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.word() == word)
    }
}

/// A group or its membership changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberChange {
    /// Always a group.
    pub conversation: ConversationId,
    /// What happens.
    pub action: MemberAction,
    /// To whom; at most [`USERS_MAX`], each once.
    pub users: Vec<UserId>,
    /// The role they get.
    pub role: Option<Role>,
    /// Who did it; none for the admin API.
    pub by: Option<UserId>,
    /// Merged into the present ones; an empty value removes.
    pub settings: BTreeMap<String, String>,
    /// Idempotency key, per (conversation, by).
    pub request_id: MsgId,
}

/// A message is taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recall {
    /// Where.
    pub conversation: ConversationId,
    /// Which.
    pub seq: u64,
    /// Who did it; none for the admin API.
    pub by: Option<UserId>,
}

/// Retention takes the beginning of a conversation away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prune {
    /// Where.
    pub conversation: ConversationId,
    /// Everything up to and including this is gone.
    pub up_to: u64,
}

/// The rules of the ledger, in force from the record on that carries them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The version of the function.
    pub ledger_version: u32,
    /// `attempt = 0` is compared with the keys of this many last positions; 0 = all.
    pub dedup_window: u64,
    /// Keys of records below this offset are forgotten. Never falls.
    pub keys_from: u64,
}

/// What a `Rules` record asks for. None can undo another, in whichever order they come: the version and `keys_from` only rise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleChange {
    /// At least this version is in force from here on; 1 = as before.
    pub ledger_version: u32,
    /// As [`Rules::dedup_window`]; none = as before (under version 1: 0).
    pub dedup_window: Option<u64>,
    /// As [`Rules::keys_from`]; 0 = as before.
    pub keys_from: u64,
}

impl Default for RuleChange {
    /// Changes nothing.
    fn default() -> Self {
        Self { ledger_version: 1, dedup_window: None, keys_from: 0 }
    }
}

impl Default for Rules {
    /// What holds before the first `Rules` record.
    fn default() -> Self {
        Self { ledger_version: 1, dedup_window: 0, keys_from: 0 }
    }
}

/// A place between two records of a partition: all records below `offset` are behind it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Position {
    /// The offset of the next record (at the least: a log may have gaps).
    pub offset: u64,
    /// The hash of the last record behind, zeros when there is none: tells when the log was replaced.
    pub hash: Hash16,
}

impl Position {
    /// Before everything.
    pub const START: Self = Self { offset: 0, hash: [0; 16] };

    /// The place right behind the record with these bytes.
    pub fn behind(offset: u64, record: &[u8]) -> Self {
        Self { offset: offset.saturating_add(1), hash: body_hash(record) }
    }

    /// Whether a log whose record at `self.offset - 1` reads `last` is still the one this position was taken in.
    /// A new owner asks before it starts; no means `LOG_REPLACED`, never a reset.
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

impl Record {
    /// The conversation that the record is about; none for `Rules`, which go to every partition.
    pub fn conversation(&self) -> Option<&ConversationId> {
        self.body.conversation()
    }

    /// The bytes for the log.
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
    /// The conversation that this is about; none for `Rules`.
    pub fn conversation(&self) -> Option<&ConversationId> {
        match self {
            Self::Message(it) => Some(&it.conversation),
            Self::Member(it) => Some(&it.conversation),
            Self::Recall(it) => Some(&it.conversation),
            Self::Prune(it) => Some(&it.conversation),
            Self::Rules(_) => None,
        }
    }

    fn to_pb(&self) -> pb::record::Body {
        match self {
            Self::Message(it) => pb::record::Body::Message(it.to_pb()),
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
            flags: self.flags,
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

    /// Tells a repeated request from another one under the same id.
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
