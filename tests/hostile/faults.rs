//! A panic in one connection, and resets during a fan-out.

use std::time::Duration;

use tidegate_protocol::{Code, codec::Wire};

use crate::{
    chat::Chat,
    support::{Client, Process, ServerBody, ask, eventually, needs_planted_faults, send},
};

#[test]
fn panic_closes_its_connection_only() {
    needs_planted_faults();
    let node = Process::start(&["fault.panic_on_msg_id=boom"]);
    let chat = Chat::begin(&node);
    for (n, wire) in Wire::ALL.into_iter().enumerate() {
        let mut neighbours: Vec<Client> =
            (0..8).map(|n| node.login(wire, &format!("neighbour-{n}"), "d")).collect();
        let mut victim = node.login(wire, "victim", "d");
        victim.say(ask::send(send("anybody", "boom", "!")));
        assert_eq!(victim.expect_close(), Code::Internal, "{wire:?}");
        assert_eq!(node.metric("conn_panics_total"), n as f64 + 1.0);
        for neighbour in &mut neighbours {
            neighbour.settle();
        }
        let mut again = node.login(wire, "victim", "d");
        again.text("anybody", &format!("m{n}"), "here again");
        again.say(ask::bye());
        assert_eq!(again.expect_close(), Code::Bye);
    }
    chat.end();
    node.metric_becomes("connections", 0.0);
}

#[test]
fn resets_during_a_broadcast_disturb_no_other_client() {
    const MEMBERS: usize = 500;
    let node = Process::start(&[]);
    let chat = Chat::begin(&node);
    let names: Vec<String> =
        (0..MEMBERS).map(|n| format!("member-{n}")).chain(["sender".into(), "stays".into()]).collect();
    let group = node.group("storm", &names);
    let mut sender = node.login(Wire::Tcp, "sender", "d");
    let mut stays = node.login(Wire::WsText, "stays", "d");
    let members: Vec<Client> = (0..MEMBERS).map(|n| node.login(Wire::ALL[n % 4], &names[n], "d")).collect();
    let ids: Vec<u64> =
        (0..50).map(|n| sender.say(ask::send(send(&group, &format!("m{n}"), "storm")))).collect();
    for member in &members {
        let socket = socket2::SockRef::from(member.link.stream());
        socket.set_linger(Some(Duration::ZERO)).expect("a socket takes options");
    }
    drop(members);
    let first = sender.expect_ack(ids[0]).seq;
    for (n, id) in ids.iter().enumerate().skip(1) {
        assert_eq!(sender.expect_ack(*id).seq, first + n as u64);
    }
    for n in 0..50 {
        assert_eq!(stays.expect_push().seq, first + n);
    }
    // The pair, the sender and the remaining member.
    node.metric_becomes("connections", 4.0);
    eventually("their connections are released", || (node.conns() == 4).then_some(()));
    assert_eq!(node.metric("conn_panics_total"), 0.0);
    assert!(matches!(sender.ask(ask::ping()), ServerBody::Pong(_)));
    chat.end();
    drop((sender, stays));
    node.metric_becomes("connections", 0.0);
}
