//! The golden transcripts, replayed: the real session and the real ledger must say what they say the server says.
//!
//! The rest of a broker is a few lines here. It logs in and answers 2 ms after it was asked; a message's time is 1 ms
//! after the message. What it says by itself (a drain, a kick, hints) happens where the transcript says so.

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
        session::{Action, Answer, ChainSaved, Limits, LoggedIn, Query, Submit},
    },
    pb::{self, client_frame::Body as Asked, server_frame::Body as Said},
    record::{Body, Message, Origin, Position, Record, Rules, SenderOrder, body_hash},
};

/// The broker's clock when a transcript begins.
const BEGIN: u64 = 1_763_712_000_000;
/// How long the broker takes for a login or an answer, in ms.
const ANSWER: u64 = 2;
/// Pauses up to this are only examples.
const PAUSE: u64 = 10;

#[test]
fn the_machines_say_what_the_transcripts_say() {
    for (file, transcript) in transcripts() {
        Replay::new(&transcript).run(&file, &transcript.lines);
    }
}

fn begun(expected: &MsgId) -> ChainSaved {
    ChainSaved { expected: expected.clone(), done: Vec::new(), skipped: Vec::new() }
}

enum Event {
    Login(pb::Hello),
    Answer(u64, Answer),
    Push(pb::Push),
}

struct Peer {
    conn: Conn,
    said: VecDeque<(u64, String)>,
}

struct Replay<'a> {
    settings: &'a Settings,
    peers: BTreeMap<String, Peer>,
    /// What comes later: when, to whom.
    later: VecDeque<(u64, String, Event)>,
    ledger: Ledger,
    chains: BTreeMap<String, ChainSaved>,
    epoch: u64,
}

/// `user/device` of `user/device/number`.
fn device_of(name: &str) -> (&str, &str) {
    let (user, rest) = name.split_once('/').unwrap();
    (user, rest.split_once('/').unwrap().0)
}

