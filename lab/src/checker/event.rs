//! What is recorded: one event a line, in one order for all clients of a machine.

use serde::{Deserialize, Serialize};

/// How a message came to be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// Pushed by the broker; repeats are allowed.
    Push,
    /// Asked for.
    Pull,
    /// Shown to a person: behind the client's dedup and ordering.
    App,
}

/// What became of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Is in from this seq on, which it sees.
    Join,
    /// Left by its own will; this seq is the last that it sees.
    Leave,
    /// Was removed; this seq is the last that it sees.
    Kick,
}

/// Something that happened. `I` is a name: text in files, a number in a [`super::History`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event<I> {
    /// A client is about to send; a retry keeps its `cid` and raises `attempt`.
    SendInv {
        /// Who.
        user: I,
        /// On which device.
        device: I,
        /// Over which connection.
        session: u64,
        /// Where to.
        conv: I,
        /// The message's id; unique in the history.
        cid: I,
        /// A hash of what it says.
        body: u64,
        /// As sent.
        attempt: u32,
        /// Whether it is part of the device's chain.
        chained: bool,
    },
    /// It was accepted.
    SendOk {
        /// Which.
        cid: I,
        /// Where in the conversation.
        seq: u64,
        /// Whether the broker called it a repeat.
        duplicate: bool,
    },
    /// It was refused for good: surely not stored.
    SendFail {
        /// Which.
        cid: I,
        /// Why.
        code: u16,
    },
    /// No answer, or one that allows a retry: it may be stored or not.
    SendInfo {
        /// Which.
        cid: I,
    },
    /// A client received.
    Recv {
        /// Who.
        user: I,
        /// On which device.
        device: I,
        /// Over which connection.
        session: u64,
        /// Where.
        conv: I,
        /// Its seq.
        seq: u64,
        /// The message; none = a change of members.
        cid: Option<I>,
        /// A hash of what it says.
        body: u64,
        /// How.
        via: Via,
    },
    /// The broker told a connection that it left these out.
    Gap {
        /// Which connection.
        session: u64,
        /// Where.
        conv: I,
        /// The first that may be missing.
        first: u64,
        /// The last.
        last: u64,
    },
    /// The broker told a connection how much of a live room it dropped.
    Shed {
        /// Which connection.
        session: u64,
        /// The room.
        conv: I,
        /// How many; 0 = nobody has counted them.
        count: u64,
    },
    /// A connection has heard that it is in a live room: what is said from now on is for it.
    Joined {
        /// Which connection.
        session: u64,
        /// The room.
        conv: I,
        /// Its node.
        node: I,
    },
    /// A node has ended, and not as planned: what it had not passed on is lost.
    Down {
        /// Which.
        node: I,
    },
    /// An administrator's change was answered.
    Member {
        /// The group.
        conv: I,
        /// Whom it concerns.
        user: I,
        /// What.
        change: Change,
        /// Its seq.
        seq: u64,
    },
    /// A login was answered.
    Open {
        /// Who.
        user: I,
        /// On which device.
        device: I,
        /// The connection, from now on.
        session: u64,
    },
    /// A connection ended.
    Close {
        /// Which.
        session: u64,
        /// The code of the broker's `close`; 0 = it broke.
        code: u16,
    },
    /// A device says that it has everything, after it asked and pulled at the end.
    Complete {
        /// Whose.
        user: I,
        /// Which device.
        device: I,
        /// Whether pushes may be lost without a word, because a hint brings them from another node.
        hints: bool,
    },
    /// A client is about to move the read mark of its user.
    ReadInv {
        /// Whose.
        user: I,
        /// Where.
        conv: I,
        /// Everything up to here is read.
        seq: u64,
    },
    /// That was answered, or another device of the user heard of it.
    ReadOk {
        /// Whose.
        user: I,
        /// Where.
        conv: I,
        /// Everything up to here is read.
        seq: u64,
    },
    /// A connection is about to ask where all conversations of its user stand.
    SyncInv {
        /// Which connection.
        session: u64,
    },
    /// It is told of one.
    State {
        /// Whose.
        user: I,
        /// Which connection.
        session: u64,
        /// Where.
        conv: I,
        /// The last seq that there is for the user.
        max: u64,
        /// Up to where it is read.
        read: u64,
        /// How many messages of others lie above.
        unread: u64,
    },
    /// It is told that this was all.
    SyncEnd {
        /// Which connection.
        session: u64,
        /// How many messages are unread in all of them.
        unread: u64,
    },
    /// A device was taken away at the end, its connection broken: only presence is asked for after that.
    Left {
        /// Whose.
        user: I,
        /// Which device.
        device: I,
    },
    /// What a node says of a device at the end, after time enough.
    Presence {
        /// The node.
        node: I,
        /// Whose.
        user: I,
        /// Which device.
        device: I,
        /// Whether it is connected.
        online: bool,
    },
    /// A fault begins or ends.
    Nemesis {
        /// Begins.
        on: bool,
        /// Which: a word, and after a colon the node that it is about, if it is about one.
        fault: I,
    },
    /// A message in the log of the store, at the end.
    LogMessage {
        /// Where.
        conv: I,
        /// Its seq.
        seq: u64,
        /// Who sent it.
        sender: I,
        /// On which device.
        device: I,
        /// The message.
        cid: I,
        /// A hash of what it says.
        body: u64,
    },
    /// A change of members in the log of the store; one for each user, with the same seq.
    LogMember {
        /// The group.
        conv: I,
        /// Its seq.
        seq: u64,
        /// Whom it concerns.
        user: I,
        /// What.
        change: Change,
    },
    /// A read mark in the store, at the end; one for each conversation of each user, 0 where nothing was read.
    LogRead {
        /// Whose.
        user: I,
        /// Where.
        conv: I,
        /// Everything up to here is read.
        seq: u64,
    },
    /// The log of the store says that these are gone on purpose: retention.
    LogGap {
        /// Where.
        conv: I,
        /// The first.
        first: u64,
        /// The last.
        last: u64,
    },
}

