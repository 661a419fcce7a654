//! Tests of the hub: indexes against their invariants, and joins, leaves and removals during a fan-out.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tidegate_protocol::{
    codec::PushFrame,
    id::{DeviceId, NodeId},
    pb,
};

use super::*;
use crate::{
    link::RoomMember,
    mail::Audience,
    room_rules::RoomRule,
    routes::{NodeBoot, Route, Token},
};

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
        class: 0,
    }
}

/// Runs all pending work; returns (slot, seq) in the order served.
fn serve(hub: &mut Hub, budget: usize) -> Vec<(u32, u64)> {
    let mut served = Vec::new();
    while let Some(work) = hub.next_work(budget) {
        if let Work::Members { group, batch, start, end, .. } = work {
            for index in start..end {
                let Some(slot) = hub.member(group, index) else { continue };
                served.extend(batch.iter().map(|delivery| (slot, delivery.seq)));
            }
        }
    }
    served
}

#[test]
fn queued_pushes_are_written_together_in_order() {
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
fn leave_during_fan_out_skips_no_other_member() {
    let (mut hub, g) = (hub(), group("g"));
    (0..4).for_each(|slot| assert!(hub.join(&g, slot)));
    hub.push(push(&g, 1));
    let Some(Work::Members { start: 0, end: 2, .. }) = hub.next_work(2) else { panic!("the first slice") };
    // A swap-remove would move the last member to the first index, which is already served.
    assert!(hub.leave(&g, 0));
    assert_eq!(serve(&mut hub, 2), [(2, 1), (3, 1)]);
    hub.push(push(&g, 2));
    let mut second = serve(&mut hub, 100);
    second.sort_unstable();
    assert_eq!(second, [(1, 2), (2, 2), (3, 2)]);
}

#[test]
fn join_during_fan_out_gets_only_later_pushes() {
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
fn removal_applies_after_earlier_and_before_later_pushes() {
    let (mut hub, g) = (hub(), group("g"));
    let ann = UserId::new("ann").unwrap();
    hub.add_user(&ann, 0);
    hub.join(&g, 0);
    hub.push(push(&g, 1));
    let part = Item::Part(g.clone(), Arc::new([ann.clone()]));
    assert!(hub.queue_change(part).is_none(), "queued after the push");
    hub.push(push(&g, 2));
    let mut served = Vec::new();
    while let Some(work) = hub.next_work(100) {
        match work {
            Work::Members { group, batch, start, end, .. } => {
                for slot in (start..end).filter_map(|index| hub.member(group, index)) {
                    served.extend(batch.iter().map(|delivery| (slot, delivery.seq)));
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
    assert!(hub.groups.is_empty() && hub.ids.is_empty(), "a group without members is removed");
    assert!(hub.directory.conversation(&g).is_empty());
}

#[test]
fn fan_outs_of_two_groups_alternate() {
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
fn removed_connections_leave_no_entry_behind() {
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
                assert!(linked, "member {member} of {} is not at the position of its link", group.id);
            }
        }
    }
    assert!(hub.groups.is_empty() && hub.users.is_empty() && hub.ids.is_empty());
}

#[test]
fn batch_bytes_count_until_the_last_member_is_served() {
    let (mut hub, g) = (hub(), group("g"));
    (0..4).for_each(|slot| assert!(hub.join(&g, slot)));
    hub.push(push(&g, 1));
    let waiting = hub.waiting_bytes;
    assert!(waiting > 0);
    assert!(hub.next_work(3).is_some());
    assert_eq!(hub.waiting_bytes, waiting, "the frame is still referenced");
    assert_eq!(serve(&mut hub, 100).len(), 1);
    assert_eq!(hub.waiting_bytes, 0);
}

#[test]
fn push_to_many_named_users_is_sliced_and_blocks_later_work() {
    let mut hub = hub();
    let id = group("x");
    hub.add_user(&UserId::new("ann").unwrap(), 1);
    hub.join(&id, 1);
    let named = |seq, count: usize| {
        let users = (0..count).map(|n| UserId::new(&format!("u{n}")).unwrap()).collect();
        Delivery { audience: Audience::Users(users), ..push(&id, seq) }
    };
    assert!(hub.push_named(named(1, NAMED_INLINE_MAX)).is_some(), "few recipients are served at once");
    assert!(hub.push_named(named(2, 2_500)).is_none());
    assert!(hub.push_named(named(3, 1)).is_none(), "queued after the waiting push");
    assert!(hub.queue_change(Item::Part(id.clone(), Arc::default())).is_none());
    hub.push(push(&id, 4));
    let mut done = Vec::new();
    while let Some(work) = hub.next_work(1_000) {
        done.push(match work {
            Work::Named { batch, start, end, .. } => (batch[0].seq, start, end),
            Work::Members { batch, start, end, .. } => (batch[0].seq, start, end),
            Work::Change(_) => (0, 0, 0),
        });
    }
    let expected = [(2, 0, 1_000), (2, 1_000, 2_000), (2, 2_000, 2_500), (3, 0, 1), (0, 0, 0), (4, 0, 1)];
    assert_eq!(done, expected);
    assert!(!hub.has_work() && !hub.is_full(&id));
    assert!(hub.push_named(named(5, 1)).is_some(), "nothing waits any longer");
    // This group has no members on the shard.
    let elsewhere = Delivery { conversation: group("y"), ..named(1, 2_500) };
    assert!(hub.push_named(elsewhere).is_some());
}

#[test]
fn removals_are_remembered_until_rejoin_close_or_overflow() {
    let (mut hub, g) = (hub(), group("g"));
    let user = UserId::new("ann").unwrap();
    hub.add_user(&user, 3);
    assert!(hub.join(&g, 3));
    hub.leave(&g, 3);
    assert!(!hub.was_removed(&g, 3), "a voluntary leave is not remembered");
    hub.remove_member(&g, 3);
    assert!(hub.was_removed(&g, 3) && !hub.was_removed(&g, 4), "also if the index did not have it");
    assert!(hub.join(&g, 3));
    hub.remove_member(&g, 3);
    assert!(hub.was_removed(&g, 3) && !hub.is_in(&g, 3));
    hub.join(&g, 3);
    assert!(!hub.was_removed(&g, 3));
    hub.remove_member(&g, 3);
    (1..REMOVED_GROUPS_MAX).for_each(|n| hub.remove_member(&group(&format!("g{n}")), 3));
    hub.remove_member(&group("g1"), 3);
    assert!(hub.was_removed(&g, 3), "a repeated removal takes no further entry");
    hub.remove_member(&group("more"), 3);
    assert!(!hub.was_removed(&g, 3) && hub.was_removed(&group("g1"), 3));
    hub.remove(&user, 3);
    assert!(!hub.was_removed(&group("g1"), 3), "the slot may belong to another connection now");
}

/// S69.
#[test]
fn s69_fan_out_counts_the_bytes_of_a_batch_and_not_only_its_members() {
    let (mut hub, hall) = (hub(), ConversationId::parse("r:hall").unwrap());
    (0..200).for_each(|slot| assert!(hub.join(&hall, slot)));
    let bytes = BATCH_PUSHES_MAX * push(&hall, 1).weight();
    (0..BATCH_PUSHES_MAX as u64).for_each(|seq| hub.push(push(&hall, seq)));
    let Some(Work::Members { start: 0, end, cost, .. }) = hub.next_work(100) else { panic!("a slice") };
    assert_eq!(cost, end * (1 + bytes / 1_024));
    assert!((1..=100).contains(&cost), "{cost} for {end} members");
    // A batch that costs more than the whole budget is served to one member at a time.
    let Some(Work::Members { start, end: next, .. }) = hub.next_work(1) else { panic!("a slice") };
    assert_eq!((start, next), (end, end + 1));
}

/// S69.
#[test]
fn s69_full_room_and_full_group_leave_others_their_share() {
    let (mut hub, g, quiet) = (hub(), group("busy"), group("quiet"));
    let rooms = ["r:hall", "r:tea"].map(|room| ConversationId::parse(room).unwrap());
    [&g, &quiet, &rooms[0], &rooms[1]].into_iter().for_each(|id| assert!(hub.join(id, 1)));
    for seq in 1..=5_000 {
        hub.push(push(&g, seq));
        if !hub.is_full(&rooms[0]) {
            hub.push(push(&rooms[0], seq));
        }
    }
    assert!(hub.is_full(&g) && hub.is_full(&rooms[0]));
    assert!(!hub.is_full(&quiet) && !hub.is_full(&rooms[1]));
    assert!(!hub.is_full_of_room_frames() && !hub.is_overfull());
    assert!(hub.waiting_bytes < GROUP_BYTES_MAX + 1_024 && hub.room_bytes < GROUP_BYTES_MAX + 1_024);
    hub.push(push(&quiet, 1));
    // One hint stands for all pushes that did not fit, after those that did, before a later change.
    assert!(hub.queue_change(Item::Part(g.clone(), Arc::default())).is_none());
    hub.push(push(&g, 5_001));
    let (mut served, mut hints) = (Vec::new(), Vec::new());
    while let Some(work) = hub.next_work(1_000) {
        match work {
            Work::Members { batch, .. } => {
                served.extend(batch.iter().filter(|it| it.conversation == g).map(|it| it.seq));
            }
            Work::Change(Item::Behind(lag)) => hints.push((served.len() as u64, lag.max_seq)),
            Work::Change(Item::Part(..)) => hints.push((0, 0)),
            Work::Change(_) | Work::Named { .. } => panic!("nothing else was queued"),
        }
    }
    let fitted = served.len() as u64;
    assert_eq!(served, (1..=fitted).collect::<Vec<_>>());
    assert_eq!(hints, [(fitted, 5_000), (0, 0), (fitted, 5_001)]);
    assert_eq!((hub.waiting_bytes, hub.room_bytes), (0, 0));
}

#[test]
fn passes_over_a_room_keep_their_distance_and_take_all_that_waits() {
    let (mut hub, g) = (hub(), group("g"));
    let rooms = ["r:hall", "r:tea"].map(|room| ConversationId::parse(room).unwrap());
    let rules = RoomRules::parse(RoomRule::default(), &["hall tick_ms=50".to_owned()]).unwrap();
    hub.set_room_rules(Arc::new(rules));
    [&g, &rooms[0], &rooms[1]].into_iter().for_each(|id| assert!(hub.join(id, 1)));
    let at = |ms| Time::from_millis(ms);
    hub.begin_turn(at(1_000));
    let mut serve_at = |ms, seqs: std::ops::Range<u64>| {
        hub.begin_turn(at(ms));
        for seq in seqs {
            [&g, &rooms[0], &rooms[1]].into_iter().for_each(|id| hub.push(push(id, seq)));
        }
        let count = serve(&mut hub, 100).len();
        (count, hub.has_work(), hub.next_pass())
    };
    assert_eq!(serve_at(1_000, 0..1), (3, false, None));
    assert_eq!(serve_at(1_001, 1..3), (4, false, Some(at(1_050))), "the group and the other room");
    assert_eq!(serve_at(1_049, 3..4), (2, false, Some(at(1_050))));
    assert_eq!(serve_at(1_050, 4..4), (3, false, None), "together");
    assert_eq!(serve_at(1_099, 4..5), (2, false, Some(at(1_100))));
    hub.leave(&rooms[0], 1);
    hub.begin_turn(at(1_100));
    serve(&mut hub, 100);
    assert!(!hub.ids.contains_key(&rooms[0]), "an empty room is closed after its last pass");
}

#[test]
fn members_that_could_not_be_counted_are_taken_again() {
    let (mut hub, hall) = (hub(), ConversationId::parse("r:hall").unwrap());
    hub.set_room_rules(Arc::new(
        RoomRules::parse(RoomRule::default(), &["hall members=1".to_owned()]).unwrap(),
    ));
    hub.join(&hall, 1);
    let counted = vec![(hall.clone(), Some(1))];
    assert_eq!((hub.take_member_changes(), hub.take_member_changes()), (counted.clone(), Vec::new()));
    hub.note_uncounted(&hall);
    assert_eq!((hub.take_member_changes(), hub.take_member_changes()), (counted, Vec::new()));
}

/// Shard with connections in slots, some of them in a room, as [`crate::shard::Shard`] keeps them.
struct Slots {
    hub: Hub,
    room: ConversationId,
    /// Routes of the connections, by slot.
    routes: BTreeMap<u32, Route>,
}

impl Slots {
    fn new() -> Self {
        Self { hub: hub(), room: ConversationId::parse("r:hall").unwrap(), routes: BTreeMap::new() }
    }

    fn join(&mut self, slot: u32, user: u32) {
        let at = NodeBoot { node: NodeId::new("n1").unwrap(), boot: 1 };
        let user = UserId::new(&format!("u{user:05}")).unwrap();
        let device = DeviceId::new("phone").unwrap();
        let route = self.routes.entry(slot).or_insert(Route { user, device, token: Token { at, epoch: 1 } });
        if self.hub.join(&self.room, slot) {
            self.hub.listings.joined(&self.room, route, slot);
        }
    }

    fn leave(&mut self, slot: u32) {
        let Some(route) = self.routes.get(&slot) else { return };
        if self.hub.leave(&self.room, slot) {
            self.hub.listings.left(&self.room, route, slot);
        }
    }

    fn close(&mut self, slot: u32) {
        let Some(route) = self.routes.remove(&slot) else { return };
        self.hub.remove(&route.user, slot);
        self.hub.listings.left(&self.room, &route, slot);
    }

    /// Asks once for a page.
    fn page(&mut self, after: Option<&RoomMember>, limit: usize, slots: u32) -> Option<Vec<RoomMember>> {
        let routes = &self.routes;
        let name = |slot| routes.get(&slot).map(RoomMember::of);
        self.hub.sorted_members(&self.room, after, limit, slots, name)
    }
}

#[test]
fn members_of_a_room_are_sorted_once_and_not_for_each_page() {
    let mut shard = Slots::new();
    // The first users are in the last slots.
    (0..1_000).for_each(|slot| shard.join(slot, 999 - slot));
    let asked = (1..).find(|_| shard.page(None, 10, 100).is_some()).unwrap();
    assert_eq!(asked, 10, "100 slots at a time");
    let (mut all, mut after) = (Vec::new(), None);
    while let Some(last) = {
        let page = shard.page(after.as_ref(), 10, 100).expect("the members are in order");
        all.extend(page.iter().map(|it| it.user.to_string()));
        page.last().cloned()
    } {
        after = Some(last);
    }
    assert_eq!(all, (0..1_000).map(|user| format!("u{user:05}")).collect::<Vec<_>>());
    shard.hub.begin_turn(Time::from_millis(40_000));
    shard.hub.listings.forget_idle(Time::from_millis(40_000));
    assert!(shard.page(None, 10, 100).is_none(), "they are sorted again after a while");
}

#[derive(Clone, Debug)]
enum RoomStep {
    Join(u32, u32),
    Leave(u32),
    Close(u32),
    Fan,
    Page,
}

fn room_step() -> impl Strategy<Value = RoomStep> {
    prop_oneof![
        4 => (0..60u32, 0..40u32).prop_map(|(slot, user)| RoomStep::Join(slot, user)),
        2 => (0..60u32).prop_map(RoomStep::Leave),
        2 => (0..60u32).prop_map(RoomStep::Close),
        1 => Just(RoomStep::Fan),
        4 => Just(RoomStep::Page),
    ]
}

proptest! {
    /// A member that stays is listed exactly once, whatever joins, leaves and closes between the pages and while the
    /// members are sorted; who is listed was a member meanwhile, and pages are in order.
    #[test]
    fn pages_list_each_member_that_stays_once(
        before in prop::collection::vec(room_step(), 0..60),
        during in prop::collection::vec(room_step(), 0..200),
        limit in 1..6usize,
        slots in 1..40u32,
    ) {
        let mut shard = Slots::new();
        let apply = |shard: &mut Slots, step: &RoomStep| match step {
            RoomStep::Join(slot, user) => shard.join(*slot, *user),
            RoomStep::Leave(slot) => shard.leave(*slot),
            RoomStep::Close(slot) => shard.close(*slot),
            RoomStep::Fan => {
                let room = shard.room.clone();
                shard.hub.push(push(&room, 1));
                drop(shard.hub.next_work(3));
            }
            RoomStep::Page => {}
        };
        let members = |shard: &Slots| -> BTreeSet<RoomMember> {
            let in_room = shard.hub.members_of(&shard.room).into_iter();
            in_room.filter_map(|slot| shard.routes.get(&slot).map(RoomMember::of)).collect()
        };
        before.iter().for_each(|step| apply(&mut shard, step));
        let (mut stayed, mut ever) = (members(&shard), members(&shard));
        let (mut listed, mut after, mut is_done): (Vec<RoomMember>, _, _) = (Vec::new(), None, false);
        let pages = during.into_iter().chain(std::iter::repeat_n(RoomStep::Page, 400));
        for step in pages {
            if is_done {
                break;
            }
            apply(&mut shard, &step);
            let now = members(&shard);
            prop_assert_eq!(shard.hub.room(&shard.room).map_or(0, |it| it.connections) as usize, shard.hub.members_of(&shard.room).len());
            stayed.retain(|it| now.contains(it));
            ever.extend(now);
            if let (RoomStep::Page, Some(page)) = (&step, shard.page(after.as_ref(), limit, slots)) {
                prop_assert!(page.len() <= limit);
                is_done = page.len() < limit;
                after = page.last().cloned().or(after);
                listed.extend(page);
            }
        }
        prop_assert!(is_done);
        prop_assert!(listed.is_sorted_by(|a, b| a < b), "{:?}", listed);
        prop_assert!(stayed.iter().all(|it| listed.contains(it)), "{stayed:?} in {listed:?}");
        prop_assert!(listed.iter().all(|it| ever.contains(it)));
    }
}

#[test]
fn rooms_are_in_order_and_those_without_members_are_left_out() {
    let mut hub = hub();
    let rooms = ["r:c", "r:a", "r:b"].map(|room| ConversationId::parse(room).unwrap());
    rooms.iter().for_each(|room| assert!(hub.join(room, 1)));
    hub.join(&group("a"), 1);
    let listed = |hub: &Hub, after: Option<&ConversationId>| -> Vec<String> {
        hub.rooms(after, 2).iter().map(|it| it.room.to_string()).collect()
    };
    assert_eq!(listed(&hub, None), ["r:a", "r:b"]);
    assert_eq!(listed(&hub, Some(&rooms[2])), ["r:c"]);
    // It has a frame, and no member.
    hub.push(push(&rooms[1], 1));
    drop(hub.next_work(1));
    hub.leave(&rooms[1], 1);
    assert_eq!(listed(&hub, None), ["r:b", "r:c"]);
    hub.leave(&rooms[2], 1);
    assert_eq!(listed(&hub, None), ["r:c"]);
}
