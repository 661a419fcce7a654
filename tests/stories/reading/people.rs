//! Live rooms, users, their devices and chains, as a back end reads and ends them.

use serde_json::{Value, json};
use tidegate_protocol::{Code, codec::Wire, pb};

use super::{get, refused};
use crate::support::{ServerBody, TestNode, ask, eventually, send};

const NOT_FOUND: (u16, u64) = (404, Code::NotFound.number() as u64);

#[test]
fn rooms_and_their_members_are_listed() {
    let node = TestNode::start(|config| {
        config.node.store = "memory".into();
        config.node.shards = 3;
    });
    let mut clients: Vec<_> = (0..5).map(|n| node.login(Wire::Tcp, &format!("u{n}"), "phone")).collect();
    clients.iter_mut().for_each(|client| client.expect_done(ask::join("hall")));
    clients[0].expect_done(ask::join("attic"));
    let first = get(&node, "/v1/rooms?limit=1");
    assert_eq!(first["rooms"], json!([{"room": "attic", "count": 1, "nodes": 1}]));
    let next = first["next"].as_str().expect("a cursor");
    let rest = get(&node, &format!("/v1/rooms?limit=1&cursor={next}"));
    assert_eq!(rest, json!({"rooms": [{"room": "hall", "count": 5, "nodes": 1}], "silent": []}));
    assert_eq!(get(&node, "/v1/rooms/none"), json!({"room": "none", "count": 0, "nodes": 0, "silent": []}));
    assert_eq!(get(&node, "/v1/rooms/hall")["count"], json!(5));

    let (mut users, mut path) = (Vec::new(), "/v1/rooms/hall/members?limit=2".to_owned());
    loop {
        let page = get(&node, &path);
        let members = page["members"].as_array().expect("a list");
        users.extend(members.iter().map(|it| it["user"].as_str().expect("a user").to_owned()));
        assert!(members.iter().all(|it| it["device"] == "phone" && it["node"].is_string()), "{page}");
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/v1/rooms/hall/members?limit=2&cursor={next}");
    }
    assert_eq!(users, ["u0", "u1", "u2", "u3", "u4"]);
    let of_other = format!("/v1/rooms/attic/members?cursor={next}");
    assert_eq!(refused(&node, "GET", &of_other, &Value::Null), (400, Code::CursorInvalid.number().into()));
    assert_eq!(refused(&node, "GET", "/v1/rooms/a%20b", &Value::Null).0, 400);
}

#[test]
fn user_is_shown_with_devices_prio_and_revocations() {
    let node = TestNode::start(|config| config.node.store = "memory".into());
    let nobody = json!({
        "user": "ann", "online": false, "devices": [], "banned": false, "bans": [], "suspensions": [],
        "notBefore": null, "prio": null, "settings": {},
    });
    assert_eq!(get(&node, "/v1/users/ann"), nobody);
    assert_eq!(node.admin("PUT", "/v1/users/ann/prio", &json!({"prio": 2})).0, 200);
    assert_eq!(node.admin("POST", "/v1/users/ann/revoke", &json!({"before": 7})).0, 200);
    let ban = json!({"subject": "device:ann/old", "reason": "lost"});
    assert_eq!(node.admin("POST", "/v1/bans", &ban).0, 200);
    let _ann = node.login(Wire::Tcp, "ann", "phone");
    eventually("the route is registered", || {
        let shown = get(&node, "/v1/users/ann");
        (shown["online"] == true && shown["devices"][0]["device"] == "phone").then_some(())
    });
    let shown = get(&node, "/v1/users/ann");
    assert_eq!((&shown["prio"]["prio"], &shown["notBefore"]), (&json!(2), &json!(7)), "{shown}");
    assert_eq!(refused(&node, "GET", "/v1/users/a%20b", &Value::Null).0, 400);
}

#[test]
fn device_starts_a_new_chain_after_its_chain_is_removed() {
    let node = TestNode::start(|config| config.node.store = "memory".into());
    assert_eq!(get(&node, "/v1/users/ann/devices"), json!({"user": "ann", "devices": []}));
    let chain = "/v1/users/ann/devices/phone/chain";
    assert_eq!(refused(&node, "GET", chain, &Value::Null), NOT_FOUND);
    assert_eq!(refused(&node, "DELETE", chain, &Value::Null), NOT_FOUND);
    let link = |id: &str, next: &str| pb::Send { next_id: next.into(), ..send("bob", id, id) };
    let mut ann = node.login_chained(Wire::Tcp, "ann", "phone", "a");
    ann.send(link("a", "b"));
    ann.say(ask::send(link("x", "y")));
    ann.settle();
    let shown = eventually("the chain is saved", || {
        let shown = get(&node, chain);
        (shown["done"] == 1).then_some(shown)
    });
    assert_eq!(
        (&shown["expected"], &shown["held"], &shown["node"]),
        (&json!("b"), &json!(1), &json!("n1")),
        "{shown}"
    );
    let device = get(&node, "/v1/users/ann/devices/phone");
    assert_eq!((&device["online"], &device["chain"]), (&json!(true), &json!(true)));
    assert_eq!(get(&node, "/v1/users/ann/devices")["devices"], json!([device]));

    let (status, removed) = node.admin("DELETE", chain, &Value::Null);
    assert_eq!((status, removed), (200, json!({"closed": 1, "chain": true, "silent": []})));
    let closes = ann.until_end().into_iter().filter_map(|frame| match frame.body {
        Some(ServerBody::Close(close)) => Some(close),
        _ => None,
    });
    let closes: Vec<pb::Close> = closes.collect();
    let after = pb::Reconnect::After as i32;
    assert!(
        matches!(&closes[..], [close] if close.name == "KICKED" && close.reconnect == after),
        "{closes:?}"
    );
    eventually("nothing of the device is left", || {
        (refused(&node, "GET", "/v1/users/ann/devices/phone", &Value::Null) == NOT_FOUND).then_some(())
    });
    let mut again = node.login_chained(Wire::Tcp, "ann", "phone", "n1");
    assert_eq!(again.welcome.next_id, "n1", "another chain");
    again.send(link("n1", "n2"));
    let (status, _) = node.admin("DELETE", "/v1/users/ann/devices/phone", &Value::Null);
    assert_eq!((status, again.expect_close()), (200, Code::Kicked));
}
