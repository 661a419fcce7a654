//! Rules by the admin API on a running node: exact limits, checks, conditions, those of a file, and a restart.

use std::fs;

use serde_json::{Value, json};
use tidegate_protocol::{Code, codec::Wire};

use crate::support::{Client, ServerBody, TestNode, ask, http, send, unique_name};

fn rule(limit: u64) -> Value {
    json!({"level": "user", "calls": ["send"], "window": "1h", "limit": limit})
}

/// Returns how many of `count` messages are accepted; the others must be refused by a limit.
fn accepted(client: &mut Client, prefix: &str, count: usize) -> usize {
    let is_accepted = |n: &usize| match client.ask(ask::send(send("bob", &format!("{prefix}{n}"), "hi"))) {
        ServerBody::SendAck(_) => true,
        ServerBody::Error(error) if error.name == Code::RateLimited.name() => false,
        other => panic!("{other:?}"),
    };
    (0..count).filter(is_accepted).count()
}

fn put(node: &TestNode, id: &str, body: &Value) -> Value {
    let (status, body) = node.admin("PUT", &format!("/v1/rules/{id}"), body);
    assert_eq!(status, 200, "{body}");
    body
}

fn refusal(node: &TestNode, method: &str, path: &str, body: &Value) -> (u16, String, String) {
    let (status, body) = node.admin(method, path, body);
    (status, body["name"].as_str().unwrap_or_default().to_owned(), body["message"].to_string())
}

/// Returns the rules of a node: id, source and state of each.
fn states(node: &TestNode) -> Vec<String> {
    let (_, body) = node.admin("GET", "/v1/rules", &Value::Null);
    let rules = body["rules"].as_array().expect("a list").clone();
    let text = |it: &Value, name: &str| it[name].as_str().expect("text").to_owned();
    rules.iter().map(|it| ["id", "source", "state"].map(|name| text(it, name)).join(" ")).collect()
}

#[test]
fn rule_of_the_api_admits_exactly_its_limit_until_it_is_removed() {
    let node = TestNode::start(|config| config.node.store = "embedded".into());
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    let stored = put(&node, "few", &rule(3));
    assert_eq!((&stored["inForce"], &stored["pending"]), (&json!(true), &json!([])), "{stored}");
    assert_eq!(accepted(&mut ann, "a", 7), 3);
    let (_, limits) = node.admin("GET", "/v1/limits/user:ann", &Value::Null);
    let state = &limits["rules"][0];
    assert_eq!((&state["source"], &state["used"]), (&json!("api"), &json!(3)), "{state}");
    assert_eq!(state["refused"], json!({"total": 4, "lastMinute": 4}));
    let (_, limits) = node.admin("GET", "/v1/limits", &Value::Null);
    let busiest = json!([{"key": "user:ann", "rule": "few", "refused": 4, "refusedLastMinute": 4}]);
    assert_eq!(limits["busiest"], busiest);
    let total = json!({"admitted": 3, "refused": 4, "delayed": 0, "dryRefused": 0, "refusedLastMinute": 4});
    assert_eq!(limits["rules"][0]["total"], total);
    // The window goes on if only what happens beyond the limit changes.
    put(
        &node,
        "few",
        &json!({"level": "user", "calls": ["send"], "window": "1h", "limit": 3, "dry_run": true}),
    );
    assert_eq!(accepted(&mut ann, "b", 2), 2);
    put(&node, "few", &rule(3));
    assert_eq!(accepted(&mut ann, "c", 1), 0);
    let (status, removed) = node.admin("DELETE", "/v1/rules/few", &Value::Null);
    let expected =
        json!({"id": "few", "removed": true, "fileInForce": false, "inForce": true, "pending": []});
    assert_eq!((status, removed), (200, expected));
    assert_eq!(accepted(&mut ann, "d", 2), 2);
    assert_eq!(node.admin("DELETE", "/v1/rules/few", &Value::Null).0, 404);
    assert_eq!(node.admin("GET", "/v1/rules/few", &Value::Null).0, 404);
}

