//! Live rooms: heard by whoever is in, wherever they are connected.

use tidegate_protocol::{Code, codec::Wire, pb};

use crate::support::{Client, Said, TestNode, ask, eventually, send, text_of};

fn join(client: &mut Client, room: &str) {
    assert!(matches!(client.ask(ask::join(room)), Said::Done(_)));
}

#[test]
fn a_room_is_heard_on_every_shard_by_all_but_the_sender() {
    let node = TestNode::start(|config| config.node.shards = 3);
    let mut members: Vec<Client> =
        (0..8).map(|n| node.login(Wire::ALL[n % 4], &format!("u{n}"), "phone")).collect();
    let mut outsider = node.login(Wire::Tcp, "outsider", "phone");
    members.iter_mut().for_each(|member| join(member, "hall"));
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
fn who_is_not_in_may_not_talk_and_who_left_hears_nothing() {
    let node = TestNode::start(|config| config.node.shards = 3);
    let mut speaker = node.login(Wire::Tcp, "speaker", "phone");
    join(&mut speaker, "hall");
    for wire in Wire::ALL {
        let id = format!("{wire:?}");
        let mut guest = node.login(wire, "guest", "phone");
        assert_eq!(guest.refused(ask::send(send("r:hall", "m1", "x"))), Code::NotAMember);
        join(&mut guest, "hall");
        join(&mut guest, "hall");
        speaker.text("r:hall", &format!("{id}-1"), "in");
        assert_eq!(text_of(&guest.expect_push()), "in");
        guest.no_push();
        assert!(matches!(guest.ask(ask::leave("hall")), Said::Done(_)));
        assert!(matches!(guest.ask(ask::leave("hall")), Said::Done(_)));
        assert_eq!(guest.refused(ask::send(send("r:hall", "m2", "x"))), Code::NotAMember);
        speaker.text("r:hall", &format!("{id}-2"), "out");
        join(&mut guest, "hall");
        speaker.text("r:hall", &format!("{id}-3"), "in again");
        assert_eq!(text_of(&guest.expect_push()), "in again");
        assert_eq!(guest.refused(ask::join("no such name")), Code::BadId);
    }
}

#[test]
fn a_room_needs_no_acks_and_is_never_chained() {
    let node = TestNode::start(|config| {
        config.timing.ack_timeout_ms = 100;
        config.timing.ack_tries = 1;
    });
    let mut speaker = node.login_chained(Wire::Tcp, "speaker", "phone", "a");
    let mut guest = node.login(Wire::WsText, "guest", "phone");
    join(&mut speaker, "hall");
    join(&mut guest, "hall");
    let chained = pb::Send { next_id: "b".into(), ..send("r:hall", "a", "x") };
    assert_eq!(speaker.refused(ask::send(chained)), Code::BadLink);
    speaker.text("r:hall", "m1", "once");
    guest.expect_push();
    guest.no_push_for(std::time::Duration::from_millis(500));
}

#[test]
fn a_connection_is_in_as_many_rooms_as_allowed_and_its_end_leaves_them() {
    let node = TestNode::start(|config| config.limits.rooms_max = 2);
    let mut speaker = node.login(Wire::Tcp, "speaker", "phone");
    let mut guest = node.login(Wire::JsonLine, "guest", "phone");
    join(&mut guest, "one");
    join(&mut guest, "two");
    assert_eq!(guest.refused(ask::join("three")), Code::TooManyRooms);
    guest.ask(ask::leave("one"));
    join(&mut guest, "three");
    join(&mut speaker, "three");
    drop(guest);
    eventually("the guest is gone", || (node.conns() == 1).then_some(()));
    speaker.text("r:three", "m1", "anybody?");
    let mut guest = node.login(Wire::JsonLine, "guest", "phone");
    speaker.text("r:three", "m2", "you are not in");
    guest.no_push();
}
