//! Live rooms and their members, as administrators list them over all nodes.

use std::sync::Arc;

use tidegate::{
    connections::{RoomList, RoomOnNodes},
    fault::Fault,
    scratch::{ClockNumbers, Numbers},
};
use tidegate_protocol::{codec::Wire, id::ConversationId};

use crate::{
    mesh::Mesh,
    support::{Client, ask, eventually},
};

fn room(id: &str) -> ConversationId {
    ConversationId::parse(&format!("r:{id}")).expect("a good id")
}

/// Returns one room, as node n2 counts it over all nodes.
fn one_room(mesh: &Mesh, id: &str) -> RoomList<RoomOnNodes> {
    mesh.run(mesh.node(1).connections().room(room(id))).expect("the node is not busy")
}

#[test]
fn rooms_are_counted_and_their_members_listed_over_all_nodes() {
    let numbers: Arc<dyn Numbers> = Arc::new(ClockNumbers::new(|| 1));
    let mesh = Mesh::start(3, &numbers);
    let mut clients: Vec<Client> =
        (0..6).map(|nth| mesh.login(nth % 3, Wire::Tcp, &format!("u{nth}"), "phone")).collect();
    for (nth, client) in clients.iter_mut().enumerate() {
        client.expect_done(ask::join("hall"));
        client.expect_done(ask::join(if nth % 3 == 0 { "a-n1" } else { "b-others" }));
    }
    let connections = mesh.node(1).connections();
    for limit in [1, 2, 3] {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = mesh.run(connections.rooms(after, limit)).expect("a page");
            assert!(page.rows.len() <= limit && page.silent.is_empty());
            found.extend(page.rows.iter().map(|it| (it.room.to_string(), it.connections, it.nodes)));
            after = page.rows.last().filter(|_| page.has_more).map(|it| it.room.clone());
            if after.is_none() {
                break;
            }
        }
        let expected = [("r:a-n1", 2, 1), ("r:b-others", 4, 2), ("r:hall", 6, 3)];
        assert_eq!(found, expected.map(|(room, count, nodes)| (room.to_owned(), count, nodes)), "{limit}");
    }
    let one = one_room(&mesh, "hall");
    assert_eq!((one.rows[0].connections, one.rows[0].nodes), (6, 3));
    assert!(one_room(&mesh, "none").rows.is_empty());

    let (mut members, mut after) = (Vec::new(), None);
    loop {
        let page = mesh.run(connections.room_members(room("hall"), after, 4)).expect("a page");
        members.extend(page.rows.iter().map(|it| (it.member.user.to_string(), it.run.node.to_string())));
        after = page.rows.last().filter(|_| page.has_more).map(|it| it.member.clone());
        if after.is_none() {
            break;
        }
    }
    let expected: Vec<_> = (0..6).map(|nth| (format!("u{nth}"), format!("n{}", nth % 3 + 1))).collect();
    assert_eq!(members, expected);

    // A node that does not answer is named, and the others are counted.
    mesh.node(1).link.plan("rooms", Fault::Fail);
    let one = one_room(&mesh, "hall");
    assert_eq!((one.rows[0].connections, one.rows[0].nodes, one.silent.len()), (4, 2, 1));
    drop(clients.split_off(1));
    eventually("the members of closed connections are gone", || {
        let one = one_room(&mesh, "hall");
        (one.rows.first().map(|it| it.connections) == Some(1)).then_some(())
    });
    assert!(one_room(&mesh, "b-others").rows.is_empty());
}
