//! Mail: the messages from other threads to a shard, its mailbox, and the handle that posts to it.
//!
//! A mailbox has three lanes, each bounded. Frames of live rooms have one of their own, so that a busy room fills only
//! that. When the common lane is full, the owner turns pushes into `Behind` and waits with other mail. A shard never
//! waits for another: room frames are shed and counted, other mail comes from the owner. Bytes are charged until the
//! shard takes the mail; after that the limits of its hub apply (`shard/hub.rs`).

use std::{
    collections::HashSet,
    ops::RangeInclusive,
    sync::{Arc, OnceLock, atomic::AtomicUsize},
};

use prost::Message as _;
use tidegate_protocol::{
    Code,
    codec::PushFrame,
    id::{ConversationId, DeviceId, RoomId, UserId},
    machine::{drain::Pace, session::SubmitAnswer},
    pb,
    settings::UserSettings,
};
use tokio::{sync::oneshot, time};

mod connections;
mod delivery;
mod handle;

pub use connections::ConnectionOrder;
pub use delivery::PresenceFrame;
pub use handle::{Mailbox, ShardHandle, mailbox};

use crate::{
    auth::{Grants, TokenIdentity, TokenTerm},
    config::AllowAction,
    hooks::{AppReason, BeforeVerdict, HookVerdict, LoginFault},
    link::RoutedSession,
    net::upgrade::AssignAsked,
    priorities::CLASS_MAX,
    routes::{NodeBoot, Route, RoutesError},
    scratch::ChainState,
};

/// Most mails that wait in one mailbox.
pub const MAILBOX_MAX: usize = 4_096;

/// Most urgent mails that wait for one shard.
const URGENT_MAX: usize = 1_024;

/// Most mails with room frames that wait for one shard.
const ROOM_MAILS_MAX: usize = 1_024;

/// Part of a mailbox's bytes that room frames may take, in addition to those of other mail.
const ROOM_BYTES_DIVISOR: usize = 4;

/// Bytes that an id, a count or a position counts in a mail.
const ENTRY_BYTES: usize = 64;

/// Key of one connection, unique on this node while the process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnKey {
    /// Index of its shard.
    pub shard: u8,
    /// Slot in the shard's slab.
    pub slot: u32,
    /// Number of earlier uses of the slot (24 bits), so that a late answer can't reach a later connection.
    pub generation: u32,
}

impl ConnKey {
    /// Packs the key into one number, for the origin of records.
    pub fn pack(self) -> u64 {
        u64::from(self.shard) << 56 | u64::from(self.generation & 0xff_ffff) << 32 | u64::from(self.slot)
    }

    /// Unpacks a packed key.
    pub fn unpack(packed: u64) -> Self {
        let byte = |shift: u32, mask: u64| (packed >> shift & mask) as u32;
        Self { shard: (packed >> 56) as u8, slot: byte(0, 0xffff_ffff), generation: byte(32, 0xff_ffff) }
    }
}

/// Handles of all shards, set once all of them exist.
pub type ShardHandles = Arc<OnceLock<Vec<ShardHandle>>>;

/// Purpose of a token that is being checked.
#[derive(Clone)]
pub enum TokenUse {
    /// Login of a device.
    Login {
        /// Device, as the client named it.
        device: String,
        /// Time at which the client's hello was handled.
        asked_at: time::Instant,
    },
    /// Refresh of the connection's token, by this frame.
    Refresh(u64),
    /// Answer to this assign request.
    Assign(AssignAsked),
}

/// Outcome of a login whose route is registered.
#[derive(Debug)]
pub struct LoginDone {
    /// Registered row, with the token that alone may delete it.
    pub route: Route,
    /// Older sessions on this node, of this device and others, that it replaces.
    pub replaced: Vec<RoutedSession>,
    /// Saved state of the device's chain, if there is one.
    pub chain: Option<ChainState>,
    /// Rights of the token; `None` if it names none.
    pub grants: Option<Arc<Grants>>,
    /// Times of the token.
    pub term: TokenTerm,
    /// Settings of the user: those of this login, and stored ones for the rest.
    pub settings: UserSettings,
}

/// Reason why a login can't be completed now.
#[derive(Debug)]
pub struct LoginError {
    /// Code for the client.
    pub code: Code,
    /// Text for the client.
    pub reason: &'static str,
}