/// A short name for the n-th conn of somebody: a1.
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
            later: VecDeque::new(),
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
                self.hear(&line.conn, frame.get(), now);
            } else if let Some(frame) = &line.server {
                self.expect(&line.conn, frame.get(), now, &what);
            } else {
                let peer = self.peers.remove(&line.conn).expect(&what);
                assert!(peer.said.is_empty(), "{what}: also said {:?}", peer.said);
                assert_eq!(peer.conn.is_closed(), line.closed == Some(Side::Server), "{what}");
            }
        }
        self.run_until(now + PAUSE);
        for (name, peer) in &self.peers {
            assert!(peer.said.is_empty(), "{file}: {name} is also told {:?}", peer.said);
        }
    }

    fn open(&mut self, name: &str, now: u64) {
        let mut limits = Limits::default();
        if let Some(ms) = self.settings.order_timeout_ms {
            limits.chain.order_timeout = std::time::Duration::from_millis(ms);
        }
        let conn = Conn::with(limits, Time::from_millis(now));
        self.peers.insert(name.to_owned(), Peer { conn, said: VecDeque::new() });
    }

    fn hear(&mut self, name: &str, frame: &str, now: u64) {
        let Ok(Decoded::Frame(frame)) = decode_client(frame.as_bytes(), Framing::Json) else {
            panic!("not a frame: {frame}")
        };
        let refused = match &frame.body {
            Some(Asked::Send(send)) => self.settings.refused.get(&send.msg_id),
            _ => None,
        };
        let code = refused.map(|name| *Code::ALL.iter().find(|code| code.name() == name).unwrap());
        self.peers.get_mut(name).unwrap().conn.refusals.extend(code);
        self.with(name, now, |conn| conn.input(|s, l, now, out| s.handle_frame(frame, l, now, out)));
    }

    /// The next thing said on that conn must be `line`. When nothing was, the broker now does it by itself.
    fn expect(&mut self, name: &str, line: &str, now: u64, what: &str) {
        if self.peers[name].said.is_empty() {
            self.begin(name, line, now, what);
        }
        let (at, said) = self.peers.get_mut(name).unwrap().said.pop_front().expect(what);
        assert_eq!(said, line, "{what}");
        assert!(at <= now && now - at <= PAUSE, "{what}: said at {at}");
    }

    fn begin(&mut self, name: &str, line: &str, now: u64, what: &str) {
        let Ok(Decoded::Frame(frame)) = decode_server(line.as_bytes(), Framing::Json) else {
            panic!("{what}: not a frame")
        };
        match frame.body.clone() {
            Some(Said::GoAway(goaway)) => self.with(name, now, |conn| {
                conn.input(|s, _, _, out| assert!(s.begin_drain(goaway, out)));
            }),
            Some(Said::Close(close)) => {
                let code = Code::from_number(close.code.try_into().unwrap()).unwrap();
                self.with(name, now, |conn| match code {
                    Code::Draining => conn.input(|s, _, _, out| s.leave(code, "", out)),
                    Code::Kicked => conn.input(|s, _, _, out| s.close(code, "", out)),
                    code => panic!("{what}: nothing led to {code:?}"),
                });
            }
            Some(
                said @ (Said::Page(_)
                | Said::ConversationState(_)
                | Said::SyncEnd(_)
                | Said::Done(_)
                | Said::SendAck(_)),
            ) => {
                self.with(name, now, |conn| {
                    let more = matches!(said, Said::ConversationState(_));
                    conn.input(|s, l, now, out| {
                        s.query_told(frame.id, vec![said], out);
                        if !more {
                            s.query_over(l, now);
                        }
                    });
                });
            }
            Some(Said::Shed(_) | Said::Behind(_) | Said::Ping(_) | Said::Receipt(_)) => {
                self.say(name, now, &frame);
            }
            Some(Said::Cleared(_) | Said::Hidden(_) | Said::Signal(_)) => self.say(name, now, &frame),
            Some(Said::Push(push)) if push.conversation.starts_with("r:") || push.recall.is_some() => {
                self.say(name, now, &frame);
            }
            Some(Said::Notice(notice)) if notice.kind() == pb::NoticeKind::Storm => {
                self.say(name, now, &frame);
            }
            _ => panic!("{what}: the machine did not say {line}"),
        }
    }

    fn say(&mut self, name: &str, now: u64, frame: &pb::ServerFrame) {
        self.peers.get_mut(name).unwrap().said.push_back((now, json(frame)));
    }

    /// Lets the answers and timers pass that are due.
    fn run_until(&mut self, end: u64) {
        loop {
            let timers = self.peers.iter().filter_map(|(name, peer)| {
                let due = peer.conn.session.poll_timeout(&peer.conn.limits)?;
                Some((due.as_millis(), name.clone()))
            });
            let timer = timers.min().filter(|(due, _)| *due <= end);
            let event = self.later.front().map(|(due, ..)| *due).filter(|due| *due <= end);
            match (event, timer) {
                (Some(due), timer) if timer.as_ref().is_none_or(|(other, _)| due <= *other) => {
                    let (_, name, event) = self.later.pop_front().unwrap();
                    self.happen(&name, event, due);
                }
                (_, Some((due, name))) => self.with(&name, due, |conn| conn.pass(0.0)),
                _ => return,
            }
        }
    }

    fn happen(&mut self, name: &str, event: Event, now: u64) {
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
                self.say(name, now, &pb::ServerFrame { id: 0, body: Some(Said::Push(push)) })
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
            server_time_ms: BEGIN + now,
            fresh_next_id: id(&format!("f-{}", short(name))),
        }
    }

    /// One input to a conn, and everything that comes out of it.
    fn with(&mut self, name: &str, now: u64, input: impl FnOnce(&mut Conn)) {
        let conn = &mut self.peers.get_mut(name).unwrap().conn;
        conn.now = Time::from_millis(now);
        input(conn);
        while !conn_of(&mut self.peers, name).said.is_empty() {
            for action in std::mem::take(&mut conn_of(&mut self.peers, name).said) {
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
                self.later.push_back((now + ANSWER, name.to_owned(), Event::Login(*hello)))
            }
            Action::Join { id, room } => {
                conn_of(&mut self.peers, name).input(|s, l, _, out| s.joined(id, &room, Ok(()), l, out));
            }
            Action::Signal { id, .. } => {
                conn_of(&mut self.peers, name).input(|s, l, _, out| s.signalled(id, Ok(()), l, out));
            }
            Action::SaveChain { done, expected } => {
                let (user, device) = device_of(name);
                let saved = self.chains.entry(format!("{user}/{device}")).or_insert(begun(&expected));
                saved.expected = expected;
                saved.done.push(done);
            }
            Action::SaveSkip { skipped, expected } => {
                let (user, device) = device_of(name);
                let saved = self.chains.entry(format!("{user}/{device}")).or_insert(begun(&expected));
                saved.expected = expected;
                saved.skipped.push(skipped);
            }
            // The client has everything: there is no store here that could tell more.
            Action::Query { id, query } if matches!(*query, Query::Positions(_)) => {
                conn_of(&mut self.peers, name).input(|s, l, now, out| {
                    s.query_pong(id, Vec::new(), now, out);
                    s.query_over(l, now);
                });
            }
            // What the store says to others is in the transcript.
            Action::Query { .. } => {}
            Action::Reply(frame) | Action::Answer(frame) => self.say(name, now, &frame),
            Action::Close { code, reason } => {
                let after_ms = if code.reconnect() == Reconnect::After { 1_000 } else { 0 };
                let body = Some(Said::Close(code.close(&reason, after_ms)));
                self.say(name, now, &pb::ServerFrame { id: 0, body });
            }
            Action::Leave { .. } | Action::Acked { .. } | Action::Alarm(_) | Action::SignalDropped => {}
        }
    }

    /// The log takes it, the owner answers, and the other conns of both users get it.
    fn append(&mut self, name: &str, submit: Submit, now: u64) {
        let (user, device) = device_of(name);
        let record = Record {
            origin: Origin { node: NodeId::new("n1").unwrap(), boot: 1, conn: 1, request: submit.ticket },
            received_at: BEGIN + now + 1,
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
            }),
            trace: None,
        };
        let mut needs = BTreeSet::new();
        self.ledger.needs(&record, &mut needs);
        self.ledger.load(Position::START, needs.into_iter().map(absent)).unwrap();
        let answer = match self.ledger.apply(self.ledger.next_offset(), &record).unwrap() {
            Outcome::Accepted { seq, time, .. } => Answer::Accepted { seq, time },
            Outcome::Duplicate { seq, time } => Answer::Duplicate { seq, time },
            Outcome::Refused { code } | Outcome::RefusedBefore { code } => {
                Answer::Refused { code, message: "".into() }
            }
            other => panic!("{other:?}"),
        };
        let accepted = match answer {
            Answer::Accepted { seq, time } => Some((seq, time)),
            _ => None,
        };
        self.later.push_back((now + ANSWER, name.to_owned(), Event::Answer(submit.ticket, answer)));
        if let Some((seq, time)) = accepted {
            self.push(name, &submit, (seq, time), now);
        }
    }

    fn push(&mut self, name: &str, submit: &Submit, (seq, time): (u64, u64), now: u64) {
        let ConversationKind::Direct(a, b) = submit.conversation.kind() else {
            panic!("only direct talk here")
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
            self.later.push_back((now + ANSWER, other.clone(), Event::Push(push.clone())));
        }
    }
}

fn conn_of<'a>(peers: &'a mut BTreeMap<String, Peer>, name: &str) -> &'a mut Conn {
    &mut peers.get_mut(name).expect("an open conn").conn
}
