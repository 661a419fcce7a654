//! Completeness: pages, sync, positions and read marks, whatever was missed and whichever members join or leave.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use tidegate_protocol::{Code, codec::Wire, pb};

use crate::support::{Client, ClientBody, ServerBody, TestNode, ask, eventually, send, seqs_of};

fn ranges(page: &pb::Page) -> Vec<(u64, u64)> {
    page.expired.iter().map(|range| (range.first, range.last)).collect()
}

/// Sends `count` texts at once, so that many of them have the same millisecond.
fn burst(client: &mut Client, place: &str, name: &str, count: u64) -> u64 {
    let ids: Vec<u64> =
        (0..count).map(|n| client.say(ask::send(send(place, &format!("{name}{n}"), "text")))).collect();
    ids.into_iter().map(|id| client.expect_ack(id).seq).max().expect("some")
}

/// Pulls forward from `cursor` to the end; returns every seq that a page names, in order.
fn pull_on(client: &mut Client, conversation: &str, mut cursor: u64, limit: u32) -> Vec<u64> {
    let mut seen = Vec::new();
    loop {
        let page = match client.ask(ask::after(conversation, cursor, limit)) {
            ServerBody::Page(page) => page,
            ServerBody::Error(error) if error.code == u32::from(Code::NotYet.number()) => return seen,
            other => panic!("{other:?}"),
        };
        assert!(!page.messages.is_empty(), "a page without a reason: {page:?}");
        seen.extend(seqs_of(&page));
        cursor = *seen.last().expect("some");
        assert!(cursor <= page.complete_to);
    }
}

#[test]
fn s17_pages_both_ways_neither_skip_nor_repeat() {
    for store in ["embedded", "memory"] {
        let node = TestNode::start(|config| config.node.store = store.into());
        for wire in Wire::ALL {
            let mut alice = node.login(wire, "alice", "phone");
            let peer = format!("bob{}", wire as usize);
            let place = format!("d:alice:{peer}");
            assert_eq!(
                alice.refused(ask::after(&place, 0, 7)),
                Code::NotYet,
                "the conversation has no message yet"
            );
            assert_eq!(burst(&mut alice, &peer, "m", 50), 50);
            assert_eq!(pull_on(&mut alice, &place, 0, 7), (1..=50).collect::<Vec<_>>());
            let (mut cursor, mut seen) = (0, Vec::new());
            loop {
                let page = alice.page(ask::before(&place, cursor, 7));
                let Some(last) = page.messages.last() else { break };
                cursor = last.seq;
                seen.extend(seqs_of(&page));
                // More messages arrive in the meantime.
                alice.text(&peer, &format!("late{cursor}"), "text");
            }
            assert_eq!(seen, (1..=50).rev().collect::<Vec<_>>());
            assert_eq!(alice.refused(ask::after(&place, 58, 7)), Code::NotYet);
            assert_eq!(seqs_of(&alice.page(ask::after(&place, 50, 0))), (51..=58).collect::<Vec<_>>());
        }
    }
}

#[test]
fn holes_are_pulled_by_seq_and_others_see_nothing() {
    let node = TestNode::start(|_| {});
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    burst(&mut alice, "bob", "m", 10);
    let mut bob = node.login(Wire::WsText, "bob", "phone");
    let page = bob.page(ask::seqs("d:alice:bob", &[9, 3, 4, 4, 99]));
    assert_eq!((seqs_of(&page), page.complete_to), (vec![3, 4, 9], 10));
    assert_eq!(page.messages[0].msg_id, "m2");
    assert_eq!(bob.refused(ask::seqs("d:alice:bob", &[11, 12])), Code::NotYet);
    let mut eve = node.login(Wire::Tcp, "eve", "phone");
    assert_eq!(eve.refused(ask::after("d:alice:bob", 0, 7)), Code::Forbidden);
    assert_eq!(eve.refused(ask::after("g:nowhere", 0, 7)), Code::NotAMember);
    let group = node.group("tea", &["alice"]);
    assert_eq!(eve.refused(ask::after(&group, 0, 7)), Code::NotAMember);
    assert_eq!(eve.refused(ask::read(&group, 1)), Code::NotAMember);
    assert_eq!(eve.sync(&[]), []);
}

