//! Tests of reactions: by example, and with exchanges that are lost, doubled and out of order.

use proptest::prelude::*;
use tidegate_protocol::{
    Time,
    machine::reactions::{
        HISTORY_SPAN, REACTION_KINDS_MAX, REACTION_RUNS_MAX, REPEAT_INTERVAL, RUN_EXPIRY, ReactionCount,
        ReactionExchange, ReactionKind, ReactionSum, RoomReactions,
    },
};

fn kind(n: u32) -> ReactionKind {
    ReactionKind::new(&format!("k{n}")).unwrap()
}

/// Exchange with one kind, which is not the first of its run.
fn exchange(n: u32, count: u64) -> ReactionExchange {
    let counts = vec![ReactionCount { kind: kind(n), count }];
    ReactionExchange { counts, ..ReactionExchange::default() }
}

#[test]
fn reaction_kinds_are_short_and_printable() {
    for name in ["like", "\u{2764}\u{fe0f}", "sixteen-bytes-ok", "+1"] {
        assert_eq!(ReactionKind::new(name).unwrap().as_str(), name);
    }
    for name in ["", "seventeen-bytes-x", "a b", "a\n", "\u{7f}", "\u{a0}"] {
        assert_eq!(ReactionKind::new(name), None, "{name:?}");
    }
}

#[test]
fn reactions_of_before_are_in_totals_and_in_no_sum() {
    let mut room = RoomReactions::default();
    let of = |count| exchange(7, count);
    let sums = |sum, total| Some(vec![ReactionSum { kind: kind(7), sum, total }]);
    room.handle_reaction(kind(7));
    assert_eq!(room.poll_frame(at(0)), sums(1, 1));
    room.handle_exchange(1, &of(1_000), at(1_000));
    assert_eq!(room.poll_frame(at(1_000)), sums(0, 1_001), "history");
    room.handle_exchange(1, &of(1_005), at(2_000));
    assert_eq!(room.poll_frame(at(2_000)), sums(5, 1_006));
    let later = HISTORY_SPAN.as_millis() as u64;
    room.handle_exchange(2, &of(3), at(later));
    assert_eq!(room.poll_frame(at(later)), sums(3, 1_009), "a run that begins");
}

#[test]
fn first_exchange_of_a_run_is_in_a_sum() {
    let (mut here, mut there) = (RoomReactions::default(), RoomReactions::default());
    there.handle_reaction(kind(7));
    let first = there.poll_exchange(at(0)).unwrap();
    here.handle_exchange(1, &first, at(0));
    assert_eq!(here.poll_frame(at(0)), Some(vec![ReactionSum { kind: kind(7), sum: 1, total: 1 }]));
    there.handle_reaction(kind(7));
    let later = there.poll_exchange(at(1_000)).unwrap();
    assert_eq!([first.is_first, later.is_first, later.is_last], [true, false, false]);
    let last = there.last_exchange();
    assert!(last.is_last && !last.is_first && last.counts == later.counts);
}

#[test]
fn run_that_repeats_is_not_replaced_by_runs_that_come_and_go() {
    let mut room = RoomReactions::default();
    let of = |is_last| ReactionExchange { is_first: true, is_last, ..exchange(0, 10) };
    let repeat = REPEAT_INTERVAL.as_millis() as u64;
    let mut total = 0;
    for round in 0..20 {
        room.handle_exchange(0, &exchange(0, 7), at(round * repeat));
        for run in 1..=REACTION_RUNS_MAX as u64 {
            room.handle_exchange(1_000 * round + run, &of(true), at(round * repeat));
            total += 10;
        }
    }
    assert_eq!((room.totals()[0].count, room.entries()), (total + 7, 1), "ended runs keep no kinds");
    // Runs that are live keep their places; one that is silent for long does not.
    (1..REACTION_RUNS_MAX as u64).for_each(|run| {
        room.handle_exchange(100_000 + run, &of(false), at(20 * repeat));
    });
    let before = room.totals();
    assert_eq!((room.handle_exchange(999_999, &of(false), at(20 * repeat)), room.totals()), (1, before));
    let later = at(20 * repeat) + RUN_EXPIRY;
    assert_eq!(room.handle_exchange(999_999, &of(false), later), 0);
}

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

