//! Tests of the drain by example; `drain/property.rs` runs complete drains with all kinds of clients.

mod property;

use std::time::Duration;
use tidegate_protocol::{
    Time,
    machine::drain::{
        Drain, DrainCounts, DrainOutcome, DrainStep, NodePhase, Pace, RushReason, Settings, Share, plan,
    },
};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

const DEFAULTS: Settings = Settings {
    lb_delay: ms(5_000),
    spread: ms(30_000),
    max_rate: 500,
    flush: ms(5_000),
    deadline: ms(50_000),
};

fn begun(settings: Settings) -> Drain {
    let mut drain = Drain::new(settings);
    drain.handle_started();
    let mut out = Vec::new();
    drain.handle_signal(at(0), &mut out);
    assert_eq!((out, drain.phase()), (vec![DrainStep::Cordon], NodePhase::Cordoned));
    drain
}

fn advance(drain: &mut Drain, now: u64, snapshot: DrainCounts) -> Vec<DrainStep> {
    let mut out = Vec::new();
    drain.handle_snapshot(at(now), snapshot, &mut out);
    out
}

fn clients(conns: usize) -> DrainCounts {
    DrainCounts { conns, unnoticed: conns, waiting: conns, in_flight: 0 }
}

#[test]
fn grace_period_matches_the_operations_page() {
    for (conns, grace) in [(1_000, 50), (20_000, 60), (50_000, 120), (100_000, 220), (200_000, 420)] {
        assert_eq!(plan(conns, &DEFAULTS).grace, ms(grace * 1_000), "{conns}");
    }
}

#[test]
fn pace_stays_within_limits_for_few_and_many_clients() {
    let few = plan(40, &DEFAULTS);
    assert_eq!((few.window, few.handover, few.raised), (ms(800), ms(800), false));
    let some = plan(3_000, &DEFAULTS);
    assert_eq!((some.window, some.rate, some.raised), (ms(30_000), 100, false));
    let many = plan(16_000, &DEFAULTS);
    assert_eq!((many.window, many.rate, many.raised), (ms(32_000), 500, false));
    let too_many = plan(40_000, &DEFAULTS);
    assert!(too_many.raised && too_many.rate > 1_000, "{too_many:?}");
    let room = Settings { deadline: too_many.deadline, ..DEFAULTS };
    let enough = plan(40_000, &room);
    assert_eq!((enough.raised, enough.rate), (false, 500), "the deadline it names is enough");
}

#[test]
fn a_drain_goes_through_its_phases() {
    let mut drain = begun(DEFAULTS);
    assert_eq!(advance(&mut drain, 4_999, clients(3_000)), []);
    let steps = advance(&mut drain, 5_000, clients(3_000));
    let [DrainStep::Notice(pace, chosen)] = &steps[..] else { panic!("{steps:?}") };
    assert_eq!((pace.start, pace.window, chosen.rate), (at(5_000), ms(30_000), 100));
    assert_eq!(drain.phase(), NodePhase::Noticing);
    assert_eq!(advance(&mut drain, 5_100, DrainCounts { unnoticed: 0, ..clients(3_000) }), []);
    assert_eq!(drain.phase(), NodePhase::Draining);
    let last = DrainCounts { conns: 0, in_flight: 7, ..DrainCounts::default() };
    assert_eq!(advance(&mut drain, 36_000, last), [], "the drain waits for accepted sends");
    assert_eq!(advance(&mut drain, 36_010, DrainCounts::default()), [DrainStep::Flush]);
    assert_eq!(drain.flush_until(), Some(at(41_010)));
    let mut out = Vec::new();
    drain.handle_flushed(&mut out);
    drain.handle_flushed(&mut out);
    assert_eq!((out, drain.phase()), (vec![DrainStep::Exit(DrainOutcome::Drained)], NodePhase::Done));
}

#[test]
fn pace_follows_what_the_other_nodes_accept() {
    let plan = |accept: Option<u32>| {
        let mut drain = begun(DEFAULTS);
        drain.handle_others(accept);
        let steps = advance(&mut drain, 5_000, clients(6_000));
        let [DrainStep::Notice(_, plan)] = &steps[..] else { panic!("{steps:?}") };
        (plan.rate, plan.window, plan.raised)
    };
    // 6,000 over the spread of 30 s.
    for accept in [None, Some(10_000), Some(200)] {
        assert_eq!(plan(accept), (200, ms(30_000), false), "{accept:?}");
    }
    let (rate, window, raised) = plan(Some(190));
    assert!(rate == 190 && window > ms(31_500) && !raised, "{rate} {window:?}");
    let (rate, _, raised) = plan(Some(10));
    assert!(raised && rate > 100, "the deadline raises the pace, and the plan reports it: {rate}");
}

#[test]
fn idle_node_flushes_immediately() {
    let mut drain = begun(DEFAULTS);
    assert_eq!(advance(&mut drain, 0, DrainCounts::default()), [DrainStep::Flush]);
}

