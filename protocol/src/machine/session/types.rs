//! Inputs and outputs of a session: limits, actions, submissions, answers and logins.

use super::query::Query;
use crate::{
    Code, Time,
    code::RETRY_AFTER_MS,
    id::{ConversationId, DeviceId, MsgId, NodeId, RoomId, UserId},
    machine::{chain::ChainLimits, reactions::ReactionKind, window::WindowLimits},
    pb,
    record::Hash16,
    settings::{Retention, Unread, UserSettings, Viewing},
    trace::TraceContext,
};
use bytes::Bytes;
use std::{borrow::Cow, time::Duration};

/// Maximum number of positions in one Ping or Sync; a client that has more sends several frames.
pub const POSITIONS_MAX: usize = 1_000;

/// Limits of all sessions of a node; shared, never copied into a session.
#[derive(Clone, Copy, Debug)]
pub struct SessionLimits {
    /// Time from the connection's start to a complete Hello.
    pub handshake: Duration,
    /// Time from Hello to [`super::Session::logged_in`].
    pub login_answer: Duration,
    /// Heartbeat interval if the user has set none.
    pub heartbeat: Duration,
    /// Shortest heartbeat interval that a user can set.
    pub heartbeat_min: Duration,
    /// Longest heartbeat interval that a user can set.
    pub heartbeat_max: Duration,
    /// Maximum size of a frame; Welcome reports it, and the codec enforces it.
    pub frame_bytes_max: u32,
    /// Limit of the size of a frame before Welcome, in bytes.
    pub hello_bytes_max: u32,
    /// Limit of the number of frames before Welcome, empty ones and WebSocket control frames included.
    pub hello_frames_max: u8,
    /// Maximum size of an encoded Content.
    pub content_bytes_max: u32,
    /// Maximum number of submissions without an answer.
    pub in_flight_max: usize,
    /// Limits of the nextId chain.
    pub chain: ChainLimits,
    /// Number of permanent refusals in a row that closes the connection.
    pub errors_max: u16,
    /// Maximum number of joined rooms.
    pub rooms_max: usize,
    /// Maximum number of conversations with chained messages of one connection.
    pub chained_conversations_max: usize,
    /// Maximum size of a Signal's encoded Content.
    pub signal_bytes_max: u32,
    /// Signals per second; those of one second may be sent in a burst. 0: no signal is accepted.
    pub signals_per_second: u32,
    /// Limit of the frames that count, per second; those of [`crate::machine::frame_budget::BURST`] may arrive at once.
    /// 0: no limit.
    pub frames_per_second: u32,
    /// Whether the node reports who is online; without it, Welcome does not name the feature `watch`.
    pub has_watches: bool,
    /// Time after which a submission without an answer becomes *unknown*.
    pub reply_deadline: Duration,
    /// Limits of the driver's window; the user's settings adjust `ack_timeout` and `tries`.
    pub window: WindowLimits,
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(5),
            login_answer: Duration::from_secs(5),
            heartbeat: Duration::from_secs(30),
            heartbeat_min: Duration::from_secs(5),
            heartbeat_max: Duration::from_secs(300),
            frame_bytes_max: 1 << 20,
            hello_bytes_max: 4 << 10,
            hello_frames_max: 16,
            content_bytes_max: 64 << 10,
            in_flight_max: 256,
            chain: ChainLimits::default(),
            errors_max: 32,
            rooms_max: 64,
            chained_conversations_max: 4_096,
            signal_bytes_max: 1_024,
            signals_per_second: 10,
            frames_per_second: 0,
            has_watches: true,
            reply_deadline: Duration::from_secs(5),
            window: WindowLimits::default(),
        }
    }
}

