//! Joins of live rooms while the routes are slow: few in flight for each connection, and few calls to the routes.

use std::time::Duration;

use tidegate::fault::{Fault, Gate};
use tidegate_protocol::{codec::Wire, id::ConversationId};

use super::{ServerBody, ask, eventually, mesh, support::let_time_pass};

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
