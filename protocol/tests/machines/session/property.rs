//! Property test of the session: any input in any state has a defined, bounded result and keeps the promises.

use super::support::{Conn, chained_send, hello, id, logged_in, send};
use proptest::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tidegate_protocol::{
    Code,
    id::RoomId,
    machine::session::{Action, SessionPhase, SubmitAnswer},
    pb::{self, client_frame::Body as ClientBody, server_frame::Body as ServerBody},
};

#[derive(Clone, Debug)]
enum Op {
    Hello { next_id: bool, good: bool },
    LoggedIn { saved: bool },
    LoginRefused,
    Send { to: u8, n: u8 },
    Link { to: u8, n: u8, next: u8 },
    Straight { n: u8 },
    Other(Box<ClientBody>),
    Nothing,
    Empty,
    SignOfLife,
    Violation,
    Joined { ok: bool },
    Answer { which: prop::sample::Index, how: u8 },
    Refuse { temporary: bool },
    Pass { ms: u64 },
    Drain,
    Leave,
    Close,
}

fn other() -> impl Strategy<Value = ClientBody> {
    let text = prop_oneof![Just("g:a"), Just("a"), Just("b"), Just("c d"), Just("")];
    (text, 0..12u8).prop_map(|(text, kind)| {
        let (conversation, room) = (text.to_owned(), text.to_owned());
        match kind {
            0 => ClientBody::Ack(pb::Ack { conversation, seq: 1 }),
            1 => ClientBody::Ping(pb::Ping::default()),
            2 => ClientBody::Read(pb::Read { conversation, seq: 1 }),
            3 => ClientBody::NextId(pb::NextId {}),
            4 | 5 => ClientBody::Join(pb::Join { room }),
            6 => ClientBody::Leave(pb::Leave { room, ..Default::default() }),
            7 => ClientBody::Pong(pb::Pong::default()),
            8 => ClientBody::Recall(pb::Recall { conversation, seq: 1 }),
            9 => ClientBody::Leave(pb::Leave { conversation, ..Default::default() }),
            10 => ClientBody::Watch(pb::Watch { conversation, stop: false }),
            _ => ClientBody::Sync(pb::Sync::default()),
        }
    })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => (any::<bool>(), prop::bool::weighted(0.9)).prop_map(|(next_id, good)| Op::Hello { next_id, good }),
        2 => any::<bool>().prop_map(|saved| Op::LoggedIn { saved }),
        1 => Just(Op::LoginRefused),
        4 => (0..5u8, 0..12u8).prop_map(|(to, n)| Op::Send { to, n }),
        6 => (0..5u8, 0..12u8, 0..12u8).prop_map(|(to, n, next)| Op::Link { to, n, next }),
        20 => (0..12u8).prop_map(|n| Op::Straight { n }),
        6 => other().prop_map(|body| Op::Other(Box::new(body))),
        3 => Just(Op::Other(Box::new(ClientBody::Recall(pb::Recall { conversation: "g:a".to_owned(), seq: 1 })))),
        1 => Just(Op::Nothing),
        2 => Just(Op::Empty),
        2 => Just(Op::SignOfLife),
        1 => Just(Op::Violation),
        2 => any::<bool>().prop_map(|ok| Op::Joined { ok }),
        16 => (any::<prop::sample::Index>(), 0..10u8).prop_map(|(which, how)| Op::Answer { which, how }),
        4 => any::<bool>().prop_map(|temporary| Op::Refuse { temporary }),
        8 => (1..3_000u64).prop_map(|ms| Op::Pass { ms }),
        1 => Just(Op::Drain),
        1 => Just(Op::Leave),
        1 => Just(Op::Close),
    ]
}

struct Run {
    conn: Conn,
    next_frame: u64,
    joins: Vec<(u64, RoomId)>,
    /// Frame ids of the Sends passed in.
    sends: BTreeSet<u64>,
    answers: BTreeMap<u64, usize>,
    /// Tickets without an answer.
    open: Vec<u64>,
    tickets: u64,
    counts: BTreeMap<String, u64>,
    welcomed: bool,
    closed: bool,
    /// Open query, and whether it appends; answered before the next input other than time, answers and ends.
    query: Option<(u64, bool)>,
}

impl Run {
    fn new(live: Option<bool>) -> Self {
        let conn = match live {
            None => Conn::new(),
            Some(false) => Conn::plain(),
            Some(true) => Conn::chained(),
        };
        Self {
            conn,
            next_frame: 10,
            joins: Vec::new(),
            sends: BTreeSet::new(),
            answers: BTreeMap::new(),
            open: Vec::new(),
            tickets: 0,
            counts: BTreeMap::new(),
            welcomed: live.is_some(),
            closed: false,
            query: None,
        }
    }

    fn send(&mut self, send: pb::Send) {
        if self.conn.session.phase() == SessionPhase::Live {
            self.sends.insert(self.next_frame);
        }
        self.conn.frame(self.next_frame, ClientBody::Send(send));
    }

