//! The honest pair: over a node a sender and a receiver, over the raw loop one connection that reads its own bytes back.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;
use serde::Serialize;
use tidegate_protocol::pb::{
    self, Direction, client_frame::Body as ClientBody, server_frame::Body as ServerBody,
};

use super::{
    attacks::Target,
    frames::{self, Session},
};

/// Interval between the starts of two exchanges, unless one takes longer.
const INTERVAL: Duration = Duration::from_millis(5);
/// Time after which an exchange counts as lost.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Delays before another attempt, the shortest and the longest.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];
/// Longest latency that is recorded; longer ones count as this one.
const LATENCY_MAX: Duration = Duration::from_secs(60);
/// Bytes of text of a message.
const TEXT_BYTES: usize = 64;
/// Conversation of the pair.
const CONVERSATION: &str = "d:alice:bob";

/// Latency of the pair's exchanges in one phase. Each delay also counts for the exchanges that would have started
/// meanwhile.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct PairCost {
    pub(super) exchanges: u64,
    pub(super) p50_us: u64,
    pub(super) p99_us: u64,
    pub(super) max_us: u64,
    /// Sends that were temporarily refused, and sent again.
    pub(super) refused: u64,
    /// Connections that ended and were opened again.
    pub(super) reconnects: u64,
    /// Exchanges that took longer than the timeout.
    pub(super) lost: u64,
}

/// The pair and what it talks to.
pub(super) enum HonestPair {
    /// A sender and a receiver on a node.
    Node(Box<Chat>),
    /// A connection to the raw loop, and the size of its frames.
    Raw(TcpStream, usize),
}

impl HonestPair {
    /// Logs in alice and bob.
    pub(super) fn on_node(target: &Target) -> Result<Self> {
        let mut chat = Chat { alice: User::new(target, "alice"), bob: User::new(target, "bob"), sent: 0 };
        chat.alice.session()?;
        chat.bob.session()?;
        Ok(Self::Node(Box::new(chat)))
    }

    /// Connects to the raw loop.
    pub(super) fn on_raw(address: &str) -> Result<Self> {
        let mut frame = Vec::new();
        let send = frames::message(CONVERSATION, &msg_id(1_000), TEXT_BYTES);
        frames::put(1_000, ClientBody::Send(send), &mut frame);
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(EXCHANGE_TIMEOUT))?;
        stream.set_write_timeout(Some(EXCHANGE_TIMEOUT))?;
        Ok(Self::Raw(stream, frame.len()))
    }

    /// Exchanges a message every [`INTERVAL`] until `stop`.
    pub(super) fn talk(&mut self, stop: &AtomicBool) -> Result<PairCost> {
        let mut delays = Histogram::<u64>::new_with_max(micros(LATENCY_MAX), 3)?;
        let mut cost = PairCost::default();
        while !stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            let arrived = match self {
                Self::Node(chat) => chat.exchange(&mut cost),
                Self::Raw(stream, bytes) => echo(stream, *bytes)?,
            };
            let took = began.elapsed();
            cost.exchanges += 1;
            cost.lost += u64::from(!arrived);
            delays.record_correct(micros(took.min(LATENCY_MAX)), micros(INTERVAL))?;
            thread::sleep(INTERVAL.saturating_sub(took));
        }
        (cost.p50_us, cost.p99_us) = (delays.value_at_quantile(0.5), delays.value_at_quantile(0.99));
        cost.max_us = delays.max();
        Ok(cost)
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn msg_id(number: u64) -> String {
    format!("honest-{number:08}")
}

/// Sends a frame and reads it back. Returns whether the answer came in time.
fn echo(stream: &mut TcpStream, bytes: usize) -> Result<bool> {
    let mut frame = vec![7; bytes];
    stream.write_all(&frame).context("the raw loop takes no bytes")?;
    stream.read_exact(&mut frame).context("the raw loop does not answer")?;
    Ok(true)
}