/// Result of a client's query.
#[derive(Debug)]
pub enum QueryResult {
    /// Page of a history.
    Page(Box<pb::Page>),
    /// States of conversations, and the conversation to continue after, if there may be more.
    States(Vec<pb::ConversationState>, Option<ConversationId>),
    /// Positions of conversations that differ from the client's, and the conversation after which the next such query
    /// continues.
    Positions(Vec<pb::Position>, Option<ConversationId>),
    /// Ack of a record that got a seq.
    Accepted(Box<pb::SendAck>),
    /// Carried out, without content.
    Done,
    /// Action refused by the hook `allow`, for the reason that the application gives.
    Denied(AllowAction, Option<Arc<AppReason>>),
    /// Edit refused by the hook `message.before`, with the code that the ledger remembers.
    Ruled(Code, Arc<AppReason>),
    /// Refused with a reason in words.
    Refused(Code, String),
    /// Watch of a conversation with this number of members, which begins when it is answered.
    Watch(ConversationId, usize),
}

/// Decision about a request that waited for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The request is carried out.
    Allowed,
    /// The recipient blocks the user.
    Blocked,
    /// The hook `allow` refuses the request, for the reason that the application gives.
    Denied(Option<Arc<AppReason>>),
    /// The hook `message.before` has decided about an allowed message.
    Ruled(BeforeVerdict),
    /// There is no answer; the code for the client.
    Unavailable(Code),
}

impl From<HookVerdict> for Decision {
    fn from(verdict: HookVerdict) -> Self {
        match verdict {
            HookVerdict::Allowed => Self::Allowed,
            HookVerdict::Denied(reason) => Self::Denied(reason),
            HookVerdict::Unavailable => Self::Unavailable(Code::HookUnavailable),
        }
    }
}

/// Recipients of a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Audience {
    /// These users, on all their connections to this node.
    Users(Arc<[UserId]>),
    /// These sessions, as named by another node.
    Sessions(Arc<[RoutedSession]>),
    /// All members of the conversation that are online on this node.
    Members,
}

impl Audience {
    /// Returns the number of named recipients; 0 for `Members`.
    pub fn named(&self) -> usize {
        match self {
            Self::Members => 0,
            Self::Users(users) => users.len(),
            Self::Sessions(sessions) => sessions.len(),
        }
    }
}

/// One push to connections.
#[derive(Clone)]
pub struct Delivery {
    /// Conversation of the push.
    pub conversation: ConversationId,
    /// Seq in the conversation.
    pub seq: u64,
    /// Recipients.
    pub audience: Audience,
    /// Frame, encoded at most once per framing.
    pub frame: Arc<PushFrame>,
    /// Connection that sent it, which gets no push.
    pub origin: Option<ConnKey>,
    /// Whether it is resent until acked (direct conversations and small groups).
    pub tracked: bool,
    /// Class of its sender, 0 to 3, if it is a message of a live room; else 0.
    pub class: u8,
}

/// Volatile frame to connections.
#[derive(Clone)]
pub struct Volatile {
    /// Conversation of the frame.
    pub conversation: ConversationId,
    /// Recipients.
    pub audience: Audience,
    /// Members according to the store, where a node's indexes may lag behind it; `None` if the indexes are exact.
    pub only: Option<Arc<HashSet<UserId>>>,
    /// Frame, encoded at most once per framing.
    pub frame: Arc<PushFrame>,
    /// Connection that sent it, if it is on this node.
    pub origin: Option<ConnKey>,
}

/// Size of a group, as read from the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSize {
    /// Whether the group takes signals.
    pub small: bool,
    /// Members, where a node's indexes may lag behind the store; `None` if the indexes are exact.
    pub members: Option<Arc<HashSet<UserId>>>,
}