/// An event and when it was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamped<I> {
    /// Nanoseconds on one monotonic clock.
    pub at: u64,
    /// What.
    #[serde(flatten)]
    pub event: Event<I>,
}

impl<I> Event<I> {
    /// The same with other names.
    #[rustfmt::skip]
    pub fn map<J>(self, mut f: impl FnMut(I) -> J) -> Event<J> {
        use Event as E;
        match self {
            Self::SendInv { user, device, session, conv, cid, body, attempt, chained } => E::SendInv {
                user: f(user), device: f(device), session, conv: f(conv), cid: f(cid), body, attempt, chained,
            },
            Self::SendOk { cid, seq, duplicate } => E::SendOk { cid: f(cid), seq, duplicate },
            Self::SendFail { cid, code } => E::SendFail { cid: f(cid), code },
            Self::SendInfo { cid } => E::SendInfo { cid: f(cid) },
            Self::Recv { user, device, session, conv, seq, cid, body, via } => E::Recv {
                user: f(user), device: f(device), session, conv: f(conv), seq, cid: cid.map(f), body, via,
            },
            Self::Gap { session, conv, first, last } => E::Gap { session, conv: f(conv), first, last },
            Self::Shed { session, conv, count } => E::Shed { session, conv: f(conv), count },
            Self::Joined { session, conv, node } => E::Joined { session, conv: f(conv), node: f(node) },
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
            Self::Left { user, device } => E::Left { user: f(user), device: f(device) },
            Self::Presence { node, user, device, online } => E::Presence {
                node: f(node), user: f(user), device: f(device), online,
            },
            Self::Nemesis { on, fault } => E::Nemesis { on, fault: f(fault) },
            Self::LogMessage { conv, seq, sender, device, cid, body } => E::LogMessage {
                conv: f(conv), seq, sender: f(sender), device: f(device), cid: f(cid), body,
            },
            Self::LogMember { conv, seq, user, change } => E::LogMember { conv: f(conv), seq, user: f(user), change },
            Self::LogGap { conv, first, last } => E::LogGap { conv: f(conv), first, last },
        }
    }
}
