//! Client of the world: drives one person over a connection in memory.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tidegate::auth;
use tidegate_lab::person::{Person, PersonEvent, Phase, Profile, TICK_INTERVAL};
use tidegate_protocol::{
    codec::{self, Decoded, Framing, Split, Wire},
    pb::{self, client_frame::Body as ClientBody, server_frame::Body as ServerBody},
};

use crate::{
    node::KEY,
    pipes::{ClientEnd, Received},
};

/// Largest frame that a client accepts.
const FRAME_MAX: usize = 1 << 20;

/// How long a login may take before the client tries again.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(8);

/// How long the old connection of a client stays open after a change of nodes.
const OLD_CONNECTION_TIME: Duration = Duration::from_secs(2);

/// Pushes that a client loses, if it loses any: one in so many.
const LOST_ONE_IN: u32 = 50;

/// Client with its connection.
pub(crate) struct Client {
    /// Whether pushes may be lost before the person gets them, as in a program that is too busy.
    loses_pushes: bool,
    person: Person,
    rng: StdRng,
    connection: Option<Connection>,
    /// Connection that was left behind, and when it ends.
    old: Option<(Connection, Duration)>,
    /// Time of the next attempt to connect.
    connects_at: Duration,
    next_tick: Duration,
}

/// Connection to a node.
struct Connection {
    end: ClientEnd,
    node: usize,
    buffer: Vec<u8>,
    framing: Framing,
    /// When `hello` was sent; `None` once `welcome` has come.
    hello_at: Option<Duration>,
    /// Until when the client reads nothing.
    reads_at: Duration,
    /// Pushes that were lost and did not come again, by conversation: the client acks none of them.
    lost: BTreeMap<String, BTreeSet<u64>>,
}

/// What a client asks of the world.
pub(crate) trait Dialer {
    /// Connects to a node that accepts; returns its number.
    fn connect(&mut self, rng: &mut StdRng) -> Option<(usize, ClientEnd)>;

    /// Returns a number for a new session.
    fn next_session(&mut self) -> u64;
}

impl Client {
    /// Creates a client. With `edits`, a seed, it edits its messages.
    pub(crate) fn new(profile: Profile, loses_pushes: bool, seed: u64, edits: Option<u64>) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let person = Person::new(profile, rng.random());
        let person = match edits {
            Some(seed) => person.with_edits(seed),
            None => person,
        };
        let next_tick = Duration::from_millis(rng.random_range(0..20));
        let connects_at = Duration::ZERO;
        Self { loses_pushes, person, rng, connection: None, old: None, connects_at, next_tick }
    }

    pub(crate) fn profile(&self) -> &Profile {
        self.person.profile()
    }

    pub(crate) fn is_busy(&self, phase: Phase) -> bool {
        self.person.is_busy(phase)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.person.waiting()
    }

    pub(crate) fn take_events(&mut self) -> Vec<PersonEvent> {
        self.person.take_events()
    }

    /// Cuts the connection without notice, as a network does.
    pub(crate) fn cut(&mut self) {
        self.close(0);
    }

    /// Makes the client read nothing until then, unless it reads nothing already.
    pub(crate) fn stall(&mut self, now: Duration, until: Duration) {
        if let Some(connection) = self.connection.as_mut().filter(|it| it.reads_at <= now) {
            connection.reads_at = until;
        }
    }

    /// Runs the client at the time `now`: reads, ticks, and connects if it must.
    pub(crate) fn step(&mut self, now: Duration, phase: Phase, dialer: &mut impl Dialer) {
        if self.old.as_ref().is_some_and(|(_, until)| *until <= now) {
            self.old = None;
        }
        if self.connection.is_none() {
            if now >= self.connects_at {
                self.connect(now, dialer);
            }
            return;
        }
        if let Err(code) = self.read(now, dialer) {
            return self.close_at(now, code);
        }
        if now < self.next_tick {
            return;
        }
        self.next_tick = now + TICK_INTERVAL;
        let Some(connection) = &mut self.connection else { return };
        if connection.hello_at.is_some_and(|at| now > at + LOGIN_TIMEOUT) {
            return self.close_at(now, 0);
        }
        let mut tick = self.person.tick(now, phase);
        tick.frames.retain_mut(|frame| connection.acks(frame));
        connection.write(&tick.frames);
        if tick.hops {
            let old = self.connection.take();
            self.person.on_close(0);
            self.old = old.map(|connection| (connection, now + OLD_CONNECTION_TIME));
            self.connects_at = now;
        } else if tick.is_silent {
            self.close_at(now, 0);
        }
    }

    fn close_at(&mut self, now: Duration, code: u16) {
        self.close(code);
        self.connects_at = now + Duration::from_millis(self.rng.random_range(5..150));
    }

    fn close(&mut self, code: u16) {
        self.connection = None;
        self.person.on_close(code);
    }

    fn connect(&mut self, now: Duration, dialer: &mut impl Dialer) {
        let Some((node, end)) = dialer.connect(&mut self.rng) else {
            self.connects_at = now + Duration::from_millis(self.rng.random_range(5..150));
            return;
        };
        let wire = self.person.profile().wire;
        if wire == Wire::Tcp {
            end.write(b"TG/1\n");
        }
        let token = auth::sign(KEY, &self.person.profile().user, None, Duration::from_secs(86_400));
        let hello = pb::ClientFrame { id: 1, body: Some(ClientBody::Hello(self.person.hello(token))) };
        let framing = wire.framing();
        let (buffer, reads_at) = (Vec::new(), now);
        let lost = BTreeMap::new();
        let connection = Connection { end, node, buffer, framing, hello_at: Some(now), reads_at, lost };
        connection.write(&[hello]);
        self.connection = Some(connection);
    }

    /// Handles what has arrived; fails with the code of the close when the connection ends.
    fn read(&mut self, now: Duration, dialer: &mut impl Dialer) -> Result<(), u16> {
        let Some(connection) = self.connection.as_mut().filter(|it| it.reads_at <= now) else {
            return Ok(());
        };
        let is_over = match connection.end.read() {
            Received::Bytes(bytes) => {
                connection.buffer.extend(bytes);
                false
            }
            Received::End | Received::Reset => true,
            Received::Nothing => false,
        };
        while let Some(frame) = connection.cut() {
            if connection.hello_at.is_some() {
                match frame.body {
                    Some(ServerBody::Welcome(_)) => {
                        connection.hello_at = None;
                        let node = format!("n{}", connection.node + 1);
                        let frames = self.person.on_open(dialer.next_session(), &node);
                        connection.write(&frames);
                    }
                    _ => return Err(0),
                }
                continue;
            }
            let loses = self.loses_pushes && self.rng.random_ratio(1, LOST_ONE_IN);
            if connection.takes(&frame, loses)
                && let Some(code) = self.person.handle_frame(now, frame)
            {
                return Err(code);
            }
        }
        if is_over { Err(0) } else { Ok(()) }
    }
}

