//! Back-off: growing delays between the attempts at a call that fails.

use std::time::Duration;

/// Delays that double up to a limit, optionally with jitter. Holds no clock: the caller waits.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    max: Duration,
    next: Duration,
    /// State of the random numbers for the jitter, if there is jitter.
    random: Option<u64>,
}

impl Backoff {
    /// Creates delays of `first`, twice that, and so on, up to `max`.
    pub(crate) const fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, next: first, random: None }
    }

    /// Shortens each delay by up to a half at random, so that callers that failed together do not retry together.
    /// Equal seeds give equal delays.
    pub(crate) const fn with_jitter(mut self, seed: u64) -> Self {
        self.random = Some(seed);
        self
    }

    /// Returns the delay before the next attempt.
    pub(crate) fn next_delay(&mut self) -> Duration {
        let longest = self.next;
        self.next = longest.saturating_mul(2).min(self.max);
        let Some(random) = &mut self.random else { return longest };
        // SplitMix64.
        *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        longest / 2 + (longest / 2).mul_f64(z as f64 / u64::MAX as f64)
    }

    /// Starts again with the first delay, after an attempt that succeeded.
    pub(crate) const fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST_DELAY: Duration = Duration::from_millis(50);
    const DELAY_MAX: Duration = Duration::from_secs(2);

    #[test]
    fn delays_double_to_their_limit_until_reset() {
        let mut backoff = Backoff::new(FIRST_DELAY, DELAY_MAX);
        let mut delays = || [(); 8].map(|()| backoff.next_delay().as_millis());
        assert_eq!(delays(), [50, 100, 200, 400, 800, 1_600, 2_000, 2_000]);
        assert_eq!(delays(), [2_000; 8]);
        backoff.reset();
        assert_eq!(backoff.next_delay(), FIRST_DELAY);
    }

    #[test]
    fn unlimited_delay_saturates() {
        let mut backoff = Backoff::new(Duration::MAX, Duration::MAX);
        assert_eq!([backoff.next_delay(), backoff.next_delay()], [Duration::MAX; 2]);
    }

    #[test]
    fn jitter_keeps_at_least_half_and_differs_by_seed() {
        let draw = |seed| {
            let mut backoff = Backoff::new(FIRST_DELAY, DELAY_MAX).with_jitter(seed);
            [(); 10].map(|()| backoff.next_delay())
        };
        let (one, other) = (draw(1), draw(2));
        assert_eq!(one, draw(1));
        assert_ne!(one, other);
        let mut plain = Backoff::new(FIRST_DELAY, DELAY_MAX);
        for delay in one {
            let longest = plain.next_delay();
            assert!((longest / 2..=longest).contains(&delay), "{delay:?} of {longest:?}");
        }
    }
}