#[test]
fn page_is_bounded_in_bytes_and_has_at_least_one_message() {
    let node = TestNode::start(|_| {});
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    for n in 0..6 {
        alice.text("bob", &format!("m{n}"), &"x".repeat(20_000));
    }
    assert_eq!(seqs_of(&alice.page(ask::after("d:alice:bob", 0, 200))), [1, 2]);
    assert_eq!(seqs_of(&alice.page(ask::seqs("d:alice:bob", &[1, 3, 4, 5, 6]))), [1, 3]);
    assert_eq!(pull_on(&mut alice, "d:alice:bob", 0, 200), [1, 2, 3, 4, 5, 6]);
    // Many pulls at once: each is answered, one after the other.
    let ids: Vec<u64> = (0..200).map(|_| alice.say(ask::after("d:alice:bob", 0, 200))).collect();
    for id in ids {
        assert!(matches!(alice.reply(id), ServerBody::Page(page) if page.messages.len() == 2));
    }
}

#[test]
fn former_member_sees_exactly_its_ranges() {
    let node = TestNode::start(|_| {});
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    let group = node.group("tea", &["ann"]);
    assert_eq!(burst(&mut ann, &group, "a", 4), 5);
    assert_eq!(node.add(&group, &["cid"]), 6);
    assert_eq!(burst(&mut ann, &group, "b", 2), 8);
    assert_eq!(node.kick(&group, &["cid"]), 9);
    assert_eq!(burst(&mut ann, &group, "c", 3), 12);
    let mut cid = node.login(Wire::JsonLine, "cid", "phone");
    let out = cid.page(ask::after(&group, 0, 50));
    assert_eq!((seqs_of(&out), ranges(&out), out.complete_to), (vec![6, 7, 8, 9], vec![(1, 5)], 9));
    assert_eq!(cid.refused(ask::after(&group, 9, 50)), Code::NotAMember);
    let state = cid.state(&group);
    assert_eq!((state.min_seq, state.max_seq, state.unread), (6, 9, 2));
    assert_eq!(node.add(&group, &["cid"]), 13);
    assert_eq!(burst(&mut ann, &group, "d", 1), 14);
    let back = cid.page(ask::after(&group, 9, 50));
    assert_eq!((seqs_of(&back), ranges(&back), back.complete_to), (vec![13, 14], vec![(10, 12)], 14));
    let newest = cid.page(ask::before(&group, 0, 50));
    assert_eq!((seqs_of(&newest), ranges(&newest)), (vec![14, 13], vec![]));
    let older = cid.page(ask::before(&group, 13, 50));
    assert_eq!((seqs_of(&older), ranges(&older)), (vec![9, 8, 7, 6], vec![(10, 12), (1, 5)]));
    let picked = cid.page(ask::seqs(&group, &[5, 6, 9, 10, 11, 12, 13]));
    assert_eq!((seqs_of(&picked), ranges(&picked)), (vec![6, 9, 13], vec![(5, 5), (10, 12)]));
    let state = cid.state(&group);
    assert_eq!((state.min_seq, state.max_seq, state.unread), (6, 14, 3));
    assert_eq!(state.last.expect("the last message").seq, 14);
}

