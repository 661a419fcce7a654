//! Shard: runs its connections, with their sessions, outboxes and indexes, by calls that carry the time (ADRs 1, 20).
//!
//! No other thread touches a connection's state. A turn has a fixed order: ready connections, mail,
//! new connections, drain and room numbers, fan-out in slices, flush of touched connections, hand-over of the turn's
//! sends and logins, signals and presence, sweep. No step awaits, and none reads a clock.

mod actions;
mod close;
mod conn;
mod conn_routes;
mod context;
mod drain;
mod driver;
mod fanout;
mod hub;
mod mailroom;
pub mod newcomer;
mod outbox;
mod query;
mod read;
mod room_send;
mod signal;
mod submit;
mod sweep;
mod trace_steps;
mod write;

use std::{
    collections::{BTreeMap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering},
    task::Waker,
    time::Duration,
};

use tidegate_protocol::{
    Code, Time, code::Reconnect, id::ConversationId, machine::session::Action, record::Record,
};

use self::{
    conn::{Conn, Conns},
    drain::ShardDrain,
    hub::Hub,
    newcomer::{NEWCOMERS_BUDGET, NEWCOMERS_MAX, NewcomerQueue, Newcomers, newcomer_queue},
};
pub use self::{
    context::{ConnSettings, Context},
    driver::{Driver, DriverQueue, build},
    outbox::Caps,
};
pub use crate::clock::Now;
use crate::{
    load::{ShardGates, TurnMeter, VisitLag},
    log_limit::log_limited,
    mail::{Item, Mail, Mailbox, mailbox},
    net::io::{Io, Ready},
};

/// Bytes read from one connection in a turn before the others are read.
const READ_BUDGET_BYTES: usize = 256 * 1024;

/// Cost of the mail handled in one turn: one per mail, answer, route or delivered item, and for an item one per connection
/// that it is pushed to.
const MAIL_BUDGET: usize = 256;

/// Cost of the fan-out in one turn, before the sockets are polled again: one for each member served, and one for each KiB
/// written to it.
const FAN_OUT_BUDGET: usize = 256;

/// Interval between sweeps over the connections' deadlines.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);

/// A sweep this late means that the shard thread was not scheduled.
const FREEZE_THRESHOLD: Duration = Duration::from_secs(1);

/// How long after a freeze the logins of connections whose peer has ended them are refused: what came during it is read
/// and its tokens are checked by then.
const AFTER_FREEZE: Duration = Duration::from_secs(2);

/// State of one shard, owned by its thread.
pub struct Shard<I: Io> {
    context: Context,
    io: I,
    newcomers: Newcomers<I::Arrival>,
    ban_scan: actions::bans::BanScan,
    priority_scan: actions::priorities::PriorityScan,
    closing_rooms: actions::closed_rooms::ClosingRooms,
    mailbox: Mailbox,
    conns: Conns<I::Stream>,
    hub: Hub,
    buffers: Buffers,
    /// Connections to flush at the end of the turn, without duplicates.
    dirty: Vec<u32>,
    /// Connections to read without a poll event, without duplicates: over budget, resumed, or with an open query to
    /// continue. The first has waited longest.
    revisit: VecDeque<u32>,
    /// Pushes and membership changes that are taken from the mailbox and not handled yet.
    items: VecDeque<Item>,
    /// Connections whose next send waits for others of the same user.
    held: VecDeque<u32>,
    /// Time from which the send that is decided has waited for permits, if it did.
    asking_since: Option<Time>,
    /// Log records of this turn's sends.
    batch: Vec<Record>,
    /// Logins whose connections wait for their memberships.
    logins: Vec<(crate::mail::ConnKey, crate::routes::Route)>,
    /// Mail of this shard to itself, handled in the same turn.
    own_mail: Vec<Mail>,
    /// Counts of room frames that did not fit other shards' mailboxes, until reported to those shards: messages (`true`), and
    /// messages left out of which the report did not fit.
    missed: BTreeMap<(usize, ConversationId, bool), u64>,
    /// Live-room messages that wait for their numbers.
    room_queue: room_send::RoomQueue,
    /// Volatile frames to write at the end of a turn.
    signals: VecDeque<crate::mail::Volatile>,
    /// Reports of presence to write at the end of a turn.
    presence: VecDeque<crate::mail::PresenceFrame>,
    /// Traced pushes without an ack; usually empty.
    unacked_traces: VecDeque<trace_steps::UnackedTrace>,
    /// Number of frames read this turn, for the metrics.
    frames_in: u64,
    gates: ShardGates,
    visit_lag: VisitLag,
    /// Time of the turn, since the start of the node.
    now: Time,
    /// Wall clock of the turn, in ms since 1970.
    wall_ms: u64,
    next_tick: Time,
    /// Start of the catch-up on input that arrived during a freeze.
    catching_up_since: Option<Time>,
    /// Until when logins of connections that their peers have ended may date from before a freeze.
    caught_up_at: Time,
    stopping: bool,
    /// This shard's part of the node's drain, while one runs.
    drain: Option<ShardDrain>,
}

