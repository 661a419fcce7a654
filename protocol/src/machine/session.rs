//! Session: the protocol state of one connection (SPEC section 3). Greeting → logging in → live → (leaving) → closed.
//!
//! Methods are of four kinds, as in quinn: getters, inputs (`handle_*` from the client and the clock, the others from
//! the broker), `poll_timeout`, and [`Session::poll_submit`]. Every input may append [`Action`]s to the caller's `out`.
//! After *every* input the driver applies `out` in order, then polls submissions until there is none, and reports each
//! synchronous refusal immediately:
//!
//! ```text
//! session.handle_frame(frame, ..., &mut out)          // or any other input
//! loop {
//!     for action in out.drain(..) { apply(action) }
//!     let Some(submit) = session.poll_submit(limits, now, &mut out) else { break };
//!     let ticket = submit.ticket;
//!     if let Err(code) = shard.submit(submit) { session.submit_refused(ticket, code.into(), limits, now, &mut out) }
//! }
//! for action in out.drain(..) { apply(action) }
//! if !session.wants_read(limits) { stop decoding and reading }
//! ```
//!
//! A driver may poll a submission later, for a limit of its own. Until then it must not read, even where
//! [`Session::wants_read`] allows it, and it watches [`Session::has_submit`].
//!
//! **Refusals before the append.** Submissions are polled one at a time, so after a temporary refusal the chain expects
//! that id again, and `n` is not used up. Its successors are given back: held ones and those that still arrive get the
//! same refusal, in chain order, until the id arrives again or the order timeout has passed after the announced wait.
//! Nothing is held meanwhile, so no timer runs, reading goes on, and no id is skipped because the broker asked for
//! patience. A permanent refusal is an answer, and the chain continues.
//!
//! **Stopped reading.** [`Session::wants_read`] is false while a login is pending (frames sent after Hello wait), while
//! a query is open (until [`Session::query_over`]), while `in_flight_max` submissions have no answer (until an answer
//! or the reply deadline), while [`JOINING_MAX`] joins have no outcome, while the budget of frames is spent (until its
//! refill), and while the hold is full. The frame that found the hold full is parked in the session, one
//! at most, and the driver keeps the bytes after it undecoded, so nothing is lost. The expected id may be among those
//! bytes or may never arrive; only unbounded reading could tell. So the order timeout relieves a full hold: after the
//! alarm and the skip, the oldest held message is released and the parked frame takes its place. The client gets the
//! expected id when reading stops, and the id of each skip. A client that is not read is never closed for silence. A
//! Send that is passed in although reading should have stopped is answered `BUSY`.
//!
//! **Saved state.** [`Action::SaveChain`] follows answers, not releases: it names the end of the longest chained prefix
//! in which every message has an answer; *unknown* is not an answer. If a connection ends with submissions in flight,
//! the next one resumes at the first unanswered message. That one gets a new number in order, and the ledger recognises
//! it as a duplicate if it was accepted (ADR 2).
//!
//! A skipped id is saved immediately ([`Action::SaveSkip`]), so that no later connection accepts it after its
//! successors.
//!
//! **Rooms** are never chained: a Send to a room with `next_id` is refused with `BAD_LINK`, because its successors
//! would wait for an id that never enters the chain.

mod answers;
mod flights;
mod frames;
mod login;
mod query;
mod refresh;
mod requests;
mod send;
mod signal;
mod types;

pub use self::{
    query::{PAGE_DEFAULT, PAGE_MAX, Pull, Query, SEQS_MAX, SIDE_MAX, Which},
    types::{
        Action, Alarm, ChainSaved, Identity, LoggedIn, Order, POSITIONS_MAX, Ruling, SessionLimits, Submit,
        SubmitAnswer, SubmitRefusal,
    },
};

