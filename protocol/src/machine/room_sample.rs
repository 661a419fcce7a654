//! Sampling of a live room at the node of its speakers: which messages of a tick are numbered, and which are left out.
//!
//! **Promise.** In any time of `t` seconds at most `rate x t` and one burst of [`BURST`] are numbered, and as many again of
//! the classes from [`IMPORTANT_CLASS`] on. Important messages use a budget of their own first, so they pass
//! unsampled up to the rate. The others are taken by class, highest first; then by the units that their sender had in the
//! last second, fewest first; then by arrival. While others wait, messages of one address get at most a quarter of a
//! tick. What is taken keeps its order of arrival. Messages for which the budget suffices need not wait for the tick.
//!
//! `n` samplers of one room at several places number at most `rate x t` and `n` bursts altogether, if each one notes what the
//! others have numbered before its next messages: that uses up its budget as well, for up to [`DEBT_BURSTS`] bursts in advance.
//! What was added above the largest budget meanwhile is used up first, so that a sampler which was quiet owes nothing for the
//! ordinary traffic of others. The budgets of important messages are not shared: each sampler has its own.
//!
//! **Error bound.** The units of a sender are an estimate from two buckets: at most those of the last two seconds.
//!
//! **Memory.** At most the bytes given to [`RoomSampler::new`] for waiting messages, and [`SENDERS_MAX`] senders of 24 bytes.
//! Full: the last messages of the lowest class below that of the new one go, just as many as needed; if that is not enough,
//! the new one goes. A sender beyond the bound counts as one that had no units.

use crate::Time;
use foldhash::{HashMap, HashMapExt, HashSet, HashSetExt};
use std::time::Duration;

/// Number of classes, 0 to 3.
pub const ROOM_CLASSES: usize = 4;

/// Lowest class with a budget of its own.
pub const IMPORTANT_CLASS: u8 = 2;

/// Time whose budget may be used at once.
pub const BURST: Duration = Duration::from_secs(1);

/// Bursts of other samplers that one pays for in advance. Larger counts are jumps of the numbers, and cost one burst.
pub const DEBT_BURSTS: i64 = 16;

/// Time without messages after which a sampler with full budgets is as good as a new one.
const IDLE_AFTER: Duration = Duration::from_secs(3);

/// Maximum number of senders whose units are known.
pub const SENDERS_MAX: usize = 4_096;

/// Parts of a tick; one address gets one of them at most while others wait.
const ADDRESS_PARTS: usize = 4;

/// Parts of a message in the budgets. At a rate of n per second, n parts are added per millisecond.
const PARTS: i64 = 1_000;

/// Message that waits for the tick of its room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomCandidate {
    /// Class of the sender; larger ones count as 3.
    pub class: u8,
    /// Hash of the sender.
    pub sender: u64,
    /// Hash of the sender's address.
    pub address: u64,
    /// Size of the message.
    pub bytes: usize,
}

/// Messages of a tick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoomTick<T> {
    /// Messages to number, in order of arrival.
    pub numbered: Vec<T>,
    /// Messages that are left out, in order of arrival.
    pub left_out: Vec<T>,
}

#[derive(Clone, Debug)]
struct Waiting<T> {
    candidate: RoomCandidate,
    item: T,
}

/// Units of a sender in a second, and in the one before.
#[derive(Clone, Copy, Debug, Default)]
struct SenderUnits {
    second: u64,
    units: [u32; 2],
}

/// Sampler of the messages that speakers of one node send to one room.
#[derive(Clone, Debug)]
pub struct RoomSampler<T> {
    waiting: Vec<Waiting<T>>,
    bytes: usize,
    bytes_max: usize,
    /// Budgets in parts of a message: for all classes, and for the important ones.
    budgets: [i64; 2],
    /// What was added to the budget of all classes above its maximum since the others were counted last.
    surplus: i64,
    refilled_at: Time,
    /// Waiting messages of the classes with a budget of their own.
    important: usize,
    senders: HashMap<u64, SenderUnits>,
    /// Second in which old senders were removed last.
    pruned_in: u64,
    left_out: [u64; ROOM_CLASSES],
}

impl<T> RoomSampler<T> {
    /// Creates a sampler that holds at most so many bytes of messages, one message at least.
    pub fn new(bytes_max: usize, now: Time) -> Self {
        Self {
            waiting: Vec::new(),
            bytes: 0,
            bytes_max,
            budgets: [PARTS; 2],
            surplus: 0,
            refilled_at: now,
            important: 0,
            senders: HashMap::new(),
            pruned_in: second_of(now),
            left_out: [0; ROOM_CLASSES],
        }
    }

