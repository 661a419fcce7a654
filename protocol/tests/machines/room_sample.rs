//! Tests of the sampling of a room: by example, and over random messages.

use proptest::prelude::*;
use std::collections::HashMap;
use tidegate_protocol::{
    Time,
    machine::room_sample::{RoomCandidate, RoomSampler, RoomTick},
};

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

/// Candidate with an address of its own.
fn of(class: u8, sender: u64) -> RoomCandidate {
    RoomCandidate { class, sender, address: 1_000 + sender, bytes: 100 }
}

fn sampler() -> RoomSampler<u64> {
    RoomSampler::new(1 << 20, at(0))
}

#[test]
fn room_sample_prefers_classes_then_quiet_senders_then_arrival() {
    let mut sampler = sampler();
    // 200/s for 25 ms: 1 at first, and 5.
    let messages = [(0, 1), (0, 1), (0, 1), (0, 2), (1, 3), (0, 4), (1, 3), (0, 5), (0, 6), (0, 7)];
    for (number, (class, sender)) in messages.into_iter().enumerate() {
        sampler.handle_message(of(class, sender), number as u64);
    }
    let tick = sampler.handle_tick(200, at(25));
    assert_eq!(tick, RoomTick { numbered: vec![0, 3, 4, 5, 6, 7], left_out: vec![1, 2, 8, 9] });
    assert_eq!(sampler.take_left_out(), [4, 0, 0, 0]);
    // Those that had units in this second come last.
    for (number, sender) in [1, 2, 8, 9].into_iter().enumerate() {
        sampler.handle_message(of(0, sender), number as u64);
    }
    assert_eq!(sampler.handle_tick(200, at(35)).numbered, [2, 3]);
    for (number, sender) in [1, 8, 9].into_iter().enumerate() {
        sampler.handle_message(of(0, sender), number as u64);
    }
    assert_eq!(sampler.handle_tick(200, at(3_000)).numbered, [0, 1, 2], "seconds later");
}

#[test]
fn room_sample_gives_important_messages_a_budget_of_their_own() {
    let mut sampler = sampler();
    for number in 0..30 {
        sampler.handle_message(of(if number < 10 { 0 } else { 2 }, number), number);
    }
    // 1 at first and 10 for all, as many for the important ones, which are first in both.
    let tick = sampler.handle_tick(100, at(100));
    assert_eq!(tick.numbered, (0..2).chain(10..30).collect::<Vec<_>>());
    (0..30)
        .for_each(|number| drop(sampler.handle_message(of(if number < 20 { 0 } else { 3 }, number), number)));
    let tick = sampler.handle_tick(100, at(200));
    assert_eq!(tick.numbered, (0..10).chain(20..30).collect::<Vec<_>>());
}

#[test]
fn room_sample_gives_an_address_a_quarter_while_others_wait() {
    let mut sampler = sampler();
    for number in 0..40 {
        let address = if number < 30 { 1 } else { 2 + number };
        sampler.handle_message(RoomCandidate { address, ..of(0, number) }, number);
    }
    let tick = sampler.handle_tick(80, at(100));
    assert_eq!(tick.numbered, [0, 1, 2, 30, 31, 32, 33, 34, 35], "three of nine");
    (0..40)
        .for_each(|number| drop(sampler.handle_message(RoomCandidate { address: 1, ..of(0, 99) }, number)));
    assert_eq!(sampler.handle_tick(80, at(200)).numbered.len(), 8, "no other waits");
}

#[test]
fn room_sample_holds_a_bounded_number_of_bytes() {
    let mut sampler = RoomSampler::new(450, at(0));
    let dropped: Vec<Vec<u64>> = [1, 0, 2, 0, 0, 3]
        .into_iter()
        .enumerate()
        .map(|(number, class)| sampler.handle_message(of(class, number as u64), number as u64))
        .collect();
    assert_eq!(dropped, [vec![], vec![], vec![], vec![], vec![4], vec![3]], "the last of the lowest class");
    assert_eq!(sampler.take_left_out(), [2, 0, 0, 0]);
    assert_eq!(sampler.handle_message(RoomCandidate { bytes: 9_000, ..of(3, 9) }, 9), [9], "too large");
    assert_eq!(sampler.handle_tick(10, at(0)).numbered, [2, 5]);
    assert!(
        sampler.handle_message(RoomCandidate { bytes: 9_000, ..of(0, 9) }, 9).is_empty(),
        "one always fits"
    );
}

