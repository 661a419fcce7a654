//! Joins of live rooms while the routes are slow: few in flight for each connection, and few calls to the routes.

use std::time::Duration;

use bytes::Bytes;
use tidegate::{
    fault::{Fault, Gate},
    link::RoomRemoval,
    store::GuardKind,
};
use tidegate_protocol::{
    Code,
    codec::Wire,
    id::{ConversationId, RoomId, UserId},
    pb,
};

use super::{Client, Mesh, ServerBody, ask, eventually, mesh, support::let_time_pass};

#[test]
fn x3_joins_in_flight_stop_reading_and_share_calls_to_the_routes() {
    const PAIRS: usize = 2_000;
    let (mesh, _) = mesh(1);
    let routes = &mesh.node(0).routes;
    let mut ann = mesh.login(0, Wire::Tcp, "ann", "phone");
    let mut bob = mesh.login(0, Wire::WsText, "bob", "phone");
    let gate = Gate::new();
    routes.plan("declare", Fault::Hold(gate.clone()));
    let before = routes.calls("declare");
    for n in 0..PAIRS {
        let room = format!("room-{n}");
        ann.say_as(0, ask::join(&room));
        ann.say_as(0, ask::leave(&room));
    }
    let pong = ann.say(ask::ping());
    eventually("the first join is at the routes", || (gate.reached() == 1).then_some(()));
    let joined = bob.say(ask::join("hall"));
    let_time_pass("joins would reach the routes", Duration::from_millis(200));
    assert_eq!(routes.calls("declare") - before, 1, "the others wait for the call");
    ann.listen(Duration::from_millis(1));
    assert!(ann.inbox.is_empty(), "{:?}", ann.inbox);
    gate.open();
    assert!(matches!(bob.reply(joined), ServerBody::Done(_)));
    assert!(matches!(ann.reply(pong), ServerBody::Pong(_)));
    let is_declared = |room: &str| {
        let room = ConversationId::parse(&format!("r:{room}")).expect("a good id");
        mesh.node(0).rooms().is_declared(&room)
    };
    assert!(is_declared("hall"));
    eventually("rooms that were left are forgotten", || {
        (0..PAIRS).all(|n| !is_declared(&format!("room-{n}"))).then_some(())
    });
    drop(bob);
    eventually("the room of the closed connection is forgotten", || (!is_declared("hall")).then_some(()));
}

/// Logs in as bob, whose join of the hall waits for its declaration until the gate opens; returns its id.
fn held_join(mesh: &Mesh) -> (Client, u64, Gate) {
    let mut bob = mesh.login(0, Wire::Tcp, "bob", "phone");
    let gate = Gate::new();
    mesh.node(0).routes.plan("declare", Fault::Hold(gate.clone()));
    let joined = bob.say(ask::join("hall"));
    eventually("the join is at the routes", || (gate.reached() == 1).then_some(()));
    (bob, joined, gate)
}

#[test]
fn join_whose_client_is_removed_before_its_declaration_is_refused() {
    let (mesh, _) = mesh(1);
    let (mut bob, joined, gate) = held_join(&mesh);
    let (room, user) = (RoomId::new("hall").expect("a good id"), UserId::new("bob").expect("a good id"));
    let removal = RoomRemoval { room, user, device: None, reason: String::new() };
    let outcome = mesh.run(mesh.node(0).connections().remove_from_room(&removal));
    assert_eq!((outcome.count, outcome.silent.len()), (1, 0));
    gate.open();
    assert_eq!(bob.expect_error(joined), Code::NotAMember);
}

#[test]
fn join_of_a_room_that_closes_before_its_declaration_is_refused() {
    let (mesh, _) = mesh(1);
    let (mut bob, joined, gate) = held_join(&mesh);
    mesh.put_entry(0, (GuardKind::ClosedRoom, "hall"), Bytes::from_static(b"{}"), None);
    assert_eq!(bob.expect_notice().kind(), pb::NoticeKind::RoomRemoved);
    gate.open();
    assert_eq!(bob.expect_error(joined), Code::NotAMember);
    assert_eq!(bob.refused(ask::join("hall")), Code::RoomClosed);
}
