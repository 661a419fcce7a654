//! The hub's indexes against a naive picture, and a kick in the middle of a fan-out.

use super::*;
use crate::mail::Audience;
use tidegate_protocol::{codec::PushFrame, pb};

fn hub() -> Hub {
    Hub::new(0, Arc::new(Directory::default()))
}

fn group(name: &str) -> ConversationId {
    ConversationId::parse(&format!("g:{name}")).unwrap()
}

fn push(to: &ConversationId, seq: u64) -> Delivery {
    let frame = Arc::new(PushFrame::new(&pb::ServerFrame::default()));
    Delivery {
        conversation: to.clone(),
        seq,
        audience: Audience::Members,
        frame,
        origin: None,
        tracked: false,
    }
}

/// Does all the work there is; returns (slot, seq) in the order served.
fn serve(hub: &mut Hub, budget: usize) -> Vec<(u32, u64)> {
    let mut served = Vec::new();
    while let Some(work) = hub.next_work(budget) {
        if let Work::Fan { group, run, start, end } = work {
            for index in start..end {
                let Some(slot) = hub.member(group, index) else { continue };
                served.extend(run.iter().map(|delivery| (slot, delivery.seq)));
            }
        }
    }
    served
}

#[test]
fn pushes_that_come_together_go_out_together_and_in_order() {
    let (mut hub, g) = (hub(), group("g"));
    for slot in 0..3 {
        assert!(hub.join(&g, slot));
        assert!(!hub.join(&g, slot), "joining twice changes nothing");
    }
    hub.push(push(&g, 1));
    hub.push(push(&g, 2));
    assert_eq!(serve(&mut hub, 100), [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (2, 2)]);
}

#[test]
fn a_member_who_leaves_during_a_fan_out_costs_nobody_a_push() {
    let (mut hub, g) = (hub(), group("g"));
    (0..4).for_each(|slot| assert!(hub.join(&g, slot)));
    hub.push(push(&g, 1));
    let Some(Work::Fan { start: 0, end: 2, .. }) = hub.next_work(2) else { panic!("the first slice") };
    // The last member would be swapped into the first place, which was served already.
    assert!(hub.leave(&g, 0));
    assert_eq!(serve(&mut hub, 2), [(2, 1), (3, 1)]);
    hub.push(push(&g, 2));
    let mut second = serve(&mut hub, 100);
    second.sort_unstable();
    assert_eq!(second, [(1, 2), (2, 2), (3, 2)]);
}

#[test]
fn who_joins_during_a_fan_out_gets_only_what_follows() {
    let (mut hub, g) = (hub(), group("g"));
    (0..2).for_each(|slot| assert!(hub.join(&g, slot)));
    hub.push(push(&g, 1));
    assert!(hub.next_work(1).is_some());
    assert!(hub.join(&g, 9));
    assert_eq!(serve(&mut hub, 100), [(1, 1)]);
    hub.push(push(&g, 2));
    assert_eq!(serve(&mut hub, 100).len(), 3);
}

#[test]
fn a_kick_waits_for_the_pushes_before_it_and_stops_those_after_it() {
    let (mut hub, g) = (hub(), group("g"));
    let ann = UserId::new("ann").unwrap();
    hub.add_user(&ann, 0);
    hub.join(&g, 0);
    hub.push(push(&g, 1));
    let part = Item::Part(g.clone(), Arc::new([ann.clone()]));
    assert!(hub.change(part).is_none(), "it takes its place behind the push");
    hub.push(push(&g, 2));
    let mut served = Vec::new();
    while let Some(work) = hub.next_work(100) {
        match work {
            Work::Fan { group, run, start, end } => {
                for slot in (start..end).filter_map(|index| hub.member(group, index)) {
                    served.extend(run.iter().map(|delivery| (slot, delivery.seq)));
                }
            }
            Work::Change(Item::Part(conversation, users)) => {
                for slot in users.iter().flat_map(|user| hub.slots(user).to_vec()).collect::<Vec<_>>() {
                    hub.leave(&conversation, slot);
                }
            }
            Work::Change(_) | Work::Named { .. } => panic!("only a part was queued"),
        }
    }
    assert_eq!(served, [(0, 1)]);
    assert!(hub.groups.is_empty() && hub.ids.is_empty(), "a group without members is forgotten");
    assert!(hub.directory.conversation(&g).is_empty());
}

#[test]
fn groups_take_turns() {
    let (mut hub, a, b) = (hub(), group("a"), group("b"));
    (0..4).for_each(|slot| assert!(hub.join(&a, slot)));
    assert!(hub.join(&b, 9));
    hub.push(push(&a, 1));
    hub.push(push(&b, 7));
    let served = serve(&mut hub, 2);
    let of_b = served.iter().position(|(slot, _)| *slot == 9);
    assert_eq!(of_b, Some(2), "after the first slice of a, not after all of a: {served:?}");
}