#[test]
fn room_sample_takes_what_the_budget_suffices_for_at_once() {
    let mut sampler = sampler();
    sampler.fill(10);
    (0..10).for_each(|number| drop(sampler.handle_message(of(0, number), number)));
    assert_eq!(sampler.poll_ready(10, at(0)), (0..10).collect::<Vec<_>>());
    assert_eq!((sampler.len(), sampler.bytes()), (0, 0));
    // Used up: important messages pass, but not before earlier ones of their sender.
    for (number, (class, sender)) in [(0, 1), (2, 2), (2, 1), (3, 3), (0, 4)].into_iter().enumerate() {
        sampler.handle_message(of(class, sender), number as u64);
    }
    assert_eq!(sampler.poll_ready(10, at(10)), [1, 3]);
    assert_eq!((sampler.len(), sampler.bytes()), (3, 300));
    assert_eq!(sampler.handle_tick(10, at(110)), RoomTick { numbered: vec![0, 2], left_out: vec![4] });
}

#[test]
fn room_sample_counts_what_others_have_numbered() {
    let mut sampler = sampler();
    sampler.fill(100);
    sampler.handle_others(150, 100);
    for number in 0..40 {
        sampler.handle_message(of(0, number), number);
    }
    assert_eq!(sampler.handle_tick(100, at(500)).numbered.len(), 0, "a half second in advance");
    (0..40).for_each(|number| drop(sampler.handle_message(of(0, number), number)));
    assert_eq!(sampler.handle_tick(100, at(600)).numbered.len(), 10);
    sampler.handle_others(u64::MAX, 100);
    (0..40).for_each(|number| drop(sampler.handle_message(of(2, number), number)));
    assert_eq!(sampler.poll_ready(100, at(600)).len(), 40, "important ones have their own budget");
    (0..40).for_each(|number| drop(sampler.handle_message(of(0, number), number)));
    assert_eq!(sampler.handle_tick(100, at(1_700)).numbered.len(), 10, "at most a second in advance");
    assert!(!sampler.is_idle(100, at(4_699)) && sampler.is_idle(100, at(4_700)));
}

#[test]
fn samplers_of_one_room_share_its_rate() {
    let mut samplers = [(); 4].map(|()| sampler());
    let (mut next, mut seen, mut first_second) = (0_u64, [0_u64; 4], 0);
    for ms in 0..60_000 {
        if ms == 1_000 {
            first_second = next;
        }
        for (nth, sampler) in samplers.iter_mut().enumerate() {
            sampler.handle_message(of(0, nth as u64), ms);
            let mut numbered = sampler.poll_ready(200, at(ms)).len() as u64;
            if ms % 50 == 49 - nth as u64 {
                numbered += sampler.handle_tick(200, at(ms)).numbered.len() as u64;
            }
            if numbered > 0 {
                sampler.handle_others(next - seen[nth], 200);
                next += numbered;
                seen[nth] = next;
            }
        }
    }
    let per_second = (next - first_second) / 59;
    assert!((180..=204).contains(&per_second), "{per_second}");
}

/// Bursts at several samplers at once exceed the rate by one burst of each, over any time.
#[test]
fn samplers_of_one_room_owe_what_bursts_exceed_the_rate_by() {
    const SAMPLERS: u64 = 8;
    const RATE: u64 = 100;
    let mut samplers = [(); SAMPLERS as usize].map(|()| sampler());
    samplers.iter_mut().for_each(|sampler| sampler.fill(RATE as u32));
    let (mut next, mut seen) = (0, [0; SAMPLERS as usize]);
    for second in (0..120).step_by(3) {
        // All choose before one knows of the others.
        let numbered = samplers.each_mut().map(|sampler| {
            (0..3 * RATE).for_each(|number| drop(sampler.handle_message(of(0, number), number)));
            sampler.handle_tick(RATE as u32, at(second * 1_000)).numbered.len() as u64
        });
        for (nth, numbered) in numbered.into_iter().enumerate() {
            if numbered > 0 {
                samplers[nth].handle_others(next - seen[nth], RATE as u32);
                next += numbered;
                seen[nth] = next;
            }
        }
        // The others that follow in the numbers are counted with the next messages, here at once.
        for (sampler, seen) in samplers.iter_mut().zip(&mut seen) {
            sampler.handle_others(next - *seen, RATE as u32);
            *seen = next;
        }
        assert!(next <= RATE * second + SAMPLERS * RATE, "{next} after {second} s");
        assert!(second > 0 || !samplers[0].is_idle(RATE as u32, at(5_000)), "a new one would owe nothing");
    }
    assert!(next >= RATE * 90, "{next}: the rate is used");
}

