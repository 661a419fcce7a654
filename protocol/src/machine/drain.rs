//! Drain: the planned stop of a node without a login storm. Ready → cordoned → noticing → draining → flushing → done.
//!
//! There are two machines. [`Drain`] belongs to the node: it takes signals, time and a [`DrainCounts`], and returns the
//! next [`DrainStep`]s. [`Share`] paces the clients of one shard: it assigns a slot to each, and releases a client for
//! closing at the end of its slot, never before the client was notified.
//!
//! The driver passes in what happened, executes the steps in order, re-reads [`Drain::poll_timeout`], and passes in a
//! snapshot at short intervals.
//!
//! **Time.** Everything is counted back from the deadline: its last part is for flushing, the part before that
//! (*settle*) for the answers and final frames of clients with the last slots. Work that does not fit is done less
//! gently and reported: the pace is raised ([`Plan::raised`]), the remaining clients are closed immediately
//! ([`DrainStep::Rush`]), and clients that still have not received everything are cut and counted ([`DrainStep::Cut`]).
//!
//! **No clients.** In any phase, the node flushes as soon as no client is connected and no send is in flight.

mod plan;
mod share;

pub use self::{
    plan::{Plan, Settings, plan},
    share::{Notice, Pace, Share},
};

use crate::Time;
use std::time::Duration;

/// Time from a second signal until remaining clients are cut.
const FAST_CUT_AFTER: Duration = Duration::from_millis(1_000);

/// Time from a second signal until the node ends.
const FAST_END_AFTER: Duration = Duration::from_millis(2_000);

/// Phase of a node's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodePhase {
    /// Not serving yet.
    Starting,
    /// Serving.
    Ready,
    /// Out of the load balancer, but still accepting.
    Cordoned,
    /// Refusing new clients, and notifying the others of their slots.
    Noticing,
    /// Closing each client at the end of its slot.
    Draining,
    /// Without clients, finishing pending work.
    Flushing,
    /// The process may end.
    Done,
}

impl NodePhase {
    /// Returns the name for display and probes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Cordoned => "cordoned",
            Self::Noticing => "noticing",
            Self::Draining => "draining",
            Self::Flushing => "flushing",
            Self::Done => "done",
        }
    }
}

/// Counts that the driver passes to the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainCounts {
    /// Clients that have not received everything, including their Close.
    pub conns: usize,
    /// Clients among them that have not been notified of the drain.
    pub unnoticed: usize,
    /// Clients among them whose slot has not ended.
    pub waiting: usize,
    /// Sends on their way to the log.
    pub in_flight: usize,
}

/// Reason for closing all clients immediately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RushReason {
    /// The slots did not end in time.
    Deadline,
    /// A second signal arrived.
    Signal,
}

/// Outcome of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainOutcome {
    /// Every client received everything.
    Drained,
    /// The deadline passed, and this many clients were cut.
    Cut(usize),
    /// A second signal arrived, and this many clients were cut.
    Fast(usize),
}

impl DrainOutcome {
    /// Returns the exit code of the process.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Drained | Self::Cut(0) => 0,
            Self::Cut(_) => 3,
            Self::Fast(_) => 4,
        }
    }
}

/// Action for the driver, in this order; each occurs at most once in a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainStep {
    /// Report "not ready" to load balancers; keep accepting.
    Cordon,
    /// The drain was aborted: report ready again, discard the slots.
    Resume,
    /// Refuse new clients; every shard creates its [`Share`] of this pace.
    Notice(Pace, Plan),
    /// Refuse new clients; close all others now, each after its answers.
    Rush(RushReason),
    /// Cut the remaining clients, of which there are this many.
    Cut(usize),
    /// Finish pending work and stop; then call [`Drain::handle_flushed`].
    Flush,
    /// End the process.
    Exit(DrainOutcome),
}

/// Drain of a node.
#[derive(Clone, Debug)]
pub struct Drain {
    settings: Settings,
    /// Clients per second that the other nodes accept, `None` if unknown.
    accepted: Option<u32>,
    phase: NodePhase,
    /// Start of the drain; the deadline counts from here.
    begun: Time,
    /// Whether a signal requested the drain: it can't be aborted, and another signal speeds it up.
    signalled: bool,
    /// Time of the second signal.
    fast: Option<Time>,
    rushed: bool,
    cut: usize,
    flush_until: Time,
}

