//! The session: what one conn may say when, and what is answered. Greeting → logging in → live → (leaving) → closed.
//!
//! Methods are of four kinds, as in quinn: getters, inputs (`handle_*` from the client and the clock, the others from
//! the broker), `poll_timeout`, and [`Session::poll_submit`]. Every input may put [`Action`]s into the caller's `out`.
//! The driver's loop, after *every* input: apply `out` in order, then poll submissions until there is none, telling
//! each synchronous refusal back at once:
//!
//! ```text
//! session.handle_frame(frame, ..., &mut out)          // or any other input
//! loop {
//!     for action in out.drain(..) { apply(action) }
//!     let Some(submit) = session.poll_submit(limits, now, &mut out) else { break };
//!     let ticket = submit.ticket;
//!     if let Err(code) = shard.submit(submit) { session.submit_refused(ticket, code, "", limits, now, &mut out) }
//! }
//! for action in out.drain(..) { apply(action) }
//! if !session.wants_read(limits) { stop decoding and reading }
//! ```
//!
//! **Refusals before the append.** One submission is out at a time, so a temporary refusal puts the chain back to that
//! id: what follows stays held, and `n` is not used up. A permanent one is an answer, and the chain goes on.
//!
//! **Stopped reading.** [`Session::wants_read`] is false while a login is undecided (what was written behind Hello waits),
//! while a query is open (until [`Session::query_over`]),
//! while `in_flight_max` submissions have no answer (answers or
//! the reply deadline relieve that) and while the hold is full. The frame that found the hold full is parked in here,
//! one at most, so nothing is lost: the driver keeps the bytes behind it undecoded. The expected id may be among those
//! bytes or may never come; nobody can know without reading on without bound. So the order timeout relieves a full
//! hold: after the alarm and the skip, the oldest held message goes on, and the parked frame takes the free place. The
//! client is told the expected id when reading stops, and each skip by name. Silence is not held against a client
//! that is not read. A Send that is handed in although reading should have stopped is answered `BUSY`.
//!
//! **What is saved.** [`Action::SaveChain`] follows answers, not releases: it names the end of the longest chained
//! prefix that has all its answers; *unknown* is none. A conn that dies with submissions on the way resumes at the first unanswered one,
//! which is then numbered again in order, and which the ledger finds to be a duplicate if it was accepted.
//!
//! An id that a skip gave up is saved at once ([`Action::SaveSkip`]), so that no later connection lets it in behind
//! what came after it.
//!
//! **Rooms** are never chained: a Send to a room with `next_id` is refused `BAD_LINK`, because its successors would
//! wait for an id that the chain never sees.

mod answers;
mod flights;
mod login;
mod query;
mod requests;
mod send;
mod signal;
mod types;

pub use self::{
    query::{PAGE_DEFAULT, PAGE_MAX, Pull, Query, SEQS_MAX, SIDE_MAX, Which},
    types::{Action, Alarm, Answer, ChainSaved, Identity, Limits, LoggedIn, Order, POSITIONS_MAX, Submit},
};

use self::{
    flights::Flights,
    login::Hello,
    send::Ordered,
    types::{Wishes, sooner},
};
use crate::{
    Code, Time,
    id::{MsgId, RoomId},
    machine::{chain::ChainAlarm, window::WindowLimits},
    pb::{self, client_frame::Body as Asked, server_frame::Body as Said},
    settings::Viewing,
};
use std::{borrow::Cow, time::Duration};

/// The protocol state of one conn. See the module for how to drive it.
#[derive(Debug)]
pub struct Session {
    state: State,
    identity: Option<Identity>,
    wishes: Wishes,
    last_heard: Time,
    /// Wall clock at [`Time::ZERO`], in ms since 1970, as it was at login.
    wall_zero: u64,
    /// Refused frames since the last good one.
    errors: u16,
    /// Whether reading was stopped when last looked at.
    stopped: bool,
    /// Whether a query has no answer yet, or one that the client has not taken.
    asking: bool,
    /// It goes to the log, and has no answer yet.
    appending: bool,
    /// An unchained submission; lives from an input to the next poll.
    pending: Option<Box<Submit>>,
    flights: Flights,
    /// When the budget of signals is whole again.
    signals_until: Time,
    /// Only with a chain.
    ordered: Option<Box<Ordered>>,
    rooms: Vec<RoomId>,
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
    /// Waits for the answers that are due, then closes.
    Leaving {
        code: Code,
        reason: Cow<'static, str>,
    },
    Closed,
}

/// Where a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waits for Hello.
    Greeting,
    /// Waits for the driver's word on the login.
    LoggingIn,
    /// Welcome was said.
    Live,
    /// Reads no more; closes when all submissions, and a query that goes to the log, have their answers.
    Leaving,
    /// Close was said.
    Closed,
}

