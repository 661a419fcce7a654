//! Tests of the tables of rate limits: by example, and against an exact log. Those of the log itself are in `log`.

mod log;

use proptest::prelude::*;
use std::time::Duration;
use tidegate_protocol::{
    Time,
    machine::rate::{RateLimit, RateTable, RecentKeys},
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

proptest! {
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

#[test]
fn key_that_used_half_of_its_own_limit_is_not_evicted() {
    let (limit, now) = (RateLimit::new(100, Duration::from_secs(1)), Time::from_millis(5));
    for (own, is_kept) in [(50, true), (80, true), (81, false), (100, false)] {
        let mut table = RateTable::new(limit, 1, 1, 7);
        let count_of = |key: u64| if key == 1 { own } else { 100 };
        for _ in 0..40 {
            table.commit_within(table.find(1), &limit.with_count(own), now, count_of);
        }
        table.commit_within(table.find(2), &limit, now, count_of);
        assert_eq!((table.contains(1), table.contains(2)), (is_kept, !is_kept), "40 of {own}");
    }
}
