//! Time that the product took, without that in which the whole machine stood still: a bound that is promised has to hold on
//! a machine that is lent to others, too.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const TICK: Duration = Duration::from_millis(10);

/// Runs from its start on.
pub(crate) struct Stopwatch {
    began: Instant,
    stood_us: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl Stopwatch {
    /// Begins, with a thread beside it that wants to run every 10 ms and counts by how much it came late.
    pub(crate) fn start() -> Self {
        let (stood_us, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (late, stop) = (Arc::clone(&stood_us), Arc::clone(&over));
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let began = Instant::now();
                thread::park_timeout(TICK);
                let stood = began.elapsed().saturating_sub(TICK);
                late.fetch_add(u64::try_from(stood.as_micros()).unwrap_or(0), Ordering::Relaxed);
            }
        });
        Self { began: Instant::now(), stood_us, over }
    }

    /// Since the start, less what the machine kept for itself.
    pub(crate) fn elapsed(&self) -> Duration {
        let stood = Duration::from_micros(self.stood_us.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(stood)
    }
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}
