//! Message storms: whether a group gets more messages than a threshold within a window.
//!
//! A storm is **more than** the threshold: with a threshold of 100, the 101st message within the window starts it. Its
//! end has hysteresis: it *cools* once at most half of the threshold was counted, and is over after one more window
//! without exceeding the threshold. An excess while it cools continues the same storm.
//!
//! **Both times must agree.** A message has the time at which a node received it, by that node's wall clock, and the time
//! at which the owner accepted it, by the owner's monotonic clock. A message counts only if both are within the window.
//! Receive times tell a backlog after an outage from a storm; the owner's time bounds the count whatever the wall
//! clocks do. A node whose clock is off by up to [`RECEIVE_SKEW_MS`] delays a detection by that time; the messages of
//! one that is off by more count only among themselves. A clock that jumps during a storm delays its detection by at most
//! one window, and makes none, with one exception: a clock that is set back while a backlog is processed may count too
//! much for one window.
//!
//! **Exact and bounded.** Messages of one millisecond share a run. A window of more than [`STORM_RUNS_MAX`] runs merges
//! messages within 1/1,024 of it, or up to 1/64 if receive times differ much; then a message may stop counting earlier
//! by that time. A backlog of still more runs forgets its oldest messages. Nothing counts for too long.
//!
//! **Take-over.** A new owner's watch is *unknown* until [`StormWatch::restore`] gets the past. It holds the messages
//! until then, so that it neither starts a storm again nor misses one.

mod action;
mod profile;
mod receipts;

pub use self::{
    action::{SLOW_INTERVAL_MAX, SLOW_INTERVAL_MIN, StormAction},
    profile::{PROFILE_PARTS_MAX, StormProfile},
    receipts::STORM_RUNS_MAX,
};

use self::receipts::ReceiptWindow;
use crate::{Time, id::ConversationId};
use std::{collections::VecDeque, fmt, time::Duration};

/// Time by which a message may be received after one that is counted, because the clocks of nodes differ; in ms.
pub const RECEIVE_SKEW_MS: u64 = 5_000;

/// Messages that an unknown watch holds; the oldest are dropped.
pub const HELD_MAX: usize = 1_024;

/// Longest window of a rule; a longer one is cut to it.
pub const STORM_WINDOW_MAX: Duration = Duration::from_secs(24 * 3_600);

/// Rule of a storm: more than a threshold of messages within a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StormRule {
    threshold: u32,
    window_ms: u64,
}

impl StormRule {
    /// Creates a rule with a window of 1 ms to [`STORM_WINDOW_MAX`].
    pub fn new(threshold: u32, window: Duration) -> Self {
        let window_ms = u64::try_from(window.min(STORM_WINDOW_MAX).as_millis()).unwrap_or(u64::MAX);
        Self { threshold, window_ms: window_ms.max(1) }
    }

    /// Returns the largest number of messages that is no storm.
    pub const fn threshold(&self) -> u32 {
        self.threshold
    }

    /// Returns the window.
    pub const fn window(&self) -> Duration {
        Duration::from_millis(self.window_ms)
    }
}

/// Accepted message, as a watch counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StormMessage {
    /// Position in its conversation.
    pub seq: u64,
    /// Receive time, in ms of the wall clock of the node that received it.
    pub received_ms: u64,
    /// Time at which the owner accepted it.
    pub decided_at: Time,
}

/// Message of the past, as the archive returns it to a new owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastMessage {
    /// Position in its conversation.
    pub seq: u64,
    /// Receive time, in ms of the wall clock of the node that received it.
    pub received_ms: u64,
}

/// State of a storm that outlives its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StormInForce {
    /// Position of the message that started the storm.
    pub seq: u64,
    /// Receive time of that message, in ms.
    pub since_ms: u64,
    /// Largest count so far.
    pub peak: u32,
    /// Wall clock time since which the storm cools, in ms; `None` if it does not.
    pub cooling_since_ms: Option<u64>,
}

/// Id of a storm, `<conversation>/<seq>` with the seq of the message that started it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StormId {
    /// Group of the storm.
    pub conversation: ConversationId,
    /// Position of the message that started the storm.
    pub seq: u64,
}

impl StormId {
    /// Parses the text of an id; `None` if it is not one.
    pub fn parse(text: &str) -> Option<Self> {
        let (conversation, seq) = text.rsplit_once('/')?;
        let id = Self { conversation: ConversationId::parse(conversation).ok()?, seq: seq.parse().ok()? };
        (id.to_string() == text).then_some(id)
    }
}

