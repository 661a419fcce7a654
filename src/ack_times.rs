//! Times from a send to its ack: samples of the sends in flight, and their percentiles of the last second.
//!
//! A table of fixed size holds the samples, so that a busy node measures some of its sends and an idle one all of them.
//! Shards neither wait nor allocate here.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    time::Duration,
};
use tokio::time::Instant;

use crate::mail::ConnKey;

/// Most sends that are measured at a time.
const SAMPLES_MAX: usize = 256;

/// Age at which a sample gives way to another: its connection has closed, or its answer is overdue.
const AGE_MAX: Duration = Duration::from_secs(10);

/// Buckets of equal width for each power of two; a percentile is at most an eighth too high.
const STEPS: u64 = 8;

/// Buckets up to 2^27 µs, more than two minutes.
const BUCKETS: usize = 16 + 23 * STEPS as usize;

/// Samples of sends in flight, and the counts of measured times.
pub struct AckTimes {
    epoch: Instant,
    samples: Vec<Sample>,
    buckets: Vec<AtomicU32>,
}

/// Send in flight; its key is 0 while the place is free.
#[derive(Default)]
struct Sample {
    key: AtomicU64,
    began_us: AtomicU64,
}

/// Percentiles of a span of time, in µs; 0 without a measured send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AckPercentiles {
    /// Median.
    pub p50_us: u64,
    /// 99th percentile.
    pub p99_us: u64,
}

impl Default for AckTimes {
    fn default() -> Self {
        Self {
            epoch: Instant::now(),
            samples: (0..SAMPLES_MAX).map(|_| Sample::default()).collect(),
            buckets: (0..BUCKETS).map(|_| AtomicU32::new(0)).collect(),
        }
    }
}

impl AckTimes {
    /// Begins to measure the send, if its place in the table is free.
    pub fn begin(&self, conn: ConnKey, ticket: u64) {
        let (key, sample) = self.place(conn, ticket);
        let taken = sample.key.load(Relaxed);
        if taken != 0 && sample.began_us.load(Relaxed) + AGE_MAX.as_micros() as u64 > self.now_us() {
            return;
        }
        if sample.key.compare_exchange(taken, key, Relaxed, Relaxed).is_ok() {
            sample.began_us.store(self.now_us(), Relaxed);
        }
    }

    /// Ends the measurement of the send, and counts its time if it was acked; then it returns the time.
    pub fn end(&self, conn: ConnKey, ticket: u64, is_acked: bool) -> Option<Duration> {
        let (key, sample) = self.place(conn, ticket);
        if sample.key.load(Relaxed) != key {
            return None;
        }
        let took_us = self.now_us().saturating_sub(sample.began_us.load(Relaxed));
        let is_counted = sample.key.compare_exchange(key, 0, Relaxed, Relaxed).is_ok() && is_acked;
        is_counted.then(|| {
            self.buckets[bucket(took_us)].fetch_add(1, Relaxed);
            Duration::from_micros(took_us)
        })
    }

    /// Returns the percentiles since the last call.
    pub fn take(&self) -> AckPercentiles {
        let counts: Vec<u64> = self.buckets.iter().map(|bucket| bucket.swap(0, Relaxed).into()).collect();
        let all: u64 = counts.iter().sum();
        let percentile = |percent: u64| {
            let (wanted, mut seen) = ((all * percent).div_ceil(100), 0);
            let reaches = |count: &u64| {
                seen += count;
                seen >= wanted
            };
            counts.iter().position(reaches).map_or(0, upper_us)
        };
        if all == 0 {
            return AckPercentiles::default();
        }
        AckPercentiles { p50_us: percentile(50), p99_us: percentile(99) }
    }

    /// Returns the key of a send, which is not 0, and its place in the table.
    fn place(&self, conn: ConnKey, ticket: u64) -> (u64, &Sample) {
        let mixed = (conn.pack() ^ ticket.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = (mixed >> 56) as usize % SAMPLES_MAX;
        (mixed.max(1), &self.samples[place])
    }

    fn now_us(&self) -> u64 {
        self.epoch.elapsed().as_micros() as u64
    }
}

/// Returns the bucket of a time.
fn bucket(us: u64) -> usize {
    if us < 16 {
        return us as usize;
    }
    let power = u64::from(us.ilog2());
    let step = (us >> (power - 3)) & (STEPS - 1);
    (16 + ((power - 4) * STEPS + step) as usize).min(BUCKETS - 1)
}

/// Returns the longest time of a bucket, in µs.
fn upper_us(bucket: usize) -> u64 {
    let Some(above) = bucket.checked_sub(16).map(|above| above as u64) else { return bucket as u64 };
    let (power, step) = (4 + above / STEPS, above % STEPS);
    ((STEPS + step + 1) << (power - 3)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conn(slot: u32) -> ConnKey {
        ConnKey { shard: 0, slot, generation: 1 }
    }

    #[test]
    fn buckets_are_narrow_and_in_order() {
        let times = (0..5_000).chain((13..27).map(|power| (1 << power) + 12_345)).chain([100_000_000]);
        for us in times {
            let upper = upper_us(bucket(us));
            assert!(us <= upper && upper <= us + us / 8 + 1, "{us} is in a bucket up to {upper}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn acked_sends_are_counted_once() {
        let times = AckTimes::default();
        assert_eq!(times.take(), AckPercentiles::default());
        times.begin(conn(1), 7);
        times.end(conn(1), 8, true);
        times.end(conn(2), 7, true);
        assert_eq!(times.take(), AckPercentiles::default(), "other sends");
        times.end(conn(1), 7, true);
        let counted: u32 = times.buckets.iter().map(|bucket| bucket.load(Relaxed)).sum();
        assert_eq!(counted, 1);
        times.end(conn(1), 7, true);
        times.begin(conn(1), 9);
        times.end(conn(1), 9, false);
        let counted: u32 = times.buckets.iter().map(|bucket| bucket.load(Relaxed)).sum();
        assert_eq!(counted, 1, "answered twice, and refused");
    }

    #[test]
    fn percentiles_are_those_of_the_counts() {
        let times = AckTimes::default();
        for us in 1..=100 {
            times.buckets[bucket(us * 100)].fetch_add(1, Relaxed);
        }
        let AckPercentiles { p50_us, p99_us } = times.take();
        assert!((5_000..5_700).contains(&p50_us) && (9_900..11_200).contains(&p99_us), "{p50_us} {p99_us}");
        assert_eq!(times.take(), AckPercentiles::default(), "taken");
    }

    #[test]
    fn many_sends_take_no_more_than_the_table() {
        let times = AckTimes::default();
        for ticket in 0..10_000 {
            times.begin(conn(ticket as u32 % 100), ticket);
        }
        assert!(
            times.samples.iter().filter(|sample| sample.key.load(Relaxed) != 0).count() > SAMPLES_MAX / 2
        );
        let returned =
            (0..10_000).filter_map(|ticket| times.end(conn(ticket as u32 % 100), ticket, true)).count();
        let counted: u32 = times.buckets.iter().map(|bucket| bucket.load(Relaxed)).sum();
        assert_eq!(returned, counted as usize);
        assert!(counted as usize <= SAMPLES_MAX && counted as usize > SAMPLES_MAX / 2, "{counted}");
    }
}