impl SessionLimits {
    /// Returns the limits that Welcome reports.
    pub(super) fn for_welcome(&self) -> pb::Limits {
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

/// Action for the driver. Apply in order, then call [`super::Session::poll_submit`] until it returns `None`.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Check the token and the device, then call `logged_in` or `login_refused`.
    Login(Box<pb::Hello>),
    /// Add the connection to the room, then call `joined`.
    Join {
        /// Id of the frame to answer.
        id: u64,
        /// Room to join.
        room: RoomId,
    },
    /// Check whether the connection may signal there, forward the signal, then call `signalled`; or `signal_limited`.
    Signal {
        /// Id of the frame to answer.
        id: u64,
        /// Target conversation.
        conversation: ConversationId,
        /// Complete signal to forward, sender included.
        signal: Box<pb::Signal>,
    },
    /// Add a reaction to the room, then call `signalled`; or `signal_limited`.
    React {
        /// Id of the frame to answer.
        id: u64,
        /// Room of the reaction.
        room: RoomId,
        /// Kind of the reaction.
        kind: ReactionKind,
    },
    /// Count a signal or reaction that was dropped because it exceeds the budget.
    SignalDropped,
    /// Remove the connection from the room. The client already has its answer.
    Leave {
        /// Room to leave.
        room: RoomId,
    },
    /// Pass an ack to the driver's window and the device's marks: the client has everything up to `seq`.
    Acked {
        /// Acked conversation.
        conversation: ConversationId,
        /// End of the contiguous prefix that arrived.
        seq: u64,
    },
    /// Save for the next login of this device: append `done` to the done ids (keep the last 256), set `expected`.
    SaveChain {
        /// Id that is answered, as are all before it.
        done: MsgId,
        /// Successor of `done`.
        expected: MsgId,
    },
    /// Save for the next login of this device: append `skipped` to the skipped ids (keep the last 256), set `expected`.
    SaveSkip {
        /// Skipped id, refused permanently, also by later connections.
        skipped: MsgId,
        /// First chained id without a saved answer, or the id where the chain continues.
        expected: MsgId,
    },
    /// Report an alarm to metrics, events and the guard; the client already has its Notice.
    Alarm(Alarm),
    /// Query the store, then call `query_told`, `query_pong`, `query_done` or `query_refused`, and `query_over` at the
    /// end. No second query is issued until then.
    Query {
        /// Id of the frame to answer.
        id: u64,
        /// Query to execute.
        query: Box<Query>,
    },
    /// Check the token against that of the connection, then call `refreshed` or `refresh_limited`.
    Refresh {
        /// Id of the frame to answer.
        id: u64,
        /// Token as the client sent it.
        token: String,
    },
    /// Send this frame.
    Reply(Box<pb::ServerFrame>),
    /// Send this part of the answer to the open query; it may be large.
    Answer(Box<pb::ServerFrame>),
    /// Send the Close frame, flush, close. Issued once, as the last action.
    Close {
        /// Code of the close.
        code: Code,
        /// Reason in words; if empty, the description of the code.
        reason: Cow<'static, str>,
    },
}

/// Alarm for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Alarm {
    /// Held messages have waited too long for `expected`.
    OrderBlocked {
        /// Missing id.
        expected: MsgId,
    },
    /// `expected` was skipped; the chain continues at `resumed_at`.
    OrderSkipped {
        /// Skipped id, refused from now on.
        expected: MsgId,
        /// Id that is released next.
        resumed_at: MsgId,
    },
    /// The hold is full, and reading has stopped.
    OrderWindowFull {
        /// Id that would empty the hold.
        expected: MsgId,
    },
}

/// Submission of one message to the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submit {
    /// Ticket of this submission for [`super::Session::answered`]; rises by one, unique per connection.
    pub ticket: u64,
    /// Frame id of the client.
    pub id: u64,
    /// Target conversation.
    pub conversation: ConversationId,
    /// Id that the sender chose.
    pub msg_id: MsgId,
    /// Attempt number; above 0 if the id may have been sent before.
    pub attempt: u32,
    /// Encoded Content as the client sent it, including unknown fields.
    pub content: Bytes,
    /// Position in the device's order.
    pub order: Order,
    /// Flags of the client.
    pub flags: u32,
    /// Trace context that the client sent.
    pub trace: Option<TraceContext>,
    /// Decision of the application about the message.
    pub ruling: Ruling,
}

impl Submit {
    /// Returns the bytes of the content, and of that of the client if the application has replaced it.
    pub fn content_bytes(&self) -> usize {
        self.content.len() + self.ruling.sent.as_ref().map_or(0, Bytes::len)
    }
}

/// Decision of the application about a message before its append; the driver sets it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruling {
    /// Refusal that the ledger remembers; the content is left out.
    pub denied: Option<Code>,
    /// Hash of the content as the client sent it, if the submission has another content by now.
    pub sent_hash: Option<Hash16>,
    /// That content, which limits of contents count.
    pub sent: Option<Bytes>,
}

/// Position of a message in the order of its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// Epoch of the connection.
    pub epoch: u64,
    /// Number 0, 1, 2, … per (epoch, conversation) if chained, else 0.
    pub n: u64,
    /// Whether the ledger checks `n`.
    pub chained: bool,
}

/// Refusal of a submission before it reached the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubmitRefusal<'a> {
    /// Code of the refusal.
    pub code: Code,
    /// Reason in words; if empty, the description of the code.
    pub message: &'a str,
    /// Time after which the client may send the message again; unused if the code is permanent.
    pub retry_after: Duration,
}

