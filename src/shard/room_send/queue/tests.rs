//! Tests of the messages that wait for their numbers: at the limits, and of what is reported and forgotten.

use std::net::Ipv4Addr;

use tidegate_protocol::{id::MsgId, machine::session::Order};

use super::*;
use crate::room_rules::RoomRule;

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

fn rules(rate: u32) -> RoomRules {
    RoomRules::parse(RoomRule { rate, ..RoomRule::default() }, &[]).unwrap()
}

fn room(name: &str) -> ConversationId {
    ConversationId::parse(&format!("r:{name}")).unwrap()
}

fn submit(to: &str, bytes: usize) -> Submit {
    Submit {
        ticket: 1,
        id: 1,
        conversation: room(to),
        msg_id: MsgId::new("m").unwrap(),
        attempt: 0,
        content: vec![0; bytes].into(),
        order: Order { epoch: 0, n: 0, chained: false },
        flags: 0,
        ruling: Default::default(),
        trace: None,
    }
}

/// Adds a message, unless the queue is full.
fn add(queue: &mut RoomQueue, to: &str, bytes: usize, rate: u32, now: Time) -> bool {
    let (submit, rules) = (submit(to, bytes), rules(rate));
    if queue.is_full(&submit, 0, &rules, now) {
        return false;
    }
    let origin = ConnKey { shard: 0, slot: 0, generation: 0 };
    let post = RoomPost { origin, sender: UserId::new("ann").unwrap(), class: 0, submit };
    queue.add(post, Ipv4Addr::LOCALHOST.into(), &rules, now);
    true
}

/// Numbers what may be numbered now; returns the count.
fn number(queue: &mut RoomQueue, rate: u32, now: Time) -> u64 {
    let (rules, mut count) = (rules(rate), 0);
    for room in queue.take_ready() {
        if let Some(numbered) = queue.start_numbering(&room, &rules, now) {
            count += numbered.get();
            queue.finish_numbering(&room, Some(1), &rules);
        }
    }
    count
}

#[test]
fn room_that_goes_quiet_reports_what_was_left_out() {
    let mut queue = RoomQueue::default();
    (0..25).for_each(|_| assert!(add(&mut queue, "hall", 1, 10, at(0))));
    number(&mut queue, 10, at(0));
    assert!(number(&mut queue, 10, at(50)) >= 10);
    let left_out = queue.take_left_out().len() as u64;
    assert!(left_out > 10 && queue.take_reports(at(999)).is_empty());
    queue.forget_idle(at(60_000));
    let reports = queue.take_reports(at(60_000));
    assert_eq!(reports, [(room("hall"), NonZeroU64::new(left_out).unwrap())]);
    assert!(queue.take_reports(at(120_000)).is_empty());
    queue.forget_idle(at(120_000));
    assert!(queue.rooms.is_empty());
}

#[test]
fn room_without_a_rate_is_full_and_leaves_nothing_out() {
    let mut queue = RoomQueue::default();
    let fitted = (0..100).take_while(|_| add(&mut queue, "auction", 8_000, 0, at(0))).count() as u64;
    assert!((30..=32).contains(&fitted), "{fitted}");
    assert!(queue.take_left_out().is_empty());
    assert!(add(&mut queue, "other", 8_000, 0, at(0)), "another room is not full");
    assert_eq!(number(&mut queue, 0, at(0)), fitted + 1);
    assert!(queue.rooms.is_empty() && queue.bytes == 0, "it has no budget to remember");
    // A room with a rate leaves some out instead.
    (0..40).for_each(|_| assert!(add(&mut queue, "hall", 8_000, 10, at(0))));
    assert!(queue.take_left_out().len() >= 8);
}

#[test]
fn too_many_rooms_forget_those_without_messages() {
    let mut queue = RoomQueue::default();
    for n in 0..ROOMS_MAX as u64 {
        assert!(add(&mut queue, &format!("room-{n}"), 1, 200, at(n)));
        assert_eq!(number(&mut queue, 200, at(n)), 1);
    }
    let now = at(ROOMS_MAX as u64);
    assert!(add(&mut queue, "new", 1, 200, now));
    assert_eq!(queue.rooms.len(), ROOMS_MAX - ROOMS_EVICTED + 1);
    assert!(!queue.rooms.contains_key(&room("room-0")), "used longest ago");
    assert!(queue.rooms.contains_key(&room(&format!("room-{}", ROOMS_MAX - 1))));
}

#[test]
fn room_that_waits_for_the_fan_out_does_not_keep_the_shard_awake() {
    let mut queue = RoomQueue::default();
    assert!(add(&mut queue, "hall", 1, 0, at(0)));
    assert_eq!(queue.wait(at(0)), Some(Duration::ZERO));
    queue.take_ready().into_iter().for_each(|room| queue.put_back(room));
    assert_eq!(queue.wait(at(0)), None);
    assert_eq!(queue.take_ready(), [room("hall")]);
}
