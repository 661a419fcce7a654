//! The rows that make up the ledger's state, as the store keeps them, and what one archive transaction writes.

use std::{collections::BTreeMap, sync::Arc};

use sha2::{Digest, Sha256};

use crate::{
    code::Code,
    id::{ConversationId, DeviceId, UserId},
    record::{Body, Hash16, MemberChange, Message, Position, Role, Rules, truncated},
};

/// Where a conversation stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The last seq handed out.
    pub last_seq: u64,
    /// How many of the seqs are messages: the ordinal of the last message.
    pub messages: u64,
    /// Retention took everything up to and including this seq; 0 = nothing.
    pub pruned_to: u64,
    /// The seq at which the group ended; 0 = it lives.
    pub deleted_seq: u64,
    /// The group's settings.
    pub settings: Arc<BTreeMap<String, String>>,
}

/// A user in a conversation, or who was in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// What the user may do.
    pub role: Role,
    /// The first seq that the user (last) came in to: of the change itself, 1 in a direct conversation and where the
    /// group's settings gave the newcomer everything that was said before.
    pub joined_seq: u64,
    /// The seq at which the user went; 0 = is in.
    pub left_seq: u64,
    /// How many of the conversation's messages are the user's own.
    pub sent: u64,
    /// How many messages the conversation had when the user (last) came in: those the user has no part in.
    pub joined_messages: u64,
    /// How many it had when the user went; 0 = is in.
    pub left_messages: u64,
    /// How many times the user was in before and went: the count of [`Stay`]s.
    pub stays: u32,
    /// Whether the user may not talk. Ends with the membership: who comes back may.
    pub muted: bool,
}

/// A time that a user was in a conversation, and over: what the member's row forgets when the user comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stay {
    /// As [`Member::joined_seq`] was; those of several stays may be the same.
    pub joined_seq: u64,
    /// The seq of the change that took the user out.
    pub left_seq: u64,
    /// How many messages the conversation had when the user came in.
    pub joined_messages: u64,
    /// How many it had at `left_seq`.
    pub left_messages: u64,
}

impl Member {
    /// Whether the user is in the conversation now.
    pub const fn is_in(&self) -> bool {
        self.left_seq == 0
    }

    /// The row of a user who comes in now for the first time.
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

    /// The time that is over, if the user has left.
    pub(super) fn stay(&self) -> Option<Stay> {
        (!self.is_in()).then_some(Stay {
            joined_seq: self.joined_seq,
            left_seq: self.left_seq,
            joined_messages: self.joined_messages,
            left_messages: self.left_messages,
        })
    }
}

/// Where a device stands in its own order, in one conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// The newest conn epoch seen.
    pub epoch: u64,
    /// The next number of the chain in that epoch.
    pub next_n: u64,
}

/// What is remembered of an id that was decided: accepted, or refused for good as part of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The seq it got; 0 when it was refused.
    pub seq: u64,
    /// The receive time of the record that decided; the one it was acked with.
    pub time: u64,
    /// The hash of the content.
    pub body_hash: Hash16,
    /// The offset of the record that decided.
    pub offset: u64,
    /// Why it was refused; none when it was accepted.
    pub refused: Option<Code>,
}

/// What the ledger must know of a row of history, for recalls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowHead {
    /// Who sent it; none when the row is not a message.
    pub sender: Option<UserId>,
    /// The seq and receive time of its recall.
    pub recalled: Option<(u64, u64)>,
}

/// An accepted record in the history of its conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its seq.
    pub seq: u64,
    /// How many messages the conversation has up to and including this row.
    pub ordinal: u64,
    /// How many messages the sender has in it up to and including this row; 0 when this is no message.
    pub own: u64,
    /// The broker's receive time.
    pub time: u64,
    /// The offset of the record in the log.
    pub offset: u64,
    /// The message, change or recall.
    pub body: Body,
}

/// A message that was recalled: its content goes, its row stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recalled {
    /// Where.
    pub conversation: ConversationId,
    /// The message that goes.
    pub seq: u64,
    /// The seq and receive time of the recall.
    pub by: (u64, u64),
}