    /// Adds a message to the next tick. Returns the messages that do not fit any more, or the new one.
    pub fn handle_message(&mut self, candidate: RoomCandidate, item: T) -> Vec<T> {
        let candidate = RoomCandidate { class: class_of(candidate), ..candidate };
        let excess = (self.bytes + candidate.bytes).saturating_sub(self.bytes_max);
        let below = self.waiting.iter().filter(|it| it.candidate.class < candidate.class);
        let is_lost = excess > 0 && below.map(|it| it.candidate.bytes).sum::<usize>() < excess;
        if is_lost && !self.waiting.is_empty() {
            self.left_out[usize::from(candidate.class)] += 1;
            return vec![item];
        }
        let mut dropped = Vec::new();
        while self.bytes + candidate.bytes > self.bytes_max && !self.waiting.is_empty() {
            let lowest = self.waiting.iter().map(|it| it.candidate.class).min();
            let last = self.waiting.iter().rposition(|it| Some(it.candidate.class) == lowest);
            let waiting = self.waiting.remove(last.unwrap_or_default());
            self.bytes -= waiting.candidate.bytes;
            self.important -= usize::from(waiting.candidate.class >= IMPORTANT_CLASS);
            self.left_out[usize::from(waiting.candidate.class)] += 1;
            dropped.push(waiting.item);
        }
        self.bytes += candidate.bytes;
        self.important += usize::from(candidate.class >= IMPORTANT_CLASS);
        self.waiting.push(Waiting { candidate, item });
        dropped
    }

    /// Fills the budgets, for a room without messages for a while.
    pub fn fill(&mut self, per_second: u32) {
        self.budgets = [budget_max(per_second); 2];
    }

    /// Takes messages that need not wait for the tick, in order of arrival: all of them, if the budget suffices, else the
    /// important ones, if their own budget suffices for all of these. No message overtakes an earlier one of its sender.
    pub fn poll_ready(&mut self, per_second: u32, now: Time) -> Vec<T> {
        self.refill(per_second, now);
        let [all, mut important] =
            self.budgets.map(|budget| usize::try_from(budget / PARTS).unwrap_or_default());
        let is_all = self.waiting.len() <= all;
        // The tick chooses among more important messages than their budget allows.
        if !is_all && (self.important == 0 || self.important > important) {
            return Vec::new();
        }
        let (mut taken, mut left) = (Vec::new(), Vec::new());
        let mut overtaken = HashSet::<u64>::new();
        for waiting in std::mem::take(&mut self.waiting) {
            let RoomCandidate { class, sender, bytes, .. } = waiting.candidate;
            let is_important = class >= IMPORTANT_CLASS;
            if !is_all && (!is_important || overtaken.contains(&sender)) {
                overtaken.insert(sender);
                left.push(waiting);
                continue;
            }
            let is_own_budget = is_important && important > 0;
            important -= usize::from(is_own_budget);
            self.budgets[usize::from(is_own_budget)] -= PARTS;
            self.bytes -= bytes;
            self.important -= usize::from(is_important);
            self.count(sender, now);
            taken.push(waiting.item);
        }
        self.waiting = left;
        taken
    }

    /// Takes all messages, of a room without a rate.
    pub fn take_all(&mut self, now: Time) -> Vec<T> {
        self.refilled_at = self.refilled_at.max(now);
        (self.bytes, self.important) = (0, 0);
        std::mem::take(&mut self.waiting).into_iter().map(|waiting| waiting.item).collect()
    }

    /// Notes messages of the room that were numbered elsewhere since the last call: they use up the budget of all classes.
    pub fn handle_others(&mut self, count: u64, per_second: u32) {
        let surplus = std::mem::take(&mut self.surplus);
        let parts = i64::try_from(count).unwrap_or(i64::MAX).saturating_mul(PARTS);
        let owed = parts.saturating_sub(surplus).max(0);
        let max = budget_max(per_second);
        let debt_max = DEBT_BURSTS.saturating_mul(max);
        let lowest = if owed > debt_max { -max } else { -debt_max };
        self.budgets[0] = self.budgets[0].min(self.budgets[0].saturating_sub(owed).max(lowest));
    }

    /// Returns whether the sampler has nothing that a new one would not have, after [`Self::fill`].
    pub fn is_idle(&self, per_second: u32, now: Time) -> bool {
        let passed = now.since(self.refilled_at);
        let added = i64::try_from(parts_of(per_second, passed)).unwrap_or(i64::MAX);
        let is_full = per_second == 0 || self.budgets[0].saturating_add(added) >= budget_max(per_second);
        self.waiting.is_empty() && passed >= IDLE_AFTER && is_full
    }

    /// Returns the time at which the budgets were last used or filled.
    pub const fn used_at(&self) -> Time {
        self.refilled_at
    }

    /// Returns the number of senders whose units are known.
    pub fn senders(&self) -> usize {
        self.senders.len()
    }