#[test]
fn marks_are_shared_by_devices_and_unread_follows() {
    let node = TestNode::start(|_| {});
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    let mut phone = node.login(Wire::WsBinary, "bob", "phone");
    let mut laptop = node.login(Wire::JsonLine, "bob", "laptop");
    burst(&mut alice, "bob", "m", 5);
    phone.text("alice", "b1", "mine");
    burst(&mut alice, "bob", "n", 2);
    let place = "d:alice:bob";
    assert_eq!(laptop.state(place).unread, 7, "one's own message is never unread");
    let read =
        |client: &mut Client, seq| assert!(matches!(client.ask(ask::read(place, seq)), ServerBody::Done(_)));
    read(&mut phone, 3);
    let receipt = laptop.expect_receipt();
    assert_eq!((receipt.conversation.as_str(), receipt.user.as_str(), receipt.seq), (place, "bob", 3));
    let state = laptop.state(place);
    assert_eq!((state.read_seq, state.unread), (3, 4));
    read(&mut laptop, 2);
    assert_eq!(laptop.state(place).read_seq, 3, "a mark never goes back");
    read(&mut laptop, 1_000_000);
    assert_eq!(phone.expect_receipt().seq, 8, "clamped to the last seq");
    let state = phone.state(place);
    assert_eq!((state.read_seq, state.unread), (8, 0));
    assert_eq!(alice.state(place).read_seq, 0, "sending does not move the sender's mark");
    assert_eq!(alice.state(place).unread, 1);
    alice.text("bob", "more", "text");
    assert_eq!(phone.state(place).unread, 1);
    phone.settle();
    let echo = phone.inbox.iter().any(|frame| matches!(frame.body, Some(ServerBody::Receipt(_))));
    assert!(!echo, "a Read is not echoed to its connection");
}

#[test]
fn marks_and_pages_survive_a_restart() {
    let node = TestNode::start(|_| {});
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    burst(&mut alice, "bob", "m", 5);
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    assert!(matches!(bob.ask(ask::read("d:alice:bob", 4)), ServerBody::Done(_)));
    let data = node.stop();
    let node = TestNode::start_on(&data, |_| {});
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    let state = bob.state("d:alice:bob");
    assert_eq!((state.max_seq, state.read_seq, state.unread), (5, 4, 1));
    assert_eq!(pull_on(&mut bob, "d:alice:bob", 0, 2), [1, 2, 3, 4, 5]);
}