use self::{
    flights::Flights,
    login::Hello,
    requests::PendingJoin,
    send::Ordered,
    types::{EffectiveSettings, sooner},
};
use crate::{
    Code, Time,
    id::{MsgId, RoomId},
    machine::{chain::ChainAlarm, frame_budget::FrameBudget, window::WindowLimits},
    pb::{self, client_frame::Body as ClientBody, server_frame::Body as ServerBody},
    settings::Viewing,
};
use std::{borrow::Cow, time::Duration};

/// Time after which one permanent refusal is forgotten.
const ERROR_RETENTION: Duration = Duration::from_secs(10);

/// Maximum number of joins without an outcome; reading stops at it.
pub const JOINING_MAX: usize = 8;

/// Protocol state of one connection; the module documentation shows how to drive it.
#[derive(Debug)]
pub struct Session {
    state: State,
    identity: Option<Identity>,
    settings: EffectiveSettings,
    last_received: Time,
    /// Wall clock at [`Time::ZERO`], in ms since 1970, as of the login.
    wall_zero: u64,
    /// Permanent refusals that count; one is forgotten per [`ERROR_RETENTION`], and one per accepted send.
    errors: u16,
    /// Time up to which refusals were forgotten.
    errors_since: Time,
    /// Whether reading was stopped after the last input.
    stopped: bool,
    /// Whether a query is unanswered, or the client has not taken its answer.
    query_open: bool,
    /// Whether the open query appends to the log and has no answer yet.
    append_open: bool,
    /// Unchained submission, from an input until the next poll.
    pending: Option<Box<Submit>>,
    flights: Flights,
    /// Unanswered submissions that a gate has admitted.
    gated: u32,
    frames: FrameBudget,
    /// Time at which the signal budget is full again.
    signals_until: Time,
    /// Chain state, `None` without a chain.
    ordered: Option<Box<Ordered>>,
    rooms: Vec<RoomId>,
    /// Joins without an outcome, oldest first; a room is in here twice if it was left and joined again.
    joining: Vec<PendingJoin>,
}

#[derive(Debug)]
enum State {
    Greeting {
        since: Time,
    },
    LoggingIn {
        since: Time,
        hello: Box<Hello>,
    },
    Live,
    /// Waits for the answers still due, then closes.
    Leaving {
        code: Code,
        reason: Cow<'static, str>,
    },
    Closed,
}

/// Phase of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionPhase {
    /// Waiting for Hello.
    Greeting,
    /// Waiting for the driver's decision on the login.
    LoggingIn,
    /// Welcome was sent.
    Live,
    /// Reading has ended; closes when all submissions, and an open query that appends, are answered.
    Leaving,
    /// Close was sent.
    Closed,
}

impl Session {
    /// Creates the session of a connection that was accepted now.
    pub fn new(now: Time) -> Self {
        Self {
            state: State::Greeting { since: now },
            identity: None,
            settings: EffectiveSettings::NONE,
            last_received: now,
            wall_zero: 0,
            errors: 0,
            errors_since: now,
            stopped: false,
            query_open: false,
            append_open: false,
            pending: None,
            flights: Flights::default(),
            gated: 0,
            frames: FrameBudget::default(),
            signals_until: Time::ZERO,
            ordered: None,
            rooms: Vec::new(),
            joining: Vec::new(),
        }
    }

    /// Returns the current phase.
    pub fn phase(&self) -> SessionPhase {
        match self.state {
            State::Greeting { .. } => SessionPhase::Greeting,
            State::LoggingIn { .. } => SessionPhase::LoggingIn,
            State::Live => SessionPhase::Live,
            State::Leaving { .. } => SessionPhase::Leaving,
            State::Closed => SessionPhase::Closed,
        }
    }

    /// Returns the user and device; set by [`Session::logged_in`] and kept after the close.
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// Returns the rooms that are joined or being joined; kept after the close, so that the driver can clean up.
    pub fn rooms(&self) -> &[RoomId] {
        &self.rooms
    }

    /// Returns the id that the chain expects, `None` without a chain.
    pub fn expected(&self) -> Option<&MsgId> {
        self.ordered.as_ref().map(|ordered| ordered.chain.expected())
    }