impl fmt::Display for StormId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.conversation, self.seq)
    }
}

/// Phase of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StormPhase {
    /// Waits for the past; holds the messages.
    Unknown,
    /// No storm.
    Quiet,
    /// Storm that is not cooling.
    Storm,
    /// Storm whose count has fallen to half of the threshold; it is over after one window without an excess.
    Cooling,
}

/// Storm, as of its start, its latest tick or its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StormReport {
    /// Position of the message that started the storm.
    pub seq: u64,
    /// Receive time of that message, in ms.
    pub since_ms: u64,
    /// Messages in the window.
    pub count: u32,
    /// Largest count at the start, at a tick and when a cooling storm grew again.
    pub peak: u32,
}

/// Start or end of a storm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StormEvent {
    /// A storm has started.
    Started(StormReport),
    /// A storm is over.
    Ended(StormReport, StormProfile),
}

/// Watch of one group for storms.
///
/// By default, the watch is quiet and knows that there was no message before.
#[derive(Clone, Debug, Default)]
pub struct StormWatch {
    window: ReceiptWindow,
    /// Receive time of the newest message, in ms.
    received_ms: u64,
    state: State,
}

#[derive(Clone, Debug, Default)]
enum State {
    /// Messages that wait for the past.
    Unknown(VecDeque<StormMessage>),
    #[default]
    Quiet,
    Active(Box<ActiveStorm>),
}

#[derive(Clone, Debug)]
struct ActiveStorm {
    report: StormReport,
    cooling: Option<Cooling>,
    profile: StormProfile,
    /// Receive time of the start minus the owner's time of it, in ms.
    clock_offset: i64,
    /// Owner's time of the newest message, in ms; `None` if none is known.
    last_decided: Option<i64>,
}

#[derive(Clone, Copy, Debug)]
struct Cooling {
    /// Start by the wall clock, for a next owner; it decides nothing here.
    since_ms: u64,
    /// Start by the owner's time, in ms.
    since: i64,
}

/// Message with the owner's time in ms, which is negative for one from before the owner's start.
#[derive(Clone, Copy)]
struct Entry {
    seq: u64,
    received_ms: u64,
    decided: i64,
}

impl StormWatch {
    /// Creates a watch of a group whose past is not known.
    pub fn unknown() -> Self {
        Self { state: State::Unknown(VecDeque::new()), ..Self::default() }
    }

    /// Counts an accepted message, or holds it while the past is unknown. Duplicates and refusals are not passed.
    pub fn handle_message(&mut self, rule: &StormRule, message: StormMessage) -> Option<StormEvent> {
        if let State::Unknown(held) = &mut self.state {
            if held.len() >= HELD_MAX {
                held.pop_front();
            }
            held.push_back(message);
            return None;
        }
        // With a threshold of 0 the message itself exceeds it, so the storm goes on.
        let over = (rule.threshold > 0).then(|| self.end_if_idle(rule, signed(message.decided_at))).flatten();
        let event = self.count(rule, message.into(), true);
        over.or(event)
    }

    /// Finds the end of a storm. Call it each second while [`Self::report`] has one, with the owner's wall clock. Calls that
    /// come late find an end later, but never join two storms with two windows without a message in between.
    ///
    /// The wall clock only adds a second opinion on what is within the window: the larger count holds. A clock that
    /// jumps, or is ahead of a backlog, therefore ends no storm.
    pub fn handle_tick(&mut self, rule: &StormRule, now: Time, wall_ms: u64) -> Option<StormEvent> {
        let now = signed(now);
        if let Some(over) = self.end_if_idle(rule, now) {
            return Some(over);
        }
        let State::Active(storm) = &mut self.state else { return None };
        self.window.expire(rule.window_ms, now);
        let count = |received| self.window.count(rule.window_ms, received);
        storm.report.count = count(wall_ms).max(count(self.received_ms));
        storm.report.peak = storm.report.peak.max(storm.report.count);
        match storm.cooling {
            None if storm.report.count <= rule.threshold / 2 => {
                storm.cooling = Some(Cooling { since_ms: wall_ms, since: now });
            }
            Some(_) if storm.report.count > rule.threshold => storm.cooling = None,
            Some(cooling) if now >= cooling.since.saturating_add_unsigned(rule.window_ms) => {
                let State::Active(storm) = std::mem::take(&mut self.state) else { return None };
                return Some(StormEvent::Ended(storm.report, storm.profile));
            }
            _ => {}
        }
        None
    }