#[test]
fn heartbeat_reports_what_an_idle_client_lacks() {
    let node = TestNode::start(|_| {});
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    burst(&mut alice, "bob", "m", 3);
    burst(&mut alice, "cid", "m", 2);
    let behind_of =
        |client: &mut Client, positions: &[(&str, u64)]| match client.ask(ask::ping_with(positions)) {
            ServerBody::Pong(pong) => {
                pong.positions.into_iter().map(|it| (it.conversation, it.seq)).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        };
    let (bob, cid) = ("d:alice:bob", "d:alice:cid");
    assert_eq!(behind_of(&mut alice, &[(bob, 3), (cid, 2)]), []);
    assert_eq!(behind_of(&mut alice, &[(bob, 1), (cid, 2)]), [(bob.to_owned(), 3)]);
    assert_eq!(
        behind_of(&mut alice, &[(bob, 3)]),
        [(cid.to_owned(), 2)],
        "a conversation that the client does not list"
    );
    assert_eq!(behind_of(&mut alice, &[]), [], "without positions the ping only keeps the connection");
}

#[test]
fn heartbeat_reports_a_listed_conversation_among_many() {
    let node = TestNode::start(|_| {});
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    let ids: Vec<u64> =
        (0..1_001).map(|n| alice.say(ask::send(send(&format!("u{n:04}"), "m", "hello")))).collect();
    ids.into_iter().for_each(|id| assert_eq!(alice.expect_ack(id).seq, 1));
    // In the order of keys a group is after all of these.
    let group = node.group("tea", &["alice"]);
    assert_eq!(alice.text(&group, "m", "hello"), 2);
    let ServerBody::Pong(pong) = alice.ask(ask::ping_with(&[("d:alice:u0000", 1), (&group, 1)])) else {
        panic!("no pong")
    };
    let behind_of = |name: &str| pong.positions.iter().find(|it| it.conversation == name).map(|it| it.seq);
    assert_eq!(
        (behind_of(&group), behind_of("d:alice:u0000"), behind_of("d:alice:u0001")),
        (Some(2), None, Some(1))
    );
    assert_eq!(pong.positions.len(), 1_000);
}

#[test]
fn omitted_pushes_are_reported_and_can_be_pulled() {
    let node = TestNode::start(|config| config.limits.window_max = 8);
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    burst(&mut alice, "bob", "m", 40);
    let behind = bob.take("a hint", |frame| matches!(frame.body, Some(ServerBody::Behind(_))));
    let Some(ServerBody::Behind(behind)) = behind.body else { panic!("{behind:?}") };
    bob.settle();
    let mut have: BTreeSet<u64> = bob
        .inbox
        .iter()
        .filter_map(|frame| match &frame.body {
            Some(ServerBody::Push(push)) => Some(push.seq),
            _ => None,
        })
        .collect();
    assert!(have.len() < 40 && behind.max_seq <= 40, "{have:?} {behind:?}");
    let missing: Vec<u64> = (1..=40).filter(|seq| !have.contains(seq)).collect();
    have.extend(seqs_of(&bob.page(ask::seqs("d:alice:bob", &missing))));
    assert_eq!(have, (1..=40).collect());
}

#[test]
fn login_racing_with_sends_misses_nothing() {
    let node = TestNode::start(|_| {});
    let group = node.group("noisy", &["talker", "guest"]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let talker = scope.spawn(|| {
            let mut client = node.login(Wire::Tcp, "talker", "phone");
            let mut last = 0;
            while !stop.load(Ordering::Relaxed) {
                last = client.text(&group, &format!("m{last}"), ".");
                client.inbox.clear();
            }
            last
        });
        let mut cursor = 0;
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for wire in Wire::ALL.into_iter().cycle().take(12) {
                let mut guest = node.login(wire, "guest", "phone");
                let max = guest.state(&group).max_seq;
                // Everything above the last seq of the sync is pushed, without a hole.
                let mut next = max + 1;
                while next < max + 10 {
                    let push = guest.expect_push();
                    assert!(push.seq <= next, "neither synced nor pushed: {next}; then came {}", push.seq);
                    next = next.max(push.seq + 1);
                    guest.say_as(0, ask::ack(&group, next - 1));
                }
                // Everything up to there can be pulled.
                let seen = pull_to(&mut guest, &group, cursor, max);
                assert_eq!(seen, (cursor + 1..=max).collect::<Vec<_>>());
                cursor = max;
            }
        }));
        stop.store(true, Ordering::Relaxed);
        assert!(talker.join().expect("the talker") > 0);
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
}

fn pull_to(client: &mut Client, conversation: &str, mut cursor: u64, max: u64) -> Vec<u64> {
    let mut seen = Vec::new();
    while cursor < max {
        let page = client.page(ask::after(conversation, cursor, 200));
        assert!(page.complete_to >= max);
        seen.extend(seqs_of(&page).into_iter().filter(|seq| *seq <= max));
        cursor = page.messages.last().expect("a message").seq;
    }
    seen
}

#[test]
fn user_with_ten_thousand_conversations_still_syncs() {
    let node = TestNode::start(|_| {});
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    for part in 0..50 {
        let ids: Vec<u64> = (0..200)
            .map(|n| alice.say(ask::send(send(&format!("u{:05}", part * 200 + n), "m", "hello"))))
            .collect();
        ids.into_iter().for_each(|id| assert_eq!(alice.expect_ack(id).seq, 1));
    }
    for n in 0..20 {
        node.group(&format!("g{n}"), &["alice", "bob"]);
    }
    for (round, wire) in [Wire::Tcp, Wire::WsText].into_iter().enumerate() {
        let start = Instant::now();
        let mut tablet = node.login(wire, "alice", "tablet");
        let login = start.elapsed();
        let (states, unread) = tablet.sync_all(&[]);
        eprintln!("10,020 conversations, {wire:?}: login {login:?}, with sync {:?}", start.elapsed());
        assert_eq!((states.len(), unread), (10_020, round as u64));
        assert!(states.is_sorted_by_key(|state| state.conversation.clone()));
        // Messages after the login are pushed, groups included.
        let mut bob = node.login(Wire::Tcp, "bob", "phone");
        let seq = bob.text("g:g19", &format!("m{}", wire as usize), "text");
        assert_eq!(tablet.expect_push().seq, seq);
    }
}