/// Message to a shard.
pub enum Mail {
    /// Answers to sends, in log order.
    Answers(Vec<(ConnKey, u64, SubmitAnswer)>),
    /// Void sends, because the ledger has seen newer epochs of their devices.
    Outdated(Vec<Outdated>),
    /// Route of a connection with a newer epoch, or why the renewal failed.
    EpochRenewed(ConnKey, Result<Route, RoutesError>),
    /// Pushes and membership changes, in log order.
    Deliver(Vec<Item>),
    /// Pushes to the members of live rooms, in the order of each room.
    RoomFrames(Vec<Delivery>),
    /// Result of a check of a token.
    TokenChecked(ConnKey, Box<TokenUse>, Result<TokenIdentity, LoginFault>),
    /// Outcome of a login.
    LoginDone(ConnKey, Result<LoginDone, LoginError>),
    /// Result of the connection's open query, or its refusal.
    QueryDone(ConnKey, Result<QueryResult, (Code, &'static str)>),
    /// Groups of a user whose connection is logging in, in log order with `Deliver`.
    Memberships(ConnKey, Vec<ConversationId>),
    /// Closes the device's connections with an older epoch as `REPLACED`; replies whether there was one.
    Replaced(UserId, DeviceId, u64, Option<oneshot::Sender<bool>>),
    /// Resets the sockets of the user's device, or of all its devices; replies how many.
    Cut(UserId, Option<DeviceId>, oneshot::Sender<usize>),
    /// Work on connections, for the admin API.
    Connections(ConnectionOrder),
    /// Number of frames of a room that were lost on the way to this shard, to be reported to its members.
    RoomLoss(ConversationId, u64),
    /// Volatile frame.
    Signal(Volatile),
    /// Report of who of a conversation is online.
    Presence(PresenceFrame),
    /// Size of a group, or why the lookup failed; for a volatile frame that the connection sent under this request id.
    GroupSize(ConnKey, u64, Volatile, Result<GroupSize, (Code, &'static str)>),
    /// Numbers for messages of a room and the nodes with members, or why there are no numbers.
    RoomNumbers(ConversationId, Result<RoomNumbers, Code>),
    /// Decision about the request of a connection that waits for it.
    Decided(ConnKey, Decision),
    /// Confirms a join to a room, once its interest is declared or that attempt has failed.
    RoomJoined(ConnKey, u64, RoomId),
    /// Step of the node's drain.
    Drain(DrainCommand),
    /// Step of the re-assertion of the node's routes after a loss.
    Reassert(Reassert),
    /// Closes all connections with this code, then stops the shard.
    Stop(Code),
    /// Closes the connections with the fullest outboxes, because memory is short.
    ShedMemory,
}

/// Send of a connection whose epoch is below one that the ledger has seen from the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outdated {
    /// Connection of the send.
    pub key: ConnKey,
    /// Ticket of the send.
    pub ticket: u64,
    /// Newest epoch seen in the conversation.
    pub newest: u64,
}

/// Step of a shard's re-assertion of its routes.
pub enum Reassert {
    /// Replies with the routes of connections, from this slot on.
    Collect(u32, oneshot::Sender<Slice>),
    /// Applies whether each route is current: a connection without a current route closes with `REPLACED`, and a
    /// current route without its connection is removed.
    Settle(Vec<(ConnKey, Route, bool)>),
}

/// Numbers for messages of a room.
#[derive(Debug)]
pub struct RoomNumbers {
    /// One number per message.
    pub numbers: RangeInclusive<u64>,
    /// Other nodes with members of the room.
    pub nodes: Vec<NodeBoot>,
}

/// Page of a shard's routes.
#[derive(Debug)]
pub struct Slice {
    /// Connections with their routes.
    pub rows: Vec<(ConnKey, Route)>,
    /// Slot to continue from, if there may be more.
    pub next: Option<u32>,
}

/// Step of a drain, for one shard.
pub enum DrainCommand {
    /// Notifies the clients of their slots at this pace, and closes them when the slots end.
    Begin(Pace, Arc<DrainProgress>),
    /// Closes all clients, each after its answers.
    Rush,
    /// Closes the remaining clients at once.
    Cut,
    /// Forgets the slots, because the drain was aborted.
    Forget,
}

/// Progress of a drain over all shards.
#[derive(Debug, Default)]
pub struct DrainProgress {
    /// Clients not notified yet, plus one for each shard that has not begun.
    pub unnoticed: AtomicUsize,
    /// Clients whose slot has not ended, plus one for each shard that has not begun.
    pub waiting: AtomicUsize,
}

impl DrainProgress {
    /// Returns the progress of `shards` shards of which none has begun.
    pub fn not_begun(shards: usize) -> Self {
        Self { unnoticed: AtomicUsize::new(shards), waiting: AtomicUsize::new(shards) }
    }
}

/// Push or membership change. Both share one stream, so that a removal takes effect exactly between two pushes.
#[derive(Clone)]
pub enum Item {
    /// A push.
    Push(Delivery),
    /// These users are members from here on in the stream.
    Join(ConversationId, Arc<[UserId]>),
    /// These users are no longer members.
    Part(ConversationId, Arc<[UserId]>),
    /// Of the members on this shard, only these are still members.
    Keep(ConversationId, Arc<HashSet<UserId>>),
    /// Hint that pushes were omitted for lack of capacity.
    Behind(Lag),
}

/// Pushes that were omitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lag {
    /// Conversation of the pushes.
    pub conversation: ConversationId,
    /// Last omitted seq.
    pub max_seq: u64,
    /// Recipients of the pushes.
    pub audience: Audience,
}

impl Item {
    /// Returns the approximate bytes that it holds while it waits.
    pub fn weight(&self) -> usize {
        match self {
            Self::Push(delivery) => delivery.weight(),
            Self::Join(_, users) | Self::Part(_, users) => (4 + users.len()) * ENTRY_BYTES,
            Self::Keep(_, users) => (4 + users.len()) * ENTRY_BYTES,
            Self::Behind(_) => 2 * ENTRY_BYTES,
        }
    }
}

impl Volatile {
    fn weight(&self) -> usize {
        (4 + self.only.as_ref().map_or(0, |users| users.len())) * ENTRY_BYTES + self.frame.proto().len()
    }
}

/// Lane of a mailbox; mail of one lane is taken in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    /// Logins, drains, closes by administrators and memory alarms, which overtake everything that waits. A login that overtakes a push gets a
    /// push that it would have read from the store.
    Urgent,
    /// Frames of live rooms and their losses, which wait for a busy fan-out.
    Rooms,
    /// All other mail.
    Common,
}

impl Mail {
    fn lane(&self) -> Lane {
        match self {
            Self::TokenChecked(..)
            | Self::LoginDone(..)
            | Self::EpochRenewed(..)
            | Self::Connections(ConnectionOrder::Close(..) | ConnectionOrder::Revoke(..))
            | Self::Drain(_)
            | Self::ShedMemory => Lane::Urgent,
            Self::RoomFrames(_) | Self::RoomLoss(..) => Lane::Rooms,
            _ => Lane::Common,
        }
    }