#[test]
fn rules_of_the_api_survive_a_restart_and_come_before_those_of_the_file() {
    let file = std::env::temp_dir().join(format!("tidegate-rules-{}.toml", unique_name()));
    let text = "[[rule]]\nid = \"few\"\nlevel = \"user\"\ncalls = [\"send\"]\nwindow = \"1h\"\nlimit = 2\n";
    fs::write(&file, text).expect("a file");
    let of_file = file.clone();
    let node = TestNode::start(move |config| {
        config.limits.rules_file = of_file;
        config.node.store = "embedded".into();
    });
    assert_eq!(put(&node, "few", &rule(4))["overridesFile"], json!(true));
    assert_eq!(states(&node), ["few api in force", "few file overridden"]);
    let data = node.stop();
    let of_file = file.clone();
    let node = TestNode::start_on(&data, move |config| {
        config.limits.rules_file = of_file;
        config.node.store = "embedded".into();
    });
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    assert_eq!(accepted(&mut ann, "a", 6), 4);
    let (_, removed) = node.admin("DELETE", "/v1/rules/few", &Value::Null);
    assert_eq!(removed["fileInForce"], json!(true));
    assert_eq!(accepted(&mut ann, "b", 3), 2, "that of the file begins without hits");
    let (status, name, message) = refusal(&node, "DELETE", "/v1/rules/few", &Value::Null);
    assert_eq!((status, name.as_str()), (409, "CONFLICT"), "{message}");
    fs::remove_file(file).ok();
}

#[test]
fn bad_rules_and_failed_conditions_change_nothing() {
    let node = TestNode::start(|_| {});
    put(&node, "node-1s", &json!({"level": "node", "calls": ["send"], "window": "1s", "limit": 1_000}));
    let before = states(&node);
    let (status, body) = node.admin(
        "PUT",
        "/v1/rules/bad",
        &json!({"level": "planet", "calls": [], "window": "5", "limit": 0}),
    );
    let problems = body["problems"].as_array().expect("a list").len();
    assert_eq!((status, &body["name"], problems), (400, &json!("BAD_CONTENT"), 4), "{body}");
    for (path, body) in [
        ("/v1/rules/a%20b", rule(1)),
        (
            "/v1/rules/other",
            json!({"id": "another", "level": "user", "calls": ["send"], "window": "1s", "limit": 1}),
        ),
        (
            "/v1/rules/odd",
            json!({"level": "user", "calls": ["send"], "window": "1s", "limit": 1, "speed": 1}),
        ),
        (
            "/v1/rules/long",
            json!({"level": "user", "calls": ["send"], "window": "1s", "limit": 1,
            "except": (0..900).map(|n| format!("user-{n}")).collect::<Vec<_>>()}),
        ),
    ] {
        assert_eq!(refusal(&node, "PUT", path, &body).0, 400, "{path}");
    }
    let draft = json!({"id": "user-1s", "level": "user", "calls": ["send"], "window": "1s", "limit": 20});
    let (status, checked) = node.admin("POST", "/v1/rules:validate", &draft);
    let first = "rule `node-1s` refuses first once 51 subjects use all of `user-1s` at the same time";
    let expected = json!({"id": "user-1s", "valid": true, "problems": [], "overlaps": [first]});
    assert_eq!((status, checked), (200, expected));
    let (_, checked) = node.admin("POST", "/v1/rules:validate", &rule(0));
    assert_eq!((&checked["valid"], checked["problems"].as_array().map(Vec::len)), (&json!(false), Some(2)));
    assert_eq!(states(&node), before);
    let version = put(&node, "user-1s", &rule(5))["version"].as_u64().expect("a version");
    let conditional = |condition: &str, body: &Value| {
        let head = format!(
            "PUT /v1/rules/user-1s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{condition}"
        );
        http::ask_by(node.admin_address(), &head, &body.to_string()).0
    };
    assert_eq!(conditional("If-None-Match: *\r\n", &rule(6)), 409);
    assert_eq!(conditional(&format!("If-Match: \"{}\"\r\n", version + 1), &rule(6)), 409);
    assert_eq!(conditional("If-Match: soon\r\n", &rule(6)), 400);
    assert_eq!(conditional(&format!("If-Match: \"{version}\"\r\n"), &rule(6)), 200);
}
