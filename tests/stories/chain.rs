//! The nextId chain (flaw S37): a device's own order, kept whatever arrives when.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use tidegate_protocol::{Code, codec::Wire, pb};

use crate::support::{
    Client, ServerBody, TestNode, ask, code, eventually, hello, let_time_pass, send, text_of,
};

/// Returns a text to bob with its successor in the chain.
fn link(msg_id: &str, next_id: &str) -> pb::Send {
    link_to("bob", msg_id, next_id)
}

fn link_to(place: &str, msg_id: &str, next_id: &str) -> pb::Send {
    pb::Send { next_id: next_id.into(), ..send(place, msg_id, msg_id) }
}

fn texts(client: &mut Client, count: usize) -> Vec<String> {
    client.pushes(count).iter().map(|push| text_of(push).to_owned()).collect()
}

fn expected(client: &mut Client) -> String {
    match client.ask(ask::next_id()) {
        ServerBody::NextIdIs(is) => is.next_id,
        other => panic!("{other:?}"),
    }
}

fn quick_alarm(config: &mut tidegate::config::Config) {
    config.timing.order_timeout_ms = 400;
}

#[test]
fn early_message_waits_for_its_predecessor() {
    let node = TestNode::start(|_| {});
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    for wire in Wire::ALL {
        let mut alice = node.login_chained(wire, &format!("alice-{wire:?}"), "phone", "a");
        assert_eq!(alice.welcome.next_id, "a");
        let late: Vec<u64> = [("d", "e"), ("c", "d"), ("b", "c")]
            .map(|(id, next)| alice.say(ask::send(link(id, next))))
            .into();
        // The message is outside the chain, so it overtakes.
        assert_eq!(alice.text("bob", "free", "free"), 1);
        assert_eq!(expected(&mut alice), "a");
        let first = alice.say(ask::send(link("a", "b")));
        assert_eq!(alice.expect_ack(first).seq, 2);
        let seqs: Vec<u64> = late.into_iter().map(|id| alice.expect_ack(id).seq).collect();
        assert_eq!(seqs, [5, 4, 3]);
        assert_eq!(texts(&mut bob, 5), ["free", "a", "b", "c", "d"], "{wire:?}");
        assert_eq!(expected(&mut alice), "e");
    }
}

#[test]
fn chain_orders_sends_and_refusals_over_conversations() {
    let node = TestNode::start(|_| {});
    let group = node.group("ours", &["alice", "bob"]);
    let mut alice = node.login_chained(Wire::JsonLine, "alice", "phone", "a");
    let d = alice.say(ask::send(link_to("carol", "d", "e")));
    let c = alice.say(ask::send(link_to(&group, "c", "d")));
    let b = alice.say(ask::send(link_to("g:not-hers", "b", "c")));
    let a = alice.say(ask::send(link("a", "b")));
    assert_eq!(alice.expect_ack(a).seq, 1);
    assert_eq!(alice.expect_error(b), Code::NotAMember);
    assert_eq!(alice.expect_ack(c).seq, 2);
    assert_eq!(alice.expect_ack(d).seq, 1);
    assert_eq!(expected(&mut alice), "e");
}

#[test]
fn two_devices_have_separate_chains() {
    let node = TestNode::start(|_| {});
    let mut phone = node.login_chained(Wire::Tcp, "alice", "phone", "a");
    let mut laptop = node.login_chained(Wire::WsText, "alice", "laptop", "x");
    let held = phone.say(ask::send(link("b", "c")));
    for (id, next) in [("x", "a"), ("a", "b"), ("b", "z")] {
        laptop.send(link(id, next));
    }
    assert_eq!((expected(&mut phone), expected(&mut laptop)), ("a".into(), "z".into()));
    phone.send(link("a", "b"));
    assert_eq!(phone.expect_ack(held).seq, 5);
}