/// A user with one device, who connects again after each close.
struct User {
    address: String,
    hello: pb::Hello,
    session: Option<Session>,
}

impl User {
    fn new(target: &Target, name: &str) -> Self {
        let hello = target.hello(name, "phone");
        Self { address: target.clients.clone(), hello, session: None }
    }

    fn session(&mut self) -> Result<&mut Session> {
        if self.session.is_none() {
            self.session = Some(Session::log_in(&self.address, self.hello.clone(), EXCHANGE_TIMEOUT)?);
        }
        self.session.as_mut().context("no session")
    }
}

/// Alice, who sends, and bob, who receives and acks.
pub(super) struct Chat {
    alice: User,
    bob: User,
    sent: u64,
}

impl Chat {
    /// Sends a message until it is acked and received. Returns whether that happened in time.
    fn exchange(&mut self, cost: &mut PairCost) -> bool {
        self.sent += 1;
        let began = Instant::now();
        let mut attempt = 0;
        let mut is_acked = false;
        while began.elapsed() < EXCHANGE_TIMEOUT {
            let had_both = self.alice.session.is_some() && self.bob.session.is_some();
            let step = if is_acked { self.receive(had_both) } else { self.send(attempt) };
            match step {
                Ok(Answer::Done) if is_acked => return true,
                Ok(Answer::Done) => is_acked = true,
                Ok(Answer::Again(after)) => {
                    attempt += 1;
                    cost.refused += 1;
                    thread::sleep(after.clamp(RETRY_DELAYS[0], RETRY_DELAYS[1]));
                }
                Err(_) => {
                    let user = if is_acked { &mut self.bob } else { &mut self.alice };
                    cost.reconnects += u64::from(user.session.take().is_some());
                    attempt += 1;
                    thread::sleep(RETRY_DELAYS[0]);
                }
            }
        }
        false
    }

    /// Sends the present message and waits for its ack.
    fn send(&mut self, attempt: u32) -> Result<Answer> {
        let request = self.sent * 1_000 + u64::from(attempt);
        let send = frames::message(CONVERSATION, &msg_id(self.sent), TEXT_BYTES);
        let session = self.alice.session()?;
        session.send(request, ClientBody::Send(pb::Send { attempt, ..send }))?;
        loop {
            let frame = session.next()?;
            match frame.body {
                Some(ServerBody::SendAck(_)) if frame.id == request => return Ok(Answer::Done),
                Some(ServerBody::Error(error)) if frame.id == request => {
                    return Ok(Answer::Again(Duration::from_millis(error.retry_after_ms.into())));
                }
                _ => {}
            }
        }
    }

    /// Waits until bob has the present message, and acks it. A new connection, and one that missed pushes, pulls it.
    fn receive(&mut self, was_connected: bool) -> Result<Answer> {
        let wanted = msg_id(self.sent);
        let session = self.bob.session()?;
        if !was_connected {
            pull(session)?;
        }
        loop {
            let push = match session.next()?.body {
                Some(ServerBody::Push(push)) if push.msg_id == wanted => push,
                Some(ServerBody::Page(page)) => {
                    let Some(push) = page.messages.into_iter().find(|it| it.msg_id == wanted) else {
                        continue;
                    };
                    push
                }
                Some(ServerBody::Behind(_)) => {
                    pull(session)?;
                    continue;
                }
                _ => continue,
            };
            let ack = pb::Ack { conversation: CONVERSATION.to_owned(), seq: push.seq };
            session.send(0, ClientBody::Ack(ack))?;
            return Ok(Answer::Done);
        }
    }
}

/// Result of one step of an exchange.
enum Answer {
    Done,
    /// Temporarily refused: to be sent again after this delay.
    Again(Duration),
}

/// Requests the newest message.
fn pull(session: &mut Session) -> Result<()> {
    let direction = Direction::Backward.into();
    let conversation = CONVERSATION.to_owned();
    session.send(1, ClientBody::Pull(pb::Pull { conversation, limit: 1, direction, ..pb::Pull::default() }))
}
