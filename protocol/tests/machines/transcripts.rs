//! Replay of the golden transcripts: the real session and ledger must send exactly the server's frames.
//!
//! The rest of the broker is simulated in a few lines. It completes a login and answers a message after 2 ms; a
//! message's time is 1 ms after it was sent. Unsolicited frames (a drain, a kick, hints) are sent where the transcript
//! has them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::{
    ledger::store::absent,
    session::support::{Conn, id},
    transcript::{Line, Settings, Side, Transcript, transcripts},
};
use tidegate_protocol::{
    Code, Time,
    code::Reconnect,
    codec::{Decoded, Framing, decode_client, decode_server, encode_server},
    id::{ConversationKind, DeviceId, MsgId, NodeId, UserId},
    machine::{
        ledger::{Ledger, Outcome},
        session::{Action, ChainSaved, LoggedIn, Query, SessionLimits, Submit, SubmitAnswer},
    },
    pb::{self, client_frame::Body as ClientBody, server_frame::Body as ServerBody},
    record::{Body, Message, Origin, Position, Record, Rules, SenderOrder, body_hash},
};

/// Broker clock at the start of a transcript, in ms since 1970.
const START_MS: u64 = 1_763_712_000_000;
/// Time that the broker takes for a login or an answer, in ms.
const ANSWER_DELAY_MS: u64 = 2;
/// Pause up to which a transcript's times are only examples, in ms.
const PAUSE_MAX_MS: u64 = 10;

#[test]
fn machines_send_exactly_the_transcripts() {
    for (file, transcript) in transcripts() {
        Replay::new(&transcript).run(&file, &transcript.lines);
    }
}

fn new_chain(expected: &MsgId) -> ChainSaved {
    ChainSaved { expected: expected.clone(), done: Vec::new(), skipped: Vec::new() }
}

enum Event {
    Login(pb::Hello),
    Answer(u64, SubmitAnswer),
    Push(Box<pb::Push>),
}

struct Peer {
    conn: Conn,
    sent: VecDeque<(u64, String)>,
}

struct Replay<'a> {
    settings: &'a Settings,
    peers: BTreeMap<String, Peer>,
    /// Pending events, each with its time and the connection's name.
    pending: VecDeque<(u64, String, Event)>,
    ledger: Ledger,
    chains: BTreeMap<String, ChainSaved>,
    epoch: u64,
}

/// Returns user and device of the connection name `user/device/number`.
fn device_of(name: &str) -> (&str, &str) {
    let (user, rest) = name.split_once('/').unwrap();
    (user, rest.split_once('/').unwrap().0)
}

/// Returns a short name for the n-th connection of a user, such as a1.
fn short(name: &str) -> String {
    format!("{}{}", &name[..1], name.rsplit('/').next().unwrap())
}

fn json(frame: &pb::ServerFrame) -> String {
    let mut out = Vec::new();
    encode_server(frame, Framing::Json, &mut out);
    String::from_utf8(out).unwrap()
}

impl<'a> Replay<'a> {
    fn new(transcript: &'a Transcript) -> Self {
        Self {
            settings: &transcript.settings,
            peers: BTreeMap::new(),
            pending: VecDeque::new(),
            ledger: Ledger::resume(Position::START, Rules::default(), 1),
            chains: BTreeMap::new(),
            epoch: 0,
        }
    }

    fn run(mut self, file: &str, lines: &[Line]) {
        let mut now = 0;
        for line in lines {
            now = line.at;
            let what = format!("{file} at {now} ms on {}", line.conn);
            self.run_until(now);
            if line.open.is_some() {
                self.open(&line.conn, now);
            } else if let Some(frame) = &line.client {
                self.receive(&line.conn, frame.get(), now);
            } else if let Some(frame) = &line.server {
                self.expect(&line.conn, frame.get(), now, &what);
            } else {
                let peer = self.peers.remove(&line.conn).expect(&what);
                assert!(peer.sent.is_empty(), "{what}: also sent {:?}", peer.sent);
                assert_eq!(peer.conn.is_closed(), line.closed == Some(Side::Server), "{what}");
            }
        }
        self.run_until(now + PAUSE_MAX_MS);
        for (name, peer) in &self.peers {
            assert!(peer.sent.is_empty(), "{file}: also sent to {name}: {:?}", peer.sent);
        }
    }

