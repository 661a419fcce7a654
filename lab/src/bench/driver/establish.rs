//! Connecting and logging in, many at a time, to stay or to leave at once.

use super::connections::{Conn, ConnEvent, Connections, Phase};
use crate::bench::{
    admin,
    credentials::Signer,
    host,
    login_kind::LoginAlgorithm,
    orders::{Outcome, Peer, Setup},
    wire::{self, BenchTransport, View, kind},
};
use anyhow::{Context, Result, bail, ensure};
use std::{
    borrow::Cow,
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    time::Duration,
};

/// Time after which the logins have failed.
const LOGINS_TIMEOUT: Duration = Duration::from_secs(120);
/// Delay before another attempt when the server names none.
const LOGIN_RETRY_MS: u64 = 20;
/// Most attempts per user on average, before the server counts as unwilling.
const TRIES_PER_USER: u64 = 50;

/// Users that log in, and how.
pub(super) struct Plan {
    prefix: &'static str,
    /// Number of the first user.
    pub(super) first: usize,
    count: usize,
    parallel: usize,
    keep: bool,
    pub(super) room: Option<String>,
    /// First bytes of each user, if they are prepared.
    greetings: Vec<Vec<u8>>,
}

impl Plan {
    /// Plans logins of users `prefix0`… who stay.
    pub(super) const fn keep(prefix: &'static str, count: usize, parallel: usize) -> Self {
        Self { prefix, first: 0, count, parallel, keep: true, room: None, greetings: Vec::new() }
    }

    /// Plans logins of users `prefix0`… who leave once they are logged in.
    pub(super) const fn leave(prefix: &'static str, count: usize, parallel: usize) -> Self {
        Self { prefix, first: 0, count, parallel, keep: false, room: None, greetings: Vec::new() }
    }

    /// Prepares the first bytes of the users, with tokens of this algorithm.
    pub(super) fn sign(&mut self, setup: &Setup, algorithm: LoginAlgorithm) -> Result<()> {
        self.greetings = greetings(setup, self, algorithm)?;
        Ok(())
    }
}

/// The next step of a connection, done after the turn in which it became due.
enum Todo {
    Greet,
    Upgraded,
    Join,
    Done,
    Retry(u64),
}

/// The beginning of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Opening {
    /// The raw fan-out loop sends first.
    Listen,
    /// The raw echo loop needs no beginning.
    None,
    /// The client upgrades, and then listens.
    Upgrade,
    /// The client upgrades if it is on WebSocket, then sends `Hello`.
    Greet,
}

struct Work<'a> {
    plan: &'a Plan,
    /// The beginning that the server expects.
    opening: Opening,
    transport: BenchTransport,
    upgrade: Vec<u8>,
    greetings: Cow<'a, [Vec<u8>]>,
    base: usize,
    waiting: VecDeque<usize>,
    /// Users to try again, by time.
    later: BinaryHeap<Reverse<(u64, usize)>>,
    free: Vec<usize>,
    in_flight: usize,
    outcome: Outcome,
}

/// Carries out `plan`. The outcome has the number of verified logins and the time for all of them.
pub(super) fn establish(connections: &mut Connections, setup: &Setup, plan: &Plan) -> Result<Outcome> {
    ensure!(plan.count > 0 && plan.parallel > 0, "nobody to log in");
    let mut work = Work::new(connections.len(), setup, plan)?;
    let reply = match &setup.peer {
        Peer::Reply { bytes } => *bytes,
        _ => 0,
    };
    let began = host::now_ns();
    let mut todos = Vec::new();
    while work.outcome.count < plan.count as u64 {
        let now = host::now_ns();
        if now - began > LOGINS_TIMEOUT.as_nanos() as u64 {
            bail!("{} of {} logins in {LOGINS_TIMEOUT:?}", work.outcome.count, plan.count);
        }
        work.start(connections, now)?;
        let reply_bytes = &mut work.outcome.reply_bytes;
        connections.turn(Duration::from_millis(5), |slot, conn, event| {
            if let Some(todo) = step(conn, &event, setup.transport, reply, reply_bytes)? {
                todos.push((slot, todo));
            }
            Ok(())
        })?;
        for (slot, todo) in todos.drain(..) {
            work.act(connections, slot, todo)?;
        }
    }
    work.outcome.wall_ns = host::now_ns() - began;
    Ok(work.outcome)
}

