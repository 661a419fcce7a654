//! A full disk: messages are refused and everything else continues; with space again the same node accepts them.

use std::{fs, path::PathBuf};

use tidegate_protocol::{Code, codec::Wire, pb};

use crate::support::{Client, ServerBody, TestNode, ask, code, eventually, send, seqs_of, text_of};

/// Faults of the disk: the store notices it in advance, a commit fails, or the sync after one does. The last two leave
/// the free-space limit intact, or the first would precede them.
const FAULTS: [&str; 4] = ["full", "full enospc", "full enospc-sync", "full emfile"];

const DIRECT: &str = "d:alice:bob";

/// Receives the push with that seq of a conversation; others stay in the inbox.
fn push_at(client: &mut Client, conversation: &str, seq: u64) -> pb::Push {
    let is_it = |push: &pb::Push| push.conversation == conversation && push.seq == seq;
    let wanted = |frame: &pb::ServerFrame| matches!(&frame.body, Some(ServerBody::Push(push)) if is_it(push));
    match client.take(&format!("{conversation} {seq}"), wanted).body {
        Some(ServerBody::Push(push)) => push,
        other => panic!("{other:?}"),
    }
}

/// Sends until the node refuses; returns the last acked seq, and the ids in doubt.
fn until_refused(client: &mut Client) -> (u64, Vec<String>) {
    let (mut sent, mut last, mut in_doubt) = (0, 0, Vec::new());
    eventually("sends are refused", || {
        sent += 1;
        let msg_id = format!("late{sent}");
        let id = client.say(ask::send(send("bob", &msg_id, &msg_id)));
        match client.reply(id) {
            ServerBody::SendAck(ack) => last = ack.seq,
            ServerBody::Error(error) => match code(error.code) {
                Code::Unknown => in_doubt.push(msg_id),
                Code::BusUnavailable => return Some(()),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
        None
    });
    (last, in_doubt)
}

/// Asserts what needs no write: unacked pushes, volatile frames, and every way of reading.
fn assert_reads_continue(node: &TestNode, alice: &mut Client, bob: &mut Client, last_seq: u64) {
    bob.settle();
    bob.inbox.clear();
    for seq in 1..=last_seq {
        push_at(bob, DIRECT, seq);
    }
    bob.ack(DIRECT, last_seq);
    // A commit whose sync failed can be read, although it was not published.
    let last = bob.state(DIRECT).max_seq;
    assert!(matches!(alice.ask(ask::signal("bob", "typing", "")), ServerBody::Done(_)));
    assert_eq!(bob.expect_signal().kind, "typing");
    let seq = alice.text("r:hall", "hall1", "still here");
    assert_eq!(text_of(&push_at(bob, "r:hall", seq)), "still here");
    match bob.ask(ask::ping_with(&[(DIRECT, last - 1)])) {
        ServerBody::Pong(pong) => {
            assert_eq!(pong.positions.iter().find(|it| it.conversation == DIRECT).expect("it").seq, last)
        }
        other => panic!("{other:?}"),
    }
    for wire in Wire::ALL {
        // A reconnecting device, and a new one.
        let mut back = node.login(wire, "bob", &format!("{wire:?}"));
        let state = back.state(DIRECT);
        assert_eq!((state.max_seq, state.last.expect("the last message").seq), (last, last));
        assert_eq!(seqs_of(&back.page(ask::after(DIRECT, 0, 100))), (1..=last).collect::<Vec<_>>());
        assert_eq!(back.state("g:tea").unread, 1);
        let mut guest = node.login(wire, &format!("guest{wire:?}"), "phone");
        guest.expect_done(ask::join("hall"));
        assert_eq!(guest.sync(&[]), []);
    }
}

#[test]
fn full_disk_refuses_messages_and_the_node_recovers() {
    for fault in FAULTS {
        let mut switch = PathBuf::new();
        let node = TestNode::start(|config| {
            fs::create_dir_all(&config.node.data).expect("a directory");
            switch = config.node.data.join("disk");
            config.fault.disk_file.clone_from(&switch);
            if fault != "full" {
                config.limits.disk_free_min_bytes = 0;
            }
            (config.timing.ack_timeout_ms, config.timing.ack_tries) = (300, 200);
        });
        let group = node.group("tea", &["alice", "bob"]);
        let mut alice = node.login(Wire::Tcp, "alice", "phone");
        let mut bob = node.login(Wire::JsonLine, "bob", "phone");
        for client in [&mut alice, &mut bob] {
            client.expect_done(ask::join("hall"));
        }
        for n in 1..=3 {
            assert_eq!(alice.text("bob", &format!("m{n}"), "text"), n);
        }
        alice.text(&group, "g1", "text");
        fs::write(&switch, fault).expect("a file");
        let (acked, in_doubt) = until_refused(&mut alice);
        assert_eq!(in_doubt.is_empty(), fault == "full", "{fault}: a failed commit may be on disk");
        let last_seq = acked.max(3);
        assert_reads_continue(&node, &mut alice, &mut bob, last_seq);
        assert_eq!(alice.refused(ask::send(send("bob", "again", "text"))), Code::BusUnavailable, "{fault}");

        fs::remove_file(&switch).expect("the file exists");
        let ack = eventually("sends are accepted", || {
            let id = alice.say(ask::send(pb::Send { attempt: 1, ..send("bob", "again", "space") }));
            match alice.reply(id) {
                ServerBody::SendAck(ack) => Some(ack),
                ServerBody::Error(error) if error.temporary => None,
                other => panic!("{other:?}"),
            }
        });
        for msg_id in &in_doubt {
            let retry = alice.send(pb::Send { attempt: 1, ..send("bob", msg_id, msg_id) });
            assert!(retry.duplicate, "{fault}: the owner has read {msg_id}, and archives it once");
        }
        let end = alice.state(DIRECT).max_seq;
        assert_eq!(ack.seq, end, "{fault}");
        for seq in last_seq + 1..=end {
            push_at(&mut bob, DIRECT, seq);
        }
        let mut back = node.login(Wire::WsBinary, "bob", "phone");
        assert_eq!(seqs_of(&back.page(ask::after(DIRECT, 0, 100))), (1..=end).collect::<Vec<_>>(), "{fault}");
    }
}
