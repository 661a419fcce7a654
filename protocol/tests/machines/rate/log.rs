//! Tests of the log of one rate limit: by example, and against an exact log.

use super::{at, per_second};
use proptest::prelude::*;
use std::time::Duration;
use tidegate_protocol::machine::rate::{RUNS_MAX, RateLimit, RateLog, WINDOW_MAX};

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

#[test]
fn limiter_counts_several_hits_of_one_time() {
    let (limit, mut log) = (per_second(10), RateLog::default());
    log.commit_many(&limit, 7, at(100));
    log.commit_many(&limit, 0, at(900));
    log.commit_many(&limit, 2, at(500));
    assert_eq!((log.used(&limit, at(1_100)), log.used(&limit, at(1_101))), (9, 2));
    assert_eq!(log.runs(), 1);
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

    /// The clock is behind the true time by more and more, as one that stands still or is set back.
    #[test]
    fn limiter_admits_no_more_when_a_clock_loses_time(
        arrivals in arrivals(),
        losses in prop::collection::vec(prop_oneof![3 => Just(0), 1 => 0_u64..2_000], 400),
    ) {
        let Arrivals { limit, window_ms, gaps } = arrivals;
        let (mut log, mut admitted, mut now, mut behind) = (RateLog::default(), Vec::<u64>::new(), 1_000_000, 0);
        for (gap, loss) in gaps.into_iter().zip(losses) {
            now += gap;
            behind += loss;
            let clock = at(now - behind);
            if log.check(&limit, clock).is_ok() {
                log.commit(&limit, clock);
                admitted.push(now);
                let within = admitted.iter().filter(|hit| **hit + window_ms >= now).count();
                prop_assert!(within <= limit.count() as usize, "{within} hits at {now}");
            }
        }
    }

    /// Each hit is admitted by the limit of its call; windows are the same, so that an exact log can decide too.
    #[test]
    fn limiter_keeps_a_limit_that_changes(
        blocks in prop::collection::vec((1..20_u32, 0..30_u64, prop_oneof![1..=16_u32, 17..50_u32]), 1..60),
        window_ms in 160..300_u64,
    ) {
        let (mut log, mut exact, mut now) = (RateLog::default(), Vec::<u64>::new(), 0);
        for (hits, gap, count) in blocks {
            let limit = RateLimit::new(count, Duration::from_millis(window_ms));
            for _ in 0..hits {
                now += gap;
                if log.check(&limit, at(now)).is_ok() {
                    let within = exact.iter().filter(|hit| **hit + window_ms >= now).count();
                    prop_assert!(within < count as usize, "over the limit of {count} at {now}");
                    log.commit(&limit, at(now));
                    exact.push(now);
                }
                prop_assert!(log.runs() <= RUNS_MAX, "{} runs", log.runs());
            }
        }
    }
}

#[test]
fn limiter_merges_the_closest_runs_after_a_change_of_its_limit() {
    let limit_of = |count| RateLimit::new(count, Duration::from_millis(160));
    let mut log = RateLog::default();
    // 15 runs of an exact limit, then 15 of one that merges within 10 ms.
    (0..15).for_each(|n| log.commit(&limit_of(16), at(n)));
    (2..17).for_each(|n| log.commit(&limit_of(1_000), at(n * 10)));
    assert_eq!((log.runs(), log.used(&limit_of(31), at(160))), (RUNS_MAX, 30));
    // The hits of 0 to 11 ms were merged, and count as of the last.
    assert_eq!(log.used(&limit_of(1_000), at(171)), 30);
    assert_eq!(log.used(&limit_of(1_000), at(172)), 18);
}

/// Bursts as large as the limit allows, at every distance, and a flood between them.
#[test]
fn limiter_is_not_exceeded_by_bursts_at_any_phase() {
    let (count, window_ms) = (1_000, 160);
    let limit = RateLimit::new(count, Duration::from_millis(window_ms));
    for phase in 1..=2 * window_ms {
        let (mut log, mut admitted) = (RateLog::default(), Vec::new());
        for ms in 0..6 * window_ms {
            let offered = if ms % phase == 0 { 2 * count } else { u32::from(phase % 2 == 0) * 9 };
            for _ in 0..offered {
                if log.check(&limit, at(ms)).is_err() {
                    break;
                }
                log.commit(&limit, at(ms));
                admitted.push(ms);
            }
        }
        let mut first = 0;
        for (last, ms) in admitted.iter().enumerate() {
            while admitted[first] + window_ms < *ms {
                first += 1;
            }
            assert!(last - first < count as usize, "{} hits, bursts each {phase} ms", last - first + 1);
        }
    }
}

#[test]
fn limiter_admits_sixteen_seventeenths_of_a_flood_and_all_after_a_pause() {
    let (limit, mut log) = (per_second(1_000), RateLog::default());
    let mut admitted = 0;
    for ms in 0..100_000 {
        for _ in 0..3 {
            if log.check(&limit, at(ms)).is_ok() {
                log.commit(&limit, at(ms));
                admitted += 1;
            }
        }
    }
    assert!((94_000..=100_000).contains(&admitted), "{admitted}");
    let after = (0..2_000).filter(|_| {
        let is_free = log.check(&limit, at(101_000)).is_ok();
        log.commit(&limit, at(101_000));
        is_free
    });
    assert_eq!(after.count(), 1_000);
}

#[test]
fn limiter_keeps_five_runs_inline_and_frees_its_heap_when_it_is_quiet() {
    let (limit, mut log) = (per_second(100), RateLog::default());
    (0..5).for_each(|n| log.commit(&limit, at(n * 100)));
    assert_eq!((log.runs(), log.heap_bytes()), (5, 0));
    log.commit(&limit, at(500));
    assert_eq!((log.runs(), log.heap_bytes()), (6, 17 * 8));
    assert_eq!(log.used(&limit, at(1_301)), 2);
    assert_eq!((log.runs(), log.heap_bytes()), (2, 0));
    assert_eq!(size_of::<RateLog>(), 56);
}

#[test]
fn limiter_counts_a_key_that_is_used_for_months() {
    let limit = RateLimit::new(3, WINDOW_MAX * 2);
    let (mut log, mut exact) = (RateLog::default(), Vec::<u64>::new());
    let window_ms = u64::try_from(WINDOW_MAX.as_millis()).unwrap();
    assert_eq!(limit.window(), WINDOW_MAX);
    for day in 0..1_000 {
        let now = 7 + day * 24 * 3_600_000 * 3;
        let within = exact.iter().filter(|hit| **hit + window_ms >= now).count();
        assert_eq!(log.check(&limit, at(now)).is_ok(), within < 3, "day {day}");
        if within < 3 {
            log.commit(&limit, at(now));
            exact.push(now);
        }
    }
    log.commit(&limit, at(u64::MAX));
    assert!(log.check(&limit, at(u64::MAX)).is_ok());
}