/// Returns the next step after an event of a connection that logs in.
fn step(
    conn: &mut Conn,
    event: &ConnEvent<'_>,
    transport: BenchTransport,
    reply: usize,
    reply_bytes: &mut usize,
) -> Result<Option<Todo>> {
    Ok(match (conn.phase, event) {
        (Phase::Connecting, ConnEvent::Writable) => {
            conn.phase = Phase::Upgrading;
            Some(Todo::Greet)
        }
        // The raw fan-out loop confirms a connection with one byte.
        (Phase::Upgrading, ConnEvent::Bytes(b"\0")) => Some(Todo::Done),
        (Phase::Ready, ConnEvent::Closed) => bail!("user {} was closed by the server", conn.user),
        (_, ConnEvent::Closed) => Some(Todo::Retry(LOGIN_RETRY_MS)),
        (Phase::Upgrading, ConnEvent::Bytes(bytes)) => {
            if bytes.starts_with(b"HTTP/1.1 101") && bytes.ends_with(b"\r\n\r\n") {
                Some(Todo::Upgraded)
            } else if bytes.starts_with(b"HTTP/1.1 5") {
                Some(Todo::Retry(LOGIN_RETRY_MS))
            } else {
                bail!("no upgrade: {}", String::from_utf8_lossy(&bytes[..bytes.len().min(80)]));
            }
        }
        (Phase::Greeting, ConnEvent::Bytes(bytes)) => {
            conn.received += bytes.len() as u32;
            ensure!(conn.received as usize <= reply, "more bytes than a reply has");
            *reply_bytes = reply;
            (conn.received as usize == reply).then_some(Todo::Done)
        }
        (phase, ConnEvent::Frame(view)) => match (phase, view.kind) {
            (Phase::Greeting, kind::WELCOME) => {
                *reply_bytes = wire::framed_len(transport, view);
                Some(Todo::Join)
            }
            (Phase::Joining, kind::DONE) => Some(Todo::Done),
            (_, kind::ERROR | kind::CLOSE) => Some(Todo::Retry(retry_after(view)?)),
            _ => None,
        },
        _ => None,
    })
}

/// Returns the delay before another attempt, if the refusal allows one.
fn retry_after(view: &View<'_>) -> Result<u64> {
    let advice = wire::number_of(view.body, 4);
    let may_retry = if view.kind == kind::ERROR { advice != 0 } else { matches!(advice, 1 | 2) };
    ensure!(may_retry, "login refused: {}", wire::reason(view.body));
    Ok(wire::number_of(view.body, 5).clamp(LOGIN_RETRY_MS, 5_000))
}

impl<'a> Work<'a> {
    fn new(base: usize, setup: &Setup, plan: &'a Plan) -> Result<Self> {
        let opening = match setup.peer {
            Peer::Sink { .. } => Opening::Listen,
            Peer::WebSocketSink { .. } => Opening::Upgrade,
            Peer::Echo { .. } | Peer::Log => Opening::None,
            Peer::Reply { .. } | Peer::Tidegate { .. } => Opening::Greet,
        };
        let greetings = match opening {
            Opening::Greet if plan.greetings.is_empty() => {
                Cow::Owned(greetings(setup, plan, LoginAlgorithm::Hs256)?)
            }
            _ => Cow::Borrowed(&plan.greetings[..]),
        };
        let request_bytes = greetings.first().map_or(0, Vec::len);
        Ok(Self {
            plan,
            opening,
            transport: match setup.peer {
                Peer::Tidegate { .. } => setup.transport,
                Peer::WebSocketSink { .. } => BenchTransport::Ws,
                _ => BenchTransport::Tcp,
            },
            upgrade: wire::upgrade(&setup.address),
            greetings,
            base,
            waiting: (0..plan.count).collect(),
            later: BinaryHeap::new(),
            free: (0..plan.parallel.min(plan.count)).map(|slot| base + slot).rev().collect(),
            in_flight: 0,
            outcome: Outcome { request_bytes, ..Outcome::default() },
        })
    }

