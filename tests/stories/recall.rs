//! Recall: a message is taken back for all users, once, by its sender in time or by the group's owner.

use tidegate_protocol::{Code, codec::Wire, pb};

use crate::support::{Client, TestNode, ask, text_of};

fn recalled(client: &mut Client, place: &str, seq: u64) -> pb::SendAck {
    let id = client.say(ask::recall(place, seq));
    client.expect_ack(id)
}

#[test]
fn recall_takes_a_seq_and_removes_the_content_for_all() {
    let node = TestNode::start(|_| {});
    for (wire, peer) in Wire::ALL.into_iter().zip(["bob", "cid", "dan", "eve"]) {
        let mut alice = node.login(wire, "alice", "phone");
        let mut tablet = node.login(Wire::Tcp, "alice", "tablet");
        let mut other = node.login(wire, peer, "phone");
        let place = format!("d:alice:{peer}");
        alice.text(peer, "m1", "keep");
        alice.text(peer, "m2", "oops");
        let ack = recalled(&mut alice, &place, 2);
        assert_eq!((ack.conversation.as_str(), ack.seq, ack.duplicate), (place.as_str(), 3, false));
        for client in [&mut other, &mut tablet] {
            let pushes = client.pushes(3);
            assert_eq!(text_of(&pushes[1]), "oops");
            let push_fields = (pushes[2].seq, pushes[2].sender.as_str(), pushes[2].recall, pushes[2].time);
            assert_eq!(push_fields, (3, "alice", Some(pb::RecallEvent { seq: 2 }), ack.time));
            assert!(pushes[2].content.is_none());
            client.ack(&place, 3);
        }
        assert_eq!(
            alice.expect_push().recall,
            Some(pb::RecallEvent { seq: 2 }),
            "the caller's other device gets it as well"
        );
        let again = recalled(&mut alice, &place, 2);
        assert_eq!(
            (again.seq, again.time, again.duplicate),
            (3, ack.time, true),
            "a repeat returns the first recall"
        );
        other.no_push();
        let page = other.page(ask::after(&place, 0, 10));
        let seqs: Vec<u64> = page.messages.iter().map(|push| push.seq).collect();
        assert_eq!((seqs, page.recalled, page.complete_to), (vec![1, 3], vec![2], 3));
        assert_eq!(
            page.messages[1].recall,
            Some(pb::RecallEvent { seq: 2 }),
            "an offline user learns it by the page"
        );
        let last = other.state(&place).last.expect("a visible message");
        assert_eq!(last.seq, 1, "a recall is no message to show");
    }
}

#[test]
fn recall_is_for_the_sender_in_time_and_the_groups_owner() {
    let node = TestNode::start(|config| config.limits.recall_ms = 0);
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    let mut bob = node.login(Wire::WsText, "bob", "phone");
    alice.text("bob", "m1", "text");
    let place = "d:alice:bob";
    assert_eq!(alice.refused(ask::recall(place, 1)), Code::TooLate, "the time limit has passed");
    assert_eq!(bob.refused(ask::recall(place, 1)), Code::Forbidden);
    assert_eq!(alice.refused(ask::recall(place, 2)), Code::NotFound);
    assert_eq!(alice.refused(ask::recall(place, 0)), Code::Malformed);
    let mut eve = node.login(Wire::Tcp, "eve", "phone");
    assert_eq!(eve.refused(ask::recall(place, 1)), Code::Forbidden);
    assert_eq!(eve.refused(ask::recall("d:eve:zoe", 1)), Code::NotFound, "the conversation has no message");
    let body = serde_json::json!({"id": "tea", "owner": "olga", "members": ["alice", "bob"]});
    assert_eq!(node.admin("POST", "/v1/groups", &body).0, 201);
    let seq = alice.text("g:tea", "g1", "text");
    assert_eq!(eve.refused(ask::recall("g:tea", seq)), Code::NotAMember);
    assert_eq!(bob.refused(ask::recall("g:tea", seq)), Code::Forbidden);
    let mut olga = node.login(Wire::JsonLine, "olga", "phone");
    assert_eq!(olga.refused(ask::recall("g:tea", 1)), Code::NotFound, "a change of members is no message");
    assert_eq!(recalled(&mut olga, "g:tea", seq).seq, seq + 1, "the owner has no time limit");
    assert_eq!(
        recalled(&mut bob, "g:tea", seq).seq,
        seq + 1,
        "a repeat by another user returns the first recall"
    );
    node.kick("g:tea", &["alice"]);
    assert_eq!(alice.refused(ask::recall("g:tea", seq)), Code::NotAMember);
}

#[test]
fn recall_survives_a_restart_with_its_seq() {
    let node = TestNode::start(|_| {});
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    alice.text("bob", "m1", "oops");
    let ack = recalled(&mut alice, "d:alice:bob", 1);
    let data = node.stop();
    let node = TestNode::start_on(&data, |_| {});
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    let again = recalled(&mut alice, "d:alice:bob", 1);
    assert_eq!((again.seq, again.time, again.duplicate), (ack.seq, ack.time, true));
    assert_eq!(alice.text("bob", "m2", "on we go"), ack.seq + 1);
}
