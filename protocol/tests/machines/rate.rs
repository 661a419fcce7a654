//! Tests of rate limits: by example, and against an exact log.

use proptest::prelude::*;
use std::time::Duration;
use tidegate_protocol::{
    Time,
    machine::rate::{RUNS_MAX, RateLimit, RateLog, RateTable, RecentKeys},
};

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

fn per_second(count: u32) -> RateLimit {
    RateLimit::new(count, Duration::from_secs(1))
}

/// Spreads small numbers over the keys, as a hash does.
fn key(n: u64) -> u64 {
    n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[test]
fn limiter_gives_a_slot_back_when_the_oldest_hit_leaves_the_window() {
    let (limit, mut log) = (per_second(2), RateLog::default());
    for ms in [0, 400] {
        assert_eq!(log.check(&limit, at(ms)), Ok(()));
        log.commit(&limit, at(ms));
    }
    assert_eq!(log.check(&limit, at(500)), Err(at(1_001)));
    assert_eq!(log.check(&limit, at(1_000)), Err(at(1_001)), "a window includes both of its ends");
    assert_eq!(log.check(&limit, at(1_001)), Ok(()));
    log.commit(&limit, at(1_001));
    assert_eq!(log.check(&limit, at(1_001)), Err(at(1_401)));
}

#[test]
fn limiter_admits_no_more_when_a_clock_is_behind() {
    let (limit, mut log) = (per_second(2), RateLog::default());
    log.commit(&limit, at(5_000));
    log.commit(&limit, at(4_000));
    assert_eq!(log.check(&limit, at(5_999)), Err(at(6_001)), "the late hit counts as of the newest");
    assert_eq!(log.check(&limit, at(3_000)), Err(at(6_001)));
}

#[derive(Clone, Debug)]
struct Arrivals {
    limit: RateLimit,
    window_ms: u64,
    /// Time from each attempt to the next.
    gaps: Vec<u64>,
}

fn arrivals() -> impl Strategy<Value = Arrivals> {
    (1_u32..80, 1_u64..400).prop_flat_map(|(count, window_ms)| {
        let gap = prop_oneof![
            6 => Just(0),
            4 => 0..=window_ms / 16 + 2,
            2 => 0..=window_ms / u64::from(count) + 1,
            1 => 0..=window_ms + 40,
        ];
        let limit = RateLimit::new(count, Duration::from_millis(window_ms));
        prop::collection::vec(gap, 1..400).prop_map(move |gaps| Arrivals { limit, window_ms, gaps })
    })
}

proptest! {
    #[test]
    fn limiter_agrees_with_an_exact_log(arrivals in arrivals()) {
        let Arrivals { limit, window_ms, gaps } = arrivals;
        let late_ms = u64::try_from(limit.late_max().as_millis()).unwrap();
        let (mut log, mut exact, mut now) = (RateLog::default(), Vec::<u64>::new(), 10_000);
        let n = limit.count() as usize;
        prop_assert!(late_ms <= window_ms.div_ceil(16));
        for gap in gaps {
            now += gap;
            let within = |ms: u64| exact.iter().filter(|hit| **hit + ms >= now).count();
            match log.check(&limit, at(now)) {
                Ok(()) => {
                    prop_assert!(within(window_ms) < n, "over the limit at {now}");
                    log.commit(&limit, at(now));
                    exact.push(now);
                }
                Err(free_at) => {
                    prop_assert!(within(window_ms + late_ms) >= n, "refused without a reason at {now}");
                    prop_assert!(free_at > at(now));
                    let mut later = log.clone();
                    prop_assert_eq!(later.check(&limit, at(free_at.as_millis() - 1)), Err(free_at));
                    prop_assert_eq!(later.check(&limit, free_at), Ok(()));
                }
            }
            prop_assert!(log.runs() <= RUNS_MAX, "{} runs", log.runs());
        }
    }

    /// Among keys that are never evicted, each has a limit of its own.
    #[test]
    fn limiter_table_keeps_each_key_to_its_limit(
        hits in prop::collection::vec((0_u64..12, 0_u64..300), 1..400),
        count in 1_u32..30,
    ) {
        let mut table = RateTable::new(per_second(count), 12, 1, 7);
        let (mut now, mut exact) = (0, Vec::<(u64, u64)>::new());
        for (who, gap) in hits {
            now += gap;
            let own = |ms: u64| exact.iter().filter(|it| it.0 == who && it.1 + ms >= now).count();
            match table.hit(key(who), at(now)) {
                Ok(()) => {
                    prop_assert!(own(1_000) < count as usize);
                    exact.push((who, now));
                }
                Err(_) => prop_assert!(own(1_063) >= count as usize),
            }
        }
        prop_assert_eq!(table.forgotten(), 0);
    }
}

/// Each abuser uses its whole limit in every window, while new keys come at 60 a millisecond.
#[test]
fn limiter_never_forgets_a_key_that_has_used_half_of_its_limit() {
    const ABUSERS: u64 = 5;
    let mut table = RateTable::new(per_second(20), 1_000, 64, 1);
    let mut admitted = vec![Vec::new(); ABUSERS as usize];
    let mut new_keys = 1_000_000;
    for ms in 0..3_000 {
        for abuser in 0..ABUSERS {
            // A burst of half the limit, before others can take the entry.
            for _ in 0..if ms == 0 { 20 } else { 1 } {
                if table.hit(key(abuser), at(ms)).is_ok() {
                    admitted[abuser as usize].push(ms);
                }
            }
        }
        for _ in 0..60 {
            new_keys += 1;
            table.hit(key(new_keys), at(ms)).ok();
        }
    }
    for hits in &admitted {
        let worst =
            hits.iter().map(|from| hits.iter().filter(|hit| (*from..=from + 1_000).contains(*hit)).count());
        assert_eq!(worst.max(), Some(20));
    }
    assert!(table.forgotten() > 100_000, "those of new keys are counted");
    assert_eq!(table.forgotten(), 0, "once");
}

#[test]
fn limiter_lets_new_keys_share_windows_when_all_others_are_busy() {
    let mut table = RateTable::new(per_second(2), 100, 4, 1);
    (0..100).for_each(|n| assert_eq!(table.hit(key(n), at(0)), Ok(())));
    let admitted = (1_000..2_000).filter(|n| table.hit(key(*n), at(1)).is_ok()).count();
    assert_eq!(admitted, 4 * 2, "four windows of two");
    assert_eq!((table.len(), table.forgotten()), (100, 0));
    // The old keys have expired: a new one gets an entry, with what its window has used.
    assert_eq!(table.hit(key(1_000), at(1_001)), Err(at(1_002)));
    assert_eq!(table.hit(key(1_000), at(1_002)), Ok(()));
}

#[test]
fn limiter_table_has_a_bound_in_bytes_and_lets_quiet_keys_go() {
    const KEYS_MAX: usize = 1_000;
    let limit = per_second(50);
    let mut table = RateTable::new(limit, KEYS_MAX, 4, 1);
    let mut most = 0;
    for ms in 0..2_000 {
        for n in 0..100 {
            table.hit(key(ms / 70 * 100 + n), at(ms)).ok();
        }
        for n in 0..20 {
            table.hit(key((1 << 40) | (ms << 8) | n), at(ms)).ok();
        }
        assert!(table.len() <= KEYS_MAX);
        most = most.max(table.bytes());
    }
    assert!(most < KEYS_MAX * 500, "{most} bytes");
    // With each new key, two others are examined.
    for n in 0..KEYS_MAX as u64 {
        table.hit(key((1 << 50) | n), at(100_000 + n * 2_000)).ok();
    }
    assert!(table.len() < 10, "{} keys", table.len());
}

#[test]
fn x1_recent_keys_are_known_until_others_displace_them() {
    let mut keys = RecentKeys::new(64);
    (0..40).for_each(|n| keys.insert(key(n)));
    assert!(!keys.contains(key(1_000)));
    assert!(!keys.contains(0));
    keys.insert(0);
    assert!(keys.contains(0));
    for n in 100..10_000 {
        keys.insert(key(7));
        keys.insert(key(n));
        assert!(keys.contains(key(7)) && keys.contains(key(n)), "the last used stay");
    }
    assert!(!keys.contains(key(8)));
    assert!((100..10_000).filter(|n| keys.contains(key(*n))).count() <= 64);
}
