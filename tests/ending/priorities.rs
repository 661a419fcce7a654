//! Priorities of users in live rooms: by the token, by the admin API on open connections, and after their end.

use std::sync::Arc;

use serde_json::{Value, json};
use tidegate::{
    cluster::PriorityHandler,
    fault::Fault,
    scratch::{ClockNumbers, Numbers},
    store::GuardKind,
};
use tidegate_protocol::{codec::Wire, id::UserId};

use crate::{
    mesh::Mesh,
    now, sign,
    support::{TestNode, eventually, hello},
};

fn prio(node: &TestNode, user: &str) -> Value {
    let (_, body) = node.admin("GET", &format!("/v1/users/{user}/connections"), &Value::Null);
    body["connections"][0]["prio"].clone()
}

fn eventually_prio(node: &TestNode, user: &str, expected: u8) {
    eventually("priority", || (prio(node, user) == expected).then_some(()));
}

#[test]
fn set_priority_takes_precedence_over_the_token_until_it_is_removed() {
    let node = TestNode::start(|_| {});
    let token = sign(node.key(), &json!({"sub": "ann", "exp": now(600), "prio": 1}));
    let mut ann = node.connect(Wire::Tcp);
    ann.login(hello(&token, "phone"));
    let _bob = node.login(Wire::WsText, "bob", "phone");
    assert_eq!((prio(&node, "ann"), prio(&node, "bob")), (1.into(), 0.into()));
    let (status, body) = node.admin("PUT", "/v1/users/ann/prio", &json!({"prio": 3}));
    let expected = json!({"user": "ann", "prio": 3, "untilMs": null, "inForce": true, "pending": []});
    assert_eq!((status, body), (200, expected));
    eventually_prio(&node, "ann", 3);
    assert_eq!(node.admin("GET", "/v1/users/ann/prio", &Value::Null).1["prio"], 3);
    let _tablet = node.login(Wire::Tcp, "ann", "tablet");
    let (_, body) = node.admin("GET", "/v1/users/ann/connections", &Value::Null);
    assert!(body["connections"].as_array().unwrap().iter().all(|it| it["prio"] == 3), "{body}");
    assert_eq!(prio(&node, "bob"), 0);
    let (_, body) = node.admin("DELETE", "/v1/users/ann/prio", &Value::Null);
    assert_eq!((&body["removed"], &body["inForce"]), (&true.into(), &true.into()), "{body}");
    eventually("priority of the token", || {
        let (_, body) = node.admin("GET", "/v1/users/ann/connections", &Value::Null);
        let mut classes: Vec<u64> =
            body["connections"].as_array()?.iter().filter_map(|it| it["prio"].as_u64()).collect();
        classes.sort_unstable();
        (classes == [0, 1]).then_some(())
    });
    assert_eq!(node.admin("GET", "/v1/users/ann/prio", &Value::Null).0, 404);
    assert_eq!(node.admin("DELETE", "/v1/users/ann/prio", &Value::Null).1["removed"], false);
}

#[test]
fn priority_ends_after_its_time_and_wrong_ones_are_refused() {
    let node = TestNode::start(|_| {});
    let _ann = node.login(Wire::Tcp, "ann", "phone");
    let (_, body) = node.admin("PUT", "/v1/users/ann/prio", &json!({"prio": 2, "ttlMs": 1_000}));
    assert!(body["untilMs"].is_u64(), "{body}");
    eventually_prio(&node, "ann", 2);
    eventually_prio(&node, "ann", 0);
    for (path, body, name) in [
        ("/v1/users/ann/prio", json!({"prio": 4}), "BAD_CONTENT"),
        ("/v1/users/ann/prio", json!({"prio": 1, "ttlMs": 999}), "BAD_CONTENT"),
        ("/v1/users/ann/prio", json!({}), "BAD_CONTENT"),
        ("/v1/users/a%20b/prio", json!({"prio": 1}), "BAD_ID"),
    ] {
        let (status, answer) = node.admin("PUT", path, &body);
        assert_eq!((status, &answer["name"]), (400, &json!(name)), "{answer}");
    }
}

#[test]
fn priority_is_in_force_on_all_nodes_also_without_the_notification() {
    let numbers: Arc<dyn Numbers> = Arc::new(ClockNumbers::new(|| 1));
    let mesh = Mesh::start(2, &numbers);
    let _clients = [0, 1].map(|nth| mesh.login(nth, Wire::Tcp, "ann", &format!("d{nth}")));
    for (class, is_cut) in [(2, false), (3, true)] {
        if is_cut {
            (0..9).for_each(|_| mesh.node(0).link.plan("send_best_effort", Fault::Fail));
        }
        mesh.put_entry(0, (GuardKind::Priority, "ann"), PriorityHandler::encode(class), None);
        for nth in [0, 1] {
            let ann = UserId::new("ann").unwrap();
            eventually("class of the user", || {
                (mesh.node(nth).cluster().priorities.class(&ann, None) == class).then_some(())
            });
        }
    }
}
