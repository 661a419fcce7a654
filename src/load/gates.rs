//! Gates of one shard: limits on its sends, logins and reads in flight, which follow the delay that they have.

use std::{sync::Arc, time::Duration};

use tidegate_protocol::{
    Time,
    machine::gate::{AnnouncedWait, COST_UNIT, GateClass, GateRule, LoadGate, LoadLevel},
};

use super::figures::{LoadFigures, ShardFigures};

/// Smallest and largest limits of a shard, in requests.
const SENDS: (u32, u32) = (256, 16_384);
const LOGINS: (u32, u32) = (256, 8_192);
const READS: (u32, u32) = (128, 8_192);

/// Factor of the delay of sends for logins and reads, which wait for services and not only for the log.
const SLOW_FACTOR: u32 = 10;

/// Interval at which the gates are brought up to date.
const TICK: Duration = Duration::from_millis(100);

/// Whether the gates refuse, and from which delay on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateSettings {
    /// Whether gates and load level refuse anything.
    pub is_enabled: bool,
    /// Standing delay of sends above its base from which their limit falls.
    pub excess: Duration,
}

impl Default for GateSettings {
    fn default() -> Self {
        Self { is_enabled: false, excess: Duration::from_millis(50) }
    }
}

/// Refusal by a gate or the load level: the time that the client is asked to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverloadWait(pub Duration);

/// Gates of a shard.
pub struct ShardGates {
    is_enabled: bool,
    sends: LoadGate,
    logins: LoadGate,
    reads: LoadGate,
    wait: AnnouncedWait,
    level: u8,
    next_tick: Time,
    /// State of the random numbers for the jitter of the waits.
    random: u64,
    load: Arc<LoadFigures>,
    figures: Arc<ShardFigures>,
}

impl ShardGates {
    /// Creates open gates. Equal seeds give equal waits.
    pub fn new(settings: GateSettings, load: Arc<LoadFigures>, index: usize, seed: u64) -> Self {
        let now = Time::ZERO;
        let gate =
            |(min, max), factor| LoadGate::open(GateRule { min, max, excess: settings.excess * factor }, now);
        let figures = load.shard(index);
        let gates = Self {
            is_enabled: settings.is_enabled,
            sends: gate(SENDS, 1),
            logins: gate(LOGINS, SLOW_FACTOR),
            reads: gate(READS, SLOW_FACTOR),
            wait: AnnouncedWait::new(now),
            level: 0,
            next_tick: now + TICK,
            random: seed ^ (index as u64).rotate_left(32),
            load,
            figures,
        };
        gates.publish();
        gates
    }

    /// Admits a send. A connection is light if it has less than two sends unanswered.
    ///
    /// # Errors
    /// The node is overloaded.
    pub fn enter_send(&mut self, class: GateClass, is_light: bool) -> Result<(), OverloadWait> {
        let is_admitted = enter(&mut self.sends, class, is_light, self.is_enabled);
        self.decide(is_admitted)
    }

    /// Ends sends that were admitted.
    pub fn leave_sends(&mut self, count: u32) {
        self.sends.leave(count.saturating_mul(COST_UNIT), None);
    }

    /// Counts the delay of a send that was answered.
    pub fn note_send_delay(&mut self, delay: Duration) {
        self.sends.leave(0, Some(delay));
    }

    /// Admits a login.
    ///
    /// # Errors
    /// The node is overloaded.
    pub fn enter_login(&mut self, class: GateClass) -> Result<(), OverloadWait> {
        let is_admitted = self.admits(class) && enter(&mut self.logins, class, false, self.is_enabled);
        self.decide(is_admitted)
    }

    /// Ends a login that was admitted; the delay is `None` if it did not succeed.
    pub fn leave_login(&mut self, delay: Option<Duration>) {
        self.logins.leave(COST_UNIT, delay);
    }

    /// Admits a read.
    ///
    /// # Errors
    /// The node is overloaded.
    pub fn enter_read(&mut self) -> Result<(), OverloadWait> {
        let class = GateClass::Read;
        let is_admitted = self.admits(class) && enter(&mut self.reads, class, false, self.is_enabled);
        self.decide(is_admitted)
    }

    /// Counts the next part of a read that was admitted, and that has left since.
    pub fn continue_read(&mut self) {
        self.reads.enter_admitted(COST_UNIT);
    }

    /// Ends a read that was admitted; the delay is `None` if it got no answer.
    pub fn leave_read(&mut self, delay: Option<Duration>) {
        self.reads.leave(COST_UNIT, delay);
    }

