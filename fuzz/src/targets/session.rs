//! Fuzz target for the session: any frames, answers and times, with a minimal driver.

use std::{collections::VecDeque, time::Duration};

use tidegate_protocol::{
    Code, Time,
    codec::{Decoded, Framing, decode_client},
    id::{DeviceId, MsgId, NodeId, RoomId, UserId},
    machine::{
        chain::ChainLimits,
        session::{Action, ChainSaved, LoggedIn, Session, SessionLimits, SessionPhase, SubmitAnswer},
    },
    pb,
};

/// Runs the steps in `data`, each a kind byte with arguments, until one is incomplete; see [`Driver::step`].
pub fn session(data: &[u8]) {
    let limits = SessionLimits {
        in_flight_max: 4,
        chain: ChainLimits { hold_max: 3, hold_bytes_max: 300, order_timeout: Duration::from_secs(2) },
        content_bytes_max: 100,
        errors_max: 12,
        rooms_max: 2,
        chained_conversations_max: 3,
        frames_per_second: 3,
        ..SessionLimits::default()
    };
    let mut driver = Driver {
        session: Session::new(Time::ZERO),
        limits,
        now: Time::ZERO,
        open: VecDeque::new(),
        joins: VecDeque::new(),
        queries: VecDeque::new(),
        refusal: None,
        tickets: 0,
        closed: false,
    };
    let mut input = data;
    while driver.step(&mut input).is_some() {
        driver.check();
    }
}

struct Driver {
    session: Session,
    limits: SessionLimits,
    now: Time,
    /// Tickets of submissions without an answer.
    open: VecDeque<u64>,
    joins: VecDeque<(u64, RoomId)>,
    /// Id of the open query, if there is one.
    queries: VecDeque<u64>,
    /// Code that refuses the next submission.
    refusal: Option<Code>,
    tickets: u64,
    closed: bool,
}

fn take<'a>(input: &mut &'a [u8], bytes: usize) -> Option<&'a [u8]> {
    let (head, rest) = input.split_at_checked(bytes)?;
    *input = rest;
    Some(head)
}

fn byte(input: &mut &[u8]) -> Option<u8> {
    take(input, 1)?.first().copied()
}

fn id(text: &str) -> MsgId {
    MsgId::new(text).expect("well formed")
}

impl Driver {
    /// Feeds one input to the session; `None` at the end of the data.
    fn step(&mut self, input: &mut &[u8]) -> Option<()> {
        let now = self.now;
        match byte(input)? % 10 {
            kind @ (0 | 1) => {
                let len = byte(input)?;
                let framing = if kind == 0 { Framing::Json } else { Framing::Proto };
                self.frame(take(input, len.into())?, framing);
            }
            2 => {
                let ms = u64::from(byte(input)?) * 50;
                self.now = now + Duration::from_millis(ms);
                self.input(|s, l, now, out| s.handle_timeout(l, now, out));
                let due = self.session.poll_timeout(&self.limits);
                assert!(due.is_none_or(|due| due > self.now), "{due:?} at {}", self.now);
            }
            3 => {
                let login = login(byte(input)? & 1 == 1);
                self.input(|s, l, now, out| s.logged_in(login, l, now, out));
            }
            4 => {
                let (index, kind) = (byte(input)?, byte(input)?);
                let ticket = self.open.remove(usize::from(index) % self.open.len().max(1));
                // A ticket that was never issued, or is already answered, must be harmless.
                let ticket = ticket.unwrap_or(index.into());
                self.input(|s, l, now, out| s.answered(ticket, answer(kind), l, now, out));
            }
            5 => self.refusal = Some(if byte(input)? & 1 == 1 { Code::Busy } else { Code::Forbidden }),
            6 => {
                let outcome = if byte(input)? & 1 == 1 { Ok(()) } else { Err((Code::Forbidden, "")) };
                if let Some((id, room)) = self.joins.pop_front() {
                    self.input(|s, l, now, out| s.joined(id, &room, outcome, l, now, out));
                }
            }
            7 => match byte(input)? % 5 {
                0 => self.input(|s, _, _, out| {
                    s.begin_drain(pb::GoAway::default(), out);
                }),
                1 => self.input(|s, _, _, out| s.leave(Code::Draining, "", out)),
                2 => self.input(|s, _, _, out| s.close(Code::Kicked, "", out)),
                3 => self.input(|s, _, _, out| s.login_refused(Code::TokenInvalid, "", out)),
                _ => self.input(|s, _, _, out| s.handle_violation(Code::Malformed, "", out)),
            },
            8 => self.input(|s, l, now, out| s.handle_empty(l, now, out)),
            // Answers or refuses the open query and ends it; without one it is only a sign of life.
            _ => match self.queries.pop_front() {
                Some(id) => self.input(|s, l, now, out| {
                    if id % 2 == 0 {
                        s.query_done(id, out);
                    } else {
                        s.query_refused(id, Code::StoreUnavailable, "", l, out);
                    }
                    s.query_over(l, now);
                }),
                None => self.input(|s, _, now, _| s.handle_heard(now)),
            },
        }
        Some(())
    }

