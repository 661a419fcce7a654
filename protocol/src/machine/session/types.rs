//! What goes into a session and what comes out of it.

use super::query::Query;
use crate::{
    Code, Time,
    id::{ConversationId, DeviceId, MsgId, NodeId, RoomId, UserId},
    machine::{chain::ChainLimits, window::WindowLimits},
    pb,
    settings::{Retention, Search, Unread, UserSettings, Viewing},
    trace::TraceContext,
};
use bytes::Bytes;
use std::{borrow::Cow, time::Duration};

/// The most positions in one Ping or Sync; a client that has more sends several.
pub const POSITIONS_MAX: usize = 1_000;

/// The bounds of every session of a node; shared, never copied into a session.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// From the first byte to a complete Hello.
    pub handshake: Duration,
    /// From Hello to [`super::Session::logged_in`].
    pub login_answer: Duration,
    /// The heartbeat when the client wishes none.
    pub heartbeat: Duration,
    /// The shortest heartbeat that a client can wish.
    pub heartbeat_min: Duration,
    /// The longest heartbeat that a client can wish.
    pub heartbeat_max: Duration,
    /// Told in Welcome; the codec enforces it.
    pub frame_bytes_max: u32,
    /// The most bytes of an encoded Content.
    pub content_bytes_max: u32,
    /// The most submissions without an answer.
    pub in_flight_max: usize,
    /// The bounds of the nextId chain.
    pub chain: ChainLimits,
    /// How many permanently refused frames in a row close the conn.
    pub errors_max: u16,
    /// The most rooms at a time.
    pub rooms_max: usize,
    /// The most conversations that one conn numbers chained records for.
    pub chained_conversations_max: usize,
    /// The most bytes of the encoded Content of a Signal.
    pub signal_bytes_max: u32,
    /// Signals a second; those of one second may come at once. 0 = none are taken.
    pub signals_per_second: u32,
    /// When a submission without an answer becomes *unknown*.
    pub reply_deadline: Duration,
    /// The driver's window; the client's wishes change `ack_timeout` and `tries`.
    pub window: WindowLimits,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(5),
            login_answer: Duration::from_secs(5),
            heartbeat: Duration::from_secs(30),
            heartbeat_min: Duration::from_secs(5),
            heartbeat_max: Duration::from_secs(300),
            frame_bytes_max: 1 << 20,
            content_bytes_max: 64 << 10,
            in_flight_max: 256,
            chain: ChainLimits::default(),
            errors_max: 32,
            rooms_max: 64,
            chained_conversations_max: 4_096,
            signal_bytes_max: 1_024,
            signals_per_second: 10,
            reply_deadline: Duration::from_secs(5),
            window: WindowLimits::default(),
        }
    }
}

impl Limits {
    /// What Welcome tells the client.
    pub(super) fn told(&self) -> pb::Limits {
        let u32 = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        pb::Limits {
            frame_bytes_max: self.frame_bytes_max,
            content_bytes_max: self.content_bytes_max,
            hold_max: u32(self.chain.hold_max),
            hold_bytes_max: u32(self.chain.hold_bytes_max),
            in_flight_max: u32(self.in_flight_max),
        }
    }
}

/// What the driver has to do. Apply them in order; then [`super::Session::poll_submit`] until it gives nothing.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Check the token and the device, then call `logged_in` or `login_refused`.
    Login(Box<pb::Hello>),
    /// Bring the conn into the room, then call `joined`.
    Join {
        /// The frame to answer.
        id: u64,
        /// The room.
        room: RoomId,
    },
    /// Check whether the conn may, tell the others, then call `signalled`.
    Signal {
        /// The frame to answer.
        id: u64,
        /// Where to.
        conversation: ConversationId,
        /// What to tell: complete, the sender included.
        signal: Box<pb::Signal>,
    },
    /// A signal over the budget was dropped: for metrics.
    SignalDropped,
    /// Take the conn out of the room. The client has its answer already.
    Leave {
        /// The room.
        room: RoomId,
    },
    /// The client has everything up to `seq`: for the driver's window and the device's marks.
    Acked {
        /// The conversation.
        conversation: ConversationId,
        /// The contiguous prefix that arrived.
        seq: u64,
    },
    /// Save for the next login of this device: append `done` to the done ids (keep the last 256), set `expected`.
    SaveChain {
        /// The id that has its answer now, as have all before it.
        done: MsgId,
        /// Its successor.
        expected: MsgId,
    },
    /// Save for the next login of this device: append `skipped` to the skipped ids (keep the last 256), set `expected`.
    SaveSkip {
        /// The id that was given up: refused for good, also by later connections.
        skipped: MsgId,
        /// The first chained id without an answer saved, or where the chain goes on.
        expected: MsgId,
    },
    /// For metrics, events and the guard; the client has its Notice already.
    Alarm(Alarm),
    /// Ask the store, then call `query_told`, `query_pong`, `query_done` or `query_refused`, and `query_over` at the
    /// end. Comes once until then.
    Query {
        /// The frame to answer.
        id: u64,
        /// What is asked.
        query: Box<Query>,
    },
    /// Send this frame.
    Reply(Box<pb::ServerFrame>),
    /// Send this part of the answer to the open query; it may be large.
    Answer(Box<pb::ServerFrame>),
    /// Send the Close frame, flush, close. Comes once, and nothing comes after it.
    Close {
        /// Why, as a code.
        code: Code,
        /// Why, in words; empty = what the code says.
        reason: Cow<'static, str>,
    },
}