    fn apply(&mut self, op: Op) -> Result<(), TestCaseError> {
        self.next_frame += 1;
        if !matches!(op, Op::Pass { .. } | Op::Answer { .. } | Op::Leave | Op::Close | Op::Drain) {
            self.answer_query()?;
        }
        let conn = &mut self.conn;
        match op {
            Op::Hello { next_id, good } => {
                let hello = hello(if next_id { "m0" } else { "" });
                let hello = pb::Hello { version: u32::from(good), ..hello };
                conn.frame(self.next_frame, ClientBody::Hello(hello));
            }
            Op::LoggedIn { saved } => {
                let saved = saved.then(|| (id("m3"), vec![id("m1"), id("m2")]));
                conn.input(|s, l, now, out| s.logged_in(logged_in(saved), l, now, out));
            }
            Op::LoginRefused => conn.input(|s, _, _, out| s.login_refused(Code::TokenInvalid, "", out)),
            Op::Send { to, n } => self.send(send(TARGETS[to as usize], &format!("m{n}"))),
            Op::Link { to, n, next } => {
                self.send(chained_send(TARGETS[to as usize], &format!("m{n}"), &format!("m{next}")));
            }
            Op::Straight { n } => {
                self.send(chained_send(TARGETS[(n % 2) as usize], &format!("m{n}"), &format!("m{}", n + 1)));
            }
            Op::Other(body) => conn.frame(self.next_frame, *body),
            Op::Nothing => {
                let frame = pb::ClientFrame { id: self.next_frame, body: None };
                conn.input(|s, l, now, out| s.handle_frame(frame, l, now, out));
            }
            Op::Empty => conn.input(|s, l, now, out| s.handle_empty(l, now, out)),
            Op::SignOfLife => conn.input(|s, _, now, _| s.handle_heard(now)),
            Op::Violation => conn.input(|s, _, _, out| s.handle_violation(Code::Malformed, "", out)),
            Op::Joined { ok } => {
                if let Some((id, room)) = self.joins.pop() {
                    let outcome = if ok { Ok(()) } else { Err((Code::Forbidden, "")) };
                    conn.input(|s, l, now, out| s.joined(id, &room, outcome, l, now, out));
                }
            }
            Op::Answer { which, how } => self.answer(which, how),
            Op::Refuse { temporary } => {
                conn.refusals.push_back(if temporary { Code::RateLimited } else { Code::Forbidden });
            }
            Op::Pass { ms } => {
                conn.now = conn.now + Duration::from_millis(ms);
                conn.input(|s, l, now, out| s.handle_timeout(l, now, out));
                let due = conn.session.poll_timeout(&conn.limits);
                prop_assert!(due.is_none_or(|due| due > conn.now), "{due:?} at {}", conn.now);
            }
            Op::Drain => conn.input(|s, _, _, out| {
                s.begin_drain(pb::GoAway::default(), out);
            }),
            Op::Leave => conn.input(|s, _, _, out| s.leave(Code::Draining, "", out)),
            Op::Close => conn.input(|s, _, _, out| s.close(Code::Kicked, "", out)),
        }
        self.check()
    }

    fn answer_query(&mut self) -> Result<(), TestCaseError> {
        let Some((id, _)) = self.query.take() else { return Ok(()) };
        let conn = &mut self.conn;
        prop_assert!(!conn.session.wants_read(&conn.limits) || self.closed, "an open query stops reading");
        conn.input(|s, l, now, out| {
            s.query_done(id, out);
            s.query_over(l, now);
        });
        Ok(())
    }

    fn answer(&mut self, which: prop::sample::Index, how: u8) {
        if self.open.is_empty() {
            return;
        }
        let at = which.index(self.open.len());
        // Some answers arrive twice, as after a take-over.
        let ticket = if how == 5 { self.open[at] } else { self.open.swap_remove(at) };
        let answer = match how {
            0..=5 => SubmitAnswer::Accepted { seq: ticket, time: 1 },
            6 => SubmitAnswer::Duplicate { seq: ticket, time: 1 },
            7 => SubmitAnswer::Refused { code: Code::NotAMember, message: "".into() },
            8 => SubmitAnswer::Unknown,
            // Rare, because it ends the run.
            _ if ticket % 8 == 7 => SubmitAnswer::AppendFailed,
            _ => SubmitAnswer::Accepted { seq: ticket, time: 1 },
        };
        self.conn.answer(ticket, answer);
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        let (session, limits) = (&self.conn.session, &self.conn.limits);
        prop_assert!(session.in_flight() <= limits.in_flight_max);
        prop_assert!(session.held() <= limits.chain.hold_max + 2, "plus the ready one and the parked one");
        prop_assert!(session.rooms().len() <= limits.rooms_max);
        prop_assert!(self.joins.len() <= limits.rooms_max, "joins in flight");
        let actions = &self.conn.actions;
        prop_assert!(actions.len() <= 4 * limits.in_flight_max + 8, "bounded: {actions:?}");
        for action in std::mem::take(&mut self.conn.actions) {
            prop_assert!(!self.closed, "after the close: {action:?}");
            self.check_action(action)?;
        }
        prop_assert_eq!(self.closed, self.conn.is_closed());
        for submit in std::mem::take(&mut self.conn.submits) {
            prop_assert!(self.welcomed);
            prop_assert!(submit.ticket >= self.tickets, "tickets rise");
            self.tickets = submit.ticket + 1;
            self.open.push(submit.ticket);
            prop_assert!(self.sends.contains(&submit.id));
            if submit.order.chained {
                let count = self.counts.entry(submit.conversation.to_string()).or_default();
                prop_assert_eq!(submit.order.n, *count, "numbers have no hole");
                *count += 1;
            }
        }
        Ok(())
    }

