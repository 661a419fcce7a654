//! Live rooms: members get the messages wherever they are connected.

use tidegate_protocol::{Code, codec::Wire, pb};

use crate::support::{Client, ServerBody, TestNode, ask, eventually, send, text_of};

#[test]
fn room_message_reaches_all_shards_except_its_sender() {
    let node = TestNode::start(|config| config.node.shards = 3);
    let mut members: Vec<Client> =
        (0..8).map(|n| node.login(Wire::ALL[n % 4], &format!("u{n}"), "phone")).collect();
    let mut outsider = node.login(Wire::Tcp, "outsider", "phone");
    members.iter_mut().for_each(|member| member.expect_done(ask::join("hall")));
    let mut last = 0;
    for sender in 0..8 {
        let text = format!("hello from {sender}");
        let ack = members[sender].send(send("r:hall", &format!("m{sender}"), &text));
        assert_eq!((ack.conversation.as_str(), ack.duplicate), ("r:hall", false));
        assert!(ack.seq > last, "{} after {last}", ack.seq);
        last = ack.seq;
        for receiver in (0..8).filter(|receiver| *receiver != sender) {
            let push = members[receiver].expect_push();
            assert_eq!(
                (push.conversation.as_str(), push.seq, text_of(&push)),
                ("r:hall", last, text.as_str())
            );
            assert_eq!((push.sender, push.msg_id), (format!("u{sender}"), format!("m{sender}")));
        }
    }
    members.iter_mut().for_each(Client::no_push);
    outsider.no_push();
}

#[test]
fn only_room_members_can_send_and_receive() {
    let node = TestNode::start(|config| config.node.shards = 3);
    let mut speaker = node.login(Wire::Tcp, "speaker", "phone");
    speaker.expect_done(ask::join("hall"));
    for wire in Wire::ALL {
        let id = format!("{wire:?}");
        let mut guest = node.login(wire, "guest", "phone");
        assert_eq!(guest.refused(ask::send(send("r:hall", "m1", "x"))), Code::NotAMember);
        guest.expect_done(ask::join("hall"));
        guest.expect_done(ask::join("hall"));
        speaker.text("r:hall", &format!("{id}-1"), "in");
        assert_eq!(text_of(&guest.expect_push()), "in");
        guest.no_push();
        assert!(matches!(guest.ask(ask::leave("hall")), ServerBody::Done(_)));
        assert!(matches!(guest.ask(ask::leave("hall")), ServerBody::Done(_)));
        assert_eq!(guest.refused(ask::send(send("r:hall", "m2", "x"))), Code::NotAMember);
        speaker.text("r:hall", &format!("{id}-2"), "out");
        guest.expect_done(ask::join("hall"));
        speaker.text("r:hall", &format!("{id}-3"), "in again");
        assert_eq!(text_of(&guest.expect_push()), "in again");
        assert_eq!(guest.refused(ask::join("no such name")), Code::BadId);
    }
}

#[test]
fn room_messages_need_no_acks_and_no_chain() {
    let node = TestNode::start(|config| {
        config.timing.ack_timeout_ms = 100;
        config.timing.ack_tries = 1;
    });
    let mut speaker = node.login_chained(Wire::Tcp, "speaker", "phone", "a");
    let mut guest = node.login(Wire::WsText, "guest", "phone");
    speaker.expect_done(ask::join("hall"));
    guest.expect_done(ask::join("hall"));
    let chained = pb::Send { next_id: "b".into(), ..send("r:hall", "a", "x") };
    assert_eq!(speaker.refused(ask::send(chained)), Code::BadLink);
    speaker.text("r:hall", "m1", "once");
    guest.expect_push();
    guest.no_push_for(std::time::Duration::from_millis(500));
}

#[test]
fn connection_has_a_room_limit_and_its_end_leaves_its_rooms() {
    let node = TestNode::start(|config| config.limits.rooms_max = 2);
    let mut speaker = node.login(Wire::Tcp, "speaker", "phone");
    let mut guest = node.login(Wire::JsonLine, "guest", "phone");
    guest.expect_done(ask::join("one"));
    guest.expect_done(ask::join("two"));
    assert_eq!(guest.refused(ask::join("three")), Code::TooManyRooms);
    guest.ask(ask::leave("one"));
    guest.expect_done(ask::join("three"));
    speaker.expect_done(ask::join("three"));
    drop(guest);
    eventually("the guest is disconnected", || (node.conns() == 1).then_some(()));
    speaker.text("r:three", "m1", "anybody?");
    let mut guest = node.login(Wire::JsonLine, "guest", "phone");
    speaker.text("r:three", "m2", "you are not in");
    guest.no_push();
}