/// What operators should see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Alarm {
    /// Held messages wait too long for `expected`.
    OrderBlocked {
        /// The id that does not come.
        expected: MsgId,
    },
    /// `expected` was given up; the chain goes on at `resumed_at`.
    OrderSkipped {
        /// The id that is refused from now on.
        expected: MsgId,
        /// The id that is released next.
        resumed_at: MsgId,
    },
    /// The hold is full and reading stopped.
    OrderWindowFull {
        /// The id that would empty it.
        expected: MsgId,
    },
}

/// One message on its way to the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submit {
    /// Names this submission in [`super::Session::answered`]; rises by one, unique per conn.
    pub ticket: u64,
    /// The client's frame id.
    pub id: u64,
    /// Where it goes.
    pub conversation: ConversationId,
    /// The sender's name for it.
    pub msg_id: MsgId,
    /// > 0: possibly sent before.
    pub attempt: u32,
    /// The encoded Content as the client sent it, unknown fields kept.
    pub content: Bytes,
    /// Where it stands in the device's own order.
    pub order: Order,
    /// The client's flags.
    pub flags: u32,
    /// The trace that the client does this for.
    pub trace: Option<TraceContext>,
}

/// Where a message stands in its device's own order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// The conn epoch.
    pub epoch: u64,
    /// 0, 1, 2, … per (epoch, conversation) when chained, else 0.
    pub n: u64,
    /// Whether the ledger checks `n`.
    pub chained: bool,
}

/// What became of a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is durable and has this seq.
    Accepted {
        /// Its place in the conversation.
        seq: u64,
        /// The broker's receive time, ms since 1970.
        time: u64,
    },
    /// It was accepted before, as this.
    Duplicate {
        /// Its place in the conversation.
        seq: u64,
        /// The first one's receive time, ms since 1970.
        time: u64,
    },
    /// The ledger refused it.
    Refused {
        /// Why, as a code.
        code: Code,
        /// Why, in words; empty = what the code says.
        message: Cow<'static, str>,
    },
    /// Nobody knows: the client retries with the same id.
    Unknown,
    /// The append failed on the way and successors may have passed: the conn ends with `RESYNC`.
    AppendFailed,
}

/// The outcome of a successful login.
#[derive(Clone, Debug)]
pub struct LoggedIn {
    /// From the token.
    pub user: UserId,
    /// From Hello, checked against the token.
    pub device: DeviceId,
    /// The conn epoch: rises per (user, device).
    pub epoch: u64,
    /// The session's name, for `resume`.
    pub session: String,
    /// This node.
    pub node: NodeId,
    /// The chain as last saved.
    pub chain_saved: Option<ChainSaved>,
    /// Whether the session named in `resume` was found.
    pub resumed: bool,
    /// The wall clock, for people.
    pub server_time_ms: u64,
    /// A random id: where the chain starts when neither side knows one.
    pub fresh_next_id: MsgId,
}

/// Where a device's chain stood when its last connection had its last answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainSaved {
    /// The id that the next chained message carries.
    pub expected: MsgId,
    /// Ids that have their answers, oldest first; the last 256.
    pub done: Vec<MsgId>,
    /// Ids that were given up, oldest first; the last 256.
    pub skipped: Vec<MsgId>,
}

/// Who speaks on a conn, from login to the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user.
    pub user: UserId,
    /// Their device.
    pub device: DeviceId,
    /// The conn epoch.
    pub epoch: u64,
}

/// What counts for this conn: the user's wishes within the node's bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wishes {
    pub(super) heartbeat_ms: u32,
    pub(super) ack_timeout_ms: u32,
    pub(super) ack_tries: u8,
    pub(super) viewing: Viewing,
    pub(super) search: Search,
}

impl Wishes {
    pub(super) const NONE: Self = Self {
        heartbeat_ms: 0,
        ack_timeout_ms: 0,
        ack_tries: 0,
        viewing: Viewing { unread: Unread::All, retention: Retention::Forever },
        search: Search::On,
    };

    pub(super) fn of(settings: &UserSettings, limits: &Limits) -> Self {
        let clamp = |wish: u32, default: Duration, min: Duration, max: Duration| {
            let wish = if wish == 0 { default } else { Duration::from_millis(wish.into()) };
            u32::try_from(wish.max(min).min(max).as_millis()).unwrap_or(u32::MAX)
        };
        let window = &limits.window;
        Self {
            heartbeat_ms: clamp(
                settings.heartbeat_ms,
                limits.heartbeat,
                limits.heartbeat_min,
                limits.heartbeat_max,
            ),
            // A client may be more patient than the broker up to 4 times, and less patient down to a quarter.
            ack_timeout_ms: clamp(
                settings.ack_timeout_ms,
                window.ack_timeout,
                window.ack_timeout / 4,
                window.ack_timeout * 4,
            ),
            ack_tries: match settings.ack_tries {
                0 => window.tries,
                wish => u8::try_from(wish).unwrap_or(u8::MAX).min(window.tries),
            },
            viewing: Viewing {
                unread: settings.unread.unwrap_or_default(),
                retention: settings.retention.unwrap_or_default(),
            },
            search: settings.search.unwrap_or_default(),
        }
    }

    /// What Welcome tells the client.
    pub(super) fn told(&self, chain: bool) -> pb::Settings {
        pb::Settings {
            chain,
            ack_timeout_ms: self.ack_timeout_ms,
            ack_tries: self.ack_tries.into(),
            heartbeat_ms: self.heartbeat_ms,
            unread: self.viewing.unread.word().to_owned(),
            retention: self.viewing.retention.word().to_owned(),
            search: self.search.word().to_owned(),
        }
    }
}

/// A point in time that matters to a session, the sooner of two.
pub(super) fn sooner(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    }
}
