//! Direct messages: seqs, order, retries, refusals, and every kind of content over every pair of framings.

mod api;
mod blocks;
mod edits;
mod ids;
pub(crate) mod limits;
mod modes;
mod privacy;
mod rules;
mod signals;

use std::collections::BTreeMap;

use tidegate_protocol::{Code, codec::Wire, content::Content, pb};

use crate::support::{Client, ServerBody, TestNode, ask, send, text_of};

#[test]
fn four_clients_on_four_framings_share_one_conversation() {
    let node = TestNode::start(|config| config.node.shards = 3);
    let group = node.group("wires", &["u0", "u1", "u2", "u3"]);
    let mut clients: Vec<Client> =
        Wire::ALL.iter().enumerate().map(|(n, wire)| node.login(*wire, &format!("u{n}"), "phone")).collect();
    let bytes: Vec<u8> = (0..=255).collect();
    let contents = [
        Content::text("plain"),
        Content::text("żółw 收到 🦀\u{200d}🔥 \u{0}\n\r\t\"\\</script>\u{2028}"),
        Content::text("a".repeat(20_000)),
        Content::data(bytes),
        Content::data(vec![0xff; 3]),
        Content::data(vec![0; 20_000]),
        Content::text(" "),
    ];
    let mut seq = 1;
    for sender in 0..4 {
        for (n, content) in contents.iter().enumerate() {
            seq += 1;
            let send =
                pb::Send { content: Some(content.clone()), ..send(&group, &format!("{sender}-{n}"), "") };
            assert_eq!(clients[sender].send(send).seq, seq);
            for receiver in (0..4).filter(|receiver| *receiver != sender) {
                let push = clients[receiver].expect_push();
                assert_eq!((push.seq, push.msg_id), (seq, format!("{sender}-{n}")));
                assert_eq!((push.sender, push.conversation.as_str()), (format!("u{sender}"), "g:wires"));
                assert_eq!(push.content.as_ref(), Some(content), "{sender} to {receiver}");
                clients[receiver].ack(&group, seq);
            }
        }
    }
}

#[test]
fn base64_and_unknown_json_keys_are_read_as_documented() {
    let node = TestNode::start(|_| {});
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    for wire in [Wire::JsonLine, Wire::WsText] {
        let mut alice = node.login(wire, "alice", "phone");
        let frame = format!(
            r#"{{"mood":[1,{{"a":null}}],"id":"5","send":{{"to_user":"bob","msgId":"{wire:?}","x":{{}},"#
        ) + r#""content":{"data":"-_8","y":1}}}"#;
        alice.link.send_payload(frame.as_bytes());
        alice.expect_ack(5);
        assert_eq!(bob.expect_push().content, Some(Content::data(vec![0xfb, 0xff])));
    }
}

#[test]
fn unknown_fields_of_a_content_reach_the_receivers() {
    let node = TestNode::start(|_| {});
    let mut bobs = [node.login(Wire::Tcp, "bob", "tcp"), node.login(Wire::WsBinary, "bob", "ws")];
    let mut reader = node.login(Wire::JsonLine, "bob", "json");
    for wire in [Wire::Tcp, Wire::WsBinary] {
        let mut alice = node.login(wire, "alice", "phone");
        // Field 99, three bytes.
        let content = Content { unknown: vec![0x9a, 0x06, 3, 7, 8, 9], ..Content::text("newer") };
        let id = format!("{wire:?}");
        alice.send(pb::Send { content: Some(content.clone()), ..send("bob", &id, "") });
        for bob in &mut bobs {
            assert_eq!(bob.expect_push().content.as_ref(), Some(&content));
        }
        assert_eq!(text_of(&reader.expect_push()), "newer");
    }
}

