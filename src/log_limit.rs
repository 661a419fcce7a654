//! Log limit: bounds the log lines of each place in the source, so that neither a client nor a stranger at a port fills
//! a disk with what a node says about them.
//!
//! Places that others reach at will log with [`log_limited`]. Both formats, text and JSON, limit all other places, also those of
//! libraries, less strictly.

use std::{
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

mod json;
mod lines;
mod output;

#[cfg(test)]
pub(crate) use self::lines::tests::written;
pub(crate) use self::output::{announce, filter, limit_panics, set_filter, set_node, start};

/// Time from which all limits count.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Limit of one place: some lines at once, then one each interval. Without a lock, because any thread may log.
pub(crate) struct LogLimit {
    burst: u64,
    interval_ms: u64,
    /// Time in ms at which the burst is available again as a whole.
    recovered_at: AtomicU64,
    /// Lines that were suppressed since the last one that passed.
    suppressed: AtomicU64,
}

impl LogLimit {
    /// Creates the limit of a place that others reach at will: 10 lines, then one each second.
    pub(crate) const fn new() -> Self {
        Self::of(10, 1_000)
    }

    /// Creates a limit of `burst` lines at once, then one each `interval_ms`.
    pub(crate) const fn of(burst: u64, interval_ms: u64) -> Self {
        Self { burst, interval_ms, recovered_at: AtomicU64::new(0), suppressed: AtomicU64::new(0) }
    }

    /// Counts a line of now. Returns how many lines were suppressed before it, or `None` if this one is, too.
    pub(crate) fn pass(&self) -> Option<u64> {
        self.pass_at(u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn pass_at(&self, now_ms: u64) -> Option<u64> {
        let longest = self.burst.saturating_sub(1) * self.interval_ms;
        let after_line = |recovered_at: u64| {
            let recovered_at = recovered_at.max(now_ms);
            (recovered_at - now_ms <= longest).then_some(recovered_at + self.interval_ms)
        };
        if self.recovered_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after_line).is_err() {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.suppressed.swap(0, Ordering::Relaxed))
    }
}

/// Logs as the `tracing` macro of that level does, within a [`LogLimit`] of this place. Adds the number of suppressed
/// lines, if there were any.
macro_rules! log_limited {
    ($level:ident, $($event:tt)+) => {{
        static LIMIT: $crate::log_limit::LogLimit = $crate::log_limit::LogLimit::new();
        if let Some(suppressed) = LIMIT.pass() {
            let suppressed = (suppressed > 0).then_some(suppressed);
            tracing::$level!(suppressed, $($event)+);
        }
    }};
}
pub(crate) use log_limited;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x17_lines_beyond_a_burst_are_suppressed_and_counted() {
        let limit = LogLimit::of(3, 1_000);
        let at = |now_ms: u64, lines: usize| -> Vec<Option<u64>> {
            (0..lines).map(|_| limit.pass_at(now_ms)).collect()
        };
        assert_eq!(at(5_000, 5), [Some(0), Some(0), Some(0), None, None]);
        assert_eq!(at(5_999, 2), [None, None]);
        assert_eq!(at(6_000, 2), [Some(4), None], "one line each second, with the number before it");
        assert_eq!(at(8_500, 3), [Some(1), Some(0), None]);
        assert_eq!(at(60_000, 5), [Some(1), Some(0), Some(0), None, None], "the whole burst after a pause");
        assert_eq!(at(59_000, 1), [None], "another thread may have read the clock earlier");
    }

    #[test]
    fn x17_threads_share_one_limit() {
        let limit = LogLimit::of(10, 1_000);
        let passed = std::thread::scope(|scope| {
            let count = || (0..1_000).filter(|_| limit.pass_at(1_000).is_some()).count();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(count)).collect();
            threads.into_iter().map(|it| it.join().unwrap()).sum::<usize>()
        });
        assert_eq!(passed, 10);
        assert_eq!(limit.pass_at(2_000), Some(3_990));
    }
}
