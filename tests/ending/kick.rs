//! Connections that administrators list and close.

use std::{fs, sync::Arc};

use serde_json::{Value, json};
use tidegate::{
    connections::OrderOutcome,
    fault::Fault,
    link::{CloseOrder, ConnectionQuery, ConnectionSort, Selected},
    scratch::{ClockNumbers, Numbers},
};
use tidegate_protocol::{Code, codec::Wire, id::UserId, pb};

use crate::{
    close_of,
    mesh::Mesh,
    support::{TestNode, eventually},
};

fn ask(node: &TestNode, method: &str, path: &str) -> (u16, Value) {
    node.admin(method, path, &Value::Null)
}

#[test]
fn kicked_connection_gets_the_reason_once_and_the_others_stay() {
    let node = TestNode::start(|_| {});
    for wire in Wire::ALL {
        let (mut phone, mut desk) = (node.login(wire, "alice", "phone"), node.login(wire, "alice", "desk"));
        let path = "/v1/users/alice/connections?device=phone&reason=too%20loud";
        assert_eq!(ask(&node, "DELETE", path), (200, json!({"closed": 1, "silent": []})));
        let close = close_of(&mut phone);
        let never = pb::Reconnect::Never as i32;
        assert_eq!(
            (close.name.as_str(), close.reason.as_str(), close.reconnect, close.after_ms),
            ("KICKED", "too loud", never, 0),
            "{wire:?}"
        );
        assert!(!matches!(wire, Wire::WsBinary | Wire::WsText) || phone.ws_close == Some(3501));
        desk.settle();
        assert_eq!(ask(&node, "DELETE", path).1["closed"], 0, "it is closed already");
        let after = "/v1/users/alice/connections?reconnect=after";
        assert_eq!(ask(&node, "DELETE", after).1["closed"], 1);
        let close = close_of(&mut desk);
        assert_eq!(close.code, u32::from(Code::Kicked.number()));
        assert_eq!((close.reconnect, close.after_ms), (pb::Reconnect::After as i32, 5_000));
    }
}

#[test]
fn connections_are_listed_found_and_closed_by_id() {
    let node = TestNode::start(|config| config.node.id = "n-1".into());
    let mut alice = node.login(Wire::WsText, "alice", "phone");
    let _bob = node.login(Wire::Tcp, "bob", "desk");
    let (_, all) = ask(&node, "GET", "/v1/connections");
    assert_eq!((&all["total"], &all["silent"]), (&json!(2), &json!([])), "{all}");
    let since = |nth: usize| all["connections"][nth]["sinceMs"].as_u64().unwrap();
    // Both may have logged in within one millisecond.
    let is_newest_first = all["connections"][0]["user"] == "bob" || since(0) == since(1);
    assert!(is_newest_first && since(0) >= since(1), "the newest first: {all}");
    assert_eq!(ask(&node, "GET", "/v1/connections?limit=1&sort=outbox&node=n-1").1["total"], 2);
    let (_, of_alice) = ask(&node, "GET", "/v1/users/alice/connections");
    let found = &of_alice["connections"][0];
    assert_eq!(
        (&found["device"], &found["node"], &found["transport"], &found["window"]),
        (&json!("phone"), &json!("n-1"), &json!("websocket-json"), &json!(0))
    );
    assert!(found["address"] == "127.0.0.1" && found["sinceMs"].as_u64() > Some(1_700_000_000_000));
    let id = found["id"].as_str().unwrap();
    assert_eq!(ask(&node, "GET", &format!("/v1/connections/{id}")), (200, found.clone()));
    let (status, body) = ask(&node, "DELETE", &format!("/v1/connections/{id}?reason=bye"));
    assert_eq!((status, &body["closed"]), (200, &json!(1)), "{body}");
    assert_eq!(close_of(&mut alice).reason, "bye");
    for method in ["GET", "DELETE"] {
        let (status, body) = ask(&node, method, &format!("/v1/connections/{id}"));
        assert_eq!((status, &body["name"]), (404, &json!("NOT_FOUND")), "{body}");
    }
    let data = node.stop();
    let audit = fs::read_to_string(data.join("audit.jsonl")).unwrap();
    let line = audit.lines().find(|line| line.contains("/v1/connections/{id}")).unwrap();
    assert!(line.contains(id) && line.contains("\"status\":200") && !line.contains("bye"), "{line}");
    fs::remove_dir_all(data).ok();
}

#[test]
fn bad_requests_are_refused_with_their_code() {
    let node = TestNode::start(|_| {});
    for (method, path, status, name) in [
        ("GET", "/v1/connections?limit=0", 400, "BAD_CONTENT"),
        ("GET", "/v1/connections?limit=1001", 400, "BAD_CONTENT"),
        ("GET", "/v1/connections?sort=name", 400, "BAD_CONTENT"),
        ("GET", "/v1/connections?cursor=n1.1.1", 400, "BAD_CONTENT"),
        ("GET", "/v1/connections?sort=id&cursor=n1", 400, "BAD_CONTENT"),
        ("GET", "/v1/connections?other=1", 400, "BAD_CONTENT"),
        ("GET", "/v1/connections?node=nobody", 404, "NOT_FOUND"),
        ("GET", "/v1/connections/nonsense", 400, "BAD_ID"),
        ("GET", "/v1/connections/nobody.1.1", 404, "NOT_FOUND"),
        ("DELETE", "/v1/connections/nobody.1.1", 404, "NOT_FOUND"),
        ("GET", "/v1/users/a%20b/connections", 400, "BAD_ID"),
        ("DELETE", "/v1/users/alice/connections?device=a%20b", 400, "BAD_ID"),
        ("DELETE", "/v1/users/alice/connections?reconnect=now", 400, "BAD_CONTENT"),
        ("DELETE", "/v1/users/alice/connections?reason=a%0ab", 400, "BAD_CONTENT"),
        ("DELETE", "/v1/users/alice/connections?why=x", 400, "BAD_CONTENT"),
    ] {
        let (found, body) = ask(&node, method, path);
        assert_eq!((found, &body["name"]), (status, &json!(name)), "{method} {path}: {body}");
    }
}