#[test]
fn missing_predecessor_is_reported_then_skipped_then_refused() {
    let node = TestNode::start(quick_alarm);
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    for wire in Wire::ALL {
        let name = format!("alice-{wire:?}");
        let mut alice = node.login_chained(wire, &name, "phone", "a");
        let since = Instant::now();
        let c = alice.say(ask::send(link("c", "d")));
        let b = alice.say(ask::send(link("b", "c")));
        let blocked = alice.expect_notice();
        assert_eq!((blocked.kind(), blocked.expected.as_str()), (pb::NoticeKind::OrderBlocked, "a"));
        assert!(since.elapsed() >= Duration::from_millis(400), "blocked after {:?}", since.elapsed());
        let skipped = alice.expect_notice();
        assert_eq!(skipped.kind(), pb::NoticeKind::OrderSkipped);
        assert_eq!((skipped.expected.as_str(), skipped.msg_id.as_str()), ("a", "b"));
        assert!(since.elapsed() >= Duration::from_millis(800), "skipped after {:?}", since.elapsed());
        assert_eq!([alice.expect_ack(b).seq, alice.expect_ack(c).seq], [1, 2]);
        assert_eq!(alice.refused(ask::send(link("a", "b"))), Code::OrderSkipped, "{wire:?}");
        alice.send(link("d", "e"));
        assert_eq!(texts(&mut bob, 3), ["b", "c", "d"]);
        bob.no_push();
        bob.ack(&format!("d:{name}:bob"), 3);
        // A new connection does not insert it after them, whatever the client declares.
        let mut again = node.login_chained(wire, &name, "phone", "a");
        assert_eq!(again.welcome.next_id, "e", "{wire:?}");
        assert_eq!(again.refused(ask::send(link("a", "b"))), Code::OrderSkipped, "{wire:?}");
    }
}

#[test]
fn predecessor_after_the_alarm_is_in_time() {
    let node = TestNode::start(quick_alarm);
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    let mut alice = node.login_chained(Wire::WsBinary, "alice", "phone", "a");
    let b = alice.say(ask::send(link("b", "c")));
    assert_eq!(alice.expect_notice().kind(), pb::NoticeKind::OrderBlocked);
    alice.send(link("a", "b"));
    alice.expect_ack(b);
    assert_eq!(texts(&mut bob, 2), ["a", "b"]);
    let_time_pass("the next alarm would come within it", Duration::from_millis(1_000));
    alice.settle();
    assert!(alice.inbox.is_empty(), "no alarm after progress: {:?}", alice.inbox);
}

#[test]
fn full_hold_stops_reading_until_the_skip() {
    let node = TestNode::start(|config| {
        quick_alarm(config);
        config.limits.hold_max = 3;
    });
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    for wire in Wire::ALL {
        let name = format!("alice-{wire:?}");
        let mut alice = node.login_chained(wire, &name, "phone", "a");
        let early: Vec<u64> = [("b", "c"), ("c", "d"), ("d", "e"), ("e", "f")]
            .map(|(id, next)| alice.say(ask::send(link(id, next))))
            .into();
        let full = alice.expect_notice();
        assert_eq!((full.kind(), full.expected.as_str()), (pb::NoticeKind::OrderWindowFull, "a"));
        let ping = alice.say(ask::ping());
        let late = alice.say(ask::send(link("a", "b")));
        assert_eq!(alice.expect_notice().kind(), pb::NoticeKind::OrderBlocked);
        let skipped = alice.expect_notice();
        assert!(alice.inbox.is_empty(), "the node read before the skip: {:?}", alice.inbox);
        assert_eq!((skipped.kind(), skipped.msg_id.as_str()), (pb::NoticeKind::OrderSkipped, "b"));
        assert!(matches!(alice.reply(ping), ServerBody::Pong(_)), "{wire:?}");
        assert_eq!(alice.expect_error(late), Code::OrderSkipped);
        let seqs: Vec<u64> = early.into_iter().map(|id| alice.expect_ack(id).seq).collect();
        assert_eq!(seqs, [1, 2, 3, 4]);
        assert_eq!(texts(&mut bob, 4), ["b", "c", "d", "e"]);
        bob.ack(&format!("d:{name}:bob"), 4);
    }
}

