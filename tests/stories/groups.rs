//! Groups: which members get what while members join and leave.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tidegate_protocol::{Code, codec::Wire, pb};

use crate::support::{Client, TestNode, ask, eventually, let_time_pass, send, text_of};

fn is_event(push: &pb::Push, change: pb::MemberChange, users: &[&str]) -> bool {
    push.event.as_ref().is_some_and(|event| event.change == change as i32 && event.users == users)
}

#[test]
fn members_get_changes_and_others_may_not_send() {
    let node = TestNode::start(|_| {});
    let mut alice = node.login(Wire::JsonLine, "alice", "phone");
    let group = node.group("tea", &["alice", "bob"]);
    let created = alice.expect_push();
    assert_eq!((created.seq, created.conversation.as_str()), (1, "g:tea"));
    assert!(is_event(&created, pb::MemberChange::Created, &["alice", "bob"]), "{created:?}");
    let mut carol = node.login(Wire::Tcp, "carol", "phone");
    assert_eq!(carol.refused(ask::send(send(&group, "m1", "may I?"))), Code::NotAMember);
    assert_eq!(node.add(&group, &["carol"]), 2);
    for client in [&mut alice, &mut carol] {
        let joined = client.expect_push();
        assert_eq!(joined.seq, 2);
        assert!(is_event(&joined, pb::MemberChange::Joined, &["carol"]), "{joined:?}");
    }
    assert_eq!(carol.text(&group, "m1-again", "thank you"), 3, "a refusal takes no seq");
    assert_eq!(alice.expect_push().seq, 3);
    assert_eq!(node.kick(&group, &["carol"]), 4);
    for client in [&mut alice, &mut carol] {
        let kicked = client.expect_push();
        assert_eq!(kicked.seq, 4);
        assert!(is_event(&kicked, pb::MemberChange::Kicked, &["carol"]), "{kicked:?}");
    }
    assert_eq!(carol.refused(ask::send(send(&group, "m2", "but"))), Code::NotAMember);
    assert_eq!(alice.text(&group, "m1", "quiet now"), 5);
    carol.no_push();
}

/// Sends to `group` until `stop` is set; returns the number of messages.
fn chatter(node: &TestNode, group: &str, user: &str, stop: &AtomicBool, last: &AtomicU64) -> u64 {
    let mut client = node.login(Wire::Tcp, user, "phone");
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let seq = client.text(group, &format!("{user}-{count}"), ".");
        last.fetch_max(seq, Ordering::Relaxed);
        client.inbox.clear();
        client.say_as(0, ask::ack(group, seq));
        count += 1;
    }
    count
}

/// Runs `story` while two members send to the group all the time.
fn while_talking(node: &TestNode, group: &str, story: impl FnOnce(&AtomicU64)) {
    let (stop, last) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let threads = ["t0", "t1"].map(|user| {
            let (stop, last) = (&stop, &last);
            scope.spawn(move || chatter(node, group, user, stop, last))
        });
        eventually("they talk", || (last.load(Ordering::Relaxed) > 10).then_some(()));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| story(&last)));
        stop.store(true, Ordering::Relaxed);
        let counts = threads.map(|thread| thread.join().expect("a talker"));
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
        assert!(counts.iter().all(|count| *count > 0));
    });
}

/// Takes and acks pushes up to `until`, which must follow `from` one by one.
fn expect_no_hole(client: &mut Client, group: &str, from: u64, until: u64) {
    let mut next = from;
    while next <= until {
        let push = client.expect_push();
        assert_eq!(push.seq, next, "a hole, or an old push, in {group}");
        if next.is_multiple_of(16) || next == until {
            client.ack(group, next);
        }
        next += 1;
    }
}

#[test]
fn kick_is_exact_while_others_send() {
    let node = TestNode::start(|config| config.node.shards = 3);
    let group = node.group("noisy", &["t0", "t1", "stays"]);
    while_talking(&node, &group, |last| {
        let mut stays = node.login(Wire::WsBinary, "stays", "phone");
        let mut next = 0;
        for (round, wire) in Wire::ALL.into_iter().cycle().take(12).enumerate() {
            let mut guest = node.login(wire, "guest", "phone");
            let joined = node.add(&group, &["guest"]);
            let go_on = joined + 5 + round as u64;
            eventually("talk after the join", || (last.load(Ordering::Relaxed) > go_on).then_some(()));
            let kicked = node.kick(&group, &["guest"]);
            let first = guest.expect_push();
            assert!(is_event(&first, pb::MemberChange::Joined, &["guest"]), "{first:?}");
            assert_eq!(first.seq, joined);
            expect_no_hole(&mut guest, &group, joined + 1, kicked);
            let after = last.load(Ordering::Relaxed).max(kicked) + 5;
            eventually("talk after the kick", || (last.load(Ordering::Relaxed) > after).then_some(()));
            guest.no_push();
            if next == 0 {
                next = stays.expect_push().seq + 1;
            }
            expect_no_hole(&mut stays, &group, next, kicked);
            next = kicked + 1;
        }
    });
}