/// What the archive writes in one transaction, `WHERE fence = mine AND position = from`.
///
/// Rows are complete new values (upserts); `rows` are always new, so a (conversation, seq) that is there already
/// means that the log or the store is not what it was: stop the partition, loudly. Apply `rows` before `recalled`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta {
    /// The position that the store must be at.
    pub from: Position,
    /// The position that it is at afterwards.
    pub to: Position,
    /// The rules in force at `to`. Keys below `rules.keys_from` may be dropped from the store, at any time.
    pub rules: Rules,
    /// New history, in log order.
    pub rows: Vec<Row>,
    /// Messages that lose their content.
    pub recalled: Vec<Recalled>,
    /// Conversations and the seq up to which their history is gone.
    pub pruned: Vec<(ConversationId, u64)>,
    /// Heads that changed.
    pub heads: Vec<(ConversationId, Head)>,
    /// Members that changed.
    pub members: Vec<(ConversationId, UserId, Member)>,
    /// Stays of users who came back: new ones, to be kept beside the member's row for ever.
    pub stays: Vec<(ConversationId, UserId, Stay)>,
    /// Devices that changed.
    pub devices: Vec<(ConversationId, UserId, DeviceId, Device)>,
    /// Ids that were decided. One key per id: the newest decision replaces an older one.
    pub keys: Vec<(Hash16, Key)>,
}

/// The name of a row that memory does not have.
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

/// What the store said about a [`Need`]; `None` = not there, which is worth knowing too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// For [`Need::Head`].
    Head(ConversationId, Option<Head>),
    /// For [`Need::Member`].
    Member(ConversationId, UserId, Option<Member>),
    /// For [`Need::Device`].
    Device(ConversationId, UserId, DeviceId, Option<Device>),
    /// For [`Need::Key`].
    Key(Hash16, Option<Key>),
    /// For [`Need::Row`].
    Row(ConversationId, u64, Option<RowHead>),
}

/// The ledger's answer to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is in the history now.
    Accepted {
        /// Its seq.
        seq: u64,
        /// Its ordinal among the messages (of the last message before it, when it is none itself).
        ordinal: u64,
        /// The time to tell: that of the record.
        time: u64,
    },
    /// It was accepted before: the same ack again.
    Duplicate {
        /// The seq it got then.
        seq: u64,
        /// The time it was acked with then.
        time: u64,
    },
    /// It is not accepted.
    Refused {
        /// Why.
        code: Code,
    },
    /// It was refused for good before: the same refusal again, whatever is allowed by now. Its content needs a new id.
    RefusedBefore {
        /// Why then.
        code: Code,
    },
    /// It comes from a conn that a newer one of the same device has replaced. Never told to the client: the origin
    /// takes an epoch above `newest` and appends once more, if it still has the client.
    Void {
        /// The newest epoch seen of the device in this conversation.
        newest: u64,
    },
    /// It changed something that has no seq (`Prune`, `Rules`).
    Noted,
}

/// Why the ledger does not go on. Nothing has changed; the record was not applied and gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// Memory can't decide it: load what `needs` names, then apply again.
    #[error("rows must be loaded first")]
    Missing,
    /// The offset is not above the last one.
    #[error("offset {got} is below the next one, {next}")]
    OutOfOrder {
        /// The lowest offset that can come.
        next: u64,
        /// The one that came.
        got: u64,
    },
    /// Rules of a ledger that this node does not know: give the partition up.
    #[error(
        "RULES_UNKNOWN: it is under version {0} of the ledger's rules, which this tidegate does not know; run the version \
         that the other nodes run"
    )]
    UnknownRules(u32),
    /// The store is at a position that this owner did not put it at: it is not the owner any more (or the store was
    /// rolled back). Stop and answer nothing.
    #[error("the store is at a position of somebody else")]
    NotMine,
}

/// The key of a message: 16 bytes of SHA-256 over (conversation, sender, device, msg_id).
///
/// Among 10^12 keys two collide with probability 10^-15, and to make two on purpose takes 2^64 hashes. Even then
/// nothing is lost silently: the contents differ, so the second one is refused as a conflict, by every owner alike.
pub fn message_key(it: &Message) -> Hash16 {
    hash(b"m", [it.conversation.as_str(), it.sender.as_str(), it.device.as_str(), it.msg_id.as_str()])
}

/// The key of a membership request: like [`message_key`], over (conversation, by, request_id).
pub fn request_key(it: &MemberChange) -> Hash16 {
    let by = it.by.as_ref().map_or("", UserId::as_str);
    hash(b"q", [it.conversation.as_str(), by, it.request_id.as_str(), ""])
}

fn hash(domain: &[u8], parts: [&str; 4]) -> Hash16 {
    // Ids and conversation keys are free of spaces, so the parts can't run into each other.
    let mut hasher = Sha256::new_with_prefix(domain);
    for part in parts {
        hasher.update(part);
        hasher.update(b" ");
    }
    truncated(hasher.finalize().into())
}