#[test]
fn expected_id_passes_a_just_full_hold() {
    let node = TestNode::start(|config| config.limits.hold_max = 3);
    let mut alice = node.login_chained(Wire::Tcp, "alice", "phone", "a");
    let early: Vec<u64> =
        [("b", "c"), ("c", "d"), ("d", "e")].map(|(id, next)| alice.say(ask::send(link(id, next)))).into();
    alice.send(link("a", "b"));
    assert_eq!(early.into_iter().map(|id| alice.expect_ack(id).seq).collect::<Vec<_>>(), [2, 3, 4]);
    assert!(alice.inbox.is_empty(), "no notice: {:?}", alice.inbox);
}

#[test]
fn invalid_links_are_refused_and_the_chain_continues() {
    let node = TestNode::start(|_| {});
    for wire in Wire::ALL {
        let mut alice = node.login_chained(wire, &format!("alice-{wire:?}"), "phone", "a");
        assert_eq!(alice.refused(ask::send(link("a", "a"))), Code::BadLink);
        assert_eq!(alice.refused(ask::send(link("b", "b"))), Code::BadLink);
        assert_eq!(expected(&mut alice), "a");
        alice.send(link("a", "b"));
        assert_eq!(alice.refused(ask::send(link("b", "a"))), Code::BadLink, "a used id");
        let c = alice.say(ask::send(link("c", "d")));
        assert_eq!(alice.refused(ask::send(link("x", "d"))), Code::BadLink, "claimed by c");
        assert_eq!(alice.refused(ask::send(link("c", "d"))), Code::NotYet, "held already");
        alice.send(link("b", "c"));
        assert_eq!(alice.expect_ack(c).seq, 3);
    }
}

#[test]
fn chain_without_a_declared_id_starts_at_that_of_welcome() {
    let node = TestNode::start(|_| {});
    let mut alice = node.connect(Wire::JsonLine);
    let settings = pb::Settings { chain: true, ..Default::default() };
    alice.login(pb::Hello { settings: Some(settings), ..hello(&node.token("alice"), "phone") });
    let first = alice.welcome.next_id.clone();
    assert_eq!(expected(&mut alice), first);
    assert_eq!(alice.send(link(&first, "b")).seq, 1);
    let mut none = node.login(Wire::JsonLine, "carol", "phone");
    assert_eq!(expected(&mut none), "", "no chain, no id");
}

#[test]
fn chain_continues_across_reconnects() {
    let node = TestNode::start(|config| config.node.shards = 3);
    let group = node.group("ours", &["alice", "bob"]);
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    let mut n = 0;
    let mut alice = node.login_chained(Wire::Tcp, "alice", "phone", "c0");
    for round in 0..24 {
        for place in ["bob", "bob", group.as_str()] {
            let ack = alice.send(link_to(place, &format!("c{n}"), &format!("c{}", n + 1)));
            let push = bob.expect_push();
            assert_eq!((push.seq, text_of(&push)), (ack.seq, format!("c{n}").as_str()));
            bob.ack(&push.conversation, push.seq);
            n += 1;
        }
        // Even rounds replace a live connection, odd ones reconnect after its end.
        if round % 2 == 1 {
            alice.say(ask::bye());
            assert_eq!(alice.expect_close(), Code::Bye);
        }
        alice = node.login_chained(Wire::ALL[round % 4], "alice", "phone", &format!("c{n}"));
        assert_eq!(alice.welcome.next_id, format!("c{n}"), "round {round}");
        let retry = pb::Send { attempt: 1, ..link_to(&group, &format!("c{}", n - 1), &format!("c{n}")) };
        assert!(alice.send(retry).duplicate, "a done id is acked, never held");
        assert_eq!(expected(&mut alice), format!("c{n}"));
    }
}

