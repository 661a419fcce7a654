//! Load factor of a node: by how much its limits are lowered, or raised, for the load it has.

use std::{fmt, time::Duration};

/// Part of a second that the thread of a shard may spend in turns.
pub const BUSY_TARGET: f64 = 0.9;

/// Standing delay that a shard may have.
pub const STANDING_DELAY_TARGET: Duration = Duration::from_millis(100);

/// Smallest load factor.
pub const LOAD_MIN: f64 = 0.1;

/// Largest load factor, which only limits that are reached get.
pub const LOAD_MAX: f64 = 1.2;

/// Part of the logarithm of the pressure that a step lowers the factor by. Stable for up to 3 seconds of delay.
const GAIN: f64 = 0.25;

/// Largest step up, as a logarithm.
const RISE_MAX: f64 = 0.03;

/// Part of the logarithm of a low pressure that a step raises the factor by, up to [`RISE_MAX`].
const RISE_GAIN: f64 = 0.09;

/// Logarithm of the pressure below which, and negated above which, the factor stays.
const DEAD_BAND: f64 = 0.05;

/// Consecutive steps of a high pressure after which the factor falls from what is used: a shorter peak lowers no limit of a
/// quiet node to what it happens to use.
const SUSTAINED_STEPS: u32 = 3;

/// Steps after a refusal by a dynamic limit in which the factor may be above 1.
const BINDING_STEPS: u32 = 10;

/// Signal of a node's load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PressureSignal {
    /// Busy share of a shard's thread.
    ShardBusy,
    /// Share of the time that a shard's thread was ready but not scheduled.
    RunQueueWait,
    /// Standing delay of a shard, above its base; in ms.
    StandingDelay,
    /// Time that appends wait for their acknowledgement, in ms.
    Intake,
    /// Lag of the archive, in ms.
    ArchiveLag,
    /// Share of the memory limit in use.
    Memory,
    /// Share of the time that the node's CPU quota was used up.
    CpuThrottling,
}

impl fmt::Display for PressureSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ShardBusy => "busy",
            Self::RunQueueWait => "run queue wait",
            Self::StandingDelay => "standing delay",
            Self::Intake => "intake delay",
            Self::ArchiveLag => "archive lag",
            Self::Memory => "memory",
            Self::CpuThrottling => "CPU throttling",
        })
    }
}

/// Measured value of a signal, with its target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadPressure {
    /// Signal.
    pub signal: PressureSignal,
    /// Shard of a signal that each shard has.
    pub shard: Option<u16>,
    /// Value of the last second.
    pub value: f64,
    /// Value at which the load is as large as it should get.
    pub target: f64,
}

impl LoadPressure {
    /// Returns the value in parts of the target, 0 if they are not two useful numbers.
    pub fn ratio(&self) -> f64 {
        if self.is_useful() { (self.value / self.target).max(0.0) } else { 0.0 }
    }

    fn is_useful(&self) -> bool {
        self.target > 0.0 && (self.value / self.target).is_finite()
    }
}

impl fmt::Display for LoadPressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(shard) = self.shard {
            write!(f, "shard {shard} ")?;
        }
        write!(f, "{} {:.2} of {:.2}", self.signal, self.value, self.target)
    }
}

/// What the dynamic limits of a node did in a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitUse {
    /// Whether one of them refused something that its history did not: a flood at an unusual hour gets no more.
    pub is_binding: bool,
    /// Largest part that any key used of its limit at a load factor of 1; at least 1 if one of the keys was limited then.
    pub largest: f64,
}

/// Load factor, which follows the largest pressure: down fast, up slowly, and not at all within a dead band.
///
/// It is above 1 only while a limit is reached. Once the pressure is high for three steps, the factor falls from where it
/// begins to limit the busiest key: a margin that no key uses delays the fall by no more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadFactor {
    ln: f64,
    /// Steps since a limit was reached.
    idle_steps: u32,
    /// Consecutive steps of a high pressure.
    high_steps: u32,
    pressure: Option<LoadPressure>,
}

impl Default for LoadFactor {
    fn default() -> Self {
        Self { ln: 0.0, idle_steps: BINDING_STEPS, high_steps: 0, pressure: None }
    }
}

impl LoadFactor {
    /// Takes a step. Call it each second, with the signals and the use of the last one.
    ///
    /// Without a useful signal nothing is known of the load: the factor stays, and one above 1 returns to 1.
    pub fn handle_second(&mut self, pressures: &[LoadPressure], limits: LimitUse) {
        let useful = pressures.iter().copied().filter(LoadPressure::is_useful);
        self.pressure = useful.max_by(|a, b| a.ratio().total_cmp(&b.ratio()));
        self.idle_steps = if limits.is_binding { 0 } else { self.idle_steps.saturating_add(1) };
        let Some(pressure) = self.pressure else {
            self.high_steps = 0;
            if self.ln > 0.0 {
                self.ln = (self.ln - RISE_MAX).max(0.0);
            }
            return;
        };
        let error = pressure.ratio().ln().clamp(-1.0, 1.0);
        let is_binding = self.idle_steps < BINDING_STEPS;
        self.high_steps = if error > DEAD_BAND { self.high_steps.saturating_add(1) } else { 0 };
        if error > DEAD_BAND {
            if self.high_steps >= SUSTAINED_STEPS {
                let begins_at = if limits.largest > 0.0 { limits.largest.ln() } else { 0.0 };
                self.ln = self.ln.min(begins_at.max(LOAD_MIN.ln()));
            }
            self.ln -= GAIN * error;
        } else if self.ln > 0.0 && !is_binding {
            self.ln = (self.ln - RISE_MAX).max(0.0);
        } else if error < -DEAD_BAND {
            let most = if is_binding { LOAD_MAX.ln() } else { 0.0 };
            self.ln = (self.ln + (-error * RISE_GAIN).min(RISE_MAX)).min(most.max(self.ln));
        }
        self.ln = self.ln.clamp(LOAD_MIN.ln(), LOAD_MAX.ln());
    }

    /// Returns the factor, [`LOAD_MIN`] to [`LOAD_MAX`].
    pub fn factor(&self) -> f64 {
        self.ln.exp()
    }

    /// Returns the largest pressure of the last step, `None` if there were no signals.
    pub const fn pressure(&self) -> Option<LoadPressure> {
        self.pressure
    }
}