impl Drain {
    /// Creates the machine of a starting node.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            accepted: None,
            phase: NodePhase::Starting,
            begun: Time::ZERO,
            signalled: false,
            fast: None,
            rushed: false,
            cut: 0,
            flush_until: Time::ZERO,
        }
    }

    /// Returns the current phase.
    pub fn phase(&self) -> NodePhase {
        self.phase
    }

    /// Returns the time limit for flushing, `None` outside [`NodePhase::Flushing`].
    pub fn flush_until(&self) -> Option<Time> {
        (self.phase == NodePhase::Flushing).then_some(self.flush_until)
    }

    /// Marks a starting node as serving.
    pub fn handle_started(&mut self) {
        if self.phase == NodePhase::Starting {
            self.phase = NodePhase::Ready;
        }
    }

    /// Sets how many clients per second the other nodes accept, `None` if unknown. No effect once slots are assigned.
    pub fn handle_others(&mut self, accept: Option<u32>) {
        self.accepted = accept;
    }

    /// Begins a drain at an operator's request. Returns false if one has already begun.
    pub fn handle_begin(&mut self, now: Time, out: &mut Vec<DrainStep>) -> bool {
        if self.phase > NodePhase::Ready {
            return false;
        }
        (self.phase, self.begun) = (NodePhase::Cordoned, now);
        out.push(DrainStep::Cordon);
        true
    }

    /// Handles a signal: the first begins a drain, or makes a running one final; the second speeds it up.
    pub fn handle_signal(&mut self, now: Time, out: &mut Vec<DrainStep>) {
        if !self.signalled {
            self.signalled = true;
            self.handle_begin(now, out);
            return;
        }
        if self.fast.is_some() || self.phase == NodePhase::Done {
            return;
        }
        self.fast = Some(now);
        self.flush_until = self.flush_until.min(now + FAST_END_AFTER);
        if self.phase < NodePhase::Flushing {
            self.phase = NodePhase::Draining;
            self.rush(RushReason::Signal, out);
        }
    }

    /// Aborts the drain at an operator's request. Returns false without a drain, after a signal, or if it is too late.
    pub fn handle_abort(&mut self, out: &mut Vec<DrainStep>) -> bool {
        let under_way = (NodePhase::Cordoned..=NodePhase::Draining).contains(&self.phase);
        if !under_way || self.signalled || self.rushed {
            return false;
        }
        self.phase = NodePhase::Ready;
        out.push(DrainStep::Resume);
        true
    }

    /// Advances the drain by time and counts, and appends the steps that are due to `out`.
    pub fn handle_snapshot(&mut self, now: Time, snapshot: DrainCounts, out: &mut Vec<DrainStep>) {
        match self.phase {
            NodePhase::Starting | NodePhase::Ready | NodePhase::Done => return,
            NodePhase::Flushing => {
                if now >= self.flush_until {
                    self.handle_flushed(out);
                }
                return;
            }
            NodePhase::Cordoned | NodePhase::Noticing | NodePhase::Draining => {}
        }
        if snapshot.conns == 0 && snapshot.in_flight == 0 {
            return self.flush(now, out);
        }
        if now >= self.cut_at() {
            if snapshot.conns > 0 {
                self.cut = snapshot.conns;
                out.push(DrainStep::Cut(snapshot.conns));
            }
            return self.flush(now, out);
        }
        if self.phase == NodePhase::Cordoned && now >= self.notice_at() {
            let left = self.rush_at().since(now);
            let max_rate = self.accepted.map_or(self.settings.max_rate, |it| it.min(self.settings.max_rate));
            let plan = Settings { max_rate, ..self.settings }.fit(snapshot.conns, left);
            self.phase = NodePhase::Noticing;
            out.push(DrainStep::Notice(
                Pace { start: now, window: plan.window, handover: plan.handover },
                plan,
            ));
            return;
        }
        if self.phase == NodePhase::Noticing && snapshot.unnoticed == 0 {
            self.phase = NodePhase::Draining;
        }
        if self.phase >= NodePhase::Noticing && now >= self.rush_at() && snapshot.waiting > 0 {
            self.phase = NodePhase::Draining;
            self.rush(RushReason::Deadline, out);
        }
    }

    /// Ends the drain once all pending work is finished.
    pub fn handle_flushed(&mut self, out: &mut Vec<DrainStep>) {
        if self.phase != NodePhase::Flushing {
            return;
        }
        self.phase = NodePhase::Done;
        out.push(DrainStep::Exit(match (self.fast, self.cut) {
            (Some(_), cut) => DrainOutcome::Fast(cut),
            (None, 0) => DrainOutcome::Drained,
            (None, cut) => DrainOutcome::Cut(cut),
        }));
    }

    /// Returns when the next snapshot is due at the latest.
    pub fn poll_timeout(&self) -> Option<Time> {
        match self.phase {
            NodePhase::Starting | NodePhase::Ready | NodePhase::Done => None,
            NodePhase::Cordoned => Some(self.notice_at().min(self.cut_at())),
            NodePhase::Noticing | NodePhase::Draining if !self.rushed => {
                Some(self.rush_at().min(self.cut_at()))
            }
            NodePhase::Noticing | NodePhase::Draining => Some(self.cut_at()),
            NodePhase::Flushing => Some(self.flush_until),
        }
    }

    fn rush(&mut self, reason: RushReason, out: &mut Vec<DrainStep>) {
        if !self.rushed {
            self.rushed = true;
            out.push(DrainStep::Rush(reason));
        }
    }

    fn flush(&mut self, now: Time, out: &mut Vec<DrainStep>) {
        self.phase = NodePhase::Flushing;
        let fast_end = self.fast.map(|since| since + FAST_END_AFTER);
        let end = (now + self.settings.flush).min(self.begun + self.settings.deadline);
        self.flush_until = fast_end.map_or(end, |fast| fast.min(end));
        out.push(DrainStep::Flush);
    }

    fn notice_at(&self) -> Time {
        self.begun + self.settings.cordon()
    }

    /// Returns whether the slots should have ended by now.
    pub fn is_late(&self, now: Time) -> bool {
        now >= self.rush_at()
    }

    /// Returns when all slots must have ended; the remaining ones are then ended early.
    fn rush_at(&self) -> Time {
        self.begun + self.settings.rush_after()
    }

    fn cut_at(&self) -> Time {
        let cut = self.begun + self.settings.cut_after();
        self.fast.map_or(cut, |since| cut.min(since + FAST_CUT_AFTER))
    }
}