    /// Ends a storm without a message for two windows: it has cooled after one of them, even if no tick has found that.
    fn end_if_idle(&mut self, rule: &StormRule, now: i64) -> Option<StormEvent> {
        let State::Active(storm) = &mut self.state else { return None };
        let end = storm.last_decided?.saturating_add_unsigned(rule.window_ms.saturating_mul(2));
        if now < end {
            return None;
        }
        storm.report.count = 0;
        let State::Active(storm) = std::mem::take(&mut self.state) else { return None };
        Some(StormEvent::Ended(storm.report, storm.profile))
    }

    /// Ends the unknown phase: adds the past and then the messages held, each once.
    ///
    /// The past is in the order of `seq`, and reaches back by two windows from the first message held; one that is
    /// shorter, or empty because it could not be read, makes the counts lower bounds. `store_now_ms` is the clock of the
    /// store. `in_force` is the storm that the previous owner recorded. Without such a record, a storm that started
    /// within one window before the first message held starts again, with the same position, and ends up to one window
    /// later if it had cooled; an older one starts with the next message that exceeds the threshold.
    ///
    /// Has no effect in another phase, so that an answer may be late.
    pub fn restore(
        &mut self,
        rule: &StormRule,
        past: &[PastMessage],
        in_force: Option<StormInForce>,
        store_now_ms: u64,
        now: Time,
    ) -> Option<StormEvent> {
        let State::Unknown(held) = &mut self.state else { return None };
        let held = std::mem::take(held);
        let now = signed(now);
        let age = |ms: u64| i64::try_from(store_now_ms.saturating_sub(ms)).unwrap_or(i64::MAX);
        self.state = in_force.map_or(State::Quiet, |storm| {
            let decided = now.saturating_sub(age(storm.since_ms));
            let mut active = ActiveStorm::new(storm.seq, storm.since_ms, storm.peak, decided, rule);
            let cooling = |since_ms| Cooling { since_ms, since: now.saturating_sub(age(since_ms)) };
            active.cooling = storm.cooling_since_ms.map(cooling);
            State::Active(Box::new(active))
        });
        let (first_seq, latest) = held.front().map_or((u64::MAX, now), |it| (it.seq, signed(it.decided_at)));
        if let (State::Active(storm), Some(last)) = (&mut self.state, past.last()) {
            storm.last_decided = Some(now.saturating_sub(age(last.received_ms)).min(latest));
        }
        let mut event = None;
        for message in past.iter().filter(|it| it.seq < first_seq) {
            let decided = now.saturating_sub(age(message.received_ms)).min(latest);
            let before = latest.abs_diff(decided);
            if before < rule.window_ms.saturating_mul(2) {
                let entry = Entry { seq: message.seq, received_ms: message.received_ms, decided };
                // Older messages than one window may be those of a storm that has ended.
                event = event.or(self.count(rule, entry, before < rule.window_ms));
            }
        }
        for message in held {
            event = event.or(self.count(rule, message.into(), true));
        }
        event
    }

    /// Returns the phase.
    pub fn phase(&self) -> StormPhase {
        match &self.state {
            State::Unknown(_) => StormPhase::Unknown,
            State::Quiet => StormPhase::Quiet,
            State::Active(storm) if storm.cooling.is_some() => StormPhase::Cooling,
            State::Active(_) => StormPhase::Storm,
        }
    }

    /// Returns the position of the first message that is held in the unknown phase, before which the past ends.
    pub fn first_held(&self) -> Option<u64> {
        match &self.state {
            State::Unknown(held) => held.front().map(|it| it.seq),
            State::Quiet | State::Active(_) => None,
        }
    }

    /// Returns the number of messages in the window before now, by the newest message; a lower bound in the unknown phase.
    pub fn known(&mut self, rule: &StormRule, now: Time) -> u32 {
        let now = signed(now);
        if let State::Unknown(held) = &self.state {
            let is_within =
                |it: &&StormMessage| signed(it.decided_at).saturating_add_unsigned(rule.window_ms) > now;
            return u32::try_from(held.iter().filter(is_within).count()).unwrap_or(u32::MAX);
        }
        self.window.expire(rule.window_ms, now);
        self.window.count(rule.window_ms, self.received_ms)
    }

    /// Returns the storm, `None` if there is none.
    pub fn report(&self) -> Option<&StormReport> {
        self.active().map(|storm| &storm.report)
    }