#[test]
fn quiet_sampler_owes_nothing_for_the_ordinary_traffic_of_others() {
    let mut sampler = sampler();
    sampler.fill(100);
    sampler.handle_message(of(0, 1), 0);
    assert_eq!(sampler.poll_ready(100, at(0)).len(), 1);
    let mut take_at = |ms, others| {
        sampler.handle_message(of(0, 1), 0);
        let count = sampler.handle_tick(100, at(ms)).numbered.len();
        sampler.handle_others(others, 100);
        count
    };
    // Others number half of the rate for ten seconds, then all of it, then more.
    assert_eq!((take_at(10_000, 500), take_at(10_010, 0)), (1, 1));
    assert_eq!((take_at(20_000, 999), take_at(20_010, 0)), (1, 1));
    assert_eq!((take_at(30_000, 1_100), take_at(30_010, 0)), (1, 0));
}

#[test]
fn room_sample_leaves_too_many_important_messages_to_the_choice() {
    let mut sampler = sampler();
    sampler.fill(10);
    for number in 0..15 {
        sampler.handle_message(of(if number < 12 { 2 } else { 3 }, number), number);
    }
    assert!(sampler.poll_ready(10, at(0)).is_empty(), "not by arrival");
    let tick = sampler.handle_tick(5, at(0));
    let expected: Vec<u64> = (0..7).chain(12..15).collect();
    assert_eq!(tick.numbered, expected, "by class: 5 of each budget");
}

#[test]
fn room_sample_forgets_senders_of_earlier_seconds() {
    let mut sampler = sampler();
    sampler.fill(400);
    for second in 0..5 {
        for number in 0..100 {
            sampler.handle_message(of(0, second * 100 + number), number);
        }
        assert_eq!(sampler.poll_ready(400, at(second * 1_000)).len(), 100);
        assert!(sampler.senders() <= 200, "{}", sampler.senders());
    }
}

proptest! {
    /// Every message is numbered or left out once; the rate holds over all time; a message is left out only if the budget is
    /// used up, and never while one of a lower class is numbered that is not important, except for the quarter of its address.
    #[test]
    fn room_sample_keeps_its_rate(
        ticks in prop::collection::vec((1_u64..300, prop::collection::vec((0_u8..4, 0_u64..6, 0_u64..4), 0..60)), 1..40),
        rate in 1_u32..400,
    ) {
        let (mut sampler, mut now, mut number) = (sampler(), 0, 0_u64);
        let (mut all, mut important) = (0_u64, 0_u64);
        for (passed, messages) in ticks {
            now += passed;
            let mut of_number = HashMap::new();
            for (class, sender, address) in messages {
                number += 1;
                of_number.insert(number, class);
                let dropped = sampler.handle_message(RoomCandidate { address, ..of(class, sender) }, number);
                prop_assert_eq!(dropped, Vec::<u64>::new());
            }
            let RoomTick { numbered, left_out } = sampler.handle_tick(rate, at(now));
            prop_assert_eq!(numbered.len() + left_out.len(), of_number.len());
            prop_assert!(numbered.is_sorted() && left_out.is_sorted());
            prop_assert!(numbered.iter().chain(&left_out).all(|number| of_number.contains_key(number)));
            all += numbered.len() as u64;
            important += numbered.iter().filter(|number| of_number[number] >= 2).count() as u64;
            let most = 1 + u64::from(rate) * now / 1_000;
            prop_assert!(all <= 2 * most && all - important <= most, "{} of {}", all, most);
            if !left_out.is_empty() {
                let of_tick = (u64::from(rate) * passed.min(100) / 1_000) as usize;
                prop_assert!(numbered.len() >= of_tick, "{} of {}", numbered.len(), of_tick);
            }
        }
    }
}
