//! Histograms of durations with fixed buckets: to record one neither waits nor allocates.

use std::{
    fmt::Write as _,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Longest duration of each bucket, in µs, and as a label; one more bucket has all others.
const BOUNDS: [(u64, &str); 14] = [
    (500, "0.0005"),
    (1_000, "0.001"),
    (2_500, "0.0025"),
    (5_000, "0.005"),
    (10_000, "0.01"),
    (25_000, "0.025"),
    (50_000, "0.05"),
    (100_000, "0.1"),
    (250_000, "0.25"),
    (500_000, "0.5"),
    (1_000_000, "1"),
    (2_500_000, "2.5"),
    (5_000_000, "5"),
    (10_000_000, "10"),
];

/// Histogram of durations, the same for all threads.
#[derive(Debug, Default)]
pub struct Durations {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    sum_us: AtomicU64,
}

impl Durations {
    /// Counts a duration.
    pub fn record(&self, duration: Duration) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.partition_point(|(bound, _)| *bound < us);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum_us.fetch_add(us, Relaxed);
    }

    /// Appends the histogram in the text format of Prometheus.
    pub(super) fn render(&self, name: &str, what: &str, page: &mut String) {
        let mut count = 0;
        // Writing to a String can't fail.
        write!(page, "# HELP {name} {what}\n# TYPE {name} histogram\n").ok();
        let labels = BOUNDS.iter().map(|(_, label)| *label).chain(["+Inf"]);
        for (bucket, label) in self.buckets.iter().zip(labels) {
            count += bucket.load(Relaxed);
            writeln!(page, "{name}_bucket{{le=\"{label}\"}} {count}").ok();
        }
        let us = self.sum_us.load(Relaxed);
        let (seconds, rest) = (us / 1_000_000, us % 1_000_000);
        // The count is that of the last bucket, so both agree while others record.
        write!(page, "{name}_sum {seconds}.{rest:06}\n{name}_count {count}\n\n").ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_ascend_and_are_their_labels() {
        for (us, label) in BOUNDS {
            assert_eq!(Ok(Duration::from_micros(us).as_secs_f64()), label.parse());
        }
        assert!(BOUNDS.is_sorted());
    }

    #[test]
    fn durations_are_counted_up_to_the_bound_of_their_bucket() {
        let times = Durations::default();
        for us in [0, 500, 501, 10_000_000, 10_000_001, 3_000_000_000] {
            times.record(Duration::from_micros(us));
        }
        let mut page = String::new();
        times.render("tidegate_x_seconds", "Time of x.", &mut page);
        for line in [
            "# TYPE tidegate_x_seconds histogram",
            "tidegate_x_seconds_bucket{le=\"0.0005\"} 2",
            "tidegate_x_seconds_bucket{le=\"0.001\"} 3",
            "tidegate_x_seconds_bucket{le=\"5\"} 3",
            "tidegate_x_seconds_bucket{le=\"10\"} 4",
            "tidegate_x_seconds_bucket{le=\"+Inf\"} 6",
            "tidegate_x_seconds_sum 3020.001002",
            "tidegate_x_seconds_count 6",
        ] {
            assert!(page.lines().any(|it| it == line), "{line} is not in\n{page}");
        }
        times.record(Duration::MAX);
    }
}