    /// Returns the profile of the storm so far, `None` if there is none.
    pub fn profile(&self) -> Option<&StormProfile> {
        self.active().map(|storm| &storm.profile)
    }

    /// Returns what a next owner needs of the storm, `None` if there is none.
    pub fn in_force(&self) -> Option<StormInForce> {
        self.active().map(|storm| StormInForce {
            seq: storm.report.seq,
            since_ms: storm.report.since_ms,
            peak: storm.report.peak,
            cooling_since_ms: storm.cooling.map(|cooling| cooling.since_ms),
        })
    }

    /// Returns whether there was no message for two windows and there is no storm, so that the watch may be dropped.
    pub fn is_idle(&self, rule: &StormRule, now: Time) -> bool {
        let newest = match &self.state {
            State::Unknown(held) => held.back().map(|it| signed(it.decided_at)),
            State::Quiet => self.window.newest_decided(),
            State::Active(_) => return false,
        };
        newest.is_none_or(|newest| {
            signed(now) >= newest.saturating_add_unsigned(rule.window_ms.saturating_mul(2))
        })
    }

    /// Returns the approximate bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        let state = match &self.state {
            State::Unknown(held) => held.capacity() * size_of::<StormMessage>(),
            State::Quiet => 0,
            State::Active(storm) => size_of::<ActiveStorm>() + size_of_val(storm.profile.counts()),
        };
        self.window.heap_bytes() + state
    }

    fn active(&self) -> Option<&ActiveStorm> {
        match &self.state {
            State::Active(storm) => Some(storm),
            State::Unknown(_) | State::Quiet => None,
        }
    }

    fn count(&mut self, rule: &StormRule, entry: Entry, is_evaluated: bool) -> Option<StormEvent> {
        let StormRule { threshold, window_ms } = *rule;
        self.received_ms = entry.received_ms;
        self.window.expire(window_ms, entry.decided);
        self.window.push(window_ms, entry.received_ms, entry.decided);
        // A storm is counted at its ticks, and otherwise only what may exceed the threshold.
        let is_exceeding = |window: &ReceiptWindow| {
            let count =
                if window.total() > threshold { window.count(window_ms, entry.received_ms) } else { 0 };
            (count > threshold).then_some(count)
        };
        match &mut self.state {
            State::Active(storm) => {
                storm.last_decided = Some(entry.decided);
                storm.add_to_profile(entry);
                // What is replayed from before the storm cooled was an excess of its own time.
                if storm.cooling.is_some_and(|it| entry.decided >= it.since)
                    && let Some(count) = is_exceeding(&self.window)
                {
                    storm.cooling = None;
                    storm.report.count = count;
                    storm.report.peak = storm.report.peak.max(count);
                }
                None
            }
            State::Quiet if is_evaluated => {
                let count = is_exceeding(&self.window)?;
                let mut storm = ActiveStorm::new(entry.seq, entry.received_ms, count, entry.decided, rule);
                storm.last_decided = Some(entry.decided);
                for run in self.window.within(window_ms, entry.received_ms) {
                    storm.profile.add(run.received, run.count);
                }
                let report = storm.report;
                self.state = State::Active(Box::new(storm));
                Some(StormEvent::Started(report))
            }
            State::Quiet | State::Unknown(_) => None,
        }
    }
}

impl ActiveStorm {
    fn new(seq: u64, since_ms: u64, count: u32, decided: i64, rule: &StormRule) -> Self {
        Self {
            report: StormReport { seq, since_ms, count, peak: count },
            cooling: None,
            profile: StormProfile::new(since_ms.saturating_sub(rule.window_ms)),
            clock_offset: signed_ms(since_ms).saturating_sub(decided),
            last_decided: None,
        }
    }

    /// Adds a message, not later than the owner's clock allows: a wall clock that jumps makes the parts no longer.
    fn add_to_profile(&mut self, entry: Entry) {
        let latest = entry.decided.saturating_add(self.clock_offset).saturating_add_unsigned(RECEIVE_SKEW_MS);
        self.profile.add(entry.received_ms.min(u64::try_from(latest).unwrap_or(0)), 1);
    }
}

impl From<StormMessage> for Entry {
    fn from(message: StormMessage) -> Self {
        Self { seq: message.seq, received_ms: message.received_ms, decided: signed(message.decided_at) }
    }
}

const fn signed(time: Time) -> i64 {
    signed_ms(time.as_millis())
}

const fn signed_ms(ms: u64) -> i64 {
    if ms > i64::MAX as u64 { i64::MAX } else { ms as i64 }
}