    /// Returns the number of held messages, including a parked one, for metrics.
    pub fn held(&self) -> usize {
        self.ordered.as_ref().map_or(0, |o| o.chain.held() + usize::from(o.parked.is_some()))
    }

    /// Returns since when the chain is blocked by a message that is missing; `None` if it is not.
    pub fn blocked_since(&self) -> Option<Time> {
        self.ordered.as_ref()?.chain.blocked_since()
    }

    /// Returns the bytes that the chain makes the node hold: held and parked messages, and counts by conversation.
    pub fn held_bytes(&self) -> usize {
        self.ordered.as_ref().map_or(0, |ordered| ordered.held_bytes())
    }

    /// Returns the number of submissions that count against `in_flight_max`.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Returns the limits of this connection's window: the node's, adjusted by the user's settings.
    pub fn window_limits(&self, limits: &SessionLimits) -> WindowLimits {
        if self.identity.is_none() {
            return limits.window;
        }
        let ack_timeout = Duration::from_millis(self.settings.ack_timeout_ms.into());
        WindowLimits { ack_timeout, tries: self.settings.ack_tries, ..limits.window }
    }

    /// Returns the settings that affect how the user sees conversations, for the driver's queries.
    pub fn viewing(&self) -> Viewing {
        self.settings.viewing
    }

    /// Returns whether the driver may read and decode; the module documentation says when reading resumes.
    pub fn wants_read(&self, limits: &SessionLimits) -> bool {
        match self.state {
            State::Greeting { .. } => true,
            State::Live => {
                !self.query_open
                    && !self.frames.is_spent()
                    && self.joining.len() < JOINING_MAX
                    && self.flights.len() < limits.in_flight_max
                    && self.pending.is_none()
                    && self.ordered.as_ref().is_none_or(|o| o.parked.is_none())
            }
            // Frames after Hello wait for Welcome, so that a client may write them all at once.
            State::LoggingIn { .. } | State::Leaving { .. } | State::Closed => false,
        }
    }

    /// Handles a decoded frame.
    pub fn handle_frame(
        &mut self,
        frame: pb::ClientFrame,
        limits: &SessionLimits,
        now: Time,
        out: &mut Vec<Action>,
    ) {
        self.handle_heard(now);
        let id = frame.id;
        match (&self.state, frame.body) {
            (State::Greeting { .. }, Some(ClientBody::Hello(hello))) => {
                self.handle_hello(id, hello, now, out);
            }
            (State::Greeting { .. } | State::LoggingIn { .. }, _)
            | (State::Live, Some(ClientBody::Hello(_))) => self.close(Code::BadState, "", out),
            (State::Live, Some(body)) => self.handle_request(id, body, limits, now, out),
            (State::Live, None) => self.refuse(id, Code::Unsupported, "", limits, out),
            (State::Leaving { .. } | State::Closed, _) => {}
        }
        self.count_frame(limits, now);
        self.update_reading(limits, now);
    }

    /// Handles any other sign of life of the client, which is no frame.
    pub fn handle_heard(&mut self, now: Time) {
        self.last_received = self.last_received.max(now);
    }

    /// Handles an empty frame, the shortest ping.
    pub fn handle_empty(&mut self, limits: &SessionLimits, now: Time, out: &mut Vec<Action>) {
        self.handle_heard(now);
        match self.state {
            State::Greeting { .. } | State::LoggingIn { .. } => self.close(Code::BadState, "", out),
            State::Live => self.pong(0, now, out),
            State::Leaving { .. } | State::Closed => {}
        }
        self.count_frame(limits, now);
        self.update_reading(limits, now);
    }

    /// Handles malformed bytes: closes the connection, because the bytes after them can't be framed.
    pub fn handle_violation(
        &mut self,
        code: Code,
        reason: impl Into<Cow<'static, str>>,
        out: &mut Vec<Action>,
    ) {
        self.close(code, reason, out);
    }

