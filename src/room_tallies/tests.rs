//! Tests of the tallies of a node.

use tidegate_protocol::{id::UserId, machine::reactions::ReactionExchange};

use super::*;

fn room(name: &str) -> ConversationId {
    ConversationId::parse(&format!("r:{name}")).unwrap()
}

fn kind(name: &str) -> ReactionKind {
    ReactionKind::new(name).unwrap()
}

/// Counts a reaction of a user.
fn react(
    tallies: &RoomTallies,
    user: &str,
    room: &ConversationId,
    name: &str,
) -> Result<(), ReactionRefusal> {
    tallies.react(room, kind(name), &UserId::new(user).unwrap())
}

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

/// Polls with all rooms occupied, and returns what is due for the hall.
fn poll(tallies: &RoomTallies, ms: u64) -> (Option<pb::RoomStats>, Option<RoomTallyReport>) {
    tallies.poll(at(ms), |_| true).pop().map_or((None, None), |due| (due.stats, due.report))
}

#[test]
fn members_of_all_shards_and_nodes_are_summed() {
    let (here, there, hall) = (RoomTallies::default(), RoomTallies::default(), room("hall"));
    for (shard, members) in [(0, 3), (1, 4), (0, 5)] {
        here.set_members(&hall, shard, Some(members));
    }
    there.set_members(&hall, 0, Some(20));
    let (stats, report) = poll(&here, 0);
    assert_eq!((stats, report.as_ref().unwrap().members), (None, Some(9)), "the first frame waits");
    there.handle_report(&hall, &report.unwrap(), at(0));
    // A node that is new to another one gets its numbers.
    let (_, answer) = poll(&there, 1);
    here.handle_report(&hall, &answer.unwrap(), at(1));
    assert_eq!(poll(&here, 2_000).0.unwrap().members, Some(29));
    assert_eq!(here.latest(&hall).unwrap().members, Some(29));
    let due = there.poll(at(2_000), |_| false).pop().unwrap();
    here.handle_report(&hall, due.report.as_ref().unwrap(), at(2_000));
    assert_eq!(poll(&here, 4_000).0.unwrap().members, Some(9), "the other node has none left");
    assert_eq!(there.rooms.len() + there.count.load(Ordering::Relaxed), 0);
    here.set_members(&hall, 1, None);
    assert_eq!(poll(&here, 6_000).0.unwrap().members, Some(5), "one shard counts them still");
    here.set_members(&hall, 0, None);
    assert_eq!((poll(&here, 60_000), here.latest(&hall)), ((None, None), None), "no longer counted");
}

#[test]
fn reactions_of_two_nodes_are_summed_and_survive_an_empty_room() {
    let (here, there, hall) = (RoomTallies::default(), RoomTallies::default(), room("hall"));
    react(&here, "ann", &hall, "like").unwrap();
    let first = poll(&here, 0).0.unwrap();
    assert_eq!((first.reactions[0].sum, first.reactions[0].total), (1, 1));
    for ms in [20_000, 40_000] {
        (0..3).for_each(|_| react(&there, "ann", &hall, "like").unwrap());
        let due = there.poll(at(ms), |_| false).pop().unwrap();
        assert_eq!(due.report.as_ref().unwrap().reactions.counts[0].count, 3, "a run of its own");
        here.handle_report(&hall, due.report.as_ref().unwrap(), at(ms));
    }
    let second = poll(&here, 40_000).0.unwrap();
    assert_eq!((second.reactions[0].sum, second.reactions[0].total), (6, 7));
    assert_eq!(here.latest(&hall).unwrap().reactions[0].total, 7);
}

#[test]
fn frames_are_a_second_apart_and_repeated_if_a_shard_is_full() {
    let (tallies, hall) = (RoomTallies::default(), room("hall"));
    tallies.set_members(&hall, 0, Some(1));
    assert_eq!(poll(&tallies, 0).0, None);
    react(&tallies, "ann", &hall, "like").unwrap();
    assert!(poll(&tallies, 1_500).0.is_some());
    assert_eq!(poll(&tallies, 2_499).0, None, "the members wait for the second");
    assert_eq!(poll(&tallies, 2_500).0.unwrap().members, Some(1));
    tallies.note_unposted(&hall);
    assert_eq!(poll(&tallies, 3_000).0, None);
    assert_eq!(poll(&tallies, 3_500).0, tallies.latest(&hall));
    assert_eq!(poll(&tallies, 4_500).0, None, "once");
}

#[test]
fn tallies_are_bounded_in_rooms_and_kinds() {
    let tallies = RoomTallies::new(2);
    let is_counted = |name| tallies.set_members(&room(name), 0, Some(1));
    assert_eq!(["a", "b", "c"].map(is_counted), [true, true, false]);
    assert!(tallies.set_members(&room("c"), 0, Some(0)) && tallies.set_members(&room("c"), 0, None));
    assert_eq!(tallies.rooms.len(), 2);
    assert_eq!(react(&tallies, "ann", &room("c"), "like"), Err(ReactionRefusal::TooManyRooms));
    for n in 0..16 {
        react(&tallies, "ann", &room("a"), &format!("k{n}")).unwrap();
    }
    assert_eq!(react(&tallies, "ann", &room("a"), "like"), Err(ReactionRefusal::TooManyKinds));
    tallies.poll(at(0), |it| *it == room("b"));
    assert_eq!(react(&tallies, "ann", &room("c"), "like"), Ok(()), "room a is over");
    assert_eq!(tallies.reacting.load(Ordering::Relaxed), 1);
}

