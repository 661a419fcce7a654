//! A shard: one thread with its own poll, its own connections and its own indexes (DESIGN 4, ADR 0001).
//!
//! Nothing of a connection is touched by another thread. One turn, in this order: what the sockets say, the mail, rooms,
//! fan-out in slices, flushing what was touched, handing over the sends of the turn, signals, the sweep. No step awaits.

mod actions;
mod close;
mod conn;
mod context;
mod drain;
mod epoch;
mod fanout;
mod hub;
mod mailroom;
mod outbox;
mod query;
mod read;
mod reassert;
mod room_send;
mod signal;
mod sweep;
mod trace_steps;
mod write;

use std::{
    collections::{HashMap, VecDeque},
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use mio::{Events, Poll, Token};
use tidegate_protocol::{Code, Time, id::ConversationId, machine::session::Action, record::Record};

use self::{
    conn::{Conn, Conns},
    drain::Leaving,
    hub::Hub,
};
pub use self::{context::Context, outbox::Caps};
use crate::mail::{Mail, Mailbox, ShardHandle, mailbox};

/// Bytes read from a connection in one turn before others get theirs.
const READ_BUDGET_BYTES: usize = 256 * 1024;

/// Mails handled in one turn.
const MAIL_BUDGET: usize = 256;

/// Members served between two looks at the sockets.
const FAN_BUDGET: usize = 1_024;

/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(100);

/// A shard that comes so late to a tick was kept from running.
const STOOD_STILL: Duration = Duration::from_secs(1);

const WAKER: Token = Token(usize::MAX);

/// One shard; lives on its thread.
pub struct Shard {
    context: Context,
    poll: Poll,
    mailbox: Mailbox,
    conns: Conns,
    hub: Hub,
    scratch: Scratch,
    /// Connections with something to flush at the end of the turn, each once.
    dirty: Vec<u32>,
    /// Connections to read on without being told by the poll: over budget, or resumed.
    again: Vec<u32>,
    /// Records of this turn's sends, for the log.
    batch: Vec<Record>,
    /// Users whose connections wait for their memberships.
    joining: Vec<(crate::mail::ConnKey, crate::routes::Route)>,
    /// Mail to itself, handled in the same turn.
    own: Vec<Mail>,
    /// Room frames that other shards had no room for, until those shards have been told.
    missed: HashMap<(usize, ConversationId), u64>,
    /// What was said in live rooms and waits for its number.
    talks: room_send::Talks,
    /// Volatile frames for the end of a turn.
    signals: VecDeque<crate::mail::Volatile>,
    /// Traced pushes whose acks are followed; mostly none.
    awaited: VecDeque<trace_steps::Awaited>,
    /// Frames read this turn, for the metrics.
    frames_in: u64,
    now: Time,
    next_tick: Time,
    /// Since when it catches up on what came while it stood still.
    late_since: Option<Time>,
    stopping: bool,
    /// The drain, while there is one.
    leaving: Option<Leaving>,
}

/// Buffers that all connections of a shard share, so that an idle one holds none.
struct Scratch {
    read: Vec<u8>,
    reply: Vec<u8>,
    actions: Vec<Action>,
    /// The status that a breach of WebSocket framing asks for, on its way to the close frame.
    ws_status: Option<u16>,
}

/// A shard that is ready to run, and the handle to reach it.
///
/// # Errors
/// Fails when the kernel gives no poll.
pub fn build(context: Context) -> io::Result<(Shard, ShardHandle)> {
    let poll = Poll::new()?;
    let (handle, mailbox) = mailbox(mio::Waker::new(poll.registry(), WAKER)?, context.mailbox_bytes);
    let hub = Hub::new(context.index, std::sync::Arc::clone(&context.directory));
    let scratch = Scratch::new(&context);
    let shard = Shard {
        context,
        poll,
        mailbox,
        conns: Conns::default(),
        hub,
        scratch,
        dirty: Vec::new(),
        again: Vec::new(),
        batch: Vec::new(),
        joining: Vec::new(),
        own: Vec::new(),
        missed: HashMap::new(),
        talks: room_send::Talks::default(),
        signals: VecDeque::new(),
        awaited: VecDeque::new(),
        frames_in: 0,
        now: Time::ZERO,
        next_tick: Time::ZERO,
        late_since: None,
        stopping: false,
        leaving: None,
    };
    Ok((shard, handle))
}

impl Scratch {
    fn new(context: &Context) -> Self {
        Self { read: vec![0; context.read_bytes()], reply: Vec::new(), actions: Vec::new(), ws_status: None }
    }
}

impl Shard {
    /// Runs until it is told to stop and its last connection is gone.
    ///
    /// # Errors
    /// Fails when polling itself fails, which no connection can cause.
    pub fn run(mut self, start: Instant) -> io::Result<()> {
        let mut events = Events::with_capacity(1_024);
        loop {
            self.step(&mut events, || Time::from_millis(start.elapsed().as_millis() as u64))?;
            if self.stopping && self.mailbox.conns.load(std::sync::atomic::Ordering::Relaxed) == 0 {
                return Ok(());
            }
        }
    }

    /// Sleeps until there is something to do, 100 ms at most, then does one turn of it. For [`Self::run`], and for those
    /// who drive a shard by hand, with a clock of their own.
    ///
    /// # Errors
    /// Fails when polling itself fails.
    pub fn step(&mut self, events: &mut Events, now: impl FnOnce() -> Time) -> io::Result<()> {
        self.mailbox.about_to_sleep();
        let timeout = self.sleep_time();
        match self.poll.poll(events, Some(timeout)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        self.mailbox.awoke();
        self.now = now();
        self.turn(events);
        Ok(())
    }

    fn turn(&mut self, events: &Events) {
        // 1. What the sockets say.
        for event in events {
            let Token(slot) = event.token();
            if event.token() == WAKER {
                continue;
            }
            let (readable, writable) = (event.is_readable() || event.is_error(), event.is_writable());
            let ended = event.is_read_closed();
            self.with_conn(slot as u32, |shard, conn| {
                if writable {
                    conn.refused = false;
                    if conn.outbox.is_some() {
                        shard.flush(conn);
                    }
                }
                // The end is told once; reading goes on until it is met.
                conn.peer_ended |= ended;
                if readable {
                    shard.read(conn);
                }
            });
        }
        for slot in std::mem::take(&mut self.again) {
            self.with_conn(slot, Self::read);
        }
        // 2. The mail, ours and others'.
        self.handle_mail(MAIL_BUDGET);
        self.leave_in_turn();
        self.number_talks();
        // 3. Fan-out.
        self.fan_out(FAN_BUDGET);
        // 4. Flush what was touched.
        for slot in std::mem::take(&mut self.dirty) {
            self.conns.hot[slot as usize].flags &= !conn::DIRTY;
            self.with_conn(slot, Self::flush);
        }
        // 5. Hand over this turn's sends.
        self.hand_over();
        // 6. What is volatile, where nothing else waits.
        self.tell_signals();
        // 7. Deadlines.
        if self.now >= self.next_tick && self.has_caught_up(events) {
            self.next_tick = self.now + TICK;
            self.sweep();
        }
    }

    /// Whether what came while this shard stood still was read: who was heard of is not silent. What it noticed that in was
    /// polled before it stood still, or broken off by it. One that has too much to do all the time waits no longer than it stood.
    fn has_caught_up(&mut self, events: &Events) -> bool {
        if self.now < self.next_tick + STOOD_STILL {
            self.late_since = None;
            return true;
        }
        let Some(since) = self.late_since else {
            self.late_since = Some(self.now);
            return false;
        };
        if events.iter().count() >= events.capacity() && self.now < since + STOOD_STILL {
            return false;
        }
        self.late_since = None;
        true
    }

    fn sleep_time(&self) -> Duration {
        let busy = !self.mailbox.is_empty()
            || self.hub.has_work()
            || !self.again.is_empty()
            || !self.own.is_empty()
            || self.talks.is_ready()
            || !self.dirty.is_empty()
            || !self.signals.is_empty();
        let backlog = !self.batch.is_empty() || !self.joining.is_empty();
        match (busy, backlog) {
            (true, _) => Duration::ZERO,
            (false, true) => Duration::from_millis(1),
            (false, false) => self.next_slot().min(TICK),
        }
    }

    /// Works on one connection; a panic in there ends that connection and no other (DESIGN 1.7).
    fn with_conn(&mut self, slot: u32, work: impl FnOnce(&mut Self, &mut Conn)) {
        let Some(mut conn) = self.conns.take(slot) else { return };
        if catch_unwind(AssertUnwindSafe(|| work(self, &mut conn))).is_err() {
            self.context.metrics.panics.increment(1);
            tracing::error!(address = %conn.address, "a panic ended one connection; please report it");
            self.scratch = Scratch::new(&self.context);
            let said = catch_unwind(AssertUnwindSafe(|| {
                self.begin_close(&mut conn, Code::Internal, "");
                self.flush(&mut conn);
            }));
            if said.is_err() {
                self.scratch = Scratch::new(&self.context);
                self.peer_gone(&mut conn);
            }
        }
        if conn.is_gone() {
            self.free(conn);
        } else {
            self.rearm(&conn);
            self.conns.put(conn);
        }
    }
}