#[test]
fn reactions_are_sums_of_a_second_with_totals() {
    let mut room = RoomReactions::default();
    assert_eq!(room.poll_frame(at(0)), None);
    (0..3).for_each(|_| assert!(room.handle_reaction(kind(7))));
    assert!(room.handle_reaction(kind(1)));
    let sums = |n, sum, total| ReactionSum { kind: kind(n), sum, total };
    assert_eq!(room.poll_frame(at(0)), Some(vec![sums(7, 3, 3), sums(1, 1, 1)]));
    room.handle_reaction(kind(7));
    assert_eq!(room.poll_frame(at(999)), None);
    assert_eq!(room.poll_frame(at(1_000)), Some(vec![sums(7, 1, 4)]));
    assert_eq!(room.poll_frame(at(5_000)), None, "nothing changed");
    assert_eq!(room.totals().len(), 2);
}

#[test]
fn reactions_exchange_news_each_second_and_repeat_them() {
    let mut room = RoomReactions::default();
    assert_eq!(room.poll_exchange(at(0)), None);
    room.handle_reaction(kind(7));
    let counts = |count| Some(exchange(7, count));
    let first = Some(ReactionExchange { is_first: true, ..exchange(7, 1) });
    assert_eq!(room.poll_exchange(at(0)), first);
    room.handle_reaction(kind(7));
    assert_eq!(room.poll_exchange(at(999)), None);
    assert_eq!(room.poll_exchange(at(1_000)), counts(2));
    assert_eq!(room.poll_exchange(at(10_999)), None);
    assert_eq!(room.poll_exchange(at(11_000)), counts(2), "a repeat");
    room.spread_repeats(6_500);
    assert_eq!((room.poll_exchange(at(20_499)), room.poll_exchange(at(20_500))), (None, counts(2)));
}

#[test]
fn reactions_have_bounds_in_kinds_and_runs() {
    let mut room = RoomReactions::default();
    for n in 0..REACTION_KINDS_MAX as u32 {
        assert!(room.handle_reaction(kind(n)));
    }
    assert!(!room.handle_reaction(kind(99)));
    assert_eq!(room.handle_exchange(1, &exchange(99, 5), at(0)), 1);
    for run in 0..REACTION_RUNS_MAX as u64 + 40 {
        let last = ReactionExchange { is_last: true, ..exchange(0, 10) };
        assert_eq!(room.handle_exchange(run, &last, at(run)), 0);
    }
    assert_eq!(room.totals()[0].count, 1 + 10 * (REACTION_RUNS_MAX as u64 + 40), "totals never fall");
}

proptest! {
    /// Three nodes; exchanges are lost, doubled and delivered in any order. Totals never fall and never exceed the truth, and
    /// are exact once one later exchange of each node has arrived.
    #[test]
    fn reactions_are_only_late_with_lost_exchanges(
        steps in prop::collection::vec((0_usize..3, 0_u32..5, 0_u8..6, any::<prop::sample::Index>()), 1..200),
    ) {
        let mut rooms: [RoomReactions; 3] = Default::default();
        let (mut sent, mut truth, mut now) = (Vec::<(usize, ReactionExchange)>::new(), [0_u64; 5], 0);
        let number = |it: ReactionKind| it.as_str()[1..].parse::<usize>().unwrap();
        for (node, which_kind, action, which) in steps {
            now += 400;
            match action {
                0..=2 => {
                    rooms[node].handle_reaction(kind(which_kind));
                    truth[which_kind as usize] += 1;
                }
                3 => sent.extend(rooms[node].poll_exchange(at(now)).map(|counts| (node, counts))),
                _ if !sent.is_empty() => {
                    // Not removed: it may arrive again.
                    let (from, counts) = which.get(&sent).clone();
                    let before = rooms[node].totals();
                    if from != node {
                        rooms[node].handle_exchange(from as u64, &counts, at(now));
                    }
                    for (old, new) in before.iter().zip(rooms[node].totals()) {
                        prop_assert!(new.count >= old.count && new.count <= truth[number(new.kind)]);
                    }
                }
                _ => {}
            }
        }
        let last: Vec<_> = rooms.iter_mut().map(|room| room.poll_exchange(at(now + 10_000))).collect();
        for (node, room) in rooms.iter_mut().enumerate() {
            for (from, counts) in last.iter().enumerate().filter(|(from, _)| *from != node) {
                room.handle_exchange(from as u64, &counts.clone().unwrap_or_default(), at(now));
            }
            for total in room.totals() {
                prop_assert_eq!(total.count, truth[number(total.kind)]);
            }
            let framed = room.poll_frame(at(now + 10_000)).unwrap_or_default();
            prop_assert!(framed.iter().all(|it| it.sum <= it.total && it.total == truth[number(it.kind)]));
        }
    }
}