    fn check_action(&mut self, action: Action) -> Result<(), TestCaseError> {
        match action {
            Action::Close { code, .. } => {
                let appends = self.query.is_some_and(|(_, appends)| appends);
                prop_assert!(code != Code::Draining || !appends, "a leaving session waits for the log");
                self.closed = true;
            }
            Action::Login(_) => prop_assert!(!self.welcomed),
            Action::Join { id, room } => self.joins.push((id, room)),
            Action::Query { id, query } => {
                let query = (id, query.appends());
                prop_assert!(self.welcomed && self.query.replace(query).is_none(), "one at a time");
            }
            Action::Answer(_) => prop_assert!(self.welcomed),
            Action::Reply(frame) => match frame.body.expect("a reply has a body") {
                ServerBody::Welcome(_) => {
                    prop_assert!(!std::mem::replace(&mut self.welcomed, true), "once");
                }
                ServerBody::SendAck(_) | ServerBody::Error(_) => {
                    let count = self.answers.entry(frame.id).or_default();
                    *count += 1;
                    prop_assert!(*count == 1, "frame {} was answered {} times", frame.id, count);
                }
                other => prop_assert!(self.welcomed, "before Welcome: {other:?}"),
            },
            Action::Signal { .. } | Action::React { .. } | Action::SignalDropped | Action::Refresh { .. } => {
                prop_assert!(self.welcomed)
            }
            Action::Leave { .. }
            | Action::Acked { .. }
            | Action::SaveChain { .. }
            | Action::SaveSkip { .. }
            | Action::Alarm(_) => {
                prop_assert!(self.welcomed);
            }
        }
        Ok(())
    }

    /// Runs until all holds and answers are due. Every Send then has its answer, if the connection is still open.
    fn finish(mut self) -> Result<(), TestCaseError> {
        self.conn.refusals.clear();
        if self.conn.session.phase() == SessionPhase::Leaving {
            // A leaving session waits for the log; the driver answers every query within a bounded time.
            self.answer_query()?;
            self.check()?;
        }
        for _ in 0..200 {
            if self.closed || (self.conn.session.held() == 0 && self.conn.session.in_flight() == 0) {
                break;
            }
            let ms = self
                .conn
                .session
                .poll_timeout(&self.conn.limits)
                .map_or(1, |due| u64::try_from(due.since(self.conn.now).as_millis()).unwrap_or(u64::MAX));
            self.conn.session.handle_heard(self.conn.now);
            self.apply(Op::Pass { ms })?;
        }
        prop_assert!(self.closed || self.conn.session.held() == 0, "every hold ends");
        if !self.closed && self.conn.session.phase() == SessionPhase::Live {
            for frame in &self.sends {
                prop_assert_eq!(self.answers.get(frame), Some(&1), "frame {} has one answer", frame);
            }
            // Only an open query, which this driver may not have answered, and a spent budget of frames stop reading now.
            let is_limited = self.conn.limits.frames_per_second > 0;
            prop_assert!(self.query.is_some() || is_limited || self.conn.wants_read());
        }
        Ok(())
    }
}

/// Conversations that Sends go to.
const TARGETS: [&str; 5] = ["d:ann:bob", "g:a", "r:a", "d:bob:cem", "g:b"];

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn every_input_in_every_state_is_defined_bounded_and_answered(
        live in prop_oneof![1 => Just(None), 1 => Just(Some(false)), 4 => Just(Some(true))],
        patient in prop::bool::weighted(0.8),
        frames_per_second in prop_oneof![3 => Just(0), 1 => 1..4_u32],
        ops in proptest::collection::vec(op(), 1..100),
    ) {
        let mut run = Run::new(live);
        run.conn.limits.frames_per_second = frames_per_second;
        if patient {
            run.conn.limits.errors_max = u16::MAX;
        }
        for op in ops {
            // Delay most inputs that close the connection; otherwise few runs get far.
            let ends = matches!(op, Op::Violation | Op::Close | Op::Leave | Op::Hello { .. });
            if patient && ends && run.query.is_none() && run.conn.session.phase() == SessionPhase::Live {
                continue;
            }
            run.apply(op)?;
        }
        run.finish()?;
    }
}