#[test]
fn removing_a_connection_leaves_no_trace_of_it() {
    let mut hub = hub();
    let users: Vec<UserId> = (0..10).map(|n| UserId::new(&format!("u{n}")).unwrap()).collect();
    for (slot, user) in users.iter().enumerate() {
        hub.add_user(user, slot as u32);
        for name in ["a", "b", "c"].iter().take(1 + slot % 3) {
            hub.join(&group(name), slot as u32);
        }
    }
    for slot in [3, 0, 9, 5, 1, 2, 8, 7, 4, 6] {
        hub.remove(&users[slot as usize], slot);
        for (_, group) in &hub.groups {
            for (position, member) in group.members.iter().enumerate() {
                let linked = hub.links[*member as usize].iter().any(|link| link.position == position as u32);
                assert!(linked, "member {member} of {} stands where its link says", group.id);
            }
        }
    }
    assert!(hub.groups.is_empty() && hub.users.is_empty() && hub.ids.is_empty());
}

#[test]
fn a_run_counts_until_its_last_member_is_served() {
    let (mut hub, g) = (hub(), group("g"));
    (0..4).for_each(|slot| assert!(hub.join(&g, slot)));
    hub.push(push(&g, 1));
    let waiting = hub.waiting;
    assert!(waiting > 0);
    assert!(hub.next_work(3).is_some());
    assert_eq!(hub.waiting, waiting, "its frame is still held");
    assert_eq!(serve(&mut hub, 100).len(), 1);
    assert_eq!(hub.waiting, 0);
}

#[test]
fn a_push_for_many_who_are_named_goes_out_in_slices_and_what_follows_it_waits() {
    let mut hub = hub();
    let id = group("x");
    hub.add_user(&UserId::new("ann").unwrap(), 1);
    hub.join(&id, 1);
    let named = |seq, count: usize| {
        let users = (0..count).map(|n| UserId::new(&format!("u{n}")).unwrap()).collect();
        Delivery { audience: Audience::Users(users), ..push(&id, seq) }
    };
    assert!(hub.push_named(named(1, NAMED_MAX)).is_some(), "a few are served at once");
    assert!(hub.push_named(named(2, 2_500)).is_none());
    assert!(hub.push_named(named(3, 1)).is_none(), "not before those that wait");
    assert!(hub.change(Item::Part(id.clone(), Arc::default())).is_none());
    hub.push(push(&id, 4));
    let mut done = Vec::new();
    while let Some(work) = hub.next_work(1_000) {
        done.push(match work {
            Work::Named { run, start, end } => (run[0].seq, start, end),
            Work::Fan { run, start, end, .. } => (run[0].seq, start, end),
            Work::Change(_) => (0, 0, 0),
        });
    }
    let expected = [(2, 0, 1_000), (2, 1_000, 2_000), (2, 2_000, 2_500), (3, 0, 1), (0, 0, 0), (4, 0, 1)];
    assert_eq!(done, expected);
    assert!(!hub.has_work() && !hub.is_full());
    assert!(hub.push_named(named(5, 1)).is_some(), "nothing waits any more");
    // Nobody of it is here.
    let elsewhere = Delivery { conversation: group("y"), ..named(1, 2_500) };
    assert!(hub.push_named(elsewhere).is_some());
}

#[test]
fn who_was_removed_is_remembered_until_it_is_taken_in_again_or_goes_and_of_the_last_groups_only() {
    let (mut hub, g) = (hub(), group("g"));
    let user = UserId::new("ann").unwrap();
    hub.add_user(&user, 3);
    assert!(hub.join(&g, 3));
    hub.leave(&g, 3);
    assert!(!hub.has_parted(&g, 3), "who leaves a room by its own wish may come back");
    hub.part(&g, 3);
    assert!(hub.has_parted(&g, 3) && !hub.has_parted(&g, 4), "also where the index did not have it");
    assert!(hub.join(&g, 3));
    hub.part(&g, 3);
    assert!(hub.has_parted(&g, 3) && !hub.is_in(&g, 3));
    hub.join(&g, 3);
    assert!(!hub.has_parted(&g, 3));
    hub.part(&g, 3);
    (1..PARTED_MAX).for_each(|n| hub.part(&group(&format!("g{n}")), 3));
    hub.part(&group("g1"), 3);
    assert!(hub.has_parted(&g, 3), "one that was there takes no further place");
    hub.part(&group("more"), 3);
    assert!(!hub.has_parted(&g, 3) && hub.has_parted(&group("g1"), 3));
    hub.remove(&user, 3);
    assert!(!hub.has_parted(&group("g1"), 3), "the place is another's from now on");
}