fn mesh() -> Mesh {
    let numbers: Arc<dyn Numbers> = Arc::new(ClockNumbers::new(|| 1));
    Mesh::start(3, &numbers)
}

fn of_alice() -> Selected {
    Selected::User(UserId::new("alice").unwrap(), None)
}

#[test]
fn pages_have_each_connection_of_all_nodes_once() {
    let mesh = mesh();
    let _clients: Vec<_> =
        (0..7).map(|nth| mesh.login(nth % 3, Wire::Tcp, &format!("u{nth}"), "phone")).collect();
    let connections = mesh.node(1).connections();
    for limit in [1, 2, 3, 7, 50] {
        let (mut users, mut pages, mut from) = (Vec::new(), 0, None);
        loop {
            let page = mesh.run(connections.page(from, limit, None));
            assert!(page.rows.len() <= limit && page.silent.is_empty(), "{page:?}");
            users
                .extend(page.rows.iter().map(|(run, row)| (run.node.clone(), row.key, row.user.to_string())));
            pages += 1;
            assert!(pages < 20, "no end with {limit} at {:?}", page.next);
            from = page.next;
            if from.is_none() {
                break;
            }
        }
        assert!(users.is_sorted(), "by node and key: {users:?}");
        let mut names: Vec<&str> = users.iter().map(|(_, _, user)| user.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["u0", "u1", "u2", "u3", "u4", "u5", "u6"], "pages of {limit}");
    }
    mesh.node(1).link.plan("connections", Fault::Fail);
    let page = mesh.run(connections.page(None, 50, None));
    let silent: Vec<&str> = page.silent.iter().map(|run| run.node.as_str()).collect();
    assert!(matches!(silent[..], ["n1" | "n3"]) && page.next.is_none(), "{page:?}");
    assert_eq!(page.rows.len(), if silent == ["n1"] { 4 } else { 5 }, "the others are listed");
}

#[test]
fn cursor_of_a_page_leads_to_the_next() {
    let node = TestNode::start(|config| config.node.id = "n-1".into());
    let _clients: Vec<_> = ["a", "b", "c"].iter().map(|user| node.login(Wire::Tcp, user, "phone")).collect();
    let (_, first) = ask(&node, "GET", "/v1/connections?sort=id&limit=2");
    let cursor = first["next"].as_str().expect("there is a next page");
    let (_, rest) = ask(&node, "GET", &format!("/v1/connections?sort=id&limit=2&cursor={cursor}"));
    let users = |page: &Value| page["connections"].as_array().expect("a list").len();
    assert_eq!((users(&first), users(&rest), &rest["next"]), (2, 1, &Value::Null), "{first} {rest}");
    assert_ne!(first["connections"][1]["id"], rest["connections"][0]["id"]);
}

fn kick(mesh: &Mesh, nth: usize) -> OrderOutcome {
    let order = CloseOrder { selected: of_alice(), reason: "spam".into(), reconnect_after: None };
    mesh.run(mesh.node(nth).connections().close(&order, None))
}

#[test]
fn kick_reaches_all_nodes_without_the_routes() {
    let mesh = mesh();
    let mut devices: Vec<_> =
        (0..3).map(|nth| mesh.login(nth, Wire::Tcp, "alice", &format!("d{nth}"))).collect();
    let mut bob = mesh.login(1, Wire::Tcp, "bob", "desk");
    for nth in 0..3 {
        for method in ["lookup", "nodes", "register", "remove"] {
            (0..50).for_each(|_| mesh.node(nth).routes.plan(method, Fault::Fail));
        }
    }
    let query = ConnectionQuery { selected: of_alice(), sort: ConnectionSort::Since, limit: 10 };
    let list = mesh.run(mesh.node(2).connections().list(&query, None));
    let mut nodes: Vec<&str> = list.rows.iter().map(|(run, _)| run.node.as_str()).collect();
    nodes.sort_unstable();
    assert_eq!((nodes, list.total, list.silent.len()), (vec!["n1", "n2", "n3"], 3, 0));
    assert_eq!(kick(&mesh, 2), OrderOutcome { count: 3, silent: Vec::new() });
    for device in &mut devices {
        assert_eq!(device.expect_close(), Code::Kicked);
    }
    bob.settle();
    assert_eq!(kick(&mesh, 0).count, 0, "once");
}

#[test]
fn node_that_does_not_answer_is_named_as_silent() {
    let mesh = mesh();
    let mut here = mesh.login(0, Wire::Tcp, "alice", "here");
    let mut there = mesh.login(1, Wire::Tcp, "alice", "there");
    mesh.node(0).link.plan("close_connections", Fault::Fail);
    let outcome = kick(&mesh, 0);
    assert_eq!((outcome.count + outcome.silent.len() as u64, outcome.silent.len()), (2, 1), "{outcome:?}");
    assert_eq!(here.expect_close(), Code::Kicked);
    if outcome.silent[0].node.as_str() == "n2" {
        there.settle();
        assert_eq!(kick(&mesh, 0).count, 1);
    }
    assert_eq!(there.expect_close(), Code::Kicked);
    eventually("all are gone", || (mesh.node(1).conns() == 0).then_some(()));
}