    fn open(&mut self, name: &str, now: u64) {
        let mut limits = SessionLimits::default();
        if let Some(ms) = self.settings.order_timeout_ms {
            limits.chain.order_timeout = std::time::Duration::from_millis(ms);
        }
        let conn = Conn::with(limits, Time::from_millis(now));
        self.peers.insert(name.to_owned(), Peer { conn, sent: VecDeque::new() });
    }

    fn receive(&mut self, name: &str, frame: &str, now: u64) {
        let Ok(Decoded::Frame(frame)) = decode_client(frame.as_bytes(), Framing::Json) else {
            panic!("not a frame: {frame}")
        };
        let refused = match &frame.body {
            Some(ClientBody::Send(send)) => self.settings.refused.get(&send.msg_id),
            _ => None,
        };
        let code = refused.map(|name| *Code::ALL.iter().find(|code| code.name() == name).unwrap());
        self.peers.get_mut(name).unwrap().conn.refusals.extend(code);
        self.with(name, now, |conn| conn.input(|s, l, now, out| s.handle_frame(frame, l, now, out)));
    }

    /// Checks that the next frame on that connection is `line`. If there is none, the broker now sends it unsolicited.
    fn expect(&mut self, name: &str, line: &str, now: u64, what: &str) {
        if self.peers[name].sent.is_empty() {
            self.send_unsolicited(name, line, now, what);
        }
        let (at, frame) = self.peers.get_mut(name).unwrap().sent.pop_front().expect(what);
        assert_eq!(frame, line, "{what}");
        assert!(at <= now && now - at <= PAUSE_MAX_MS, "{what}: sent at {at}");
    }

    fn send_unsolicited(&mut self, name: &str, line: &str, now: u64, what: &str) {
        let Ok(Decoded::Frame(frame)) = decode_server(line.as_bytes(), Framing::Json) else {
            panic!("{what}: not a frame")
        };
        match frame.body.clone() {
            Some(ServerBody::GoAway(goaway)) => self.with(name, now, |conn| {
                conn.input(|s, _, _, out| assert!(s.begin_drain(goaway, out)));
            }),
            Some(ServerBody::Close(close)) => {
                let code = Code::from_number(close.code.try_into().unwrap()).unwrap();
                self.with(name, now, |conn| match code {
                    Code::Draining => conn.input(|s, _, _, out| s.leave(code, "", out)),
                    Code::Kicked => conn.input(|s, _, _, out| s.close(code, "", out)),
                    code => panic!("{what}: nothing led to {code:?}"),
                });
            }
            Some(
                body @ (ServerBody::Page(_)
                | ServerBody::ConversationState(_)
                | ServerBody::SyncEnd(_)
                | ServerBody::Done(_)
                | ServerBody::SendAck(_)),
            ) => {
                self.with(name, now, |conn| {
                    let more = matches!(body, ServerBody::ConversationState(_));
                    conn.input(|s, l, now, out| {
                        s.query_told(frame.id, vec![body], out);
                        if !more {
                            s.query_over(l, now);
                        }
                    });
                });
            }
            Some(
                ServerBody::Shed(_)
                | ServerBody::Behind(_)
                | ServerBody::Ping(_)
                | ServerBody::Receipt(_)
                | ServerBody::Cleared(_)
                | ServerBody::Hidden(_)
                | ServerBody::RoomStats(_)
                | ServerBody::Presence(_)
                | ServerBody::Signal(_),
            ) => self.emit(name, now, &frame),
            Some(ServerBody::Push(push)) if push.conversation.starts_with("r:") || push.recall.is_some() => {
                self.emit(name, now, &frame);
            }
            Some(ServerBody::Notice(notice))
                if matches!(notice.kind(), pb::NoticeKind::Storm | pb::NoticeKind::StormOver) =>
            {
                self.emit(name, now, &frame);
            }
            _ => panic!("{what}: the machine did not send {line}"),
        }
    }