impl Session {
    /// A session whose conn was accepted now.
    pub fn new(now: Time) -> Self {
        Self {
            state: State::Greeting { since: now },
            identity: None,
            wishes: Wishes::NONE,
            last_heard: now,
            wall_zero: 0,
            errors: 0,
            stopped: false,
            asking: false,
            appending: false,
            pending: None,
            flights: Flights::default(),
            signals_until: Time::ZERO,
            ordered: None,
            rooms: Vec::new(),
        }
    }

    /// Where it stands.
    pub fn phase(&self) -> Phase {
        match self.state {
            State::Greeting { .. } => Phase::Greeting,
            State::LoggingIn { .. } => Phase::LoggingIn,
            State::Live => Phase::Live,
            State::Leaving { .. } => Phase::Leaving,
            State::Closed => Phase::Closed,
        }
    }

    /// Who speaks; set by [`Session::logged_in`], kept after the close.
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// The rooms it is in or on its way into; kept after the close, for the driver to clean up.
    pub fn rooms(&self) -> &[RoomId] {
        &self.rooms
    }

    /// The id that the chain expects, if there is a chain.
    pub fn expected(&self) -> Option<&MsgId> {
        self.ordered.as_ref().map(|ordered| ordered.chain.expected())
    }

    /// How many messages wait in here, for metrics: held ones, and the parked one.
    pub fn held(&self) -> usize {
        self.ordered.as_ref().map_or(0, |o| o.chain.held() + usize::from(o.parked.is_some()))
    }

    /// How many submissions count against `in_flight_max`.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// The bounds of this conn's window: the node's, with the client's wishes.
    pub fn window_limits(&self, limits: &Limits) -> WindowLimits {
        if self.identity.is_none() {
            return limits.window;
        }
        let ack_timeout = Duration::from_millis(self.wishes.ack_timeout_ms.into());
        WindowLimits { ack_timeout, tries: self.wishes.ack_tries, ..limits.window }
    }

    /// How the user looks at conversations, for the driver's queries.
    pub fn viewing(&self) -> Viewing {
        self.wishes.viewing
    }

    /// Whether the driver may decode and read on. See the module for what ends a stop.
    pub fn wants_read(&self, limits: &Limits) -> bool {
        match self.state {
            State::Greeting { .. } => true,
            State::Live => {
                !self.asking
                    && self.flights.len() < limits.in_flight_max
                    && self.pending.is_none()
                    && self.ordered.as_ref().is_none_or(|o| o.parked.is_none())
            }
            // What comes behind Hello waits for Welcome, so that a client may write it all at once.
            State::LoggingIn { .. } | State::Leaving { .. } | State::Closed => false,
        }
    }

    /// Takes a decoded frame.
    pub fn handle_frame(
        &mut self,
        frame: pb::ClientFrame,
        limits: &Limits,
        now: Time,
        out: &mut Vec<Action>,
    ) {
        self.handle_heard(now);
        let id = frame.id;
        match (&self.state, frame.body) {
            (State::Greeting { .. }, Some(Asked::Hello(hello))) => self.greet(id, hello, now, out),
            (State::Greeting { .. } | State::LoggingIn { .. }, _) | (State::Live, Some(Asked::Hello(_))) => {
                self.close(Code::BadState, "", out);
            }
            (State::Live, Some(body)) => self.handle_request(id, body, limits, now, out),
            (State::Live, None) => self.refuse(id, Code::Unsupported, "", limits, out),
            (State::Leaving { .. } | State::Closed, _) => {}
        }
        self.note_reading(limits, now);
    }

    /// Something else proves that the client lives, such as a WebSocket pong.
    pub fn handle_heard(&mut self, now: Time) {
        self.last_heard = self.last_heard.max(now);
    }

    /// An empty frame: the shortest ping.
    pub fn handle_empty(&mut self, now: Time, out: &mut Vec<Action>) {
        self.handle_heard(now);
        match self.state {
            State::Greeting { .. } | State::LoggingIn { .. } => self.close(Code::BadState, "", out),
            State::Live => self.pong(0, now, out),
            State::Leaving { .. } | State::Closed => {}
        }
    }

    /// Bytes that are no frame. Ends the conn: what follows them can't be trusted.
    pub fn handle_violation(
        &mut self,
        code: Code,
        reason: impl Into<Cow<'static, str>>,
        out: &mut Vec<Action>,
    ) {
        self.close(code, reason, out);
    }

    /// Says GoAway; the session goes on until [`Session::leave`] or [`Session::close`]. False when it is not live:
    /// then there is nobody to tell.
    pub fn begin_drain(&mut self, goaway: pb::GoAway, out: &mut Vec<Action>) -> bool {
        let live = matches!(self.state, State::Live);
        if live {
            self.say(0, Said::GoAway(goaway), out);
        }
        live
    }

    /// Stops reading and closes once all submissions, and a query that goes to the log, have their answers; at once when
    /// none is under way. The driver answers every query within a bounded time.
    pub fn leave(&mut self, code: Code, reason: impl Into<Cow<'static, str>>, out: &mut Vec<Action>) {
        match self.state {
            State::Live => {
                self.state = State::Leaving { code, reason: reason.into() };
                self.close_if_left(out);
            }
            State::Greeting { .. } | State::LoggingIn { .. } => self.close(code, reason, out),
            State::Leaving { .. } | State::Closed => {}
        }
    }