    fn frame(&mut self, payload: &[u8], framing: Framing) {
        match decode_client(payload, framing) {
            Ok(Decoded::Frame(frame)) => self.input(|s, l, now, out| s.handle_frame(frame, l, now, out)),
            Ok(Decoded::Empty) => self.input(|s, l, now, out| s.handle_empty(l, now, out)),
            Err(error) => self.input(|s, _, _, out| s.handle_violation(error.code(), "", out)),
        }
    }

    /// Feeds one input and runs the driver's loop of the session's module documentation.
    fn input(&mut self, input: impl FnOnce(&mut Session, &SessionLimits, Time, &mut Vec<Action>)) {
        let mut out = Vec::new();
        input(&mut self.session, &self.limits, self.now, &mut out);
        loop {
            out.drain(..).for_each(|action| self.apply(action));
            let Some(submit) = self.session.poll_submit(&self.limits, self.now, &mut out) else { break };
            assert!(!self.closed, "a submission after Close");
            assert_eq!(submit.ticket, self.tickets, "tickets count up");
            self.tickets += 1;
            match self.refusal.take() {
                Some(code) => {
                    self.session.submit_refused(submit.ticket, code.into(), &self.limits, self.now, &mut out);
                }
                None => self.open.push_back(submit.ticket),
            }
        }
        out.into_iter().for_each(|action| self.apply(action));
    }

    fn apply(&mut self, action: Action) {
        assert!(!self.closed, "after Close: {action:?}");
        match action {
            Action::Close { .. } => self.closed = true,
            Action::Join { id, room } => self.joins.push_back((id, room)),
            Action::Query { id, .. } => self.queries.push_back(id),
            Action::Signal { id, .. } | Action::React { id, .. } => {
                let (mut out, outcome) =
                    (Vec::new(), if id % 2 == 0 { Ok(()) } else { Err((Code::NotAMember, "")) });
                self.session.signalled(id, outcome, &self.limits, &mut out);
                out.into_iter().for_each(|action| self.apply(action));
            }
            Action::Refresh { id, .. } => {
                let (mut out, outcome) =
                    (Vec::new(), if id % 2 == 0 { Ok(()) } else { Err((Code::TokenNotNewer, "")) });
                self.session.refreshed(id, outcome, &self.limits, &mut out);
                out.into_iter().for_each(|action| self.apply(action));
            }
            _ => {}
        }
    }

    fn check(&self) {
        let (session, limits) = (&self.session, &self.limits);
        assert_eq!(session.phase() == SessionPhase::Closed, self.closed);
        assert!(session.in_flight() <= limits.in_flight_max);
        assert!(session.rooms().len() <= limits.rooms_max);
        // A ready message is accepted into a full hold, and one more is parked.
        assert!(session.held() <= limits.chain.hold_max + 2, "{}", session.held());
        assert!(!self.closed || (session.held() == 0 && session.poll_timeout(limits).is_none()));
    }
}

fn login(saved: bool) -> LoggedIn {
    LoggedIn {
        user: UserId::new("ann").expect("well formed"),
        device: DeviceId::new("phone").expect("well formed"),
        epoch: 7,
        session: "s".to_owned(),
        node: NodeId::new("n1").expect("well formed"),
        chain_saved: saved.then(|| ChainSaved {
            expected: id("m3"),
            done: vec![id("m1"), id("m2")],
            skipped: vec![id("m9")],
        }),
        resumed: false,
        server_time_ms: 1_763_712_000_000,
        fresh_next_id: id("fresh"),
    }
}

fn answer(kind: u8) -> SubmitAnswer {
    match kind % 6 {
        0 => SubmitAnswer::Duplicate { seq: 1, time: 1 },
        1 => SubmitAnswer::Refused { code: Code::NotAMember, message: "".into() },
        2 => SubmitAnswer::Refused { code: Code::OrderBroken, message: "".into() },
        3 => SubmitAnswer::Unknown,
        4 => SubmitAnswer::AppendFailed,
        _ => SubmitAnswer::Accepted { seq: 1, time: 1 },
    }
}