    /// Returns the number of messages that wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the bytes of the messages that wait.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether no message waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Ends a tick with the rate of the room, in messages per second.
    pub fn handle_tick(&mut self, per_second: u32, now: Time) -> RoomTick<T> {
        self.refill(per_second, now);
        let order = self.order(now);
        let mut is_taken = vec![false; self.waiting.len()];
        let important = order.iter().copied().filter(|at| self.is_important(*at)).collect::<Vec<_>>();
        self.take(1, &important, &mut is_taken);
        self.take(0, &order, &mut is_taken);
        (self.bytes, self.important) = (0, 0);
        let mut tick = RoomTick { numbered: Vec::new(), left_out: Vec::new() };
        for (waiting, is_taken) in std::mem::take(&mut self.waiting).into_iter().zip(is_taken) {
            if is_taken {
                self.count(waiting.candidate.sender, now);
                tick.numbered.push(waiting.item);
            } else {
                self.left_out[usize::from(waiting.candidate.class)] += 1;
                tick.left_out.push(waiting.item);
            }
        }
        tick
    }

    /// Returns the messages of each class that were left out since the last call.
    pub fn take_left_out(&mut self) -> [u64; ROOM_CLASSES] {
        std::mem::take(&mut self.left_out)
    }

    fn is_important(&self, at: usize) -> bool {
        self.waiting[at].candidate.class >= IMPORTANT_CLASS
    }

    fn refill(&mut self, per_second: u32, now: Time) {
        let added = parts_of(per_second, now.since(self.refilled_at));
        self.refilled_at = self.refilled_at.max(now);
        let max = budget_max(per_second);
        let [all, important] = self.budgets.map(|budget| budget.saturating_add_unsigned(added));
        self.surplus = self.surplus.saturating_add((all - max).max(0));
        self.budgets = [all.min(max), important.min(max)];
        let second = second_of(now);
        if self.pruned_in < second {
            self.pruned_in = second;
            self.senders.retain(|_, known| known.second + 1 >= second);
        }
    }

    /// Returns the positions of the waiting messages, first the one to take first.
    fn order(&self, now: Time) -> Vec<usize> {
        let mut units = HashMap::<u64, u32>::new();
        let mut keys = Vec::with_capacity(self.waiting.len());
        for (at, Waiting { candidate, .. }) in self.waiting.iter().enumerate() {
            let own = units.entry(candidate.sender).or_insert_with(|| self.units(candidate.sender, now));
            keys.push((std::cmp::Reverse(candidate.class), *own, at));
            // The second message of a sender comes after the first ones of others.
            *own = own.saturating_add(1);
        }
        keys.sort_unstable();
        keys.into_iter().map(|(_, _, at)| at).collect()
    }

    /// Takes messages in order while the budget lasts: first at most a quarter for each address, then whatever is left.
    fn take(&mut self, budget: usize, order: &[usize], is_taken: &mut [bool]) {
        let mut left = usize::try_from(self.budgets[budget] / PARTS).unwrap_or_default();
        let quarter = left.div_ceil(ADDRESS_PARTS);
        let mut by_address = HashMap::<u64, usize>::new();
        for is_limited in [true, false] {
            for at in order {
                if left == 0 {
                    return;
                }
                let of_address = by_address.entry(self.waiting[*at].candidate.address).or_default();
                if is_taken[*at] || is_limited && *of_address >= quarter {
                    continue;
                }
                *of_address += 1;
                is_taken[*at] = true;
                left -= 1;
                self.budgets[budget] -= PARTS;
            }
        }
    }

    fn units(&self, sender: u64, now: Time) -> u32 {
        let Some(known) = self.senders.get(&sender) else { return 0 };
        let part = 1_000 - now.as_millis() % 1_000;
        let of = |units: u32, part: u64| (u64::from(units) * part).div_ceil(1_000) as u32;
        match second_of(now).saturating_sub(known.second) {
            0 => known.units[0].saturating_add(of(known.units[1], part)),
            1 => of(known.units[0], part),
            _ => 0,
        }
    }

    fn count(&mut self, sender: u64, now: Time) {
        let second = second_of(now);
        if self.senders.len() >= SENDERS_MAX && !self.senders.contains_key(&sender) {
            return;
        }
        let known = self.senders.entry(sender).or_default();
        if known.second < second {
            let before = if known.second + 1 == second { known.units[0] } else { 0 };
            *known = SenderUnits { second, units: [0, before] };
        }
        known.units[0] = known.units[0].saturating_add(1);
    }
}

/// Returns the largest budget. A room of a low rate still gets one message at a time.
fn budget_max(per_second: u32) -> i64 {
    (i64::from(per_second) * BURST.as_millis() as i64).max(PARTS)
}

/// Returns what is added to a budget in some time.
fn parts_of(per_second: u32, passed: Duration) -> u64 {
    u64::from(per_second).saturating_mul(u64::try_from(passed.as_millis()).unwrap_or(u64::MAX))
}

fn class_of(candidate: RoomCandidate) -> u8 {
    candidate.class.min(ROOM_CLASSES as u8 - 1)
}

fn second_of(now: Time) -> u64 {
    now.as_millis() / 1_000
}