    /// Admits a request that is not counted: a join or a signal. The announced wait follows the requests that are: it is
    /// their clients that it asks to wait.
    ///
    /// # Errors
    /// Sends in flight use the share of the class, or the load level shuts it.
    pub fn enter_uncounted(&mut self, class: GateClass) -> Result<(), OverloadWait> {
        let has_room = !self.is_enabled || self.sends.has_room(class);
        if self.admits(class) && has_room { Ok(()) } else { Err(self.announce()) }
    }

    /// Returns when to call [`Self::handle_timeout`].
    pub const fn poll_timeout(&self) -> Time {
        self.next_tick
    }

    /// Moves the limits and the wait, takes the level, and publishes the figures.
    pub fn handle_timeout(&mut self, now: Time) {
        self.next_tick = now + TICK;
        for gate in [&mut self.sends, &mut self.logins, &mut self.reads] {
            gate.handle_timeout(now);
        }
        self.wait.handle_timeout(now);
        self.level = self.load.level();
        self.publish();
    }

    /// Returns the load level as of the last call of [`Self::handle_timeout`]; 0 if it refuses nothing.
    pub const fn level(&self) -> u8 {
        if self.is_enabled { self.level } else { 0 }
    }

    fn admits(&self, class: GateClass) -> bool {
        !self.is_enabled || LoadLevel::admits_at(self.level, class)
    }

    fn decide(&mut self, is_admitted: bool) -> Result<(), OverloadWait> {
        self.wait.handle_frame(!is_admitted);
        if is_admitted { Ok(()) } else { Err(self.announce()) }
    }

    fn announce(&mut self) -> OverloadWait {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        OverloadWait(self.wait.announced(mixed ^ (mixed >> 31)))
    }

    fn publish(&self) {
        self.figures.sends.publish(&self.sends);
        self.figures.logins.publish(&self.logins);
        self.figures.reads.publish(&self.reads);
        self.figures.set_announced_wait(self.wait.mean());
    }
}

/// Admits a request, or refuses it if gates refuse anything. What is admitted is counted, so that it can leave.
fn enter(gate: &mut LoadGate, class: GateClass, is_light: bool, is_enabled: bool) -> bool {
    let is_admitted = gate.enter(class, COST_UNIT, is_light);
    if !is_admitted && !is_enabled {
        gate.enter_admitted(COST_UNIT);
    }
    is_admitted || !is_enabled
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gates(is_enabled: bool) -> ShardGates {
        let settings = GateSettings { is_enabled, ..GateSettings::default() };
        ShardGates::new(settings, Arc::new(LoadFigures::default()), 0, 1)
    }

    #[test]
    fn gates_that_are_off_count_what_exceeds_them_until_it_leaves() {
        let mut gates = gates(false);
        for _ in 0..20_000 {
            gates.enter_send(GateClass::Send, false).unwrap();
            gates.enter_login(GateClass::New).unwrap();
            gates.enter_read().unwrap();
        }
        gates.level = 4;
        gates.enter_login(GateClass::New).unwrap();
        gates.enter_uncounted(GateClass::Signal).unwrap();
        let in_flight =
            |gates: &ShardGates| [&gates.sends, &gates.logins, &gates.reads].map(LoadGate::in_flight);
        assert_eq!(in_flight(&gates), [20_000, 20_001, 20_000]);
        gates.leave_sends(19_000);
        (0..19_001).for_each(|_| gates.leave_login(None));
        (0..19_000).for_each(|_| gates.leave_read(None));
        assert_eq!(in_flight(&gates), [1_000; 3]);
    }

    #[test]
    fn refused_joins_and_signals_do_not_lengthen_the_wait_of_messages() {
        let mut gates = gates(true);
        gates.level = 4;
        for n in 1..100 {
            (0..100).for_each(|_| assert!(gates.enter_uncounted(GateClass::Signal).is_err()));
            gates.handle_timeout(Time::from_millis(n * 100));
            gates.level = 4;
        }
        assert_eq!(gates.wait.mean(), tidegate_protocol::machine::gate::ANNOUNCED_MIN);
        for n in 100..140 {
            gates.enter_login(GateClass::New).unwrap_err();
            gates.handle_timeout(Time::from_millis(n * 100));
            gates.level = 4;
        }
        assert!(gates.wait.mean() > Duration::from_secs(1), "refused logins do");
    }
}
