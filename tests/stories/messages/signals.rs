//! Signals, prunings and traces by the admin API on a running node.

use serde_json::{Value, json};
use tidegate_protocol::codec::Wire;

use super::{
    api::{post, say, text},
    edits::switched,
};
use crate::support::{TestNode, ask, http};

#[test]
fn signal_reaches_those_who_are_connected_and_is_not_stored() {
    let node = switched(|_| {});
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    let mut alice = node.login(Wire::JsonLine, "alice", "web");
    let typing = json!({"to": "bob", "from": "alice", "kind": "typing", "content": {"text": "half a w"}});
    let (status, body) = post(&node, "/v1/signals", &typing);
    assert_eq!((status, body), (202, json!({"conversation": "d:alice:bob", "stored": false})));
    for client in [&mut bob, &mut alice] {
        let signal = client.expect_signal();
        assert_eq!((signal.sender.as_str(), signal.kind.as_str()), ("alice", "typing"));
    }
    assert_eq!(bob.sync(&[]).len(), 0, "a signal creates no conversation");
    node.group("team", &["alice", "bob"]);
    bob.expect_push();
    let (status, _) = post(&node, "/v1/signals", &json!({"to": "g:team", "kind": "order.due"}));
    assert_eq!(status, 202, "the system needs no membership");
    assert_eq!(bob.expect_signal().sender, "system");
    let refused = |to: &str, from: &str, kind: &str| {
        let (status, body) = post(&node, "/v1/signals", &json!({"to": to, "from": from, "kind": kind}));
        (status, body["title"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(refused("g:team", "eve", "typing"), (403, "NOT_A_MEMBER".to_owned()));
    assert_eq!(refused("g:nowhere", "alice", "typing"), (404, "NOT_FOUND".to_owned()));
    assert_eq!(refused("r:hall", "alice", "typing"), (400, "UNSUPPORTED".to_owned()));
    assert_eq!(refused("bob", "alice", "no kind"), (400, "BAD_ID".to_owned()));
    let large = json!({"to": "bob", "kind": "typing", "content": {"text": "x".repeat(2_000)}});
    assert_eq!(post(&node, "/v1/signals", &large).1["title"], "CONTENT_TOO_LARGE");
}

#[test]
fn pruned_beginning_is_gone_for_everybody() {
    let node = TestNode::start(|_| {});
    for n in 1..=5 {
        assert_eq!(say(&node, &text("bob", "hi", &format!("m-{n}"))).0, 201);
    }
    let prune = |up_to: u64| post(&node, "/v1/conversations/d:system:bob/prune", &json!({"upTo": up_to}));
    let pruned = |to: u64| (200, json!({"conversation": "d:bob:system", "prunedTo": to, "complete": true}));
    assert_eq!(prune(3), pruned(3));
    assert_eq!(prune(2), pruned(3), "nothing comes back");
    assert_eq!(prune(6).1["title"], "BAD_CONTENT", "6 does not exist");
    assert_eq!(post(&node, "/v1/conversations/g:nowhere/prune", &json!({"upTo": 1})).0, 404);
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    let page = bob.page(ask::after("d:bob:system", 0, 10));
    assert_eq!(page.messages.iter().map(|it| it.seq).collect::<Vec<_>>(), [4, 5]);
    assert_eq!(say(&node, &text("bob", "hi", "m-6")).1["seq"], 6, "seqs go on");
    assert_eq!(say(&node, &text("bob", "hi", "m-1")).1["seq"], 1, "and ids are remembered");
}

#[test]
fn message_joins_the_trace_of_its_request() {
    let node = TestNode::start(|_| {});
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let head = format!(
        "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\ntraceparent: 00-{trace}-00f067aa0ba902b7-01\r\n"
    );
    let (status, _) = http::ask_by(node.admin_address(), &head, &text("bob", "hi", "m-1").to_string());
    assert_eq!(status, 201);
    let (_, found) = node.admin("GET", "/v1/trace?msg=m-1", &Value::Null);
    let steps = found["steps"].as_array().cloned().unwrap_or_default();
    assert!(steps.len() >= 4 && steps.iter().all(|step| step["trace"] == trace), "{found}");
    assert_eq!(steps.first().map(|step| &step["step"]), Some(&json!("received")));
}
