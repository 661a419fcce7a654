//! A next owner gets the past: its storms start and end as those of an owner that was never replaced.

use super::{WALL, message, model::Seen};
use proptest::prelude::*;
use std::time::Duration;
use tidegate_protocol::{
    Time,
    machine::storm::{PastMessage, StormPhase, StormReport, StormRule, StormWatch},
};

#[derive(Clone, Debug)]
struct TakeOver {
    threshold: u32,
    window_ms: u64,
    /// Time before each message, and whether there is a tick before it.
    messages: Vec<(u64, bool)>,
    /// Message at which the owner is replaced.
    at: usize,
    /// Messages that the next owner holds before it gets the past.
    held: usize,
    /// Owner's time of the next owner, at time zero of the first one; may be negative.
    offset: i64,
    /// Whether the record of the storm survived.
    has_record: bool,
}

fn take_over() -> impl Strategy<Value = TakeOver> {
    (2..20_u32, 200..2_000_u64).prop_flat_map(|(threshold, window_ms)| {
        let fair = window_ms / u64::from(threshold);
        let gap = prop_oneof![4 => 0..=fair, 2 => 0..=fair * 3, 1 => 0..=window_ms];
        let messages = prop::collection::vec((gap, prop::bool::weighted(0.4)), 60..200);
        (messages, 20..50_usize, 0..6_usize, -50_000..100_000_i64, any::<bool>()).prop_map(
            move |(messages, at, held, offset, has_record)| TakeOver {
                threshold,
                window_ms,
                messages,
                at,
                held,
                offset,
                has_record,
            },
        )
    })
}

proptest! {
    #[test]
    fn storm_continues_with_the_next_owner(case in take_over()) {
        let rule = StormRule::new(case.threshold, Duration::from_millis(case.window_ms));
        let mut old = StormWatch::default();
        let mut next = None;
        let (mut record, mut taken_over_at) = (None, 0);
        // The peak is part of the record.
        let known = |event: Option<Seen>| match event {
            Some(Seen::Ended(report)) if !case.has_record => Some(Seen::Ended(StormReport { peak: 0, ..report })),
            event => event,
        };
        let (mut past, mut now) = (Vec::<PastMessage>::new(), 60_000_u64);
        for (n, (gap, has_tick)) in case.messages.iter().enumerate() {
            now += gap;
            let (seq, received_ms) = (10 + 2 * n as u64, WALL + now);
            let is_held = (case.at..=case.at + case.held).contains(&n);
            let next_time = |now: u64| Time::from_millis(now.saturating_add_signed(case.offset));
            if n == case.at {
                taken_over_at = now;
                record = old.in_force().filter(|storm| {
                    // Without its record, a storm that cools ends later.
                    let needs_record = storm.since_ms + case.window_ms <= WALL + now || storm.cooling_since_ms.is_some();
                    case.has_record || needs_record
                });
                next = Some(StormWatch::unknown());
            }
            if *has_tick && !is_held {
                let event = old.handle_tick(&rule, Time::from_millis(now), WALL + now).map(Seen::from);
                if let Some(next) = &mut next && n > case.at + case.held {
                    let seen = next.handle_tick(&rule, next_time(now), WALL + now).map(Seen::from);
                    prop_assert_eq!(known(seen), known(event.clone()));
                }
            }
            if n < case.at {
                past.push(PastMessage { seq, received_ms });
            }
            let started_here = old.handle_message(&rule, message(seq, received_ms, now)).map(Seen::from);
            let Some(next) = &mut next else { continue };
            let passed = message(seq, received_ms, next_time(now).as_millis());
            let event = next.handle_message(&rule, passed).map(Seen::from);
            if n == case.at + case.held {
                let since_ms = WALL + taken_over_at - 2 * case.window_ms;
                let from = past.partition_point(|it| it.received_ms <= since_ms);
                let event = next.restore(&rule, &past[from..], record, WALL + now, next_time(now));
                // It starts here unless its record tells that it has started before.
                let is_new = old.in_force().is_some() && record.is_none();
                prop_assert_eq!(event.is_some(), is_new);
                let seqs = [&*next, &old].map(|watch| watch.in_force().map(|it| (it.seq, it.since_ms)));
                prop_assert_eq!(seqs[0], seqs[1]);
            } else if n > case.at + case.held {
                prop_assert_eq!(known(event), known(started_here));
                prop_assert_eq!(next.phase(), old.phase());
            } else {
                prop_assert_eq!(next.phase(), StormPhase::Unknown);
            }
        }
    }
}
