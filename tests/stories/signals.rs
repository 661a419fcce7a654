//! Signals: typing and the like reach members with an empty outbox, and leave no trace.

use tidegate_protocol::{Code, codec::Wire, pb};

use crate::support::{Client, ServerBody, TestNode, ask};

fn expect_no_signal(client: &mut Client) {
    client.settle();
    let signal = client.inbox.iter().find(|frame| matches!(frame.body, Some(ServerBody::Signal(_))));
    assert!(signal.is_none(), "unexpected: {signal:?}");
}

#[test]
fn signal_reaches_the_others_and_is_not_stored() {
    let node = TestNode::start(|_| {});
    for (n, wire) in Wire::ALL.into_iter().enumerate() {
        let (ann, bob) = (format!("ann{n}"), format!("bob{n}"));
        let group = node.group(&format!("tea{n}"), &[&ann, &bob]);
        let mut phone = node.login(Wire::Tcp, &ann, "phone");
        let mut tablet = node.login(Wire::Tcp, &ann, "tablet");
        let mut other = node.login(wire, &bob, "phone");
        for place in [bob.clone(), group.clone()] {
            phone.expect_done(ask::signal(&place, "typing", "half a w"));
            for client in [&mut other, &mut tablet] {
                let received = client.expect_signal();
                assert_eq!((received.sender.as_str(), received.kind.as_str()), (ann.as_str(), "typing"));
                assert_eq!(received.content, Some(tidegate_protocol::content::Content::text("half a w")));
                assert_eq!((received.conversation.contains(':'), received.to_user.as_str()), (true, ""));
            }
            expect_no_signal(&mut phone);
        }
        assert_eq!(other.sync(&[]).len(), 1, "a signal creates no conversation");
        assert_eq!(other.state(&group).max_seq, 1, "and takes no seq");
        assert_eq!(phone.text(&bob, "m1", "half a word"), 1);
    }
}

#[test]
fn signals_are_for_members_of_small_groups() {
    let node = TestNode::start(|config| config.limits.small_group_max = 3);
    let small = node.group("small", &["ann", "bob", "cid"]);
    let large = node.group("large", &["ann", "bob", "cid", "dan"]);
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    let mut bob = node.login(Wire::WsText, "bob", "phone");
    let mut eve = node.login(Wire::Tcp, "eve", "phone");
    for _ in 0..2 {
        assert_eq!(ann.refused(ask::signal(&large, "typing", "")), Code::Forbidden);
        assert_eq!(eve.refused(ask::signal(&small, "typing", "")), Code::NotAMember);
        assert_eq!(eve.refused(ask::signal("g:nowhere", "typing", "")), Code::NotAMember);
        assert_eq!(eve.refused(ask::signal("d:ann:bob", "typing", "")), Code::Forbidden);
    }
    ann.expect_done(ask::signal(&small, "typing", ""));
    assert_eq!(
        bob.expect_signal(),
        pb::Signal {
            conversation: small.clone(),
            kind: "typing".into(),
            sender: "ann".into(),
            ..Default::default()
        }
    );
    node.kick(&small, &["ann"]);
    assert_eq!(ann.expect_push().event.expect("the kick").users, ["ann"]);
    assert_eq!(ann.refused(ask::signal(&small, "typing", "")), Code::NotAMember);
    assert_eq!(bob.expect_push().seq, 2);
    expect_no_signal(&mut bob);
}

#[test]
fn flooding_client_is_limited_and_stays_connected() {
    let node = TestNode::start(|config| config.limits.signals_per_second = 5);
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    let ids: Vec<u64> = (0..300).map(|_| ann.say(ask::signal("bob", "typing", ""))).collect();
    let mut refused = 0;
    for id in ids {
        match ann.reply(id) {
            ServerBody::Done(_) => {}
            ServerBody::Error(error) => {
                assert_eq!((error.name.as_str(), error.temporary), ("RATE_LIMITED", true));
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(refused >= 200, "{refused}");
    bob.expect_signal();
    assert_eq!(ann.text("bob", "m1", "a message"), 1, "messages have separate limits");
}

#[test]
fn signal_neither_queues_nor_displaces_messages() {
    let node = TestNode::start(|config| {
        config.limits.signals_per_second = 1_000;
        config.limits.window_max = 10_000;
        config.limits.window_bytes_max = 64 << 20;
        config.timing.write_ms = 60_000;
    });
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    // Bob reads nothing: what does not fit into his socket is queued, up to a bound.
    let text = "x".repeat(20_000);
    let mut last = 0;
    for n in 0..120 {
        last = ann.text("bob", &format!("m{n}"), &text);
        ann.expect_done(ask::signal("bob", "typing", "while he is away"));
    }
    for _ in 0..50 {
        ann.expect_done(ask::signal("bob", "late", ""));
    }
    bob.settle();
    let late = bob
        .inbox
        .iter()
        .filter(|frame| matches!(&frame.body, Some(ServerBody::Signal(signal)) if signal.kind == "late"));
    assert_eq!(late.count(), 0, "signals do not use the queue");
    let state = bob.state("d:ann:bob");
    assert_eq!((state.max_seq, state.unread), (last, last));
    bob.inbox.clear();
    ann.expect_done(ask::signal("bob", "again", ""));
    assert_eq!(bob.expect_signal().kind, "again");
}
