//! Events of a node about its users and groups: online and offline, read marks, blocked chains, storms.

mod stream;

use serde_json::{Value, json};
use tidegate_protocol::{codec::Wire, pb};

use crate::support::{Client, ServerBody, TestNode, ask, eventually, http, send};

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

#[test]
fn storm_of_a_group_is_an_event_and_is_listed_until_it_is_over() {
    let node = TestNode::start(|config| (config.storm.threshold, config.storm.window_ms) = (5, 500));
    let group = node.group("tea", &["ann", "bob"]);
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    let (_, mut cursor) = follow(&node, "end", 0);
    let mut sent = 0;
    // A slow machine may not send six messages within the window at the first attempt.
    eventually("a storm", || {
        for _ in 0..20 {
            ann.text(&group, &format!("m{sent}"), "hurry");
            sent += 1;
        }
        (node.metric("tidegate_storms") >= Some(1.0)).then_some(())
    });
    let start = until(&node, &mut cursor, 1).remove(0);
    assert_eq!(kinds(std::slice::from_ref(&start)), [("tidegate.storm", "g:tea")]);
    let data = &start["data"];
    assert_eq!((&data["state"], &data["count"], &data["threshold"]), (&json!("storm"), &json!(6), &json!(5)));
    assert_eq!((&data["windowMs"], data.get("profile")), (&json!(500), None), "{data}");
    let id = &data["id"];
    let over = until(&node, &mut cursor, 1).remove(0);
    assert_eq!((&over["data"]["id"], &over["data"]["state"]), (id, &json!("over")));
    let counts = over["data"]["profile"]["counts"].as_array().expect("a list");
    assert!(counts.iter().filter_map(Value::as_u64).sum::<u64>() >= 6, "{over}");
    let (status, list) = node.admin("GET", "/v1/storms", &Value::Null);
    assert_eq!((status, list), (200, json!({"storms": [], "total": 0, "silent": []})));
    let (status, tea) = node.admin("GET", "/v1/storms/tea", &Value::Null);
    assert_eq!(
        (status, &tea["state"], &tea["count"], &tea["threshold"]),
        (200, &json!("quiet"), &json!(0), &json!(5))
    );
    assert_eq!(node.admin("GET", "/v1/storms/no%20group", &Value::Null).0, 400);
}

#[test]
fn single_group_has_a_rule_of_its_own_that_restricts_it_until_the_storm_is_over() {
    let node = TestNode::start(|_| {});
    let group = node.group("tea", &["ann", "bob"]);
    let rule = json!({"threshold": 5, "windowMs": 500, "actions": ["alert", "admins"]});
    let (status, shown) = node.admin("PUT", "/v1/groups/tea/storm", &rule);
    let in_force = json!({"conversation": "g:tea", "own": rule, "threshold": 5, "windowMs": 500,
        "actions": ["alert", "admins"], "pending": []});
    assert_eq!((status, shown), (200, in_force));
    for bad in [json!({"threshold": 0}), json!({"actions": ["shout"]}), json!({"windowMs": 99})] {
        let (status, refusal) = node.admin("PUT", "/v1/groups/tea/storm", &bad);
        assert_eq!((status, &refusal["name"]), (400, &json!("BAD_SETTING")), "{bad}");
    }
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    let mut bob = node.login(Wire::WsText, "bob", "phone");
    let post = || node.admin("GET", "/v1/groups/tea", &Value::Null).1["settings"]["post"].clone();
    let mut sent = 0;
    eventually("posts are for admins only", || {
        for _ in 0..20 {
            ann.say(ask::send(send(&group, &format!("m{sent}"), "hurry")));
            sent += 1;
        }
        (post() == json!("admins")).then_some(())
    });
    assert_eq!(bob.expect_notice().action, "admins");
    eventually("the former setting is back", || post().is_null().then_some(()));
    bob.text(&group, "b1", "at last");
    let (_, removed) = node.admin("DELETE", "/v1/groups/tea/storm", &Value::Null);
    assert_eq!((&removed["own"], &removed["threshold"]), (&Value::Null, &json!(100)));
}