/// Buffers shared by all connections of the shard, so that an idle connection has none.
struct Buffers {
    read: Vec<u8>,
    reply: Vec<u8>,
    actions: Vec<Action>,
    /// Close status for a violation of WebSocket framing, until the close frame is encoded.
    ws_status: Option<u16>,
    /// Whether the bytes that are refused are a request of HTTP or TLS, until the connection ends.
    is_web_request: bool,
    /// Time after which a client may reconnect whose login was refused for that time, until its Close is encoded.
    close_after: Option<Duration>,
    /// Class and wait of the next Close, instead of those of its code.
    reconnect: Option<(Reconnect, Duration)>,
    /// Connection and code of the last refusal, so that a close for the same reason is not counted again.
    refused: Option<(crate::mail::ConnKey, u32)>,
}

impl Buffers {
    fn new(context: &Context) -> Self {
        Self {
            read: vec![0; context.read_bytes()],
            reply: Vec::new(),
            actions: Vec::new(),
            ws_status: None,
            is_web_request: false,
            close_after: None,
            reconnect: None,
            refused: None,
        }
    }
}

impl<I: Io> Shard<I> {
    /// Creates a shard and the queue of its new connections, which has the handle of its mailbox. `waker` wakes the
    /// driver from the wait between two turns.
    pub fn new(context: Context, io: I, waker: Waker) -> (Self, NewcomerQueue<I::Arrival>) {
        let (handle, mailbox) = mailbox(waker, context.mailbox_bytes);
        let (queue, newcomers) = newcomer_queue(handle, NEWCOMERS_MAX);
        let hub = Hub::new(context.index, Arc::clone(&context.directory));
        let buffers = Buffers::new(&context);
        let gates = ShardGates::new(context.gates, Arc::clone(&context.load), context.index, context.seed);
        let shard = Self {
            gates,
            visit_lag: VisitLag::default(),
            context,
            io,
            newcomers,
            ban_scan: actions::bans::BanScan::default(),
            priority_scan: actions::priorities::PriorityScan::default(),
            closing_rooms: actions::closed_rooms::ClosingRooms::default(),
            mailbox,
            conns: Conns::new(),
            hub,
            buffers,
            dirty: Vec::new(),
            revisit: VecDeque::new(),
            items: VecDeque::new(),
            held: VecDeque::new(),
            asking_since: None,
            batch: Vec::new(),
            logins: Vec::new(),
            own_mail: Vec::new(),
            missed: BTreeMap::new(),
            room_queue: room_send::RoomQueue::default(),
            signals: VecDeque::new(),
            presence: VecDeque::new(),
            unacked_traces: VecDeque::new(),
            frames_in: 0,
            now: Time::ZERO,
            wall_ms: 0,
            next_tick: Time::ZERO,
            catching_up_since: None,
            caught_up_at: Time::ZERO,
            stopping: false,
            drain: None,
        };
        (shard, queue)
    }

    /// Marks the shard as asleep: from now on mail and new connections wake its driver. Call it before
    /// [`Self::idle_for`].
    pub fn about_to_sleep(&self) {
        self.mailbox.about_to_sleep();
    }

    /// Marks the shard as awake; until [`Self::about_to_sleep`], they need no system call.
    pub fn awoke(&self) {
        self.mailbox.awoke();
    }

    /// Returns whether [`Mail::Stop`] has arrived and the last connection is closed.
    pub fn is_over(&self) -> bool {
        self.stopping && self.mailbox.conns.load(Ordering::Relaxed) == 0
    }

    /// Returns how long the driver may wait for readiness, mail or new connections before the next turn, at most
    /// 100 ms.
    pub fn idle_for(&self) -> Duration {
        let busy = !self.mailbox.is_empty()
            || !self.newcomers.is_empty()
            || self.hub.has_work()
            || !self.revisit.is_empty()
            || !self.items.is_empty()
            || !self.own_mail.is_empty()
            || !self.dirty.is_empty()
            || !self.signals.is_empty()
            || !self.presence.is_empty()
            || self.ban_scan.is_running()
            || self.priority_scan.is_running()
            || self.closing_rooms.is_running()
            || self.held.iter().any(|slot| self.is_released(*slot));
        // What another shard answers releases sends here.
        let backlog = !self.batch.is_empty() || !self.logins.is_empty() || !self.held.is_empty();
        let wait = match (busy, backlog) {
            (true, _) => Duration::ZERO,
            (false, true) => Duration::from_millis(1),
            (false, false) => self.next_slot().min(SWEEP_INTERVAL),
        };
        let rooms = [self.room_queue.wait(self.now), self.hub.next_pass().map(|at| at.since(self.now))];
        rooms.into_iter().flatten().fold(wait, Duration::min)
    }