    fn emit(&mut self, name: &str, now: u64, frame: &pb::ServerFrame) {
        self.peers.get_mut(name).unwrap().sent.push_back((now, json(frame)));
    }

    /// Handles all answers and timers that are due until `end`.
    fn run_until(&mut self, end: u64) {
        loop {
            let timers = self.peers.iter().filter_map(|(name, peer)| {
                let due = peer.conn.session.poll_timeout(&peer.conn.limits)?;
                Some((due.as_millis(), name.clone()))
            });
            let timer = timers.min().filter(|(due, _)| *due <= end);
            let event = self.pending.front().map(|(due, ..)| *due).filter(|due| *due <= end);
            match (event, timer) {
                (Some(due), timer) if timer.as_ref().is_none_or(|(other, _)| due <= *other) => {
                    let (_, name, event) = self.pending.pop_front().unwrap();
                    self.handle_event(&name, event, due);
                }
                (_, Some((due, name))) => self.with(&name, due, |conn| conn.pass(0.0)),
                _ => return,
            }
        }
    }

    fn handle_event(&mut self, name: &str, event: Event, now: u64) {
        if !self.peers.contains_key(name) {
            return;
        }
        match event {
            Event::Login(hello) => {
                let login = self.login(name, &hello, now);
                self.with(name, now, |conn| conn.input(|s, l, now, out| s.logged_in(login, l, now, out)));
            }
            Event::Answer(ticket, answer) => self.with(name, now, |conn| conn.answer(ticket, answer)),
            Event::Push(push) => {
                self.emit(name, now, &pb::ServerFrame { id: 0, body: Some(ServerBody::Push(*push)) })
            }
        }
    }

    fn login(&mut self, name: &str, hello: &pb::Hello, now: u64) -> LoggedIn {
        let (user, device) = device_of(name);
        assert_eq!((hello.token.as_str(), hello.device.as_str()), (&*format!("<token of {user}>"), device));
        self.epoch += 1;
        LoggedIn {
            user: UserId::new(user).unwrap(),
            device: DeviceId::new(device).unwrap(),
            epoch: self.epoch,
            session: format!("s-{}", short(name)),
            node: NodeId::new(self.settings.nodes.get(name).map_or("n1", String::as_str)).unwrap(),
            chain_saved: self.chains.get(&format!("{user}/{device}")).cloned(),
            resumed: false,
            server_time_ms: START_MS + now,
            fresh_next_id: id(&format!("f-{}", short(name))),
        }
    }

    /// Feeds one input to a connection and applies all of its output.
    fn with(&mut self, name: &str, now: u64, input: impl FnOnce(&mut Conn)) {
        let conn = &mut self.peers.get_mut(name).unwrap().conn;
        conn.now = Time::from_millis(now);
        input(conn);
        while !conn_of(&mut self.peers, name).actions.is_empty() {
            for action in std::mem::take(&mut conn_of(&mut self.peers, name).actions) {
                self.apply(name, action, now);
            }
        }
        for submit in std::mem::take(&mut conn_of(&mut self.peers, name).submits) {
            self.append(name, submit, now);
        }
    }