/// Sends messages to a group until its posts are for admins only.
fn until_restricted(node: &TestNode, ann: &mut Client, group: &str, sent: &mut u32) {
    eventually("posts are for admins only", || {
        for _ in 0..20 {
            ann.say(ask::send(send(group, &format!("m{sent}"), "hurry")));
            *sent += 1;
        }
        (node.admin("GET", "/v1/groups/tea", &Value::Null).1["settings"]["post"] == "admins").then_some(())
    });
}

#[test]
fn operator_replaces_the_action_of_a_storm_in_force() {
    let node = TestNode::start(|_| {});
    let group = node.group("tea", &["ann", "bob"]);
    let put = |actions: Value| {
        let rule = json!({"threshold": 5, "windowMs": 2_000, "actions": actions});
        assert_eq!(node.admin("PUT", "/v1/groups/tea/storm", &rule).0, 200);
    };
    let settings = || node.admin("GET", "/v1/groups/tea", &Value::Null).1["settings"].clone();
    let storm = || node.admin("GET", "/v1/storms/tea", &Value::Null).1;
    put(json!(["admins"]));
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    let mut sent = 0;
    until_restricted(&node, &mut ann, &group, &mut sent);
    let id = storm()["id"].clone();
    put(json!(["alert"]));
    eventually("the restriction is undone during the storm", || (settings() == json!({})).then_some(()));
    // The board shows it once the change is decided.
    let shown = eventually("the storm goes on without an action", || {
        let shown = storm();
        shown.get("action").is_none().then_some(shown)
    });
    assert_eq!(shown["id"], id, "{shown}");
    put(json!(["admins"]));
    until_restricted(&node, &mut ann, &group, &mut sent);
    assert_eq!(storm()["id"], id, "the same storm is restricted again");
    // What a person sets stays, also after the end of the storm.
    let post = json!({"settings": {"post": "all"}});
    assert_eq!(node.admin("POST", "/v1/groups/tea/settings", &post).0, 200);
    eventually("the storm is over", || storm().get("id").is_none().then_some(()));
    assert_eq!(settings(), json!({"post": "all"}));
}

#[test]
fn storm_rule_of_a_group_is_replaced_only_in_the_version_that_was_read() {
    let node = TestNode::start(|_| {});
    let ask = |method: &str, condition: &str, body: &Value| {
        let head = format!(
            "{method} /v1/groups/tea/storm HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{condition}"
        );
        let reply = http::exchange(node.admin_address(), &head, &body.to_string());
        let body: Value = serde_json::from_slice(&reply.body).expect("JSON");
        (reply.status, reply.field("etag").map(str::to_owned), body)
    };
    let rule = |threshold: u32| json!({"threshold": threshold});
    let (status, tag, _) = ask("PUT", "If-None-Match: *\r\n", &rule(5));
    let if_first = format!("If-Match: {}\r\n", tag.clone().expect("a version"));
    assert_eq!((status, ask("GET", "", &Value::Null).1), (200, tag));
    let (status, second, _) = ask("PUT", &if_first, &rule(6));
    assert_eq!(status, 200);
    for (method, condition) in [("PUT", &*if_first), ("DELETE", &*if_first), ("PUT", "If-None-Match: *\r\n")]
    {
        let (status, _, refusal) = ask(method, condition, &rule(7));
        assert_eq!((status, &refusal["name"]), (409, &json!("CONFLICT")), "{method} {condition}");
        assert!(refusal["cure"].as_str().is_some_and(|cure| cure.contains("ETag")), "{refusal}");
    }
    let (_, tag, shown) = ask("GET", "", &Value::Null);
    assert_eq!((tag, &shown["threshold"]), (second.clone(), &json!(6)), "nothing was lost");
    let (status, tag, removed) =
        ask("DELETE", &format!("If-Match: {}\r\n", second.expect("a version")), &Value::Null);
    assert_eq!((status, tag, &removed["own"]), (200, None, &Value::Null));
}