#[test]
fn client_that_lost_its_acks_resends_from_the_saved_id() {
    let node = TestNode::start(|_| {});
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    for wire in Wire::ALL {
        let name = format!("alice-{wire:?}");
        let mut alice = node.login_chained(wire, &name, "phone", "a");
        for (id, next) in [("a", "b"), ("b", "c"), ("c", "d")] {
            alice.send(link(id, next));
        }
        // This client received no reply. Messages it sent early were lost with its connection.
        alice.say(ask::send(link("f", "g")));
        alice.settle();
        let mut alice = node.login_chained(wire, &name, "phone", "a");
        assert_eq!(alice.welcome.next_id, "d", "{wire:?}");
        let retry = |id: &str, next: &str| ask::send(pb::Send { attempt: 1, ..link(id, next) });
        let frames = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "f"), ("f", "g")]
            .map(|(id, next)| alice.say(retry(id, next)));
        let acks = frames.map(|frame| alice.expect_ack(frame));
        assert_eq!(acks.each_ref().map(|ack| ack.seq), [1, 2, 3, 4, 5, 6]);
        assert_eq!(acks.each_ref().map(|ack| ack.duplicate), [true, true, true, false, false, false]);
        assert_eq!(texts(&mut bob, 6), ["a", "b", "c", "d", "e", "f"]);
        bob.ack(&format!("d:{name}:bob"), 6);
        bob.no_push();
    }
}

#[test]
fn long_chain_in_flight_stays_in_order() {
    let node = TestNode::start(|_| {});
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    for wire in Wire::ALL {
        let name = format!("alice-{wire:?}");
        let mut alice = node.login_chained(wire, &name, "phone", "m0");
        let frames: Vec<u64> =
            (0..200).map(|n| alice.say(ask::send(link(&format!("m{n}"), &format!("m{}", n + 1))))).collect();
        for (n, frame) in frames.into_iter().enumerate() {
            assert_eq!(alice.expect_ack(frame).seq, n as u64 + 1);
        }
        for n in 0..200 {
            let push = bob.expect_push();
            assert_eq!((push.seq, text_of(&push)), (n + 1, format!("m{n}").as_str()));
        }
        bob.ack(&format!("d:{name}:bob"), 200);
    }
}

#[test]
fn full_disk_refuses_a_chain_and_keeps_its_connection() {
    let mut switch = PathBuf::new();
    let node = TestNode::start(|config| {
        fs::create_dir_all(&config.node.data).expect("a directory");
        switch = config.node.data.join("disk");
        fs::write(&switch, "full").expect("a file");
        config.fault.disk_file = switch.clone();
    });
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    let mut alice = node.login_chained(Wire::JsonLine, "alice", "phone", "a");
    let b = alice.say(ask::send(link("b", "c")));
    assert_eq!(alice.refused(ask::send(link("a", "b"))), Code::BusUnavailable);
    assert_eq!(alice.expect_error(b), Code::BusUnavailable, "what follows is given back");
    assert_eq!(expected(&mut alice), "a");
    fs::remove_file(&switch).expect("the file exists");
    let seq = eventually("the disk has space again", || {
        let a = alice.say(ask::send(link("a", "b")));
        match alice.reply(a) {
            ServerBody::SendAck(ack) => Some(ack.seq),
            ServerBody::Error(error) if code(error.code) == Code::BusUnavailable => None,
            other => panic!("{other:?}"),
        }
    });
    assert_eq!((seq, alice.send(link("b", "c")).seq), (1, 2));
    assert_eq!(texts(&mut bob, 2), ["a", "b"]);
}

