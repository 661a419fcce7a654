//! History of a key: what it usually uses in each hour of a week.

use std::fmt;

/// Hours of a week.
pub const HOURS: usize = 168;

/// Bytes of an hour in a stored profile: mean, deviation and weeks.
const HOUR_BYTES: usize = 5;

/// Bytes of a stored profile.
pub const PROFILE_BYTES: usize = HOURS * HOUR_BYTES;

/// Smallest history factor.
pub const HISTORY_MIN: f64 = 0.5;

/// Largest history factor.
pub const HISTORY_MAX: f64 = 1.5;

/// Part of an hour that must have been clean for the hour to be learnt.
const CLEAN_MIN: f64 = 0.9;

/// Part that the profile keeps each week.
const KEPT: f64 = 0.7;

/// Largest part of a mean or a deviation that is learnt.
const WINSOR: f64 = 1.2;

/// Part of the base up to which a mean is learnt whatever was expected: what a key may use with the smallest factor. Without
/// it, a key that was idle could never be learnt.
const MEAN_FLOOR: f64 = HISTORY_MIN;

/// Smallest deviation in parts of the mean. Without it, a key that is always the same could never grow.
const DEVIATION_FLOOR: f64 = 0.05;

/// Deviations above the mean that are expected.
const DEVIATIONS: f64 = 3.0;

/// Weeks after which an hour is known.
const WEEKS_MIN: u8 = 2;

/// Steps per doubling of a stored number.
const STEPS: f64 = 2_048.0;

const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// Hour of a week in UTC, Monday 00:00 first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HourOfWeek(u8);

impl HourOfWeek {
    /// Returns the hour of a wall clock time in ms since 1970, which was a Thursday.
    pub const fn at(wall_ms: u64) -> Self {
        Self(((wall_ms / 3_600_000 + 3 * 24) % HOURS as u64) as u8)
    }

    /// Returns the number of the hour, below [`HOURS`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for HourOfWeek {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:02}:00", DAYS[self.index() / 24 % 7], self.0 % 24)
    }
}

/// Meter of the current hour of a key: mean and deviation of the units that were admitted in a window.
#[derive(Clone, Copy, Debug, Default)]
pub struct HourMeter {
    windows: u32,
    clean: u32,
    mean: f64,
    /// Sum of the squared distances from the mean.
    squares: f64,
}

impl HourMeter {
    /// Counts a window. It is clean if the load factor was at least 0.95, there was no storm, and the limit
    /// refused nothing or only the history had lowered it. Without that exception, a key that grew above its history
    /// could never be learnt again; the winsorising limits what it gains.
    pub fn handle_window(&mut self, admitted: u32, is_clean: bool) {
        self.windows = self.windows.saturating_add(1);
        if !is_clean {
            return;
        }
        self.clean = self.clean.saturating_add(1);
        let distance = f64::from(admitted) - self.mean;
        self.mean += distance / f64::from(self.clean);
        self.squares += distance * (f64::from(admitted) - self.mean);
    }

    /// Ends the hour; returns its mean and deviation, `None` if too little of it was clean.
    fn finish(&mut self) -> Option<(f64, f64)> {
        let Self { windows, clean, mean, squares } = std::mem::take(self);
        let is_clean = clean > 0 && f64::from(clean) >= CLEAN_MIN * f64::from(windows);
        is_clean.then(|| (mean, (squares / f64::from(clean)).sqrt()))
    }
}

/// What an hour is expected to be like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpectedHour {
    /// Hour.
    pub hour: HourOfWeek,
    /// Mean of the units admitted in a window.
    pub mean: f64,
    /// Their deviation, at least 5 % of the mean.
    pub deviation: f64,
    /// Number of weeks that were learnt, at most 255.
    pub weeks: u8,
}

impl fmt::Display for ExpectedHour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mean, deviation) = (super::Grouped::of(self.mean), super::Grouped::of(self.deviation));
        write!(f, "{}, mean {mean}, deviation {deviation}, {} weeks", self.hour, self.weeks)
    }
}

/// Profile of a key: decayed mean and deviation for each hour of a week, in 1,008 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeekProfile {
    hours: Box<[StoredHour; HOURS]>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct StoredHour {
    mean: u16,
    deviation: u16,
    weeks: u8,
}

