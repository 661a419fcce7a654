//! Thresholds that follow: limits that are multiplied by a load factor and a history factor.
//!
//! `limit = clamp(base x load x history, min, max)`. The load factor lowers the limits of a node before its queues grow,
//! see [`LoadFactor`]. The history factor keeps a key near what it usually uses at this hour of the week, see
//! [`WeekProfile`]. Both are rounded to hundredths before they are multiplied, so that an explanation is exact.

mod history;
mod load;

pub use self::{
    history::{
        ExpectedHour, HISTORY_MAX, HISTORY_MIN, HOURS, HourMeter, HourOfWeek, PROFILE_BYTES, WeekProfile,
    },
    load::{
        BUSY_TARGET, LOAD_MAX, LOAD_MIN, LimitUse, LoadFactor, LoadPressure, PressureSignal,
        STANDING_DELAY_TARGET,
    },
};

use std::fmt;

/// Limit that follows the load and the history, within bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DynamicLimit {
    base: u32,
    min: u32,
    max: u32,
}

impl DynamicLimit {
    /// Creates a limit with bounds, `min` at least 1 and `max` at least `min`.
    pub fn new(base: u32, min: u32, max: u32) -> Self {
        let min = min.max(1);
        Self { base, min, max: max.max(min) }
    }

    /// Returns the limit of a key in an hour, with its explanation. A key without a profile has no history.
    pub fn threshold(&self, load: &LoadFactor, profile: Option<&WeekProfile>, hour: HourOfWeek) -> Threshold {
        let hundredths = |factor: f64| (factor * 100.0).round() as u32;
        let load_hundredths = hundredths(load.factor());
        let history_hundredths = hundredths(profile.map_or(1.0, |it| it.factor(hour, self.base)));
        let product =
            u64::from(self.base) * u64::from(load_hundredths) * u64::from(history_hundredths) / 10_000;
        let product = u32::try_from(product).unwrap_or(u32::MAX);
        Threshold {
            base: self.base,
            load_hundredths,
            history_hundredths,
            product,
            limit: product.clamp(self.min, self.max),
            min: self.min,
            max: self.max,
            pressure: load.pressure(),
            expected: profile.and_then(|it| it.expected(hour)),
        }
    }
}

/// Limit of a key at a time, with what it follows from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    /// Limit by its rule.
    pub base: u32,
    /// Load factor, in hundredths.
    pub load_hundredths: u32,
    /// History factor, in hundredths.
    pub history_hundredths: u32,
    /// Base times both factors.
    pub product: u32,
    /// The product within its bounds.
    pub limit: u32,
    /// Lower bound.
    pub min: u32,
    /// Upper bound.
    pub max: u32,
    /// Largest pressure on the node.
    pub pressure: Option<LoadPressure>,
    /// What the hour is expected to be like.
    pub expected: Option<ExpectedHour>,
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (base, product) = (Grouped(self.base.into()), Grouped(self.product.into()));
        let (load, history) = (Hundredths(self.load_hundredths), Hundredths(self.history_hundredths));
        write!(f, "base {base} x load {load} x history {history} = {product}")?;
        write!(f, " (bounds {} to {})", Grouped(self.min.into()), Grouped(self.max.into()))?;
        if let Some(pressure) = &self.pressure {
            write!(f, "; load: {pressure}")?;
        }
        if let Some(expected) = &self.expected {
            write!(f, "; history: {expected}")?;
        }
        Ok(())
    }
}

/// Number with commas between groups of three digits.
struct Grouped(u64);

impl Grouped {
    /// Rounds to three digits, or to a whole number.
    fn of(number: f64) -> Self {
        let digits = number.abs().max(1.0).log10() as i32;
        let unit = 10_f64.powi((digits - 2).max(0));
        // Saturates.
        Self(((number / unit).round() * unit) as u64)
    }
}

impl fmt::Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) {
                f.write_str(",")?;
            }
            write!(f, "{digit}")?;
        }
        Ok(())
    }
}

/// Factor with up to two decimals.
struct Hundredths(u32);

impl fmt::Display for Hundredths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / 100, self.0 % 100);
        match part {
            0 => write!(f, "{whole}"),
            _ if part.is_multiple_of(10) => write!(f, "{whole}.{}", part / 10),
            _ => write!(f, "{whole}.{part:02}"),
        }
    }
}