/// Saved chains are in memory here: the log still has each id, and the client declares its position.
#[test]
fn chain_continues_as_the_client_declares_after_a_restart() {
    let mut data: Option<PathBuf> = None;
    for wire in Wire::ALL {
        let node = data
            .as_ref()
            .map_or_else(|| TestNode::start(quick_alarm), |data| TestNode::start_on(data, quick_alarm));
        let name = format!("alice-{wire:?}");
        let mut alice = node.login_chained(wire, &name, "phone", "a");
        let acked = [("a", "b"), ("b", "c"), ("c", "d")].map(|(id, next)| alice.send(link(id, next)));
        assert_eq!(acked.map(|ack| (ack.seq, ack.duplicate)), [(1, false), (2, false), (3, false)]);
        // The next message never arrives: its successor proceeds without it.
        let e = alice.say(ask::send(link("e", "f")));
        assert_eq!(alice.expect_ack(e).seq, 4, "{wire:?}");
        assert_eq!(alice.refused(ask::send(link("d", "e"))), Code::OrderSkipped);
        drop(alice);
        let node = TestNode::start_on(&node.stop(), quick_alarm);
        let mut bob = node.login(Wire::Tcp, "bob", "phone");
        // The client missed every ack after a, and sends all of it again.
        let mut alice = node.login_chained(wire, &name, "phone", "b");
        assert_eq!(alice.welcome.next_id, "b", "the node has no chain, so the client's declaration counts");
        let retry = |id: &str, next: &str| ask::send(pb::Send { attempt: 1, ..link(id, next) });
        let frames = [("b", "c"), ("c", "d"), ("d", "e"), ("e", "f"), ("f", "g")]
            .map(|(id, next)| alice.say(retry(id, next)));
        let acks = frames.map(|frame| alice.expect_ack(frame));
        // The skip of d is lost with the memory: it is accepted after e.
        assert_eq!(acks.each_ref().map(|ack| ack.seq), [2, 3, 5, 4, 6], "{wire:?}");
        assert_eq!(acks.each_ref().map(|ack| ack.duplicate), [true, true, false, true, false], "{wire:?}");
        assert_eq!(expected(&mut alice), "g");
        let h = alice.say(ask::send(link("h", "i")));
        alice.send(link("g", "h"));
        assert_eq!(alice.expect_ack(h).seq, 8);
        assert_eq!(texts(&mut bob, 4), ["d", "f", "g", "h"], "{wire:?}: retries are duplicates");
        bob.ack(&format!("d:{name}:bob"), 8);
        bob.no_push();
        drop((alice, bob));
        data = Some(node.stop());
    }
    fs::remove_dir_all(data.expect("a directory")).ok();
}

/// A full intake refuses a chained message, and nothing is lost by that: what follows is given back until the client
/// sends again from the refused id.
#[test]
fn k11_a_busy_intake_gives_the_chain_back_and_loses_nothing() {
    let node = TestNode::start(|config| {
        config.limits.intake_bytes_max = 65_536;
        quick_alarm(config);
    });
    let mut alice = node.login_chained(Wire::Tcp, "alice", "phone", "m0");
    let text = "x".repeat(30_000);
    let mut next = 0;
    let mut refusals = 0;
    while next < 12 {
        let frames: Vec<u64> = (next..12)
            .map(|n| {
                let link =
                    pb::Send { next_id: format!("m{}", n + 1), ..send("bob", &format!("m{n}"), &text) };
                alice.say(ask::send(link))
            })
            .collect();
        let mut is_given_back = false;
        for frame in frames {
            match alice.reply(frame) {
                ServerBody::SendAck(ack) => {
                    assert!(!is_given_back, "m{next} overtook a refused message");
                    next += 1;
                    assert_eq!(ack.seq, next);
                }
                ServerBody::Error(error) => {
                    assert_eq!((error.name.as_str(), error.temporary), ("BUSY", true), "{error:?}");
                    is_given_back = true;
                    refusals += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(refusals > 0, "the intake was never full");
}