    fn apply(&mut self, name: &str, action: Action, now: u64) {
        match action {
            Action::Login(hello) => {
                self.pending.push_back((now + ANSWER_DELAY_MS, name.to_owned(), Event::Login(*hello)))
            }
            Action::Join { id, room } => {
                conn_of(&mut self.peers, name)
                    .input(|s, l, now, out| s.joined(id, &room, Ok(()), l, now, out));
            }
            Action::Signal { id, .. } | Action::React { id, .. } => {
                conn_of(&mut self.peers, name).input(|s, l, _, out| s.signalled(id, Ok(()), l, out));
            }
            Action::Refresh { id, .. } => {
                conn_of(&mut self.peers, name).input(|s, l, _, out| s.refreshed(id, Ok(()), l, out));
            }
            Action::SaveChain { done, expected } => {
                let (user, device) = device_of(name);
                let saved = self.chains.entry(format!("{user}/{device}")).or_insert(new_chain(&expected));
                saved.expected = expected;
                saved.done.push(done);
            }
            Action::SaveSkip { skipped, expected } => {
                let (user, device) = device_of(name);
                let saved = self.chains.entry(format!("{user}/{device}")).or_insert(new_chain(&expected));
                saved.expected = expected;
                saved.skipped.push(skipped);
            }
            // There is no store here, so the client always has everything.
            Action::Query { id, query } if matches!(*query, Query::Positions(_)) => {
                conn_of(&mut self.peers, name).input(|s, l, now, out| {
                    s.query_pong(id, Vec::new(), now, out);
                    s.query_over(l, now);
                });
            }
            // The answers to other queries are in the transcript.
            Action::Query { .. } => {}
            Action::Reply(frame) | Action::Answer(frame) => self.emit(name, now, &frame),
            Action::Close { code, reason } => {
                let after_ms = if code.reconnect() == Reconnect::After { 1_000 } else { 0 };
                let body = Some(ServerBody::Close(code.close(&reason, after_ms)));
                self.emit(name, now, &pb::ServerFrame { id: 0, body });
            }
            Action::Leave { .. } | Action::Acked { .. } | Action::Alarm(_) | Action::SignalDropped => {}
        }
    }

    /// Appends a message: the owner answers, and the other connections of both users get the push.
    fn append(&mut self, name: &str, submit: Submit, now: u64) {
        let (user, device) = device_of(name);
        let record = Record {
            origin: Origin { node: NodeId::new("n1").unwrap(), boot: 1, conn: 1, request: submit.ticket },
            received_at: START_MS + now + 1,
            body: Body::Message(Message {
                conversation: submit.conversation.clone(),
                sender: UserId::new(user).unwrap(),
                device: DeviceId::new(device).unwrap(),
                msg_id: submit.msg_id.clone(),
                attempt: submit.attempt,
                body_hash: body_hash(&submit.content),
                content: submit.content.clone(),
                order: SenderOrder {
                    epoch: submit.order.epoch,
                    n: submit.order.n,
                    chained: submit.order.chained,
                },
                flags: submit.flags,
                mode: Default::default(),
            }),
            trace: None,
        };
        let mut needs = BTreeSet::new();
        self.ledger.needs(&record, &mut needs);
        self.ledger.load(Position::START, needs.into_iter().map(absent)).unwrap();
        let answer = match self.ledger.apply(self.ledger.next_offset(), &record).unwrap() {
            Outcome::Accepted { seq, time, .. } => SubmitAnswer::Accepted { seq, time },
            Outcome::Duplicate { seq, time } => SubmitAnswer::Duplicate { seq, time },
            Outcome::Refused { code } | Outcome::RefusedBefore { code } => {
                SubmitAnswer::Refused { code, message: "".into() }
            }
            other => panic!("{other:?}"),
        };
        let accepted = match answer {
            SubmitAnswer::Accepted { seq, time } => Some((seq, time)),
            _ => None,
        };
        let event = Event::Answer(submit.ticket, answer);
        self.pending.push_back((now + ANSWER_DELAY_MS, name.to_owned(), event));
        if let Some((seq, time)) = accepted {
            self.push(name, &submit, seq, time, now);
        }
    }

    fn push(&mut self, name: &str, submit: &Submit, seq: u64, time: u64, now: u64) {
        let ConversationKind::Direct(a, b) = submit.conversation.kind() else {
            panic!("the transcripts have direct messages only")
        };
        let push = pb::Push {
            conversation: submit.conversation.to_string(),
            seq,
            sender: device_of(name).0.to_owned(),
            msg_id: submit.msg_id.to_string(),
            time,
            content: Some(prost::Message::decode(submit.content.clone()).unwrap()),
            ..Default::default()
        };
        let others = self.peers.keys().filter(|other| *other != name && [a, b].contains(&device_of(other).0));
        for other in others {
            self.pending.push_back((
                now + ANSWER_DELAY_MS,
                other.clone(),
                Event::Push(Box::new(push.clone())),
            ));
        }
    }
}

fn conn_of<'a>(peers: &'a mut BTreeMap<String, Peer>, name: &str) -> &'a mut Conn {
    &mut peers.get_mut(name).expect("an open connection").conn
}