    /// Sends GoAway; the session continues until [`Session::leave`] or [`Session::close`]. Returns false, and sends
    /// nothing, if it is not live.
    pub fn begin_drain(&mut self, goaway: pb::GoAway, out: &mut Vec<Action>) -> bool {
        let live = matches!(self.state, State::Live);
        if live {
            self.push_frame(0, ServerBody::GoAway(goaway), out);
        }
        live
    }

    /// Stops reading, and closes once all submissions, and an open query that appends, are answered.
    ///
    /// Refuses an unchained submission that was not polled yet. Closes immediately if none is in flight. The driver answers every query within a bounded time.
    pub fn leave(&mut self, code: Code, reason: impl Into<Cow<'static, str>>, out: &mut Vec<Action>) {
        match self.state {
            State::Live => {
                if let Some(submit) = self.pending.take() {
                    self.push_frame(submit.id, ServerBody::Error(Code::Busy.error("")), out);
                }
                self.state = State::Leaving { code, reason: reason.into() };
                self.close_if_done(out);
            }
            State::Greeting { .. } | State::LoggingIn { .. } => self.close(code, reason, out),
            State::Leaving { .. } | State::Closed => {}
        }
    }

    /// Closes immediately, whatever is in flight. Idempotent: only the first Close is sent.
    pub fn close(&mut self, code: Code, reason: impl Into<Cow<'static, str>>, out: &mut Vec<Action>) {
        if matches!(self.state, State::Closed) {
            return;
        }
        self.state = State::Closed;
        self.pending = None;
        self.ordered = None;
        (self.flights, self.gated) = (Flights::default(), 0);
        out.push(Action::Close { code, reason: reason.into() });
    }

    /// Returns when to call [`Session::handle_timeout`].
    pub fn poll_timeout(&self, limits: &SessionLimits) -> Option<Time> {
        let reply = || self.flights.oldest().map(|sent| sent + limits.reply_deadline);
        match self.state {
            State::Greeting { since } => Some(since + limits.handshake),
            State::LoggingIn { since, .. } => Some(since + limits.login_answer),
            State::Live => {
                let silence = self.is_read(limits).then(|| self.last_received + self.silence_max());
                let order = self.ordered.as_ref().and_then(|o| o.chain.poll_timeout());
                let frames = self.frames.poll_timeout(limits.frames_per_second);
                sooner(sooner(silence, order), sooner(frames, reply()))
            }
            State::Leaving { .. } => reply(),
            State::Closed => None,
        }
    }

    /// Handles all expired timers. Afterwards [`Session::poll_timeout`] is later than `now`.
    pub fn handle_timeout(&mut self, limits: &SessionLimits, now: Time, out: &mut Vec<Action>) {
        if self.poll_timeout(limits).is_none_or(|due| due > now) {
            return;
        }
        self.refill_frames(limits, now, out);
        match self.state {
            State::Greeting { .. } => return self.close(Code::HandshakeTimeout, "", out),
            State::LoggingIn { .. } => {
                return self.close(Code::Overloaded, "login timed out", out);
            }
            State::Live if self.is_read(limits) && self.last_received + self.silence_max() <= now => {
                return self.close(Code::HeartbeatMissed, "", out);
            }
            State::Live => self.check_order(now, out),
            State::Leaving { .. } => {}
            State::Closed => return,
        }
        self.expire_overdue(limits, now, out);
        self.update_reading(limits, now);
    }

    fn check_order(&mut self, now: Time, out: &mut Vec<Action>) {
        let Some(alarm) = self.ordered.as_mut().and_then(|o| o.chain.handle_timeout(now)) else { return };
        let (kind, alarm, expected, msg_id) = match alarm {
            ChainAlarm::Blocked { expected } => {
                let id = expected.to_string();
                (pb::NoticeKind::OrderBlocked, Alarm::OrderBlocked { expected }, id, String::new())
            }
            ChainAlarm::Skipped { expected, resumed_at } => {
                let ids = (expected.to_string(), resumed_at.to_string());
                self.flights.relink(&expected, &resumed_at);
                if let Some(ordered) = &mut self.ordered {
                    ordered.relink(&expected, &resumed_at);
                }
                self.save_skip(expected.clone(), out);
                (pb::NoticeKind::OrderSkipped, Alarm::OrderSkipped { expected, resumed_at }, ids.0, ids.1)
            }
        };
        out.push(Action::Alarm(alarm));
        self.push_frame(0, notice(kind, expected, msg_id), out);
    }