#[test]
fn reports_of_other_nodes_are_bounded_in_kinds() {
    let (tallies, hall) = (RoomTallies { entries_max: 4, ..RoomTallies::default() }, room("hall"));
    let report = |run, kinds: &[&str], is_last| {
        let counts = kinds.iter().map(|name| ReactionCount { kind: kind(name), count: 1 }).collect();
        let reactions = ReactionExchange { counts, is_first: true, is_last };
        tallies.handle_report(&hall, &RoomTallyReport { run, members: None, reactions }, at(0))
    };
    assert_eq!((report(1, &["a", "b", "c"], false), report(2, &["a", "b"], false)), (0, 2));
    assert_eq!(report(1, &["a", "b", "c"], true), 0);
    assert_eq!((tallies.entries.load(Ordering::Relaxed), report(2, &["a", "b"], false)), (0, 0));
    let listed = RoomRules::default().with_reactions(&["a".to_owned()]).unwrap();
    tallies.follow_rules(Arc::new(Live::new(listed)));
    assert_eq!(report(3, &["a", "x"], false), 1, "one is not listed");
    tallies.poll(at(0), |_| false);
    assert_eq!(tallies.entries.load(Ordering::Relaxed), 0);
}

#[test]
fn member_that_joins_gets_totals_of_the_last_frame() {
    let (tallies, hall) = (RoomTallies::default(), room("hall"));
    let like = || react(&tallies, "ann", &hall, "like").unwrap();
    like();
    assert_eq!(tallies.latest(&hall), None, "no frame yet");
    assert!(poll(&tallies, 0).0.is_some());
    like();
    assert_eq!(tallies.latest(&hall).unwrap().reactions[0].total, 1);
    let next = poll(&tallies, 1_000).0.unwrap();
    assert_eq!((next.reactions[0].sum, next.reactions[0].total), (1, 2));
}

#[test]
fn user_begins_reactions_in_a_bounded_number_of_rooms() {
    let tallies = RoomTallies::default();
    let (own, hall) = (|n: u32| room(&format!("own-{n}")), room("hall"));
    (0..USER_ROOMS_MAX).for_each(|n| react(&tallies, "ann", &own(n), "like").unwrap());
    for n in USER_ROOMS_MAX..100 {
        assert_eq!(react(&tallies, "ann", &own(n), "like"), Err(ReactionRefusal::TooManyRoomsOfUser));
    }
    assert_eq!(tallies.rooms.len(), USER_ROOMS_MAX as usize, "refused ones take no place");
    tallies.set_members(&own(99), 0, Some(1));
    assert_eq!(react(&tallies, "ann", &own(99), "like"), Err(ReactionRefusal::TooManyRoomsOfUser), "counted");
    react(&tallies, "ann", &own(0), "heart").unwrap();
    react(&tallies, "bob", &hall, "like").unwrap();
    assert_eq!(react(&tallies, "ann", &hall, "like"), Ok(()), "others have begun");
    tallies.poll(at(0), |it| *it != own(7));
    assert_eq!(react(&tallies, "ann", &own(40), "like"), Ok(()), "a room has ended");
    assert_eq!(react(&tallies, "ann", &own(41), "like"), Err(ReactionRefusal::TooManyRoomsOfUser));
    tallies.poll(at(0), |it| *it == hall);
    assert_eq!(*tallies.begun.lock(), [(UserId::new("bob").unwrap(), 1)].into_iter().collect());
}

#[test]
fn one_user_does_not_use_up_the_rooms_of_a_node() {
    let tallies = RoomTallies::default();
    // As many as 41 connections of one user can be in.
    let refused =
        (0..4_100).filter(|n| react(&tallies, "eve", &room(&format!("r{n}")), "x").is_err()).count();
    assert_eq!(refused, 4_100 - USER_ROOMS_MAX as usize);
    for n in 0..1_000 {
        react(&tallies, &format!("u{n}"), &room(&format!("of-{n}")), "like").unwrap();
    }
}

#[test]
fn reactions_of_another_node_are_begun_by_no_user() {
    let (tallies, hall) = (RoomTallies::default(), room("hall"));
    let counts = vec![ReactionCount { kind: kind("like"), count: 3 }];
    let reactions = ReactionExchange { counts, is_first: true, is_last: false };
    tallies.handle_report(&hall, &RoomTallyReport { run: 1, members: None, reactions }, at(0));
    react(&tallies, "ann", &hall, "like").unwrap();
    assert!(tallies.begun.lock().is_empty());
}