/// Each of the two senders has one message in flight, so two may have a seq and no ack yet when Welcome arrives. Later
/// messages were sent after Welcome, and must be pushed.
fn assert_no_late_start(acked_at_welcome: u64, first_push: u64) {
    assert!(
        first_push <= acked_at_welcome + 3,
        "acked at Welcome {acked_at_welcome}, first push {first_push}"
    );
}

/// Each message is either in the login's sync, or it is pushed.
#[test]
fn login_during_traffic_has_no_hole() {
    let node = TestNode::start(|config| config.node.shards = 3);
    let group = node.group("race", &["t0", "t1", "late"]);
    while_talking(&node, &group, |last| {
        for (round, wire) in Wire::ALL.into_iter().cycle().take(120).enumerate() {
            let before = last.load(Ordering::Relaxed);
            let mut late = node.login(wire, "late", &format!("device-{}", round % 7));
            let welcomed = last.load(Ordering::Relaxed);
            let first = late.expect_push().seq;
            assert!(first > before, "push {first} was acked before the login: {before}");
            assert_no_late_start(welcomed, first);
            expect_no_hole(&mut late, &group, first + 1, welcomed + 4);
        }
    });
}

#[test]
fn large_group_gets_everything_once_and_untracked() {
    let node = TestNode::start(|config| {
        config.node.shards = 3;
        config.timing.ack_timeout_ms = 100;
        config.timing.ack_tries = 1;
    });
    let mut members: Vec<String> = (0..600).map(|n| format!("m{n}")).collect();
    members.extend(["t0", "t1"].map(String::from));
    let group = node.group("large", &members.iter().map(String::as_str).collect::<Vec<_>>());
    let mut clients: Vec<Client> =
        (0..40).map(|n| node.login(Wire::ALL[n % 4], &format!("m{}", n * 7), "phone")).collect();
    let mut sender = clients.remove(0);
    for n in 0..30_u64 {
        assert_eq!(sender.text(&group, &format!("a{n}"), "to all"), n + 2);
    }
    for client in &mut clients {
        for n in 0..30 {
            assert_eq!(client.expect_push().seq, n + 2);
        }
    }
    let why = "no member acks: in a small group all of them would be closed SLOW by then";
    let_time_pass(why, std::time::Duration::from_millis(500));
    for client in &mut clients {
        client.no_push();
    }
    let kicked = node.kick(&group, &["m7"]);
    assert_eq!(sender.text(&group, "after", "without m7"), kicked + 1);
    for (n, client) in clients.iter_mut().enumerate() {
        assert!(is_event(&client.expect_push(), pb::MemberChange::Kicked, &["m7"]));
        if n > 0 {
            assert_eq!(text_of(&client.expect_push()), "without m7");
        }
        client.no_push();
    }
}

#[test]
fn login_into_a_large_group_during_traffic_has_no_hole() {
    let node = TestNode::start(|config| {
        config.node.shards = 3;
        config.limits.small_group_max = 2;
    });
    let group = node.group("race", &["t0", "t1", "late", "other"]);
    while_talking(&node, &group, |last| {
        for (round, wire) in Wire::ALL.into_iter().cycle().take(60).enumerate() {
            let mut late = node.login(wire, "late", &format!("device-{}", round % 7));
            let welcomed = last.load(Ordering::Relaxed);
            let first = late.expect_push().seq;
            assert_no_late_start(welcomed, first);
            expect_no_hole(&mut late, &group, first + 1, welcomed + 4);
        }
    });
}

#[test]
fn reconnecting_member_is_still_a_member() {
    let node = TestNode::start(|_| {});
    let group = node.group("tea", &["alice", "bob"]);
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    for (n, wire) in Wire::ALL.into_iter().enumerate() {
        let mut bob = node.login(wire, "bob", "phone");
        let seq = alice.text(&group, &format!("m{n}"), "welcome back");
        assert_eq!(bob.expect_push().seq, seq);
        drop(bob);
        eventually("only alice", || (node.conns() == 1).then_some(()));
        alice.text(&group, &format!("gone{n}"), "after the kick");
    }
}
