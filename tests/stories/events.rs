//! Events of a node about its users: online and offline, read marks, blocked chains.

use serde_json::{Value, json};
use tidegate_protocol::{codec::Wire, pb};

use crate::support::{ServerBody, TestNode, ask, eventually, send};

/// Returns the events after a cursor, and the next cursor.
fn follow(node: &TestNode, after: &str, wait_ms: u64) -> (Vec<Value>, String) {
    let path = format!("/v1/events?wait_ms={wait_ms}&after={after}");
    let (status, said) = node.admin("GET", &path, &Value::Null);
    assert_eq!((status, &said["missed"], &said["node"]), (200, &json!(false), &json!("n1")), "{said}");
    (said["events"].as_array().expect("a list").clone(), said["cursor"].as_str().expect("text").to_owned())
}

/// Returns `count` events after the cursor.
fn until(node: &TestNode, cursor: &mut String, count: usize) -> Vec<Value> {
    let mut found = Vec::new();
    eventually(&format!("{count} events"), || {
        let (events, next) = follow(node, cursor, 100);
        found.extend(events);
        *cursor = next;
        (found.len() >= count).then_some(())
    });
    found
}

fn kinds(events: &[Value]) -> Vec<(&str, &str)> {
    events
        .iter()
        .map(|it| (it["type"].as_str().unwrap_or(""), it["subject"].as_str().unwrap_or("")))
        .collect()
}

#[test]
fn logins_and_logouts_are_events_once_and_replacements_are_not() {
    let node = TestNode::start(|config| config.node.shards = 3);
    let (_, mut cursor) = follow(&node, "end", 0);
    let old = node.login(Wire::Tcp, "ann", "phone");
    let desk = node.login(Wire::WsText, "ann", "desk");
    let mut new = node.login(Wire::JsonLine, "ann", "phone");
    let bob = node.login(Wire::WsBinary, "bob", "phone");
    let came = until(&node, &mut cursor, 4);
    assert_eq!(
        kinds(&came),
        [
            ("tidegate.online", "ann"),
            ("tidegate.online", "ann"),
            ("tidegate.online", "ann"),
            ("tidegate.online", "bob")
        ]
    );
    let token = |event: &Value| {
        [&event["data"]["node"], &event["data"]["boot"], &event["data"]["epoch"]].map(Value::clone)
    };
    let replaced = &came[2]["data"]["replaced"];
    assert_eq!([&replaced["node"], &replaced["boot"], &replaced["epoch"]].map(Value::clone), token(&came[0]));
    assert!(came[2]["data"]["epoch"].as_u64() > came[0]["data"]["epoch"].as_u64());
    drop(old);
    drop(desk);
    let went = until(&node, &mut cursor, 1);
    assert_eq!((kinds(&went), token(&went[0])), (vec![("tidegate.offline", "ann")], token(&came[1])));
    // A message proves that the new connection is open.
    new.text("bob", "m1", "hi");
    drop((new, bob));
    let mut went = until(&node, &mut cursor, 2);
    went.sort_by_key(|event| event["subject"].to_string());
    assert_eq!(kinds(&went), [("tidegate.offline", "ann"), ("tidegate.offline", "bob")]);
    assert_eq!((token(&went[0]), token(&went[1])), (token(&came[2]), token(&came[3])));
    let (more, _) = follow(&node, &cursor, 300);
    assert_eq!(more, [Value::Null; 0], "each once");
}

#[test]
fn events_of_marks_and_chains_have_no_content() {
    let node = TestNode::start(|config| config.timing.order_timeout_ms = 200);
    let mut ann = node.login_chained(Wire::Tcp, "ann", "phone", "a");
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    for n in 1..=3 {
        ann.text("bob", &format!("m{n}"), "a secret");
        bob.expect_push();
    }
    let (_, mut cursor) = follow(&node, "end", 0);
    for seq in 1..=3 {
        assert!(matches!(bob.ask(ask::read("d:ann:bob", seq)), ServerBody::Done(_)));
    }
    // A second may pass in between.
    let last = json!({"user": "bob", "conversation": "d:ann:bob", "seq": 3});
    let mut events_read = until(&node, &mut cursor, 1);
    while events_read.last().is_some_and(|event| event["data"] != last) {
        events_read.extend(until(&node, &mut cursor, 1));
    }
    assert!(kinds(&events_read).iter().all(|it| *it == ("tidegate.read", "bob")), "{events_read:?}");
    ann.say(ask::send(pb::Send { next_id: "c".into(), ..send("bob", "b", "a secret") }));
    let events_read = until(&node, &mut cursor, 1);
    assert_eq!(kinds(&events_read), [("tidegate.order-blocked", "ann")]);
    assert_eq!(
        (&events_read[0]["data"]["expected"], &events_read[0]["data"]["device"]),
        (&json!("a"), &json!("phone"))
    );
    let (_, all) = node.admin("GET", "/v1/events", &Value::Null);
    assert!(!all.to_string().contains("secret"), "{all}");
}

#[test]
fn cursor_of_another_run_reports_a_gap_and_a_bad_one_fails() {
    let node = TestNode::start(|_| {});
    let _ann = node.login(Wire::Tcp, "ann", "phone");
    let (status, said) = node.admin("GET", "/v1/events?after=1-0", &Value::Null);
    assert_eq!(
        (status, &said["missed"], said["events"].as_array().map(Vec::len)),
        (200, &json!(true), Some(1))
    );
    for wrong in ["after=x", "after=1", "wait_ms=30000", "since=1"] {
        assert_eq!(node.admin("GET", &format!("/v1/events?{wrong}"), &Value::Null).0, 400, "{wrong}");
    }
}
