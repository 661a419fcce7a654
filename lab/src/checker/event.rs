//! Recorded events, one per line, in one order for all clients of a machine.

use serde::{Deserialize, Serialize};

/// How a client got a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// Pushed by the broker; repeats are allowed.
    Push,
    /// Returned by a pull.
    Pull,
    /// Shown to a person, after the client's dedup and ordering.
    App,
}

/// Change of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The user is a member from this seq on, and sees it.
    Join,
    /// The user left; this is the last seq that it sees.
    Leave,
    /// The user was removed; this is the last seq that it sees.
    Kick,
}

/// A recorded event. `I` is a name: text in files, a number in a [`super::History`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HistoryEvent<I> {
    /// A client is about to send; a retry keeps its `cid` and raises `attempt`.
    SendInv {
        /// User that sends.
        user: I,
        /// Device that sends.
        device: I,
        /// Connection.
        session: u64,
        /// Conversation.
        conv: I,
        /// Id of the message, which is unique in the history.
        cid: I,
        /// Hash of the content.
        body: u64,
        /// Attempt in the request.
        attempt: u32,
        /// Whether the message is part of the device's chain.
        chained: bool,
    },
    /// A client is about to edit a message.
    EditInv {
        /// Conversation.
        conv: I,
        /// Seq of the message.
        of: u64,
        /// Id of the edit, which is unique in the history.
        cid: I,
        /// Hash of the new content.
        body: u64,
        /// Hash of the content before, as the client saw it.
        #[serde(default)]
        was: u64,
    },
    /// An edit was accepted.
    EditOk {
        /// Id of the edit.
        cid: I,
        /// Seq of the edit in the conversation.
        seq: u64,
    },
    /// A send was accepted.
    SendOk {
        /// Id of the message.
        cid: I,
        /// Seq in the conversation.
        seq: u64,
        /// Whether the broker called it a duplicate.
        duplicate: bool,
    },
    /// A send was refused permanently: it is surely not stored.
    SendFail {
        /// Id of the message.
        cid: I,
        /// Code of the refusal.
        code: u16,
    },
    /// A send has no answer, or one that allows a retry: it may be stored or not.
    SendInfo {
        /// Id of the message.
        cid: I,
    },
    /// A client stored a message where it outlives the client: it is to be answered, even if the client is killed.
    SendKept {
        /// Id of the message.
        cid: I,
    },
    /// A client received an entry.
    Recv {
        /// User that received it.
        user: I,
        /// Device that received it.
        device: I,
        /// Connection.
        session: u64,
        /// Conversation.
        conv: I,
        /// Seq of the entry.
        seq: u64,
        /// Id of the message; `None` for a change of members.
        cid: Option<I>,
        /// Hash of the content.
        body: u64,
        /// How the client got it.
        via: Via,
    },
    /// The broker announced a range that it left out.
    Gap {
        /// Connection.
        session: u64,
        /// Conversation.
        conv: I,
        /// First seq that may be missing.
        first: u64,
        /// Last seq that may be missing.
        last: u64,
    },
    /// The broker announced how much of a live room it dropped.
    Shed {
        /// Connection.
        session: u64,
        /// Live room.
        conv: I,
        /// Number of messages; 0 if no node has counted them.
        count: u64,
    },
    /// A connection learned that it is in a live room: it is due the messages from now on.
    Joined {
        /// Connection.
        session: u64,
        /// Live room.
        conv: I,
        /// Node of the connection.
        node: I,
    },
    /// A connection is about to leave a live room: it is due no messages from now on.
    Parted {
        /// Connection.
        session: u64,
        /// Live room.
        conv: I,
    },
    /// A node was killed: what it had not passed on is lost.
    Down {
        /// Node that ended.
        node: I,
    },
    /// A change by an administrator was answered.
    Member {
        /// Group.
        conv: I,
        /// User that was changed.
        user: I,
        /// Kind of the change.
        change: Change,
        /// Seq of the change.
        seq: u64,
    },
    /// A login was answered.
    Open {
        /// User that logged in.
        user: I,
        /// Device that logged in.
        device: I,
        /// Connection, from now on.
        session: u64,
    },
    /// A connection ended.
    Close {
        /// Connection.
        session: u64,
        /// Code of the broker's `close`; 0 if the connection broke.
        code: u16,
    },
    /// A device reports that it has everything, after it synced and pulled at the end.
    Complete {
        /// User of the device.
        user: I,
        /// Device.
        device: I,
        /// Whether pushes may be lost without notice, because a hint from another node announces them.
        hints: bool,
    },
    /// A client is about to move the read mark of its user.
    ReadInv {
        /// User of the mark.
        user: I,
        /// Conversation.
        conv: I,
        /// Seq up to which everything is read.
        seq: u64,
    },
    /// A read was answered, or another device of the user got the receipt.
    ReadOk {
        /// User of the mark.
        user: I,
        /// Conversation.
        conv: I,
        /// Seq up to which everything is read.
        seq: u64,
    },
    /// A connection is about to send `sync`.
    SyncInv {
        /// Connection.
        session: u64,
    },
    /// A connection got the state of a conversation.
    State {
        /// User of the connection.
        user: I,
        /// Connection.
        session: u64,
        /// Conversation.
        conv: I,
        /// Last seq that the user sees.
        max: u64,
        /// Seq up to which everything is read.
        read: u64,
        /// Number of messages of others above `read`.
        unread: u64,
    },
    /// A connection got the end of a `sync`.
    SyncEnd {
        /// Connection.
        session: u64,
        /// Number of unread messages in all conversations.
        unread: u64,
    },
    /// The run is quiet: all faults have ended, clients have their answers, and what is due to an open connection had time to come.
    Quiet {},
    /// A device was disconnected at the end: only its presence is checked after that.
    Left {
        /// User of the device.
        user: I,
        /// Device.
        device: I,
    },
    /// A node reported the presence of a device at the end, after enough time.
    Presence {
        /// Node.
        node: I,
        /// User of the device.
        user: I,
        /// Device.
        device: I,
        /// Whether the node reports it as connected.
        online: bool,
    },
    /// A consumer of the feed took an event: an endpoint of webhooks, the reader of the stream, or that of the topic.
    Delivered {
        /// Id of the endpoint; `stream` and `topic` for the readers of these.
        endpoint: I,
        /// Conversation.
        conv: I,
        /// Seq of the entry.
        seq: u64,
        /// Id of the message; `None` for a change of members, and for an edit.
        cid: Option<I>,
        /// Hash of the content.
        body: u64,
    },
    /// A consumer of the feed had time at the end to take all events; an endpoint has, as a node reports.
    CaughtUp {
        /// Id of the endpoint.
        endpoint: I,
    },
    /// A fault begins or ends.
    Nemesis {
        /// Whether it begins.
        on: bool,
        /// Name of the fault; a fault of one node has the node after a colon.
        fault: I,
    },
    /// The store has a message at the end.
    LogMessage {
        /// Conversation.
        conv: I,
        /// Seq of the message.
        seq: u64,
        /// User that sent it.
        sender: I,
        /// Device that sent it.
        device: I,
        /// Id of the message.
        cid: I,
        /// Hash of the content.
        body: u64,
    },
    /// The store has an edit at the end.
    LogEdit {
        /// Conversation.
        conv: I,
        /// Seq of the edit.
        seq: u64,
        /// Seq of the message.
        of: u64,
        /// Id of the edit.
        cid: I,
    },
    /// The store has a change of members at the end: one event for each user, all with the same seq.
    LogMember {
        /// Group.
        conv: I,
        /// Seq of the change.
        seq: u64,
        /// User that was changed.
        user: I,
        /// Kind of the change.
        change: Change,
    },
    /// The store has a read mark at the end: one event for each conversation of each user, 0 where nothing was read.
    LogRead {
        /// User of the mark.
        user: I,
        /// Conversation.
        conv: I,
        /// Seq up to which everything is read.
        seq: u64,
    },
    /// The store declares a range as removed by retention.
    LogGap {
        /// Conversation.
        conv: I,
        /// First seq of the range.
        first: u64,
        /// Last seq of the range.
        last: u64,
    },
}

