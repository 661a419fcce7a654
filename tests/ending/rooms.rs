//! Live rooms and their members, as administrators list, remove and close them on all nodes.

use std::{fs, sync::Arc};

use bytes::Bytes;
use serde_json::{Value, json};
use tidegate::{
    connections::{RoomList, RoomOnNodes},
    fault::Fault,
    link::RoomRemoval,
    scratch::{ClockNumbers, Numbers},
    store::GuardKind,
};
use tidegate_protocol::{
    codec::Wire,
    id::{ConversationId, DeviceId, RoomId, UserId},
    pb,
};

use crate::{
    mesh::Mesh,
    support::{Client, ClientBody, ServerBody, TestNode, ask, eventually, send},
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

#[test]
fn user_is_removed_from_a_room_on_all_nodes_that_answer() {
    let numbers: Arc<dyn Numbers> = Arc::new(ClockNumbers::new(|| 1));
    let mesh = Mesh::start(3, &numbers);
    let mut bobs: Vec<Client> =
        (0..3).map(|nth| mesh.login(nth, Wire::Tcp, "bob", &format!("device{nth}"))).collect();
    let mut ann = mesh.login(0, Wire::Tcp, "ann", "phone");
    bobs.iter_mut().chain([&mut ann]).for_each(|client| client.expect_done(ask::join("hall")));
    let (room, bob) = (RoomId::new("hall").expect("a good id"), UserId::new("bob").expect("a good id"));
    let all = RoomRemoval { room, user: bob, device: None, reason: "spam".to_owned() };
    let remove = |removal: &RoomRemoval| {
        let outcome = mesh.run(mesh.node(0).connections().remove_from_room(removal));
        (outcome.count, outcome.silent.len())
    };
    let device = DeviceId::new("device1").expect("a good id");
    assert_eq!(remove(&RoomRemoval { device: Some(device), ..all.clone() }), (1, 0));
    assert_eq!(remove(&all), (2, 0));
    assert_eq!(remove(&all), (0, 0), "none is left");
    bobs.iter_mut().for_each(|bob| expect_removal(bob, "r:hall", "spam"));
    let one = one_room(&mesh, "hall");
    assert_eq!((one.rows[0].connections, one.rows[0].nodes), (1, 1), "ann stays");
    bobs[1].expect_done(ask::join("hall"));
    mesh.node(0).link.plan("remove_from_room", Fault::Fail);
    let (count, silent) = remove(&all);
    assert_eq!((count, silent), (0, 1), "it is named, and the request can be repeated");
    assert_eq!(remove(&all), (1, 0));
}

/// Returns name and message of the error that refuses a request.
fn refusal(client: &mut Client, body: ClientBody) -> (String, String) {
    match client.ask(body) {
        ServerBody::Error(error) => {
            assert!(!error.temporary, "clients must not repeat it by themselves: {error:?}");
            (error.name, error.message)
        }
        other => panic!("{other:?}"),
    }
}

fn expect_removal(client: &mut Client, room: &str, reason: &str) {
    let notice = client.expect_notice();
    let found = (notice.kind(), notice.conversation.as_str(), notice.message.as_str());
    assert_eq!(found, (pb::NoticeKind::RoomRemoved, room, reason));
}

#[test]
fn closed_room_removes_its_members_and_refuses_all_until_it_is_opened() {
    let node = TestNode::start(|config| config.node.shards = 2);
    let mut clients = [Wire::Tcp, Wire::WsText, Wire::JsonLine].map(|wire| {
        let mut client = node.login(wire, &format!("{wire:?}"), "phone");
        client.expect_done(ask::join("hall"));
        client.expect_done(ask::join("tea"));
        client
    });
    let patch = |node: &TestNode, body: Value| node.admin("PATCH", "/v1/rooms/hall", &body);
    let (status, answer) = patch(&node, json!({"closed": true, "reason": "it is over"}));
    assert_eq!(
        (status, &answer["closed"], &answer["inForce"]),
        (200, &json!(true), &json!(true)),
        "{answer}"
    );
    clients.iter_mut().for_each(|client| expect_removal(client, "r:hall", "it is over"));
    let closed = ("ROOM_CLOSED".to_owned(), "it is over".to_owned());
    for client in &mut clients {
        assert_eq!(refusal(client, ask::join("hall")), closed);
        assert_eq!(refusal(client, ask::send(send("r:hall", "m1", "hi"))), closed);
        assert_eq!(refusal(client, ask::react("hall", "like")), closed);
        client.text("r:tea", "m2", "another room goes on");
    }
    let message = json!({"to": "r:hall", "content": {"text": "hi"}});
    let (status, answer) = node.admin("POST", "/v1/messages", &message);
    assert_eq!((status, &answer["name"]), (409, &json!("ROOM_CLOSED")), "{answer}");
    let (_, one) = node.admin("GET", "/v1/rooms/hall", &Value::Null);
    assert_eq!((&one["count"], &one["closed"]), (&json!(0), &json!(true)), "{one}");
    assert_eq!((&one["closure"]["by"], &one["closure"]["untilMs"]), (&json!("development"), &Value::Null));
    let (_, all) = node.admin("GET", "/v1/rooms", &Value::Null);
    assert_eq!((&all["rooms"][0]["room"], &all["rooms"][0]["closed"]), (&json!("tea"), &json!(false)));

    drop(clients);
    let data = node.stop();
    let audit = fs::read_to_string(data.join("audit.jsonl")).expect("a file");
    let line = audit.lines().find(|line| line.contains("/v1/rooms/{room}")).expect("a line");
    assert!(line.contains(r#""closed":["true"]"#) && !audit.contains("it is over"), "{audit}");
    let node = TestNode::start_on(&data, |_| {});
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    assert_eq!(refusal(&mut ann, ask::join("hall")), closed, "it survives a restart");
    let (status, answer) = patch(&node, json!({"closed": false}));
    let opened = json!({"room": "hall", "closed": false, "inForce": true, "pending": []});
    assert_eq!((status, answer), (200, opened));
    ann.expect_done(ask::join("hall"));
    ann.text("r:hall", "m1", "it is open");
}

#[test]
fn closed_rooms_are_listed_in_pages_and_wrong_changes_are_refused() {
    let node = TestNode::start(|_| {});
    for (room, ttl_ms) in [("b", Value::Null), ("a", json!(60_000)), ("c", Value::Null)] {
        let body = json!({"closed": true, "ttlMs": ttl_ms});
        assert_eq!(node.admin("PATCH", &format!("/v1/rooms/{room}"), &body).0, 200);
    }
    let (_, first) = node.admin("GET", "/v1/closed-rooms?limit=2", &Value::Null);
    let rows = first["rooms"].as_array().expect("a list");
    assert_eq!((&rows[0]["room"], &rows[1]["room"], rows.len()), (&json!("a"), &json!("b"), 2));
    let end =
        rows[0]["untilMs"].as_u64().zip(rows[0]["sinceMs"].as_u64()).map(|(until, since)| until - since);
    assert_eq!((end, &rows[1]["reason"]), (Some(60_000), &json!("")));
    let next = first["next"].as_str().expect("another page");
    let (_, last) = node.admin("GET", &format!("/v1/closed-rooms?cursor={next}"), &Value::Null);
    assert_eq!((&last["rooms"][0]["room"], &last["next"]), (&json!("c"), &Value::Null));
    for (path, body, name) in [
        ("/v1/rooms/a", json!({}), "BAD_CONTENT"),
        ("/v1/rooms/a", json!({"closed": null}), "BAD_CONTENT"),
        ("/v1/rooms/a", json!({"closed": true, "ttlMs": 999}), "BAD_CONTENT"),
        ("/v1/rooms/a", json!({"closed": true, "reason": "x".repeat(121)}), "BAD_CONTENT"),
        ("/v1/rooms/a", json!({"closed": true, "reason": "a\nb"}), "BAD_CONTENT"),
        ("/v1/rooms/a", json!({"closed": false, "reason": "x"}), "BAD_CONTENT"),
        ("/v1/rooms/a%20b", json!({"closed": true}), "BAD_ID"),
    ] {
        let (status, answer) = node.admin("PATCH", path, &body);
        assert_eq!((status, &answer["name"]), (400, &json!(name)), "{body}: {answer}");
    }
}

#[test]
fn room_is_closed_on_all_nodes_also_without_the_notification() {
    let numbers: Arc<dyn Numbers> = Arc::new(ClockNumbers::new(|| 1));
    let mesh = Mesh::start(3, &numbers);
    let mut clients: Vec<Client> =
        (0..3).map(|nth| mesh.login(nth, Wire::Tcp, &format!("u{nth}"), "phone")).collect();
    clients.iter_mut().for_each(|client| {
        client.expect_done(ask::join("hall"));
        client.expect_done(ask::join("tea"));
    });
    let close = |room: &str| {
        let value = Bytes::from_static(br#"{"reason":"over"}"#);
        mesh.put_entry(1, (GuardKind::ClosedRoom, room), value, None);
    };
    close("hall");
    clients.iter_mut().for_each(|client| expect_removal(client, "r:hall", "over"));
    (0..9).for_each(|_| mesh.node(1).link.plan("send_best_effort", Fault::Fail));
    close("tea");
    clients.iter_mut().for_each(|client| expect_removal(client, "r:tea", "over"));
    for client in &mut clients {
        assert_eq!(refusal(client, ask::join("hall")), ("ROOM_CLOSED".to_owned(), "over".to_owned()));
    }
    assert!(one_room(&mesh, "hall").rows.is_empty() && one_room(&mesh, "tea").rows.is_empty());
}