    /// Returns the class of the room frames that it has, the lowest of all, so that none uses the reserve of a higher class. A
    /// report of losses can wait, and has the lowest; other mail has the highest.
    fn class(&self) -> u8 {
        match self {
            Self::RoomFrames(frames) => frames.iter().map(|frame| frame.class).min().unwrap_or(CLASS_MAX),
            Self::RoomLoss(..) => 0,
            _ => CLASS_MAX,
        }
    }

    /// Returns the approximate bytes that it holds; 0 for mail that is bounded well enough by the number of mails.
    pub fn weight(&self) -> usize {
        match self {
            Self::Deliver(items) => items.iter().map(Item::weight).sum(),
            Self::RoomFrames(frames) => frames.iter().map(Delivery::weight).sum(),
            Self::Answers(answers) => answers.len() * ENTRY_BYTES,
            Self::Outdated(outdated) => outdated.len() * ENTRY_BYTES,
            Self::Memberships(_, groups) => groups.len() * ENTRY_BYTES,
            Self::QueryDone(_, Ok(QueryResult::Page(page))) => page.encoded_len(),
            Self::QueryDone(_, Ok(QueryResult::States(states, _))) => states.len() * 2 * ENTRY_BYTES,
            Self::QueryDone(_, Ok(QueryResult::Positions(positions, _))) => positions.len() * ENTRY_BYTES,
            Self::Reassert(Reassert::Settle(routes)) => routes.len() * 3 * ENTRY_BYTES,
            Self::Signal(signal) | Self::GroupSize(_, _, signal, _) => signal.weight(),
            Self::Presence(report) => report.weight(),
            Self::QueryDone(..)
            | Self::TokenChecked(..)
            | Self::LoginDone(..)
            | Self::EpochRenewed(..)
            | Self::Replaced(..)
            | Self::Cut(..)
            | Self::Connections(_)
            | Self::RoomLoss(..)
            | Self::RoomNumbers(..)
            | Self::RoomJoined(..)
            | Self::Decided(..)
            | Self::Drain(_)
            | Self::Reassert(_)
            | Self::Stop(_)
            | Self::ShedMemory => 0,
        }
    }
}

/// Refusal of a query: the code, and a text for the client.
pub type Refusal = (Code, &'static str);

#[cfg(test)]
mod tests;