impl Connection {
    /// Returns whether the person gets the frame. A push of a direct conversation may be lost before that.
    fn takes(&mut self, frame: &pb::ServerFrame, loses: bool) -> bool {
        match &frame.body {
            Some(ServerBody::Push(push)) if loses && push.conversation.starts_with("d:") => {
                self.lost.entry(push.conversation.clone()).or_default().insert(push.seq);
                return false;
            }
            Some(ServerBody::Push(push)) => {
                if let Some(lost) = self.lost.get_mut(&push.conversation) {
                    lost.remove(&push.seq);
                }
            }
            Some(ServerBody::Behind(behind)) => {
                if let Some(lost) = self.lost.get_mut(&behind.conversation) {
                    lost.retain(|seq| *seq > behind.max_seq);
                }
            }
            _ => {}
        }
        true
    }

    /// Lowers an ack below the pushes that were lost. Returns whether the frame is to be sent.
    fn acks(&self, frame: &mut pb::ClientFrame) -> bool {
        if let Some(ClientBody::Ack(ack)) = &mut frame.body
            && let Some(first) = self.lost.get(&ack.conversation).and_then(BTreeSet::first)
        {
            ack.seq = ack.seq.min(first.saturating_sub(1));
            return ack.seq > 0;
        }
        true
    }

    fn write(&self, frames: &[pb::ClientFrame]) {
        let (mut bytes, mut payload) = (Vec::new(), Vec::new());
        for frame in frames {
            payload.clear();
            codec::encode_client(frame, self.framing, &mut payload);
            match self.framing {
                Framing::Proto => {
                    codec::tcp::put_length(payload.len(), &mut bytes);
                    bytes.extend_from_slice(&payload);
                }
                Framing::Json => {
                    bytes.extend_from_slice(&payload);
                    bytes.push(b'\n');
                }
            }
        }
        self.end.write(&bytes);
    }

    fn cut(&mut self) -> Option<pb::ServerFrame> {
        loop {
            let split = match self.framing {
                Framing::Proto => codec::tcp::split(&self.buffer, FRAME_MAX),
                Framing::Json => codec::json::split_line(&self.buffer, 0, FRAME_MAX),
            };
            let Split::Frame { payload, consumed } = split.expect("the node frames what it sends") else {
                return None;
            };
            let decoded = codec::decode_server(&self.buffer[payload], self.framing);
            self.buffer.drain(..consumed);
            if let Decoded::Frame(frame) = decoded.expect("the node sends frames") {
                return Some(frame);
            }
        }
    }
}
