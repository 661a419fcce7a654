//! Tests of the number of members of a room: by example, and against a naive model.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tidegate_protocol::{
    Time,
    machine::room_members::{
        MEMBERS_EXPIRY, MEMBERS_INTERVAL, MEMBERS_REPEAT_INTERVAL, MEMBERS_RUNS_MAX, RoomMembers,
    },
};

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

#[test]
fn members_are_framed_at_one_percent_and_at_most_each_two_seconds() {
    let mut room = RoomMembers::default();
    assert_eq!(room.poll_frame(at(0)), None, "no members");
    room.set_own(1_000);
    assert_eq!((room.poll_frame(at(0)), room.poll_frame(at(1_999))), (None, None), "the first one waits");
    assert_eq!(room.poll_frame(at(2_000)), Some(1_000));
    room.set_own(2_000);
    assert_eq!(room.poll_frame(at(3_999)), None, "too early");
    room.set_own(1_009);
    assert_eq!(room.poll_frame(at(4_000)), None, "less than 1 %");
    room.set_own(1_010);
    assert_eq!(room.poll_frame(at(4_000)), Some(1_010));
    room.set_own(3);
    assert_eq!(room.poll_frame(at(6_000)), Some(3));
    room.set_own(4);
    assert_eq!(room.poll_frame(at(8_000)), Some(4), "one of a few is more than 1 %");
    assert_eq!((room.poll_frame(at(60_000)), room.framed()), (None, Some(4)), "no change");
}

#[test]
fn members_of_other_runs_count_until_they_leave_or_expire() {
    let mut room = RoomMembers::default();
    room.set_own(1);
    assert_eq!(room.poll_frame(at(0)), None);
    assert!(room.handle_exchange(7, 5, at(0)) && room.handle_exchange(8, 3, at(1_000)), "new ones");
    assert!(!room.handle_exchange(7, 5, at(0)));
    assert_eq!(room.poll_frame(at(2_000)), Some(9));
    room.handle_exchange(8, 0, at(2_000));
    assert_eq!(room.poll_frame(at(4_000)), Some(6));
    let expiry = MEMBERS_EXPIRY.as_millis() as u64;
    assert_eq!(room.poll_frame(at(expiry - 1)), None);
    assert_eq!(room.poll_frame(at(expiry)), Some(1), "the run has crashed");
    for run in 0..MEMBERS_RUNS_MAX as u64 + 10 {
        room.handle_exchange(run, 1, at(expiry + run));
    }
    assert_eq!(room.total(at(expiry + 200)), 1 + MEMBERS_RUNS_MAX as u64);
    assert!(!room.handle_exchange(0, 5, at(expiry + 200)));
    assert_eq!(room.total(at(expiry + 200)), 5 + MEMBERS_RUNS_MAX as u64, "a live run keeps its place");
    assert!(room.handle_exchange(9_999, 1, at(2 * expiry + 1)), "in the place of one that has expired");
}

#[test]
fn members_are_exchanged_on_change_and_repeated() {
    let mut room = RoomMembers::default();
    assert_eq!(room.poll_exchange(at(0)), None);
    room.set_own(10);
    assert_eq!((room.poll_exchange(at(0)), room.poll_exchange(at(1))), (Some(10), None));
    room.set_own(11);
    assert_eq!((room.poll_exchange(at(1_999)), room.poll_exchange(at(2_000))), (None, Some(11)));
    assert_eq!((room.poll_exchange(at(11_999)), room.poll_exchange(at(12_000))), (None, Some(11)), "repeat");
    room.handle_exchange(7, 1, at(12_001));
    assert_eq!(
        (room.poll_exchange(at(13_999)), room.poll_exchange(at(14_000))),
        (None, Some(11)),
        "a new run"
    );
    room.set_own(0);
    assert_eq!(room.poll_exchange(at(16_000)), Some(0));
    assert_eq!(room.poll_exchange(at(100_000)), None, "an empty room is not repeated");
}

proptest! {
    /// Frames against the history of all inputs: each is exact as of the exchanges that arrived, and one is left out only
    /// because it is too early or too close to the last one.
    #[test]
    fn members_match_a_naive_model(
        steps in prop::collection::vec((0_u8..4, 0_u64..5, 0_u64..400, 0_u64..4_000), 1..200),
    ) {
        let mut room = RoomMembers::default();
        let (mut own, mut others, mut now) = (0, BTreeMap::<u64, (u64, u64)>::new(), 0);
        let (mut framed, mut exchanged) = (None::<(u64, u64)>, None::<(u64, u64)>);
        let (mut began, mut is_new) = (None, false);
        let ms = |it: std::time::Duration| it.as_millis() as u64;
        let is_far = |a: u64, b: u64| a != b && a.abs_diff(b) as f64 >= b as f64 / 100.0;
        for (action, run, members, pause) in steps {
            now += pause;
            match action {
                0 => {
                    own = members;
                    room.set_own(members);
                }
                1 => {
                    // An expired run is forgotten with the next poll.
                    let known = others.insert(run, (members, now)).is_some_and(|(members, _)| members > 0);
                    prop_assert_eq!(room.handle_exchange(run, members, at(now)), !known && members > 0);
                    is_new |= !known && members > 0;
                }
                2 => {
                    others.retain(|_, (_, at)| now < *at + ms(MEMBERS_EXPIRY));
                    let total = own + others.values().map(|(members, _)| members).sum::<u64>();
                    let is_due = match framed {
                        None => total > 0 && now >= *began.get_or_insert(now) + ms(MEMBERS_INTERVAL),
                        Some((last, at)) => now >= at + ms(MEMBERS_INTERVAL) && is_far(total, last),
                    };
                    prop_assert_eq!(room.poll_frame(at(now)), is_due.then_some(total));
                    framed = if is_due { Some((total, now)) } else { framed };
                }
                _ => {
                    let is_due = match exchanged {
                        None => own > 0,
                        Some((last, at)) => {
                            now >= at + ms(MEMBERS_INTERVAL) && (is_far(own, last) || own > 0 && is_new)
                                || own > 0 && now >= at + ms(MEMBERS_REPEAT_INTERVAL)
                        }
                    };
                    prop_assert_eq!(room.poll_exchange(at(now)), is_due.then_some(own));
                    exchanged = if is_due { Some((own, now)) } else { exchanged };
                    is_new &= !is_due;
                }
            }
        }
    }
}