    /// Returns the meter with which the driver measures the turns; `now` is the time since the start of the node.
    pub fn turn_meter(&self, now: Duration) -> TurnMeter {
        TurnMeter::new(self.context.load.shard(self.context.index), now)
    }

    /// Returns how long a connection has waited in the queue of those to be read again, as last measured.
    pub const fn visit_lag(&self) -> Duration {
        self.visit_lag.last()
    }

    /// Runs one turn at the time `now`, with the connections that became ready since the last turn.
    ///
    /// `is_complete` returns whether `ready` contains all of them. It is called only after a freeze.
    pub fn turn(&mut self, now: Now, ready: impl Iterator<Item = Ready>, is_complete: impl FnOnce() -> bool) {
        if self.now > Time::ZERO && now.at >= self.now + FREEZE_THRESHOLD {
            self.caught_up_at = now.at + AFTER_FREEZE;
        }
        (self.now, self.wall_ms) = (now.at, now.wall_ms);
        self.hub.begin_turn(self.now);
        if self.now >= self.gates.poll_timeout() {
            self.gates.handle_timeout(self.now);
            self.hub.set_load_level(self.gates.level());
        }
        // 1. Sends that waited, ready connections, and those that wait to be read.
        self.submit_held();
        self.visit_conns(ready);
        // 2. Mail. It precedes new connections, so that the end of a drain precedes those admitted after it.
        self.handle_mail(MAIL_BUDGET);
        // 3. New connections, new bans, priorities and closed rooms, the drain, and numbers for room messages.
        self.take_newcomers(NEWCOMERS_BUDGET);
        self.apply_bans();
        self.apply_priorities();
        self.apply_closed_rooms();
        self.advance_drain();
        self.number_posts();
        // 4. Fan-out.
        self.fan_out(FAN_OUT_BUDGET);
        // 5. Flush of the touched connections.
        for slot in std::mem::take(&mut self.dirty) {
            self.conns.hot[slot as usize].flags &= !conn::DIRTY;
            self.with_conn(slot, Self::flush);
        }
        // 6. Hand-over of this turn's sends and logins.
        self.submit_turn();
        // 7. Signals and presence, to connections with nothing else to write.
        self.write_signals();
        self.write_presence();
        // 8. Deadlines.
        if self.now >= self.next_tick && self.has_caught_up(is_complete) {
            self.next_tick = self.now + SWEEP_INTERVAL;
            self.sweep();
        }
    }

    /// Returns whether input that arrived during a freeze has been read, so that its senders do not count as silent.
    ///
    /// The turn that notices a freeze does not count: its poll preceded the freeze or was interrupted by it. Under
    /// constant load the wait ends after [`FREEZE_THRESHOLD`].
    fn has_caught_up(&mut self, is_complete: impl FnOnce() -> bool) -> bool {
        if self.now < self.next_tick + FREEZE_THRESHOLD {
            self.catching_up_since = None;
            return true;
        }
        let Some(since) = self.catching_up_since else {
            self.catching_up_since = Some(self.now);
            return false;
        };
        let is_read = self.revisit.is_empty() && is_complete();
        if !is_read && self.now < since + FREEZE_THRESHOLD {
            return false;
        }
        self.catching_up_since = None;
        true
    }

    /// Runs `work` on one connection; a panic in it closes only that connection.
    fn with_conn(&mut self, slot: u32, work: impl FnOnce(&mut Self, &mut Conn)) {
        let Some(mut conn) = self.conns.take(slot) else { return };
        if catch_unwind(AssertUnwindSafe(|| work(self, &mut conn))).is_err() {
            self.context.metrics.panics.increment(1);
            let connection = format_args!("{:x}", conn.key.pack());
            let user = conn.login.as_ref().map(|login| login.route.user.as_str());
            log_limited!(error, %connection, user, address = %conn.address, "panic in a connection; closing it, please report this");
            self.buffers = Buffers::new(&self.context);
            self.asking_since = None;
            let closed = catch_unwind(AssertUnwindSafe(|| {
                self.begin_close(&mut conn, Code::Internal, "");
                self.flush(&mut conn);
            }));
            if closed.is_err() {
                self.buffers = Buffers::new(&self.context);
                self.abort(&mut conn);
            }
        }
        self.settle_gates(&mut conn);
        if conn.is_closed() {
            self.free(conn);
        } else {
            self.rearm(&conn);
            self.conns.put(conn);
        }
    }
}