#[test]
fn remaining_clients_are_cut_at_the_deadline_and_counted() {
    let mut drain = begun(DEFAULTS);
    advance(&mut drain, 5_000, clients(9));
    let stuck = DrainCounts { conns: 9, ..DrainCounts::default() };
    assert_eq!(advance(&mut drain, 44_999, stuck), []);
    assert_eq!(advance(&mut drain, 45_000, stuck), [DrainStep::Cut(9), DrainStep::Flush]);
    assert_eq!(advance(&mut drain, 50_000, stuck), [DrainStep::Exit(DrainOutcome::Cut(9))]);
    assert_eq!((DrainOutcome::Drained.exit_code(), DrainOutcome::Cut(9).exit_code()), (0, 3));
}

#[test]
fn slots_that_exceed_the_deadline_are_closed_immediately() {
    let mut drain = begun(DEFAULTS);
    advance(&mut drain, 5_000, clients(9));
    assert_eq!(advance(&mut drain, 38_999, clients(9)), []);
    assert_eq!(advance(&mut drain, 39_000, clients(9)), [DrainStep::Rush(RushReason::Deadline)]);
    assert_eq!(advance(&mut drain, 39_001, clients(9)), [], "once");
}

#[test]
fn second_signal_ends_the_drain_in_two_seconds() {
    let mut drain = begun(DEFAULTS);
    let mut out = Vec::new();
    drain.handle_signal(at(100), &mut out);
    assert_eq!(out, [DrainStep::Rush(RushReason::Signal)]);
    assert_eq!(advance(&mut drain, 1_100, clients(2)), [DrainStep::Cut(2), DrainStep::Flush]);
    assert_eq!(advance(&mut drain, 2_100, clients(2)), [DrainStep::Exit(DrainOutcome::Fast(2))]);
    assert_eq!(DrainOutcome::Fast(0).exit_code(), 4);
}

#[test]
fn operator_may_abort_a_drain_that_an_operator_began() {
    let mut drain = Drain::new(DEFAULTS);
    drain.handle_started();
    let mut out = Vec::new();
    assert!(!drain.handle_abort(&mut out), "no drain has begun");
    assert!(drain.handle_begin(at(0), &mut out) && !drain.handle_begin(at(1), &mut out));
    advance(&mut drain, 5_000, clients(9));
    assert!(drain.handle_abort(&mut out));
    assert_eq!((out, drain.phase()), (vec![DrainStep::Cordon, DrainStep::Resume], NodePhase::Ready));
    let mut out = Vec::new();
    assert!(drain.handle_begin(at(60_000), &mut out), "and again");
    drain.handle_signal(at(60_001), &mut out);
    assert_eq!(out, [DrainStep::Cordon], "the first signal does not speed up an operator's drain");
    assert!(!drain.handle_abort(&mut out), "a signalled drain is final");
    drain.handle_signal(at(60_002), &mut out);
    assert_eq!(out[1..], [DrainStep::Rush(RushReason::Signal)]);
}

#[test]
fn slots_of_all_shards_are_evenly_spread() {
    let pace = Pace { start: at(1_000), window: ms(1_200), handover: ms(50) };
    let mut slots = Vec::new();
    for index in 0..3 {
        let mut share = Share::new(pace, index, 3, 7, 0..4);
        while let Some(notice) = share.poll_notice(at(900)) {
            assert_eq!(notice.window, ms(50));
            assert_eq!(share.late_notice(notice.who, at(900)), Some(notice));
            slots.push(notice.after.as_millis());
        }
    }
    slots.sort_unstable();
    let even: Vec<u128> = (1..=12).map(|nth| 100 + nth * 100).collect();
    assert_eq!(slots, even);
}

#[test]
fn busy_shard_keeps_its_pace_and_stays_late() {
    let pace = Pace { start: at(0), window: ms(1_000), handover: ms(0) };
    let mut share = Share::new(pace, 0, 1, 7, 0..100);
    assert_eq!(share.poll_close(at(5_000)), None, "no client is notified");
    while share.poll_notice(at(0)).is_some() {}
    let mut burst = 0;
    while share.poll_close(at(5_000)).is_some() {
        burst += 1;
    }
    assert!((10..=11).contains(&burst), "{burst}");
    assert_eq!(share.poll_timeout(), Some(at(5_010)));
}

/// Returns the order in which clients are closed, by their index in the table.
fn dealt(seed: u64) -> Vec<u32> {
    let pace = Pace { start: at(0), window: ms(1_000), handover: ms(0) };
    let mut share = Share::new(pace, 0, 1, seed, 0..1_000_u32);
    std::iter::from_fn(|| share.poll_notice(at(0))).map(|notice| notice.who).collect()
}

#[test]
fn clients_that_arrived_together_are_not_closed_together() {
    let order = dealt(7);
    for early in [0..100, 450..550, 900..1_000] {
        let quarters =
            order.chunks(250).map(|quarter| quarter.iter().filter(|who| early.contains(*who)).count());
        let quarters: Vec<usize> = quarters.collect();
        assert!(quarters.iter().all(|count| (12..=38).contains(count)), "{early:?}: {quarters:?}");
    }
    let mut all = order.clone();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..1_000), "each has one slot");
    assert_eq!(order, dealt(7));
    assert_ne!(order, dealt(8), "another seed shuffles differently");
}