/// An event and the time at which it was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamped<I> {
    /// Nanoseconds on one monotonic clock.
    pub at: u64,
    /// The event.
    #[serde(flatten)]
    pub event: HistoryEvent<I>,
}

impl<I> HistoryEvent<I> {
    /// Returns the event with other names.
    #[rustfmt::skip]
    pub fn map<J>(self, mut f: impl FnMut(I) -> J) -> HistoryEvent<J> {
        use HistoryEvent as E;
        match self {
            Self::SendInv { user, device, session, conv, cid, body, attempt, chained } => E::SendInv {
                user: f(user), device: f(device), session, conv: f(conv), cid: f(cid), body, attempt, chained,
            },
            Self::EditInv { conv, of, cid, body, was } => E::EditInv { conv: f(conv), of, cid: f(cid), body, was },
            Self::EditOk { cid, seq } => E::EditOk { cid: f(cid), seq },
            Self::SendOk { cid, seq, duplicate } => E::SendOk { cid: f(cid), seq, duplicate },
            Self::SendFail { cid, code } => E::SendFail { cid: f(cid), code },
            Self::SendInfo { cid } => E::SendInfo { cid: f(cid) },
            Self::SendKept { cid } => E::SendKept { cid: f(cid) },
            Self::Recv { user, device, session, conv, seq, cid, body, via } => E::Recv {
                user: f(user), device: f(device), session, conv: f(conv), seq, cid: cid.map(f), body, via,
            },
            Self::Gap { session, conv, first, last } => E::Gap { session, conv: f(conv), first, last },
            Self::Shed { session, conv, count } => E::Shed { session, conv: f(conv), count },
            Self::Joined { session, conv, node } => E::Joined { session, conv: f(conv), node: f(node) },
            Self::Parted { session, conv } => E::Parted { session, conv: f(conv) },
            Self::Down { node } => E::Down { node: f(node) },
            Self::Member { conv, user, change, seq } => E::Member { conv: f(conv), user: f(user), change, seq },
            Self::Open { user, device, session } => E::Open { user: f(user), device: f(device), session },
            Self::Close { session, code } => E::Close { session, code },
            Self::Complete { user, device, hints } => E::Complete { user: f(user), device: f(device), hints },
            Self::ReadInv { user, conv, seq } => E::ReadInv { user: f(user), conv: f(conv), seq },
            Self::ReadOk { user, conv, seq } => E::ReadOk { user: f(user), conv: f(conv), seq },
            Self::SyncInv { session } => E::SyncInv { session },
            Self::State { user, session, conv, max, read, unread } => E::State {
                user: f(user), session, conv: f(conv), max, read, unread,
            },
            Self::SyncEnd { session, unread } => E::SyncEnd { session, unread },
            Self::LogRead { user, conv, seq } => E::LogRead { user: f(user), conv: f(conv), seq },
            Self::Quiet {} => E::Quiet {},
            Self::Left { user, device } => E::Left { user: f(user), device: f(device) },
            Self::Presence { node, user, device, online } => E::Presence {
                node: f(node), user: f(user), device: f(device), online,
            },
            Self::Delivered { endpoint, conv, seq, cid, body } => E::Delivered {
                endpoint: f(endpoint), conv: f(conv), seq, cid: cid.map(f), body,
            },
            Self::CaughtUp { endpoint } => E::CaughtUp { endpoint: f(endpoint) },
            Self::Nemesis { on, fault } => E::Nemesis { on, fault: f(fault) },
            Self::LogMessage { conv, seq, sender, device, cid, body } => E::LogMessage {
                conv: f(conv), seq, sender: f(sender), device: f(device), cid: f(cid), body,
            },
            Self::LogEdit { conv, seq, of, cid } => E::LogEdit { conv: f(conv), seq, of, cid: f(cid) },
            Self::LogMember { conv, seq, user, change } => E::LogMember { conv: f(conv), seq, user: f(user), change },
            Self::LogGap { conv, first, last } => E::LogGap { conv: f(conv), first, last },
        }
    }
}