const _: () = assert!(size_of::<[StoredHour; HOURS]>() == 1_008);

impl Default for WeekProfile {
    fn default() -> Self {
        Self { hours: Box::new([StoredHour::default(); HOURS]) }
    }
}

impl WeekProfile {
    /// Returns the profile in the form in which it is stored.
    pub fn to_bytes(&self) -> [u8; PROFILE_BYTES] {
        let mut bytes = [0; PROFILE_BYTES];
        for (part, hour) in bytes.chunks_exact_mut(HOUR_BYTES).zip(self.hours.iter()) {
            part[..2].copy_from_slice(&hour.mean.to_le_bytes());
            part[2..4].copy_from_slice(&hour.deviation.to_le_bytes());
            part[4] = hour.weeks;
        }
        bytes
    }

    /// Returns the profile that was stored in this form. All bytes have a meaning.
    pub fn from_bytes(bytes: &[u8; PROFILE_BYTES]) -> Self {
        let mut profile = Self::default();
        for (part, hour) in bytes.chunks_exact(HOUR_BYTES).zip(profile.hours.iter_mut()) {
            let [mean_low, mean_high, low, high, weeks] = *part else { break };
            let mean = u16::from_le_bytes([mean_low, mean_high]);
            *hour = StoredHour { mean, deviation: u16::from_le_bytes([low, high]), weeks };
        }
        profile
    }

    /// Ends an hour of the meter and learns it, unless too little of it was clean.
    ///
    /// A week raises a mean and a deviation by at most 6 %, so that a slow ramp gains little. Below half of the base, where the
    /// factor is the smallest one, a mean approaches what is used by 30 % a week.
    pub fn learn(&mut self, hour: HourOfWeek, base: u32, meter: &mut HourMeter) {
        let Some((mean, deviation)) = meter.finish() else { return };
        let stored = &mut self.hours[hour.index() % HOURS];
        if stored.weeks == 0 {
            *stored = StoredHour { mean: store(mean), deviation: store(deviation), weeks: 1 };
            return;
        }
        let (old_mean, old_deviation) = (load(stored.mean), load(stored.deviation));
        let expected = old_mean.max(f64::from(base) * MEAN_FLOOR);
        let mean = mean.min((old_mean * WINSOR).max(expected));
        let deviation = deviation.hypot(mean - old_mean);
        let deviation = deviation.min((old_deviation * WINSOR).max(expected * DEVIATION_FLOOR));
        let decayed = |old: f64, new: f64| store(old * KEPT + new * (1.0 - KEPT));
        *stored = StoredHour {
            mean: decayed(old_mean, mean),
            deviation: decayed(old_deviation, deviation),
            weeks: stored.weeks.saturating_add(1),
        };
    }

    /// Returns whether an hour of the week is known.
    pub fn is_known(&self) -> bool {
        self.hours.iter().any(|hour| hour.weeks >= WEEKS_MIN)
    }

    /// Returns what is expected of an hour, `None` if it is not known yet.
    pub fn expected(&self, hour: HourOfWeek) -> Option<ExpectedHour> {
        let StoredHour { mean, deviation, weeks } = self.hours[hour.index() % HOURS];
        let mean = load(mean);
        let deviation = load(deviation).max(mean * DEVIATION_FLOOR);
        let expected = ExpectedHour { hour, mean, deviation, weeks };
        (weeks >= WEEKS_MIN).then_some(expected)
    }

    /// Returns the factor by which the limit of a key is multiplied in an hour; 1 if the hour is not known.
    pub fn factor(&self, hour: HourOfWeek, base: u32) -> f64 {
        self.expected(hour).map_or(1.0, |it| {
            let expected = it.mean + DEVIATIONS * it.deviation;
            (expected / f64::from(base.max(1))).clamp(HISTORY_MIN, HISTORY_MAX)
        })
    }
}

/// Returns the number in 16 bits: 0 to 2^32 with a relative precision of 0.02 % above 1.
fn store(number: f64) -> u16 {
    // Saturates.
    (number.max(0.0).ln_1p() * STEPS / std::f64::consts::LN_2).round() as u16
}

fn load(stored: u16) -> f64 {
    (f64::from(stored) / STEPS * std::f64::consts::LN_2).exp_m1()
}