impl From<Code> for SubmitRefusal<'_> {
    fn from(code: Code) -> Self {
        Self { code, message: "", retry_after: Duration::from_millis(RETRY_AFTER_MS.into()) }
    }
}

/// Answer to a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubmitAnswer {
    /// The message is durable.
    Accepted {
        /// Seq in the conversation.
        seq: u64,
        /// Receive time of the broker, in ms since 1970.
        time: u64,
    },
    /// The message was accepted before.
    Duplicate {
        /// Seq in the conversation.
        seq: u64,
        /// Receive time of the first attempt, in ms since 1970.
        time: u64,
    },
    /// The ledger refused the message.
    Refused {
        /// Code of the refusal.
        code: Code,
        /// Reason in words; if empty, the description of the code.
        message: Cow<'static, str>,
    },
    /// The outcome is unknown: the client retries with the same id.
    Unknown,
    /// The append failed, and later messages may have been appended: the connection ends with `RESYNC`.
    AppendFailed,
}

/// Result of a successful login.
#[derive(Clone, Debug)]
pub struct LoggedIn {
    /// User named by the token.
    pub user: UserId,
    /// Device named by Hello, checked against the token.
    pub device: DeviceId,
    /// Epoch of the connection; rises per (user, device).
    pub epoch: u64,
    /// Name of the session, for `resume`.
    pub session: String,
    /// Id of this node.
    pub node: NodeId,
    /// Saved state of the chain.
    pub chain_saved: Option<ChainSaved>,
    /// Whether the session named in `resume` was found.
    pub resumed: bool,
    /// Wall clock in ms since 1970, for display only.
    pub server_time_ms: u64,
    /// Random id at which the chain starts if neither side has one.
    pub fresh_next_id: MsgId,
}

/// Saved state of a device's chain, as of the last answer to its last connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainSaved {
    /// Id that the next chained message carries.
    pub expected: MsgId,
    /// Last 256 answered ids, oldest first.
    pub done: Vec<MsgId>,
    /// Last 256 skipped ids, oldest first.
    pub skipped: Vec<MsgId>,
}

/// Identity of a connection from its login to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Logged-in user.
    pub user: UserId,
    /// Device of the user.
    pub device: DeviceId,
    /// Epoch of the connection.
    pub epoch: u64,
}

/// Settings in force for this connection: the user's, within the node's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EffectiveSettings {
    pub(super) heartbeat_ms: u32,
    pub(super) ack_timeout_ms: u32,
    pub(super) ack_tries: u8,
    pub(super) viewing: Viewing,
}

impl EffectiveSettings {
    pub(super) const NONE: Self = Self {
        heartbeat_ms: 0,
        ack_timeout_ms: 0,
        ack_tries: 0,
        viewing: Viewing { unread: Unread::All, retention: Retention::Forever },
    };

    pub(super) fn of(settings: &UserSettings, limits: &SessionLimits) -> Self {
        let clamp = |ms: u32, default: Duration, min: Duration, max: Duration| {
            let value = if ms == 0 { default } else { Duration::from_millis(ms.into()) };
            u32::try_from(value.max(min).min(max).as_millis()).unwrap_or(u32::MAX)
        };
        let window = &limits.window;
        Self {
            heartbeat_ms: clamp(
                settings.heartbeat_ms,
                limits.heartbeat,
                limits.heartbeat_min,
                limits.heartbeat_max,
            ),
            // From a quarter of the node's timeout to four times of it.
            ack_timeout_ms: clamp(
                settings.ack_timeout_ms,
                window.ack_timeout,
                window.ack_timeout / 4,
                window.ack_timeout * 4,
            ),
            ack_tries: match settings.ack_tries {
                0 => window.tries,
                tries => u8::try_from(tries).unwrap_or(u8::MAX).min(window.tries),
            },
            viewing: Viewing {
                unread: settings.unread.unwrap_or_default(),
                retention: settings.retention.unwrap_or_default(),
            },
        }
    }

    /// Returns the settings that Welcome reports, with those of the user that have no effect on the connection.
    pub(super) fn for_welcome(&self, chain: bool, settings: &UserSettings) -> pb::Settings {
        pb::Settings {
            chain,
            ack_timeout_ms: self.ack_timeout_ms,
            ack_tries: self.ack_tries.into(),
            heartbeat_ms: self.heartbeat_ms,
            unread: self.viewing.unread.word().to_owned(),
            retention: self.viewing.retention.word().to_owned(),
            search: settings.search.unwrap_or_default().word().to_owned(),
            presence: settings.presence.unwrap_or_default().word().to_owned(),
        }
    }
}

/// Returns the earlier of two optional times.
pub(super) fn sooner(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    }
}
