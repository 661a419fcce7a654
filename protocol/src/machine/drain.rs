//! The drain: how a node leaves without a storm. Ready → cordoned → noticing → draining → flushing → done.
//!
//! Two machines. [`Drain`] is the node's: it hears signals, time and a [`Snapshot`], and says the next [`Step`]s. The
//! paced part is [`Share`], one for each shard: it gives each client a slot, and gives it up for closing
//! when the slot is over, never before it was told.
//!
//! The driver's loop: hand in what happened, carry out the steps in order, look again at [`Drain::poll_timeout`], and
//! hand in a snapshot every now and then.
//!
//! **Time.** Everything is counted back from the deadline: the last part of it is for flushing, the part before
//! that (*settle*) for the answers and final frames of those whose slot came last. What does not fit is done less gently
//! and said: the pace is raised ([`Plan::raised`]), the rest is closed at once ([`Step::Rush`]), and who still has not
//! heard everything is cut and counted ([`Step::Cut`]).
//!
//! **Nobody there, nothing to wait for.** As soon as no client is connected and no send is under way the node flushes,
//! in whatever phase it is.

mod plan;
mod share;

pub use self::{
    plan::{Plan, Settings, plan},
    share::{Notice, Pace, Share},
};

use crate::Time;
use std::time::Duration;

/// What a second signal leaves to say goodbye.
const FAST_GOODBYE: Duration = Duration::from_millis(1_000);

/// By when a second signal has ended the node.
const FAST_END: Duration = Duration::from_millis(2_000);

/// Where a node stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Not serving yet.
    Starting,
    /// Serving.
    Ready,
    /// Out of the load balancer, but still accepting.
    Cordoned,
    /// Newcomers are refused; the clients hear their slots.
    Noticing,
    /// The clients are closed at their slots.
    Draining,
    /// Nobody is left; what is under way is finished.
    Flushing,
    /// The process may end.
    Done,
}

impl Phase {
    /// The word for people and probes.
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

/// What the driver sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Clients that have not been sent everything, their Close included.
    pub conns: usize,
    /// Those of them that have not heard of the drain.
    pub unnoticed: usize,
    /// Those of them whose slot is not over.
    pub waiting: usize,
    /// Sends on their way to the log.
    pub in_flight: usize,
}

/// Why the pace is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The slots did not end in time.
    Deadline,
    /// Somebody asked again.
    Signal,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every client heard everything.
    Drained,
    /// The deadline came first for so many clients.
    Cut(usize),
    /// A second signal came; so many clients were cut.
    Fast(usize),
}

impl Outcome {
    /// The exit code of the process.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Drained | Self::Cut(0) => 0,
            Self::Cut(_) => 3,
            Self::Fast(_) => 4,
        }
    }
}

/// What the driver has to do, in this order; each comes once in a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Say "not ready" to load balancers; go on accepting.
    Cordon,
    /// The drain was aborted: be ready again, forget the slots.
    Resume,
    /// Refuse newcomers; every shard makes its [`Share`] of this pace.
    Notice(Pace, Plan),
    /// Refuse newcomers; close all clients now, each after its answers.
    Rush(Why),
    /// End the clients that are left; there are so many.
    Cut(usize),
    /// Finish what is under way and stop; then [`Drain::handle_flushed`].
    Flush,
    /// End the process.
    Exit(Outcome),
}

/// The drain of a node.
#[derive(Clone, Debug)]
pub struct Drain {
    settings: Settings,
    /// What the other nodes take of a second, when that is known.
    accepted: Option<u32>,
    phase: Phase,
    /// When it began; the deadline counts from here.
    begun: Time,
    /// Whether a signal asked, so that it can't be aborted and the next one speeds up.
    signalled: bool,
    /// When a second signal came.
    fast: Option<Time>,
    rushed: bool,
    cut: usize,
    flush_until: Time,
}

