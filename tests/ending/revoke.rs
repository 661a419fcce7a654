//! Tokens that administrators revoke.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tidegate::{
    connections::RevokeError,
    fault::Fault,
    revocation::{Revocation, RevokedTokens, USER_REVOCATIONS_MAX},
    scratch::{ClockNumbers, Numbers},
};
use tidegate_protocol::{Code, codec::Wire, id::UserId, pb};

use crate::{
    mesh::Mesh,
    now, sign,
    support::{Client, ClientBody, ServerBody, TestNode, ask, eventually, hello, http},
};

fn revoke(node: &TestNode, body: Value) -> (u16, Value) {
    node.admin("POST", "/v1/users/alice/revoke", &body)
}

/// Returns a token of alice that was issued `later` seconds from now.
fn token(node: &TestNode, id: &str, later: i64) -> String {
    sign(node.key(), &json!({"sub": "alice", "exp": now(600), "iat": now(later), "jti": id}))
}

fn login(node: &TestNode, token: &str, device: &str) -> Client {
    let mut client = node.connect(Wire::WsText);
    client.login(hello(token, device));
    client
}

fn is_revoked(node: &TestNode, token: &str, device: &str) -> bool {
    let mut client = node.connect(Wire::Tcp);
    let id = client.say(ask::hello(hello(token, device)));
    match client.reply(id) {
        crate::ServerBody::Welcome(_) => false,
        crate::ServerBody::Error(error) => {
            assert_eq!(error.name, "TOKEN_REVOKED");
            assert_eq!(client.expect_close(), Code::TokenRevoked);
            true
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn tokens_before_a_time_are_refused_and_their_connections_closed() {
    let node = TestNode::start(|_| {});
    let (old, new) = (token(&node, "old", -10), token(&node, "new", 5));
    let undated = sign(node.key(), &json!({"sub": "alice", "exp": now(600)}));
    let mut closed = [login(&node, &old, "phone"), login(&node, &undated, "tablet")];
    let (mut kept, mut bob) = (login(&node, &new, "desk"), node.login(Wire::Tcp, "bob", "phone"));
    assert_eq!(revoke(&node, json!({"before": "now"})), (200, json!({"closed": 2, "pending": []})));
    for client in &mut closed {
        assert_eq!(client.expect_close(), Code::TokenRevoked);
    }
    kept.settle();
    bob.settle();
    assert!(is_revoked(&node, &old, "phone") && is_revoked(&node, &undated, "other"));
    let refresh = ClientBody::Refresh(pb::Refresh {
        token: sign(node.key(), &json!({"sub": "alice", "exp": now(900), "iat": now(-10)})),
    });
    assert_eq!(kept.refused(refresh), Code::TokenRevoked);
    kept.settle();
    let head = format!("GET /v1/assign HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {old}\r\n");
    let (status, body) = http::ask_by(node.address(), &head, "");
    assert!(status == 401 && body.contains("TOKEN_REVOKED"), "{status} {body}");
    login(&node, &new, "phone").settle();
}

#[test]
fn one_token_or_those_of_one_device_are_revoked() {
    let node = TestNode::start(|_| {});
    let (leaked, other) = (token(&node, "leaked", -10), token(&node, "other", -10));
    let (mut phone, mut desk) = (login(&node, &leaked, "phone"), login(&node, &other, "desk"));
    assert_eq!(revoke(&node, json!({"tokenId": "leaked"})), (200, json!({"closed": 1, "pending": []})));
    assert_eq!(phone.expect_close(), Code::TokenRevoked);
    desk.settle();
    assert!(is_revoked(&node, &leaked, "desk") && !is_revoked(&node, &other, "phone"));
    assert_eq!(revoke(&node, json!({"device": "desk"})).0, 200);
    assert!(is_revoked(&node, &other, "desk") && !is_revoked(&node, &other, "phone"));
    assert!(!is_revoked(&node, &token(&node, "found", 5), "desk"), "issued for the device that was found");
    let (_, list) = node.admin("GET", "/v1/users/alice/revocations", &Value::Null);
    let ids: Vec<&Value> = list["revocations"].as_array().unwrap().iter().map(|it| &it["tokenId"]).collect();
    assert!(ids.len() == 2 && ids.contains(&&json!("leaked")) && ids.contains(&&Value::Null), "{list}");
}

#[test]
fn revocations_of_a_user_are_taken_back_on_all_nodes() {
    let numbers: Arc<dyn Numbers> = Arc::new(ClockNumbers::new(|| 1));
    let mesh = Mesh::start(2, &numbers);
    mesh.run(mesh.node(0).connections().revoke(revocation(60))).unwrap();
    assert_eq!(mesh.hello(1, Wire::Tcp, "alice", "phone").expect_error(1), Code::TokenRevoked);
    let cleared = Revocation { tokens: RevokedTokens::Cleared, ..revocation(60) };
    mesh.node(0).link.plan("revoke", Fault::Fail);
    let outcome = mesh.run(mesh.node(0).connections().revoke(cleared)).unwrap();
    assert_eq!((outcome.count, outcome.silent.len()), (0, 1), "{outcome:?}");
    mesh.login(0, Wire::Tcp, "alice", "phone").settle();
    eventually("the other node finds it in the store", || {
        let mut client = mesh.hello(1, Wire::Tcp, "alice", "desk");
        matches!(client.reply(1), ServerBody::Welcome(_)).then_some(())
    });
}

#[test]
fn mistaken_revocation_is_taken_back() {
    let node = TestNode::start(|_| {});
    let old = token(&node, "old", -10);
    assert_eq!(revoke(&node, json!({"before": "now"})).0, 200);
    assert!(is_revoked(&node, &old, "phone"));
    let clear = |node: &TestNode| node.admin("DELETE", "/v1/users/alice/revocations", &Value::Null);
    assert_eq!(clear(&node), (200, json!({"removed": 1, "pending": []})));
    assert!(!is_revoked(&node, &old, "phone"));
    let (_, list) = node.admin("GET", "/v1/users/alice/revocations", &Value::Null);
    assert_eq!(list, json!({"revocations": []}));
    assert_eq!(clear(&node), (200, json!({"removed": 0, "pending": []})));
    let data = node.stop();
    let node = TestNode::start_on(&data, |_| {});
    assert!(!is_revoked(&node, &old, "phone"));
    assert_eq!(revoke(&node, json!({"tokenId": "old"})).0, 200);
    assert!(is_revoked(&node, &old, "phone"), "revoked again");
}

#[test]
fn revocation_outlives_the_node() {
    let node = TestNode::start(|_| {});
    let old = token(&node, "old", -10);
    assert_eq!(revoke(&node, json!({"before": "now"})).0, 200);
    let data = node.stop();
    let node = TestNode::start_on(&data, |_| {});
    assert!(is_revoked(&node, &old, "phone") && !is_revoked(&node, &token(&node, "new", 5), "phone"));
}

#[test]
fn bad_revocations_are_refused_with_their_code() {
    let node = TestNode::start(|_| {});
    for body in [
        json!({}),
        json!({"before": "now", "device": "phone"}),
        json!({"before": (now(60) as u64) * 1_000}),
        json!({"before": "soon"}),
        json!({"tokenId": ""}),
        json!({"token": "x"}),
    ] {
        let (status, answer) = revoke(&node, body.clone());
        assert_eq!((status, &answer["name"]), (400, &json!("BAD_CONTENT")), "{body}: {answer}");
    }
    let (status, answer) = revoke(&node, json!({"device": "a b"}));
    assert_eq!((status, &answer["name"]), (400, &json!("BAD_ID")), "{answer}");
    for n in 0..USER_REVOCATIONS_MAX {
        assert_eq!(revoke(&node, json!({"tokenId": format!("t{n}")})).0, 200);
    }
    let (status, answer) = revoke(&node, json!({"tokenId": "one more"}));
    assert_eq!((status, &answer["name"]), (409, &json!("TOO_MANY_REVOCATIONS")), "{answer}");
    assert!(!is_revoked(&node, &token(&node, "one more", -1), "phone"));
    assert_eq!(revoke(&node, json!({"before": "now"})).0, 200, "it ends an attack at any time");
    assert!(is_revoked(&node, &token(&node, "one more", -1), "phone"));
}

fn revocation(later: i64) -> Revocation {
    let at_ms = (now(later) as u64) * 1_000;
    let user = UserId::new("alice").unwrap();
    Revocation { user, tokens: RevokedTokens::Before(at_ms), at_ms, until_ms: None }
}

#[test]
fn revocation_is_in_force_on_all_nodes_without_routes_and_link() {
    let numbers: Arc<dyn Numbers> = Arc::new(ClockNumbers::new(|| 1));
    let mesh = Mesh::start(3, &numbers);
    let mut devices: Vec<Client> =
        (0..3).map(|nth| mesh.login(nth, Wire::Tcp, "alice", &format!("d{nth}"))).collect();
    for method in ["lookup", "nodes", "remove"] {
        (0..50).for_each(|_| mesh.node(0).routes.plan(method, Fault::Fail));
    }
    (0..2).for_each(|_| mesh.node(0).link.plan("revoke", Fault::Fail));
    let began = std::time::Instant::now();
    let revoked = mesh.run(mesh.node(0).connections().revoke(revocation(60))).unwrap();
    assert_eq!((revoked.count, revoked.silent.len()), (1, 2), "by this node alone, at once: {revoked:?}");
    // The others find it in the store.
    for device in &mut devices {
        assert_eq!(device.expect_close(), Code::TokenRevoked);
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    for nth in 0..3 {
        let mut again = mesh.hello(nth, Wire::Tcp, "alice", "phone");
        assert_eq!(again.expect_error(1), Code::TokenRevoked);
    }
    let revoked = mesh.run(mesh.node(2).connections().revoke(revocation(120))).unwrap();
    assert!(revoked.silent.is_empty(), "over the link: {revoked:?}");
}

#[test]
fn unavailable_store_revokes_nothing() {
    let numbers: Arc<dyn Numbers> = Arc::new(ClockNumbers::new(|| 1));
    let mesh = Mesh::start(1, &numbers);
    let mut alice = mesh.login(0, Wire::Tcp, "alice", "phone");
    mesh.node(0).store.plan("revoke", Fault::Fail);
    let refused = mesh.run(mesh.node(0).connections().revoke(revocation(1)));
    assert!(matches!(refused, Err(RevokeError::Store(_))), "{refused:?}");
    alice.settle();
    mesh.login(0, Wire::Tcp, "alice", "desk").settle();
}