#[test]
fn user_with_two_thousand_conversations_syncs_at_once() {
    let node = TestNode::start(|_| {});
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    let ids: Vec<u64> =
        (0..2_000).map(|n| alice.say(ask::send(send(&format!("u{n:04}"), "m", "hello")))).collect();
    ids.into_iter().for_each(|id| assert_eq!(alice.expect_ack(id).seq, 1));
    for wire in Wire::ALL {
        let mut tablet = node.login(wire, "alice", "tablet");
        let states = tablet.sync(&[("d:alice:u0007", 1)]);
        assert_eq!(states.len(), 2_000);
        assert!(states.iter().all(|state| state.max_seq == 1 && state.unread == 0));
        let without: Vec<_> = states.iter().filter(|state| state.last.is_none()).collect();
        assert_eq!(without.len(), 1, "known conversations are not sent");
        eventually("the session continues", || {
            matches!(tablet.ask(ask::ping()), ServerBody::Pong(_)).then_some(())
        });
    }
}

#[test]
fn s17_pages_around_a_seq_and_from_a_time_on_over_every_wire() {
    let node = TestNode::start(|_| {});
    for wire in Wire::ALL {
        let mut alice = node.login(wire, "alice", "phone");
        let peer = format!("bob{}", wire as usize);
        let place = format!("d:alice:{peer}");
        assert_eq!(burst(&mut alice, &peer, "m", 30), 30);
        (0..20).for_each(|n| _ = alice.text(&peer, &format!("n{n}"), "text"));
        let around = |client: &mut Client, seq, limit| seqs_of(&client.page(ask::around(&place, seq, limit)));
        assert_eq!(around(&mut alice, 20, 3), (17..=23).collect::<Vec<_>>(), "{wire:?}");
        assert_eq!(around(&mut alice, 2, 3), (1..=5).collect::<Vec<_>>(), "nothing precedes the first");
        assert_eq!(around(&mut alice, 49, 3), (46..=50).collect::<Vec<_>>(), "nothing follows the last");
        assert_eq!(around(&mut alice, 26, 0).len(), 50, "25 on each side unless asked for others");
        assert_eq!(alice.refused(ask::around(&place, 51, 3)), Code::NotYet);
        // The cursor of a page continues it in both directions.
        assert_eq!(seqs_of(&alice.page(ask::before(&place, 17, 2))), [16, 15]);
        assert_eq!(pull_on(&mut alice, &place, 23, 7), (24..=50).collect::<Vec<_>>());
        let all = alice.page(ask::after(&place, 0, 100)).messages;
        assert_eq!(all.len(), 50);
        for asked in all.iter().step_by(7) {
            let first = all.iter().find(|push| push.time >= asked.time).expect("the message itself").seq;
            let page = seqs_of(&alice.page(ask::since(&place, asked.time, 4)));
            let want: Vec<u64> = (first..=50).take(4).collect();
            assert_eq!(page, want, "{wire:?}: from {} on", asked.time);
            let rest = pull_on(&mut alice, &place, *page.last().expect("some"), 9);
            assert_eq!(rest, (first..=50).skip(4).collect::<Vec<_>>());
        }
        assert_eq!(seqs_of(&alice.page(ask::since(&place, 1, 2))), [1, 2], "a time before all of them");
        let late = all[49].time + 3_600_000;
        assert_eq!(alice.refused(ask::since(&place, late, 4)), Code::NotYet, "nothing is that young");
        let both = pb::Pull { conversation: place.clone(), cursor: 3, time: late, ..Default::default() };
        assert_eq!(alice.refused(ClientBody::Pull(both)), Code::Malformed, "a time and a cursor");
        let mut eve = node.login(wire, "eve", "phone");
        assert_eq!(eve.refused(ask::around(&place, 20, 3)), Code::Forbidden);
        assert_eq!(eve.refused(ask::since(&place, 1, 3)), Code::Forbidden);
    }
}
