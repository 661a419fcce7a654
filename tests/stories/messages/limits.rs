//! Rules of a file on a running node: messages that wait, what the admin API shows, and requests that it refuses.

use std::{fs, time::Instant};

use serde_json::{Value, json};
use tidegate_protocol::codec::Wire;

use super::edits::switched;
use crate::support::{Client, ServerBody, TestNode, ask, eventually, http, unique_name};

/// Starts a node with these rules.
pub(crate) fn ruled(text: &str) -> TestNode {
    let file = std::env::temp_dir().join(format!("tidegate-rules-{}.toml", unique_name()));
    fs::write(&file, text).expect("a file");
    let node = TestNode::start(|config| config.limits.rules_file = file.clone());
    fs::remove_file(file).ok();
    node
}

fn state(node: &TestNode, key: &str) -> Value {
    let (status, body) = node.admin("GET", &format!("/v1/limits/{key}"), &Value::Null);
    assert_eq!(status, 200, "{body}");
    body["rules"][0].clone()
}

#[test]
fn messages_over_a_limit_wait_and_keep_their_order() {
    let node = ruled(
        "[[rule]]\nid = \"calm\"\nlevel = \"user\"\ncalls = [\"send\"]\nwindow = \"200ms\"\nlimit = 2\n\
         action = \"delay\"\nmax_wait = \"1s\"\n",
    );
    let mut plain = node.login(Wire::WsBinary, "ann", "phone");
    let mut chained = node.login_chained(Wire::WsBinary, "ben", "phone", "m0");
    let mut bob = node.login(Wire::WsBinary, "bob", "phone");
    let texts = |client: &mut Client, is_chained: bool| {
        let began = Instant::now();
        let ids: Vec<u64> = (0..7)
            .map(|n| {
                let next_id = if is_chained { format!("m{}", n + 1) } else { String::new() };
                let text = format!("text {n}");
                let send = crate::support::send("bob", &format!("m{n}"), &text);
                client.say(crate::support::ask::send(tidegate_protocol::pb::Send { next_id, ..send }))
            })
            .collect();
        let seqs: Vec<u64> = ids.into_iter().map(|id| client.expect_ack(id).seq).collect();
        assert!(began.elapsed().as_millis() >= 600, "two in any 200 ms: {:?}", began.elapsed());
        seqs
    };
    assert_eq!(texts(&mut plain, false), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(texts(&mut chained, true), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(bob.pushes(14).len(), 14);
    let state = state(&node, "user:ann");
    assert_eq!((&state["total"]["admitted"], &state["total"]["refused"]), (&json!(14), &json!(0)), "{state}");
    assert!(state["total"]["delayed"].as_u64() >= Some(6), "{state}");
}

#[test]
fn channel_of_api_callers_has_a_window_of_its_own() {
    let node = ruled(
        "[[rule]]\nid = \"campaign\"\nlevel = \"channel\"\ncalls = [\"api:get\"]\nwindow = \"1h\"\nlimit = 2\n",
    );
    let ask = |channel: &str| {
        let head = format!("GET /v1/bans HTTP/1.1\r\nHost: localhost\r\n{channel}");
        http::ask_by(node.admin_address(), &head, "").0
    };
    assert_eq!([ask(""), ask(""), ask("")], [200; 3], "without a channel nothing is counted");
    let of_spring = || ask("Tidegate-Channel: spring\r\n");
    assert_eq!([of_spring(), of_spring(), of_spring()], [200, 200, 429]);
    assert_eq!(ask("Tidegate-Channel: summer\r\n"), 200);
    assert_eq!(ask("Tidegate-Channel: a b\r\n"), 200, "it is no channel");
    assert_eq!(state(&node, "channel:spring")["used"], 2);
}

#[test]
fn limits_show_by_subject_and_bound_the_admin_port() {
    let node = ruled(
        "[[rule]]\nid = \"few\"\nlevel = \"user\"\ncalls = [\"send\"]\nwindow = \"1h\"\nlimit = 1\n\
         [[rule]]\nid = \"api\"\nlevel = \"node\"\ncalls = [\"api:post\"]\nwindow = \"1h\"\nlimit = 1\n",
    );
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    ann.text("bob", "m1", "hi");
    let refused = ann.say(crate::support::ask::send(crate::support::send("bob", "m2", "hi")));
    assert_eq!(ann.expect_error(refused).name(), "RATE_LIMITED");
    let state = state(&node, "user:ann");
    assert_eq!(
        (&state["id"], &state["limit"], &state["used"], &state["windowMs"]),
        (&json!("few"), &json!(1), &json!(1), &json!(3_600_000))
    );
    assert!(
        state["retryAfterMs"].as_u64().is_some_and(|wait| (3_590_000..=3_600_001).contains(&wait)),
        "{state}"
    );
    assert_eq!(state["total"]["refused"], json!(1));
    let other = node.admin("GET", "/v1/limits/user:bob", &Value::Null).1;
    assert_eq!((&other["rules"][0]["used"], &other["rules"][0]["retryAfterMs"]), (&json!(0), &json!(0)));
    for wrong in ["planet:mars", "user", "address:here", "node:n1"] {
        let (status, body) = node.admin("GET", &format!("/v1/limits/{wrong}"), &Value::Null);
        assert_eq!((status, &body["name"]), (400, &json!("BAD_ID")), "{wrong}");
    }
    node.group("first", &["ann"]);
    let (status, body) = node.admin("POST", "/v1/groups", &json!({"id": "second", "members": ["ann"]}));
    assert_eq!((status, &body["name"]), (429, &json!("RATE_LIMITED")), "{body}");
    assert_eq!(node.admin("GET", "/v1/groups/second", &Value::Null).0, 404);
    eventually("the refusal is evidence", || {
        let shown = node.admin("GET", "/v1/subjects/network:127.0.0.1", &Value::Null).1;
        shown["evidence"]["counts"].to_string().contains("limit_hit").then_some(())
    });
    let audit = std::fs::read_to_string(node.stop().join("audit.jsonl")).expect("a file");
    let refused: Vec<&str> = audit.lines().filter(|line| line.contains(r#""reason":"limit""#)).collect();
    assert!(refused.len() == 1 && refused[0].contains("\"RATE_LIMITED\""), "{audit}");
}

#[test]
fn edits_count_in_rules_of_contents_as_messages_do() {
    let file = std::env::temp_dir().join(format!("tidegate-rules-{}.toml", unique_name()));
    let rule = "[[rule]]\nid = \"same\"\nlevel = \"content\"\ncalls = [\"send\", \"api:send\"]\nwindow = \"1h\"\nlimit = 2\n";
    fs::write(&file, rule).expect("a file");
    let node = switched(|config| config.limits.rules_file = file.clone());
    fs::remove_file(&file).ok();
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    let spam = "buy now, it is cheap";
    assert_eq!(ann.text("bob", "m1", "a question that is long enough"), 1);
    assert_eq!(ann.text("bob", "m2", spam), 2);
    let edit = |ann: &mut Client, id: &str| ann.say(ask::edit("d:ann:bob", 1, id, spam));
    let first = edit(&mut ann, "e1");
    ann.expect_ack(first);
    let second = edit(&mut ann, "e2");
    assert_eq!(ann.expect_error(second).name(), "RATE_LIMITED");
    let by_api = |text: &str| {
        let path = "/v1/conversations/d:ann:bob/messages/1";
        node.admin("PATCH", path, &json!({"content": {"text": text}})).0
    };
    assert_eq!(by_api(spam), 429);
    let other = "another text that is long enough";
    assert_eq!([by_api(other), by_api(other), by_api(other)], [200, 200, 429]);
}

#[test]
fn stranger_does_not_use_up_the_limit_of_a_group() {
    let node = ruled(
        "[[rule]]\nid = \"team\"\nlevel = \"conversation\"\ncalls = [\"send\"]\nwindow = \"1h\"\nlimit = 2\n",
    );
    node.group("team", &["ann", "bob"]);
    let mut eve = node.login(Wire::Tcp, "eve", "phone");
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    let say = |client: &mut Client, n: u32| {
        client.say(crate::support::ask::send(crate::support::send("g:team", &format!("m{n}"), "hi")))
    };
    for (n, expected) in (0..).zip(["NOT_A_MEMBER", "NOT_A_MEMBER", "RATE_LIMITED", "RATE_LIMITED"]) {
        let sent = say(&mut eve, n);
        assert_eq!(eve.expect_error(sent).name(), expected, "{n}");
    }
    for n in 0..2 {
        let sent = say(&mut ann, n);
        ann.expect_ack(sent);
    }
    let sent = say(&mut ann, 2);
    assert_eq!(ann.expect_error(sent).name(), "RATE_LIMITED");
    assert_eq!(state(&node, "conversation:g:team")["used"], json!(2));
}

#[test]
fn limit_that_follows_the_load_explains_itself() {
    let node = ruled(
        "[[rule]]\nid = \"calm\"\nlevel = \"user\"\ncalls = [\"send\"]\nwindow = \"1m\"\nlimit = 3\n\
         dynamic = { min = 3, max = 3 }\n",
    );
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    for n in 0..3 {
        ann.text("bob", &format!("m{n}"), "hi");
    }
    let refused = ann.say(crate::support::ask::send(crate::support::send("bob", "m3", "hi")));
    let ServerBody::Error(error) = ann.reply(refused) else { panic!("a refusal") };
    assert_eq!((error.name.as_str(), error.detail["limit"].as_str()), ("RATE_LIMITED", "3"));
    // The first step is a second after the start.
    let state = eventually("a signal of load", || {
        let state = state(&node, "user:ann");
        state["dynamic"]["pressure"].is_object().then_some(state)
    });
    let dynamic = &state["dynamic"];
    assert_eq!((&dynamic["base"], &dynamic["min"], &dynamic["max"]), (&json!(3), &json!(3), &json!(3)));
    assert_eq!(dynamic["history"], json!(1.0));
    let why = state["why"].as_str().expect("a sentence");
    assert!(why.starts_with("base 3 x load ") && why.contains("(bounds 3 to 3); load: "), "{why}");
    let rules = node.admin("GET", "/v1/limits", &Value::Null).1;
    assert_eq!(rules["rules"][0]["limit"], json!(3), "{rules}");
}
