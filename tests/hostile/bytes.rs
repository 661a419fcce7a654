//! The same session however its bytes are split: one by one, in two at each position, all in one write.

use tidegate_protocol::{Code, codec::Wire, pb};

use crate::{
    chat::Chat,
    raw::{Raw, frame, preface},
    support::{Process, ServerBody, ask, hello, send, text_of},
};

fn is_ack(frame: &pb::ServerFrame) -> bool {
    matches!(frame.body, Some(ServerBody::SendAck(_)))
}

#[test]
fn client_sending_byte_by_byte_works_like_any_other() {
    let node = Process::start(&[]);
    let chat = Chat::begin(&node);
    for wire in Wire::ALL {
        let user = format!("slow-{}", wire as u8);
        let mut friend = node.login(Wire::Tcp, "friend", &user);
        let mut raw = Raw::connect(node.address(), wire);
        raw.dribble(&preface(wire));
        raw.dribble(&frame(wire, 1, ask::hello(hello(&node.token(&user), "d"))));
        raw.dribble(&frame(wire, 2, ask::send(send("friend", "m1", "päckchen"))));
        let push = friend.expect_push();
        assert_eq!(text_of(&push), "päckchen", "{wire:?}");
        friend.text(&push.conversation, "answer", "back");
        let frames = raw.until("ack and push", |frames| frames.len() >= 3);
        assert!(matches!(frames[0].body, Some(ServerBody::Welcome(_))), "{wire:?}: {frames:?}");
        assert!(is_ack(&frames[1]), "{wire:?}: {frames:?}");
        assert!(
            matches!(&frames[2].body, Some(ServerBody::Push(push)) if text_of(push) == "back"),
            "{wire:?}: {frames:?}"
        );
        raw.dribble(&frame(wire, 3, ask::ack(&push.conversation, 2)));
        raw.dribble(&frame(wire, 4, ask::bye()));
        raw.until_end().assert_closed(wire, Code::Bye, "byte by byte");
    }
    chat.end();
}

/// On one shard a round of the honest pair proves that the first part was read before the second is sent.
#[test]
fn session_may_be_split_at_every_position() {
    // Neither the handshake timeout nor the number of devices is the subject here.
    let node = Process::start(&[
        "node.shards=1",
        "timing.handshake_ms=60000",
        "limits.devices_per_user=0",
        "limits.user_logins_per_second=0",
    ]);
    let mut honest = node.login(Wire::Tcp, "honest", "d");
    let token = node.token("cutter");
    for wire in Wire::ALL {
        let transcript = |device: usize| {
            let mut bytes = preface(wire);
            bytes.extend(frame(wire, 1, ask::hello(hello(&token, &format!("{}-{device:04}", wire as u8)))));
            bytes.extend(frame(wire, 2, ask::send(send("absent", "m1", "cut"))));
            bytes.extend(frame(wire, 3, ask::bye()));
            bytes
        };
        let length = transcript(0).len();
        let mut cut: Vec<(Raw, Vec<u8>)> = (1..length)
            .map(|at| {
                let mut first = transcript(at);
                let second = first.split_off(at);
                let mut raw = Raw::connect(node.address(), wire);
                raw.send(&first).expect("the node reads");
                (raw, second)
            })
            .collect();
        honest.settle();
        for (raw, second) in &mut cut {
            raw.send(second).expect("the node reads");
        }
        for (at, (raw, _)) in cut.iter_mut().enumerate() {
            let what = format!("{wire:?} cut at {}", at + 1);
            let output = raw.until_end();
            output.assert_closed(wire, Code::Bye, &what);
            assert_eq!(output.frames.iter().filter(|frame| is_ack(frame)).count(), 1, "{what}: {output:?}");
        }
    }
    honest.settle();
}

/// More sends than may be unanswered, so that the node has to stop and resume reading.
#[test]
fn frames_of_one_write_are_answered_in_order() {
    const SENDS: u64 = 300;
    let node = Process::start(&["limits.in_flight_max=16"]);
    let chat = Chat::begin(&node);
    for wire in Wire::ALL {
        let mut bytes = preface(wire);
        let user = format!("bulk-{}", wire as u8);
        bytes.extend(frame(wire, 1, ask::hello(hello(&node.token(&user), "d"))));
        for n in 0..SENDS {
            bytes.extend(frame(wire, 2 + n, ask::send(send("absent", &format!("m{n}"), "x"))));
            bytes.extend(frame(wire, 10_000 + n, ask::ping()));
        }
        bytes.extend(frame(wire, 9_999, ask::bye()));
        let mut raw = Raw::connect(node.address(), wire);
        raw.send(&bytes).expect("the node reads");
        let output = raw.until_end();
        output.assert_closed(wire, Code::Bye, "coalesced");
        let seqs: Vec<(u64, u64)> = output
            .frames
            .iter()
            .filter_map(|frame| match &frame.body {
                Some(ServerBody::SendAck(ack)) => Some((frame.id, ack.seq)),
                _ => None,
            })
            .collect();
        let expected: Vec<(u64, u64)> = (0..SENDS).map(|n| (2 + n, 1 + n)).collect();
        assert_eq!(seqs, expected, "{wire:?}");
        let pongs =
            output.frames.iter().filter(|frame| matches!(frame.body, Some(ServerBody::Pong(_)))).count();
        assert_eq!(pongs as u64, SENDS, "{wire:?}");
    }
    chat.end();
}