#[test]
fn seqs_run_from_one_without_holes_under_concurrency() {
    let node = TestNode::start(|config| config.node.shards = 3);
    let group = node.group("busy", &["s0", "s1", "s2", "s3", "r0", "r1", "r2", "r3"]);
    let mut receivers: Vec<Client> =
        Wire::ALL.iter().enumerate().map(|(n, wire)| node.login(*wire, &format!("r{n}"), "phone")).collect();
    const EACH: usize = 50;
    let acked: BTreeMap<u64, String> = std::thread::scope(|scope| {
        let (node, group) = (&node, group.as_str());
        let talk = move |n: usize| {
            let mut client = node.login(Wire::ALL[n], &format!("s{n}"), "phone");
            let ids: Vec<String> = (0..EACH).map(|m| format!("s{n}-{m}")).collect();
            let frames: Vec<u64> = ids.iter().map(|id| client.say(ask::send(send(group, id, id)))).collect();
            let acks = frames.into_iter().map(|frame| client.expect_ack(frame).seq);
            acks.zip(ids).collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..4).map(|n| scope.spawn(move || talk(n))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a sender")).collect()
    });
    let seqs: Vec<u64> = acked.keys().copied().collect();
    assert_eq!(
        seqs,
        (2..2 + 4 * EACH as u64).collect::<Vec<_>>(),
        "one seq each, the first for the creation"
    );
    for receiver in &mut receivers {
        for (seq, id) in &acked {
            let push = receiver.expect_push();
            assert_eq!((push.seq, &push.msg_id, text_of(&push)), (*seq, id, id.as_str()));
        }
        receiver.no_push();
    }
}

#[test]
fn retry_gets_the_same_seq_and_is_pushed_once() {
    let node = TestNode::start(|_| {});
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    for wire in Wire::ALL {
        let id = format!("{wire:?}");
        let mut alice = node.login(wire, "alice", "phone");
        let first = alice.send(send("bob", &id, "once"));
        assert!(!first.duplicate && first.time > 1_700_000_000_000);
        let retry = |attempt| pb::Send { attempt, ..send("bob", &id, "once") };
        for attempt in [0, 1, 7] {
            let again = alice.send(retry(attempt));
            assert_eq!(again, pb::SendAck { duplicate: true, ..first.clone() }, "attempt {attempt}");
        }
        // From a later connection of the same device, and concurrently with itself.
        let mut alice = node.login(wire, "alice", "phone");
        assert!(alice.send(retry(1)).duplicate);
        let twin = format!("twin-{id}");
        let frames =
            [0, 1].map(|attempt| alice.say(ask::send(pb::Send { attempt, ..send("bob", &twin, "twin") })));
        let acks = frames.map(|frame| alice.expect_ack(frame));
        assert_eq!((acks[0].seq, acks.each_ref().map(|ack| ack.duplicate)), (acks[1].seq, [false, true]));
        assert_eq!(bob.pushes(2).iter().map(text_of).collect::<Vec<_>>(), ["once", "twin"]);
        bob.no_push();
    }
}

#[test]
fn reused_id_with_other_content_is_a_conflict_per_device() {
    let node = TestNode::start(|_| {});
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    let mut alice = node.login(Wire::JsonLine, "alice", "phone");
    alice.send(send("bob", "m1", "yes"));
    for attempt in [0, 1] {
        let other = pb::Send { attempt, ..send("bob", "m1", "no") };
        assert_eq!(alice.refused(ask::send(other)), Code::Conflict);
    }
    // The id is free in another conversation, and on another device.
    assert!(!alice.send(send("carol", "m1", "no")).duplicate);
    let mut laptop = node.login(Wire::WsText, "alice", "laptop");
    let ack = laptop.send(send("bob", "m1", "maybe"));
    assert_eq!((ack.seq, ack.duplicate), (2, false));
    assert_eq!(bob.pushes(2).iter().map(text_of).collect::<Vec<_>>(), ["yes", "maybe"]);
    bob.no_push();
}

/// A table keyed by text would swallow the second "ok".
#[test]
fn s15_equal_texts_are_different_messages() {
    let node = TestNode::start(|_| {});
    let mut bob = node.login(Wire::WsText, "bob", "phone");
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    let texts = ["ok", "ok", "1", "ok", "收到", "收到"];
    for (n, text) in texts.iter().enumerate() {
        assert_eq!(alice.text("bob", &format!("m{n}"), text), n as u64 + 1);
    }
    let pushes = bob.pushes(texts.len());
    assert_eq!(pushes.iter().map(text_of).collect::<Vec<_>>(), texts);
}

#[test]
fn both_sides_see_one_order() {
    let node = TestNode::start(|config| config.node.shards = 2);
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    let mut zoe = node.login(Wire::WsBinary, "zoe", "phone");
    for n in 0..20_u64 {
        let (from, to, name) =
            if n % 2 == 0 { (&mut ann, &mut zoe, "zoe") } else { (&mut zoe, &mut ann, "ann") };
        let ack = from.send(send(name, &format!("m{n}"), "."));
        assert_eq!((ack.conversation.as_str(), ack.seq), ("d:ann:zoe", n + 1));
        assert_eq!(to.expect_push().seq, n + 1);
    }
}

#[test]
fn invalid_send_is_refused_with_its_code_and_takes_no_seq() {
    let node = TestNode::start(|_| {});
    for wire in Wire::ALL {
        let name = format!("u-{wire:?}");
        let mut alice = node.login(wire, &name, "phone");
        let mut refused = |send: pb::Send| alice.refused(ask::send(send));
        assert_eq!(refused(send("d:bob:carol", "m1", "psst")), Code::Forbidden);
        assert_eq!(refused(send("", "m1", "nowhere")), Code::BadContent);
        assert_eq!(refused(pb::Send { to_user: "bob".into(), ..send("d:a:b", "m", "x") }), Code::BadContent);
        assert_eq!(refused(pb::Send { content: None, ..send("bob", "m1", "") }), Code::BadContent);
        assert_eq!(refused(send("b b", "m1", "x")), Code::BadId);
        assert_eq!(refused(send("bob", "m 1", "x")), Code::BadId);
        assert_eq!(refused(send("bob", "", "x")), Code::BadId);
        assert_eq!(refused(send("x:y", "m1", "x")), Code::BadId);
        assert_eq!(refused(send("d:zoe:bob", "m1", "ids are not in order")), Code::BadId);
        assert_eq!(refused(send("bob", "m1", &"x".repeat(32_769))), Code::ContentTooLarge);
        assert_eq!(refused(pb::Send { next_id: "m2".into(), ..send("bob", "m1", "x") }), Code::BadLink);
        assert_eq!(refused(send("g:nobody-made-this", "m1", "x")), Code::NotAMember);
        assert_eq!(refused(send("r:hall", "m1", "x")), Code::NotAMember);
        assert_eq!(alice.text("bob", "m1", "at last"), 1);
    }
}

#[test]
fn too_many_refusals_close_the_connection() {
    let node = TestNode::start(|config| config.limits.errors_max = 5);
    for wire in Wire::ALL {
        let name = format!("u-{wire:?}");
        let mut alice = node.login(wire, &name, "phone");
        for n in 0..10 {
            assert_eq!(alice.refused(ask::send(send("", "m", "x"))), Code::BadContent);
            alice.text("bob", &format!("m{n}"), "good");
        }
        for _ in 0..5 {
            alice.say(ask::send(send("", "m", "x")));
        }
        assert_eq!(alice.expect_close(), Code::TooManyErrors, "{wire:?}");
        assert_eq!(alice.inbox.iter().filter(|f| matches!(f.body, Some(ServerBody::Error(_)))).count(), 5);
    }
}