    /// Closes now, whatever is under way. Idempotent: only the first close is said.
    pub fn close(&mut self, code: Code, reason: impl Into<Cow<'static, str>>, out: &mut Vec<Action>) {
        if matches!(self.state, State::Closed) {
            return;
        }
        self.state = State::Closed;
        self.pending = None;
        self.ordered = None;
        self.flights = Flights::default();
        out.push(Action::Close { code, reason: reason.into() });
    }

    /// When to call [`Session::handle_timeout`].
    pub fn poll_timeout(&self, limits: &Limits) -> Option<Time> {
        let reply = || self.flights.oldest().map(|sent| sent + limits.reply_deadline);
        match self.state {
            State::Greeting { since } => Some(since + limits.handshake),
            State::LoggingIn { since, .. } => Some(since + limits.login_answer),
            State::Live => {
                let silence = self.wants_read(limits).then(|| self.last_heard + self.silence_max());
                let order = self.ordered.as_ref().and_then(|o| o.chain.poll_timeout());
                sooner(sooner(silence, order), reply())
            }
            State::Leaving { .. } => reply(),
            State::Closed => None,
        }
    }

    /// Does what is due. Afterwards [`Session::poll_timeout`] lies after `now`.
    pub fn handle_timeout(&mut self, limits: &Limits, now: Time, out: &mut Vec<Action>) {
        if self.poll_timeout(limits).is_none_or(|due| due > now) {
            return;
        }
        match self.state {
            State::Greeting { .. } => return self.close(Code::HandshakeTimeout, "", out),
            State::LoggingIn { .. } => {
                return self.close(Code::Overloaded, "the login was not decided in time", out);
            }
            State::Live if self.wants_read(limits) && self.last_heard + self.silence_max() <= now => {
                return self.close(Code::HeartbeatMissed, "", out);
            }
            State::Live => self.check_order(now, out),
            State::Leaving { .. } => {}
            State::Closed => return,
        }
        self.give_up_overdue(limits, now, out);
        self.note_reading(limits, now);
    }

    fn check_order(&mut self, now: Time, out: &mut Vec<Action>) {
        let Some(alarm) = self.ordered.as_mut().and_then(|o| o.chain.handle_timeout(now)) else { return };
        let (kind, alarm, expected, msg_id) = match alarm {
            ChainAlarm::Blocked { expected } => {
                let told = expected.to_string();
                (pb::NoticeKind::OrderBlocked, Alarm::OrderBlocked { expected }, told, String::new())
            }
            ChainAlarm::Skipped { expected, resumed_at } => {
                let told = (expected.to_string(), resumed_at.to_string());
                self.flights.relink(&expected, &resumed_at);
                if let Some(ordered) = &mut self.ordered {
                    ordered.relink(&expected, &resumed_at);
                }
                self.save_skip(expected.clone(), out);
                (pb::NoticeKind::OrderSkipped, Alarm::OrderSkipped { expected, resumed_at }, told.0, told.1)
            }
        };
        out.push(Action::Alarm(alarm));
        self.say(0, notice(kind, expected, msg_id), out);
    }

    /// A client is not silent while nobody reads it: its silence counts from when reading goes on.
    fn note_reading(&mut self, limits: &Limits, now: Time) {
        let stopped = !self.wants_read(limits);
        if self.stopped && !stopped {
            self.handle_heard(now);
        }
        self.stopped = stopped;
    }

    fn silence_max(&self) -> Duration {
        Duration::from_millis(self.wishes.heartbeat_ms.into()) * 5 / 2
    }

    /// Answers that there is nothing more to say, to whom it asked for an answer.
    fn done(&self, id: u64, out: &mut Vec<Action>) {
        if id != 0 {
            self.say(id, Said::Done(pb::Done {}), out);
        }
    }

    /// Answers with an error; too many lasting ones in a row end the conn.
    fn refuse(&mut self, id: u64, code: Code, message: &str, limits: &Limits, out: &mut Vec<Action>) {
        self.say(id, Said::Error(code.error(message)), out);
        if !code.temporary() {
            self.errors = self.errors.saturating_add(1);
            if self.errors >= limits.errors_max {
                self.close(Code::TooManyErrors, "", out);
            }
        }
    }

    fn say(&self, id: u64, body: Said, out: &mut Vec<Action>) {
        debug_assert!(!matches!(self.state, State::Closed), "nothing is said after Close");
        out.push(Action::Reply(Box::new(pb::ServerFrame { id, body: Some(body) })));
    }
}

fn notice(kind: pb::NoticeKind, expected: String, msg_id: String) -> Said {
    Said::Notice(pb::Notice { kind: kind as i32, expected, msg_id, ..pb::Notice::default() })
}