    /// Opens connections up to the allowed number of concurrent logins.
    fn start(&mut self, connections: &mut Connections, now: u64) -> Result<()> {
        while self.later.peek().is_some_and(|Reverse((due, _))| *due <= now) {
            if let Some(Reverse((_, user))) = self.later.pop() {
                self.waiting.push_back(user);
            }
        }
        while self.in_flight < self.plan.parallel {
            let Some(user) = self.waiting.pop_front() else { break };
            let slot = if self.plan.keep {
                self.base + user
            } else {
                let Some(slot) = self.free.pop() else { break };
                slot
            };
            connections.open(slot, user, None)?;
            self.in_flight += 1;
        }
        Ok(())
    }

    fn act(&mut self, connections: &mut Connections, slot: usize, todo: Todo) -> Result<()> {
        let Ok(conn) = connections.conn(slot) else { return Ok(()) };
        let user = conn.user as usize;
        match todo {
            Todo::Greet if self.opening == Opening::Listen => {}
            Todo::Greet if self.opening == Opening::None => self.done(connections, slot)?,
            Todo::Greet if self.transport == BenchTransport::Ws => connections.send(slot, &self.upgrade)?,
            Todo::Upgraded if self.opening == Opening::Upgrade => self.done(connections, slot)?,
            Todo::Greet | Todo::Upgraded => {
                conn.phase = Phase::Greeting;
                connections.send(slot, &self.greetings[user])?;
            }
            Todo::Join => match &self.plan.room {
                Some(room) => {
                    conn.phase = Phase::Joining;
                    connections.send_frame(slot, &wire::join(2, room))?;
                }
                None => self.done(connections, slot)?,
            },
            Todo::Done => self.done(connections, slot)?,
            Todo::Retry(after_ms) => {
                self.outcome.retries += 1;
                ensure!(
                    self.outcome.retries < TRIES_PER_USER * self.plan.count as u64,
                    "refused {} times: the server does not let the users in",
                    self.outcome.retries
                );
                self.leave(connections, slot);
                self.later.push(Reverse((host::now_ns() + after_ms * 1_000_000, user)));
            }
        }
        Ok(())
    }

    fn leave(&mut self, connections: &mut Connections, slot: usize) {
        connections.close(slot);
        self.in_flight -= 1;
        if !self.plan.keep {
            self.free.push(slot);
        }
    }

    fn done(&mut self, connections: &mut Connections, slot: usize) -> Result<()> {
        self.outcome.count += 1;
        if self.plan.keep {
            let conn = connections.conn(slot)?;
            (conn.phase, conn.received) = (Phase::Ready, 0);
            self.in_flight -= 1;
        } else {
            self.leave(connections, slot);
        }
        Ok(())
    }
}

/// Returns the first bytes of each user. Their tokens are signed before the measurement.
fn greetings(setup: &Setup, plan: &Plan, algorithm: LoginAlgorithm) -> Result<Vec<Vec<u8>>> {
    let signer = match (&setup.peer, algorithm) {
        (Peer::Tidegate { key }, LoginAlgorithm::Hs256) => Signer::Shared(admin::hex(key)?),
        (Peer::Tidegate { .. }, _) => {
            Signer::read(setup.credentials.as_deref().context("no keys that sign tokens")?, algorithm)?
        }
        // A raw loop ignores the token, which only needs the same length.
        _ => Signer::Shared(vec![0; 32]),
    };
    let tidegate_ws = setup.transport == BenchTransport::Ws && matches!(setup.peer, Peer::Tidegate { .. });
    (0..plan.count)
        .map(|user| {
            let token = signer.token(&format!("{}{}", plan.prefix, plan.first + user))?;
            let mut out = if tidegate_ws { Vec::new() } else { b"TG/1\n".to_vec() };
            let transport = if tidegate_ws { BenchTransport::Ws } else { BenchTransport::Tcp };
            wire::put_client(transport, &wire::hello(1, &token, "bench"), &mut out);
            Ok(out)
        })
        .collect()
}