impl Drain {
    /// A node that starts.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            accepted: None,
            phase: Phase::Starting,
            begun: Time::ZERO,
            signalled: false,
            fast: None,
            rushed: false,
            cut: 0,
            flush_until: Time::ZERO,
        }
    }

    /// Where it stands.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// When flushing ends at the latest; only in [`Phase::Flushing`].
    pub fn flush_until(&self) -> Option<Time> {
        (self.phase == Phase::Flushing).then_some(self.flush_until)
    }

    /// Clients are served.
    pub fn handle_started(&mut self) {
        if self.phase == Phase::Starting {
            self.phase = Phase::Ready;
        }
    }

    /// The other nodes take so many clients a second from this one; none = not known. Counts until the slots are given.
    pub fn handle_others(&mut self, accept: Option<u32>) {
        self.accepted = accept;
    }

    /// An operator asks for a drain. Says whether this began one.
    pub fn handle_begin(&mut self, now: Time, out: &mut Vec<Step>) -> bool {
        if self.phase > Phase::Ready {
            return false;
        }
        (self.phase, self.begun) = (Phase::Cordoned, now);
        out.push(Step::Cordon);
        true
    }

    /// A signal: the first one asks for a drain, or makes one that was asked for otherwise final; the next speeds up.
    pub fn handle_signal(&mut self, now: Time, out: &mut Vec<Step>) {
        if !self.signalled {
            self.signalled = true;
            self.handle_begin(now, out);
            return;
        }
        if self.fast.is_some() || self.phase == Phase::Done {
            return;
        }
        self.fast = Some(now);
        self.flush_until = self.flush_until.min(now + FAST_END);
        if self.phase < Phase::Flushing {
            self.phase = Phase::Draining;
            self.rush(Why::Signal, out);
        }
    }

    /// An operator wants the node back. False when there is no drain, a signal asked for it, or it is too late.
    pub fn handle_abort(&mut self, out: &mut Vec<Step>) -> bool {
        let under_way = (Phase::Cordoned..=Phase::Draining).contains(&self.phase);
        if !under_way || self.signalled || self.rushed {
            return false;
        }
        self.phase = Phase::Ready;
        out.push(Step::Resume);
        true
    }

    /// Does what is due.
    pub fn handle_snapshot(&mut self, now: Time, seen: Snapshot, out: &mut Vec<Step>) {
        match self.phase {
            Phase::Starting | Phase::Ready | Phase::Done => return,
            Phase::Flushing => {
                if now >= self.flush_until {
                    self.handle_flushed(out);
                }
                return;
            }
            Phase::Cordoned | Phase::Noticing | Phase::Draining => {}
        }
        if seen.conns == 0 && seen.in_flight == 0 {
            return self.flush(now, out);
        }
        if now >= self.cut_at() {
            if seen.conns > 0 {
                self.cut = seen.conns;
                out.push(Step::Cut(seen.conns));
            }
            return self.flush(now, out);
        }
        if self.phase == Phase::Cordoned && now >= self.notice_at() {
            let left = self.rush_at().since(now);
            let max_rate = self.accepted.map_or(self.settings.max_rate, |it| it.min(self.settings.max_rate));
            let plan = Settings { max_rate, ..self.settings }.fit(seen.conns, left);
            self.phase = Phase::Noticing;
            out.push(Step::Notice(Pace { start: now, window: plan.window, handover: plan.handover }, plan));
            return;
        }
        if self.phase == Phase::Noticing && seen.unnoticed == 0 {
            self.phase = Phase::Draining;
        }
        if self.phase >= Phase::Noticing && now >= self.rush_at() && seen.waiting > 0 {
            self.phase = Phase::Draining;
            self.rush(Why::Deadline, out);
        }
    }

    /// Everything that was under way is finished.
    pub fn handle_flushed(&mut self, out: &mut Vec<Step>) {
        if self.phase != Phase::Flushing {
            return;
        }
        self.phase = Phase::Done;
        out.push(Step::Exit(match (self.fast, self.cut) {
            (Some(_), cut) => Outcome::Fast(cut),
            (None, 0) => Outcome::Drained,
            (None, cut) => Outcome::Cut(cut),
        }));
    }

    /// When a snapshot is due at the latest.
    pub fn poll_timeout(&self) -> Option<Time> {
        match self.phase {
            Phase::Starting | Phase::Ready | Phase::Done => None,
            Phase::Cordoned => Some(self.notice_at().min(self.cut_at())),
            Phase::Noticing | Phase::Draining if !self.rushed => Some(self.rush_at().min(self.cut_at())),
            Phase::Noticing | Phase::Draining => Some(self.cut_at()),
            Phase::Flushing => Some(self.flush_until),
        }
    }

    fn rush(&mut self, why: Why, out: &mut Vec<Step>) {
        if !self.rushed {
            self.rushed = true;
            out.push(Step::Rush(why));
        }
    }

    fn flush(&mut self, now: Time, out: &mut Vec<Step>) {
        self.phase = Phase::Flushing;
        let fast_end = self.fast.map(|since| since + FAST_END);
        let end = (now + self.settings.flush).min(self.begun + self.settings.deadline);
        self.flush_until = fast_end.map_or(end, |fast| fast.min(end));
        out.push(Step::Flush);
    }

    fn notice_at(&self) -> Time {
        self.begun + self.settings.cordon()
    }

    /// When the slots are over, whether they are or not.
    fn rush_at(&self) -> Time {
        self.begun + self.settings.rush_after()
    }

    fn cut_at(&self) -> Time {
        let cut = self.begun + self.settings.cut_after();
        self.fast.map_or(cut, |since| cut.min(since + FAST_GOODBYE))
    }
}
