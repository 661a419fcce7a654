//! Check of the wall clock before anything is expired by it: an expiry can't be taken back.
//!
//! With a store that has a clock of its own both must agree. Without one, the wall clock must have moved as the
//! monotonic clock has.

use std::time::Duration;

use tokio::time::Instant;

/// Largest accepted deviation.
pub(super) const SKEW_MAX: Duration = Duration::from_secs(300);

/// Time without another step after which a clock that was set is trusted again.
pub(super) const STEP_SETTLE_TIME: Duration = Duration::from_secs(86_400);

/// State of the check. A pure machine: both clocks are arguments.
#[derive(Debug, Default)]
pub(crate) struct ClockCheck {
    /// Wall clock and monotonic time of the last call.
    last: Option<(u64, Instant)>,
    distrusted_until: Option<Instant>,
}

/// Reason not to trust the wall clock now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ClockError {
    #[error("the clock of this node differs from that of the store by {0} s; set it, by NTP for example")]
    Differs(u64),
    #[error(
        "the clock of this node was set by {0} s; nothing expires for a day, in case that it is set back"
    )]
    Stepped(u64),
}

impl ClockCheck {
    /// Returns the time by which data may expire: the earlier of the wall clock and the store's, in ms since 1970.
    ///
    /// # Errors
    /// The clocks deviate by more than [`SKEW_MAX`], or the wall clock was set less than [`STEP_SETTLE_TIME`] ago.
    pub(super) fn now(&mut self, wall: u64, of_store: Option<u64>, at: Instant) -> Result<u64, ClockError> {
        let is_off = |by: u64| u128::from(by) > SKEW_MAX.as_millis();
        let before = self.last.replace((wall, at));
        if let Some(of_store) = of_store {
            let by = wall.abs_diff(of_store);
            return if is_off(by) { Err(ClockError::Differs(by / 1_000)) } else { Ok(wall.min(of_store)) };
        }
        if let Some((wall_before, before)) = before {
            let passed = u64::try_from((at - before).as_millis()).unwrap_or(u64::MAX);
            let by = wall.abs_diff(wall_before.saturating_add(passed));
            if is_off(by) {
                self.distrusted_until = Some(at + STEP_SETTLE_TIME);
                return Err(ClockError::Stepped(by / 1_000));
            }
        }
        match self.distrusted_until {
            Some(until) if at < until => Err(ClockError::Stepped(0)),
            _ => Ok(wall),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;

    #[tokio::test(start_paused = true)]
    async fn clock_of_the_store_bounds_the_own_one() {
        let (mut check, at) = (ClockCheck::default(), Instant::now());
        assert_eq!(check.now(1_000 * HOUR, Some(1_000 * HOUR - 9), at), Ok(1_000 * HOUR - 9));
        assert_eq!(check.now(1_000 * HOUR, Some(1_000 * HOUR + 9), at), Ok(1_000 * HOUR));
        let ahead = check.now(2_000 * HOUR, Some(1_000 * HOUR), at);
        assert_eq!(ahead, Err(ClockError::Differs(1_000 * 3_600)));
        assert!(check.now(0, Some(1_000 * HOUR), at).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn step_of_a_lone_clock_is_distrusted_for_a_day() {
        let (mut check, start) = (ClockCheck::default(), Instant::now());
        let at = |hours: u64| start + Duration::from_secs(hours * 3_600);
        assert_eq!(check.now(1_000 * HOUR, None, at(0)), Ok(1_000 * HOUR));
        assert_eq!(check.now(1_001 * HOUR, None, at(1)), Ok(1_001 * HOUR));
        assert_eq!(check.now(1_962 * HOUR, None, at(2)), Err(ClockError::Stepped(960 * 3_600)));
        assert!(check.now(1_963 * HOUR, None, at(3)).is_err());
        // It is set back.
        assert!(check.now(1_004 * HOUR, None, at(4)).is_err());
        assert!(check.now(1_027 * HOUR, None, at(27)).is_err());
        assert_eq!(check.now(1_029 * HOUR, None, at(29)), Ok(1_029 * HOUR));
    }
}
