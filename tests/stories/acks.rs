//! Pushes are resent until acked, within bounds; a client that acks nothing is closed.

use std::time::{Duration, Instant};

use prost::{Message as _, encoding::encode_varint};
use tidegate_protocol::{Code, codec::Wire, pb};

use crate::support::{Client, ServerBody, TestNode, ask, hello, send, text_of};

fn impatient(config: &mut tidegate::config::Config) {
    config.timing.ack_timeout_ms = 300;
    config.timing.ack_tries = 2;
}

#[test]
fn unacked_push_is_resent_and_its_client_then_closed_slow() {
    let node = TestNode::start(impatient);
    let mut bobs: Vec<Client> = Wire::ALL.map(|wire| node.login(wire, "bob", &format!("{wire:?}"))).into();
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    let since = Instant::now();
    alice.text("bob", "m1", "are you there?");
    for bob in &mut bobs {
        let first = bob.expect_push();
        assert_eq!(text_of(&first), "are you there?");
        assert_eq!(
            bob.pushes(2),
            vec![first.clone(); 2],
            "the same push, as often as configured: {:?}",
            bob.wire
        );
        assert_eq!(bob.expect_close(), Code::Slow);
        let more = bob.inbox.iter().filter(|frame| matches!(frame.body, Some(ServerBody::Push(_)))).count();
        assert_eq!(more, 0, "resent more often than configured");
    }
    assert!(since.elapsed() >= Duration::from_millis(900), "three timeouts took {:?}", since.elapsed());
    alice.settle();
}

#[test]
fn ack_covers_all_earlier_pushes() {
    let node = TestNode::start(impatient);
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    for wire in Wire::ALL {
        let name = format!("bob-{wire:?}");
        let mut bob = node.login(wire, &name, "phone");
        let conversation = (1..=3).map(|n| alice.send(send(&name, &format!("{wire:?}-{n}"), "x"))).last();
        let conversation = conversation.expect("three").conversation;
        bob.pushes(3);
        bob.ack(&conversation, 2);
        // Copies from before the ack, which a slow machine has sent by then.
        bob.inbox.clear();
        let again = bob.expect_push();
        assert_eq!(again.seq, 3, "only the third is missing");
        bob.ack(&conversation, 3);
        bob.inbox.clear();
        bob.no_push_for(Duration::from_millis(800));
    }
}

#[test]
fn ack_of_another_conversation_or_of_old_seqs_is_ignored() {
    let node = TestNode::start(impatient);
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    let mut bob = node.login(Wire::JsonLine, "bob", "phone");
    alice.text("bob", "m1", "x");
    bob.expect_push();
    bob.ack("d:bob:carol", 99);
    bob.ack("d:alice:bob", 0);
    assert_eq!(bob.expect_push().seq, 1);
}

#[test]
fn client_can_set_fewer_tries_and_a_shorter_timeout() {
    let node = TestNode::start(|config| config.timing.ack_timeout_ms = 3_600);
    let mut bob = node.connect(Wire::WsText);
    let settings = pb::Settings { ack_timeout_ms: 1, ack_tries: 1, ..Default::default() };
    bob.login(pb::Hello { settings: Some(settings), ..hello(&node.token("bob"), "phone") });
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    let since = Instant::now();
    alice.text("bob", "m1", "x");
    bob.pushes(2);
    assert_eq!(bob.expect_close(), Code::Slow);
    let took = since.elapsed();
    assert!(took > Duration::from_millis(1_650) && took < Duration::from_millis(6_000), "{took:?}");
}

#[test]
fn full_window_turns_pushes_into_behind() {
    let node = TestNode::start(|config| config.limits.window_max = 4);
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    for wire in Wire::ALL {
        let name = format!("bob-{wire:?}");
        let mut bob = node.login(wire, &name, "phone");
        for n in 1..=7 {
            alice.text(&name, &format!("{wire:?}-{n}"), "x");
        }
        let key = format!("d:alice:{name}");
        bob.take("behind up to 7", |frame| {
            matches!(
                &frame.body,
                Some(ServerBody::Behind(behind)) if behind.conversation == key && behind.max_seq == 7
            )
        });
        assert_eq!(bob.pushes(4).iter().map(|push| push.seq).collect::<Vec<_>>(), [1, 2, 3, 4]);
        bob.no_push();
        bob.ack(&key, 4);
        alice.text(&name, &format!("{wire:?}-8"), "x");
        assert_eq!(bob.expect_push().seq, 8);
    }
}

/// Returns an ack with a field `time` that the protocol does not have, as a frame of this wire.
fn ack_with_time(wire: Wire, conversation: &str, seq: u64, time: u64) -> Vec<u8> {
    if matches!(wire, Wire::JsonLine | Wire::WsText) {
        let ack = format!(r#"{{"conversation":"{conversation}","seq":{seq},"time":{time}}}"#);
        return format!(r#"{{"id":900,"ack":{ack}}}"#).into_bytes();
    }
    let mut ack = pb::Ack { conversation: conversation.into(), seq }.encode_to_vec();
    // Field 5, a varint, as in a push.
    ack.push(5 << 3);
    encode_varint(time, &mut ack);
    let mut frame = vec![1 << 3];
    encode_varint(900, &mut frame);
    // Field 4 of a client's frame, with its length.
    frame.push(4 << 3 | 2);
    encode_varint(ack.len() as u64, &mut frame);
    [frame, ack].concat()
}

#[test]
fn s16_time_in_an_ack_is_ignored() {
    const FAR_TIME_MS: u64 = 4_102_444_800_000;
    let node = TestNode::start(|config| config.timing.ack_timeout_ms = 300);
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    for wire in Wire::ALL {
        let name = format!("bob-{wire:?}");
        let mut bob = node.login(wire, &name, "phone");
        let place = format!("d:alice:{name}");
        (1..=3).for_each(|n| _ = alice.text(&name, &format!("{wire:?}-{n}"), "x"));
        bob.pushes(3);
        let ack = |bob: &mut Client, seq, time| {
            bob.link.send_payload(&ack_with_time(wire, &place, seq, time));
            assert!(matches!(bob.reply(900), ServerBody::Done(_)), "{wire:?}");
        };
        // A time in the year 2100, after everything.
        ack(&mut bob, 1, FAR_TIME_MS);
        // Drops copies from before the ack; either of the next two may be the first.
        bob.inbox.clear();
        let mut again: Vec<u64> = bob.pushes(2).iter().map(|push| push.seq).collect();
        again.sort_unstable();
        assert_eq!(again, [2, 3], "{wire:?}: the seq decides what is acked");
        let page = bob.page(ask::after(&place, 0, 10));
        assert_eq!(
            page.messages.iter().map(|push| push.seq).collect::<Vec<_>>(),
            [1, 2, 3],
            "the history is complete"
        );
        assert_eq!(bob.state(&place).unread, 3, "{wire:?}");
        // A time in 1970, before everything.
        ack(&mut bob, 3, 1);
        bob.inbox.clear();
        bob.no_push_for(Duration::from_millis(800));
    }
}
