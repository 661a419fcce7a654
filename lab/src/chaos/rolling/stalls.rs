//! Stalls of this program: while it was not scheduled, its measurements say nothing of the nodes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{task::JoinSet, time::sleep};

/// Interval between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);

/// A watch for stalls that runs until it is dropped.
pub(super) struct Stalls {
    longest_us: Arc<AtomicU64>,
    _watch: JoinSet<()>,
}

impl Stalls {
    pub(super) fn watch() -> Self {
        let longest_us = Arc::new(AtomicU64::new(0));
        let longest = Arc::clone(&longest_us);
        let mut watch = JoinSet::new();
        watch.spawn(async move {
            loop {
                let began = Instant::now();
                sleep(SAMPLE_INTERVAL).await;
                let stood = began.elapsed().saturating_sub(SAMPLE_INTERVAL);
                longest.fetch_max(u64::try_from(stood.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        });
        Self { longest_us, _watch: watch }
    }

    /// Returns the longest stall so far.
    pub(super) fn longest(&self) -> Duration {
        Duration::from_micros(self.longest_us.load(Ordering::Relaxed))
    }
}
