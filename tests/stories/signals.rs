//! Signals: typing and the like reach whoever has nothing else waiting, and leave no trace.

use tidegate_protocol::{
    Code,
    codec::Wire,
    pb::{self, client_frame::Body},
};

use crate::support::{Client, Said, TestNode, ask};

fn done(client: &mut Client, body: Body) {
    assert!(matches!(client.ask(body), Said::Done(_)));
}

fn no_signal(client: &mut Client) {
    client.settle();
    let signal = client.inbox.iter().find(|frame| matches!(frame.body, Some(Said::Signal(_))));
    assert!(signal.is_none(), "unexpected: {signal:?}");
}

#[test]
fn a_signal_reaches_the_others_and_is_kept_nowhere() {
    let node = TestNode::start(|_| {});
    for (n, wire) in Wire::ALL.into_iter().enumerate() {
        let (ann, bob) = (format!("ann{n}"), format!("bob{n}"));
        let group = node.group(&format!("tea{n}"), &[&ann, &bob]);
        let mut phone = node.login(Wire::Tcp, &ann, "phone");
        let mut tablet = node.login(Wire::Tcp, &ann, "tablet");
        let mut other = node.login(wire, &bob, "phone");
        for place in [bob.clone(), group.clone()] {
            done(&mut phone, ask::signal(&place, "typing", "half a w"));
            for client in [&mut other, &mut tablet] {
                let heard = client.expect_signal();
                assert_eq!((heard.sender.as_str(), heard.kind.as_str()), (ann.as_str(), "typing"));
                assert_eq!(heard.content, Some(tidegate_protocol::content::Content::text("half a w")));
                assert_eq!((heard.conversation.contains(':'), heard.to_user.as_str()), (true, ""));
            }
            no_signal(&mut phone);
        }
        assert_eq!(other.sync(&[]).len(), 1, "a signal begins no conversation");
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
    done(&mut ann, ask::signal(&small, "typing", ""));
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
    no_signal(&mut bob);
}

#[test]
fn who_floods_is_held_back_and_goes_on() {
    let node = TestNode::start(|config| config.limits.signals_per_second = 5);
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    let ids: Vec<u64> = (0..300).map(|_| ann.say(ask::signal("bob", "typing", ""))).collect();
    let mut refused = 0;
    for id in ids {
        match ann.reply(id) {
            Said::Done(_) => {}
            Said::Error(error) => {
                assert_eq!((error.name.as_str(), error.temporary), ("RATE_LIMITED", true));
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(refused >= 200, "{refused}");
    bob.expect_signal();
    assert_eq!(ann.text("bob", "m1", "a message"), 1, "messages have their own bounds");
}

#[test]
fn a_signal_never_waits_behind_messages_nor_takes_their_room() {
    let node = TestNode::start(|config| {
        config.limits.signals_per_second = 1_000;
        config.limits.window_max = 10_000;
        config.limits.window_bytes_max = 64 << 20;
        config.timing.write_ms = 60_000;
    });
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    // Bob reads nothing: what does not fit into his socket waits, up to a bound.
    let text = "x".repeat(20_000);
    let mut last = 0;
    for n in 0..120 {
        last = ann.text("bob", &format!("m{n}"), &text);
        done(&mut ann, ask::signal("bob", "typing", "while he is away"));
    }
    for _ in 0..50 {
        done(&mut ann, ask::signal("bob", "late", ""));
    }
    bob.settle();
    let late = bob
        .inbox
        .iter()
        .filter(|frame| matches!(&frame.body, Some(Said::Signal(signal)) if signal.kind == "late"));
    assert_eq!(late.count(), 0, "what waits is not for signals");
    let state = bob.state("d:ann:bob");
    assert_eq!((state.max_seq, state.unread), (last, last));
    bob.inbox.clear();
    done(&mut ann, ask::signal("bob", "again", ""));
    assert_eq!(bob.expect_signal().kind, "again");
}