    /// Tracks whether reading is stopped. The silence timer restarts when reading resumes, because a client that is not
    /// read is not silent.
    fn update_reading(&mut self, limits: &SessionLimits, now: Time) {
        let stopped = !self.is_read(limits);
        if self.stopped && !stopped {
            self.handle_heard(now);
        }
        self.stopped = stopped;
    }

    /// Returns whether the driver reads, so that silence is the client's. It does not while a send waits for others of
    /// the user.
    fn is_read(&self, limits: &SessionLimits) -> bool {
        self.wants_read(limits) && !self.has_submit()
    }

    fn silence_max(&self) -> Duration {
        Duration::from_millis(self.settings.heartbeat_ms.into()) * 5 / 2
    }

    /// Replies Done, if the client asked for an answer by setting an id.
    fn done(&self, id: u64, out: &mut Vec<Action>) {
        if id != 0 {
            self.push_frame(id, ServerBody::Done(pb::Done {}), out);
        }
    }

    /// Replies to a Send that was refused before the log.
    fn refuse_submit(
        &mut self,
        id: u64,
        refusal: &SubmitRefusal<'_>,
        limits: &SessionLimits,
        out: &mut Vec<Action>,
    ) {
        let SubmitRefusal { code, message, retry_after } = *refusal;
        if !code.temporary() {
            return self.refuse(id, code, message, limits, out);
        }
        let error = pb::Error { retry_after_ms: wait_ms(retry_after), ..code.error(message) };
        self.push_frame(id, ServerBody::Error(error), out);
    }

    /// Replies with an error; too many permanent ones close the connection.
    fn refuse(&mut self, id: u64, code: Code, message: &str, limits: &SessionLimits, out: &mut Vec<Action>) {
        self.push_frame(id, ServerBody::Error(code.error(message)), out);
        // A sender that is left out, whose room was closed, or whose message the application denies, has made no mistake.
        if !code.temporary() && !matches!(code, Code::LeftOut | Code::RoomClosed | Code::Application(_)) {
            self.forget_errors();
            self.errors = self.errors.saturating_add(1);
            if self.errors >= limits.errors_max {
                self.close(Code::TooManyErrors, "", out);
            }
        }
    }

    /// Forgets the refusals that have expired. Accepted sends aside, nothing that the client does lowers their number.
    fn forget_errors(&mut self) {
        let expired = self.last_received.since(self.errors_since).as_secs() / ERROR_RETENTION.as_secs();
        self.errors = self.errors.saturating_sub(u16::try_from(expired).unwrap_or(u16::MAX));
        if self.errors == 0 {
            self.errors_since = self.last_received;
        } else {
            self.errors_since =
                self.errors_since + ERROR_RETENTION * u32::try_from(expired).unwrap_or(u32::MAX);
        }
    }

    fn push_frame(&self, id: u64, body: ServerBody, out: &mut Vec<Action>) {
        debug_assert!(!matches!(self.state, State::Closed), "no frame is sent after Close");
        out.push(Action::Reply(Box::new(pb::ServerFrame { id, body: Some(body) })));
    }
}

/// Returns a wait in ms, rounded up, at least 1.
fn wait_ms(wait: Duration) -> u32 {
    u32::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX).max(1)
}

fn notice(kind: pb::NoticeKind, expected: String, msg_id: String) -> ServerBody {
    ServerBody::Notice(pb::Notice { kind: kind as i32, expected, msg_id, ..pb::Notice::default() })
}
