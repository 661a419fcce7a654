//! Audit log of the admin port: its file, its events, and what it never has.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::PermissionsExt as _,
};

use rustix::process::Signal;
use serde_json::Value;
use tidegate::keys::SecretKey;

use super::keys::{Keys, RELOAD_MAX, ask, audit, nodes, refusal, text};
use crate::support::{Process, WAIT_MAX, command, eventually, eventually_within, fresh_data, http::exchange};

#[test]
fn changes_are_recorded_before_they_are_answered_and_on_the_events() {
    let keys = Keys::new();
    let crm = keys.add("crm", "groups", &[]);
    let node = keys.start(&[]);
    let head = format!(
        "POST /v1/groups HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nX-Request-Id: order-7\r\n\
         Authorization: Bearer {crm}\r\n"
    );
    let created =
        exchange(node.admin(), &head, r#"{"id":"team","members":["alice","bob"],"requestId":"g-1"}"#);
    assert_eq!((created.status, created.field("x-request-id")), (201, Some("order-7")));
    let lines = audit(&keys.data);
    let line = lines.last().expect("a line");
    assert_eq!(lines.len(), 1, "{lines:?}");
    let expected = [
        ("name", "crm"),
        ("node", "n1"),
        ("address", "127.0.0.1"),
        ("method", "POST"),
        ("route", "/v1/groups"),
        ("request", "order-7"),
        ("requestId", "g-1"),
    ];
    for (field, value) in expected {
        assert_eq!(line[field], value, "{line}");
    }
    assert_eq!(line["key"], crm[4..12], "{line}");
    assert_eq!(line["targets"], serde_json::json!({"id": ["team"], "members": ["alice", "bob"]}), "{line}");
    assert_eq!((&line["status"], &line["code"]), (&201.into(), &Value::Null), "{line}");
    // Refused by its scope, and by the ledger.
    assert_eq!(ask(node.admin(), "POST", "/v1/drain", Some(&crm), "").status, 403);
    assert_eq!(ask(node.admin(), "DELETE", "/v1/groups/team?by=mallory", Some(&crm), "").status, 403);
    // Queries leave no line.
    assert_eq!(ask(node.admin(), "GET", "/v1/groups/team", Some(&crm), "").status, 200);
    assert_eq!(ask(node.admin(), "POST", "/v1/presence", Some(&crm), r#"{"users":["bob"]}"#).status, 200);
    let lines = audit(&keys.data);
    let outcomes: Vec<_> = lines
        .iter()
        .map(|it| (it["route"].as_str().expect("a route"), it["status"].as_u64(), &it["code"]))
        .collect();
    let scope = Value::from("SCOPE_MISSING");
    let member = Value::from("NOT_A_MEMBER");
    assert_eq!(
        outcomes,
        [
            ("/v1/groups", Some(201), &Value::Null),
            ("/v1/drain", Some(403), &scope),
            ("/v1/groups/{id}", Some(403), &member)
        ]
    );
    assert_eq!(lines[2]["targets"], serde_json::json!({"id": ["team"], "by": ["mallory"]}));
    let events = ask(node.admin(), "GET", "/v1/events", Some(&crm), "");
    let events: Value = serde_json::from_slice(&events.body).expect("JSON");
    let data: Vec<&Value> = events["events"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|it| it["type"] == "tidegate.audit")
        .map(|it| &it["data"])
        .collect();
    assert_eq!(data, lines.iter().collect::<Vec<_>>());
    let mode = fs::metadata(keys.data.join("audit.jsonl")).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn reads_of_content_leave_lines_and_only_with_the_scope() {
    let keys = Keys::new();
    let (content, read) = (keys.add("desk", "content,groups", &[]), keys.add("list", "read", &[]));
    let node = keys.start(&[]);
    let create = r#"{"id":"team","members":["bob"]}"#;
    assert_eq!(ask(node.admin(), "POST", "/v1/groups", Some(&content), create).status, 201);
    let get = |key: &str, path: &str| {
        let reply = ask(node.admin(), "GET", path, Some(key), "");
        assert_eq!(reply.status, 200, "{path}");
        serde_json::from_slice::<Value>(&reply.body).expect("JSON")
    };
    let one = "/v1/users/bob/conversations/g:team";
    assert!(get(&content, one).get("last").is_some() && get(&read, one).get("last").is_none());
    let list = "/v1/users/bob/conversations";
    assert!(get(&content, list)["conversations"][0].get("last").is_some());
    assert!(get(&read, list)["conversations"][0].get("last").is_none());
    get(&content, "/v1/conversations/g:team/messages?as=bob");
    get(&content, "/v1/conversations/g:team/messages/1");
    get(&content, "/v1/users/bob/messages");
    get(&content, "/v1/users/bob/unread");
    get(&read, "/v1/conversations/g:team");
    let lines = audit(&keys.data);
    let reads: Vec<_> = lines[1..].iter().map(|it| (it["name"].clone(), it["targets"].clone())).collect();
    let by = |targets: Value| (Value::from("desk"), targets);
    let expected = [
        by(serde_json::json!({"user": ["bob"], "conversation": ["g:team"]})),
        by(serde_json::json!({"user": ["bob"]})),
        by(serde_json::json!({"as": ["bob"], "conversation": ["g:team"]})),
        by(serde_json::json!({"conversation": ["g:team"], "seq": ["1"]})),
        by(serde_json::json!({"user": ["bob"]})),
    ];
    assert_eq!(reads, expected);
}

#[test]
fn reads_of_content_are_not_recorded_if_that_is_off() {
    let node = Process::start(&["admin.audit_reads=false"]);
    node.http("GET", "/v1/users/bob/messages", "");
    node.group("team", &["alice".to_owned()]);
    assert_eq!(audit(node.data()).len(), 1);
}

#[test]
fn changes_without_keys_are_recorded_as_those_of_a_node_for_development() {
    let node = Process::start(&[]);
    node.group("team", &["alice".to_owned()]);
    let lines = audit(node.data());
    assert_eq!((lines.len(), &lines[0]["key"]), (1, &"development".into()), "{lines:?}");
    let operated = Process::start(&["admin.development=no"]);
    operated.group("team", &["alice".to_owned()]);
    assert_eq!(audit(operated.data())[0]["key"], "loopback");
}

#[test]
fn change_that_can_not_be_recorded_is_not_made() {
    let keys = Keys::new();
    let crm = keys.add("crm", "groups", &[]);
    let node = keys.start(&[]);
    let create =
        |id: &str| ask(node.admin(), "POST", "/v1/groups", Some(&crm), &format!(r#"{{"id":"{id}"}}"#));
    assert_eq!(create("one").status, 201);
    let file = keys.data.join("audit.jsonl");
    fs::remove_file(&file).expect("a file");
    fs::create_dir(&file).expect("a folder in its place");
    // Nothing has failed yet, so this change is made; its line waits, and is in the log.
    assert_eq!(create("two").status, 201);
    let reply = create("three");
    assert_eq!((reply.status, refusal(&reply).0.as_str()), (503, "AUDIT_UNAVAILABLE"));
    assert_eq!(ask(node.admin(), "GET", "/v1/groups/three", Some(&crm), "").status, 404);
    assert!(node.stderr().contains("audit line can't be written"), "{}", node.stderr());
    assert_eq!(node.metric("audit_refusals_total"), 1.0);
    fs::remove_dir(&file).expect("a folder");
    assert_eq!(create("three").status, 201);
    let ids: Vec<Value> = audit(&keys.data).iter().map(|line| line["targets"]["id"][0].clone()).collect();
    assert_eq!(ids, ["two", "three"]);
}

#[test]
fn change_is_recorded_although_its_caller_leaves() {
    let keys = Keys::new();
    let crm = keys.add("crm", "groups", &[]);
    let node = keys.start(&[]);
    for n in 0..20 {
        let body = format!(r#"{{"id":"group-{n}"}}"#);
        let mut stream = TcpStream::connect_timeout(&node.admin(), WAIT_MAX).expect("an admin port");
        let head = format!(
            "POST /v1/groups HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAuthorization: Bearer {crm}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("the admin port reads");
    }
    // The last one that waits for its answer; those before it may be on their way.
    assert_eq!(ask(node.admin(), "POST", "/v1/groups", Some(&crm), r#"{"id":"last"}"#).status, 201);
    let created =
        |id: &str| ask(node.admin(), "GET", &format!("/v1/groups/{id}"), Some(&crm), "").status == 200;
    eventually("every created group has a line", || {
        let lines = audit(&keys.data);
        let has_line = |id: &str| lines.iter().any(|line| line["targets"]["id"][0] == id);
        (0..20).map(|n| format!("group-{n}")).all(|id| created(&id) == has_line(&id)).then_some(())
    });
}

#[test]
fn hang_up_reads_the_keys_again_and_stops_nothing() {
    let keys = Keys::new();
    let reader = keys.add("reader", "read", &[]);
    let node = keys.start(&[]);
    let moved = keys.data.join("moved");
    fs::rename(keys.data.join("audit.jsonl"), &moved).expect("the audit file");
    keys.revoke("reader");
    node.signal(Signal::HUP);
    eventually_within(RELOAD_MAX, "the key is refused", || {
        (nodes(&node, &reader).status == 401).then_some(())
    });
    eventually("a new audit file", || (!audit(&keys.data).is_empty()).then_some(()));
    assert_eq!(ask(node.admin(), "GET", "/livez", None, "").status, 200);
}

#[test]
fn no_key_is_found_in_logs_audit_files_or_events() {
    let keys = Keys::new();
    let all = keys.add("root", "groups,users,operate", &[]);
    let wrong = SecretKey::random().text().to_owned();
    let data = fresh_data();
    let mut serve = command(&data, &[&keys.set()]);
    serve.env("TIDEGATE_LOG", "info,tidegate::api=trace,tidegate::keys=trace,hyper=trace");
    let node = Process::spawn(&data, serve);
    for key in [&all, &wrong, &wrong[..60].to_owned()] {
        for path in ["/v1/nodes", "/v1/groups", "/v1/drain-none", "/v1/dev/forward"] {
            for given in [&all, key] {
                let head = format!(
                    "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nX-Request-Id: {key}\r\n\
                     Authorization: Bearer {given}\r\n"
                );
                let body = format!(
                    r#"{{"id":"{key}","members":["{key}"],"requestId":"{key}","node":"{key}","method":"POST","path":"/v1/drain","body":"{key}"}}"#
                );
                let reply = exchange(node.admin(), &head, &body);
                assert!(!text(&reply.body).contains(&key[13..50]) || path == "/v1/groups", "{path}");
                assert_ne!(reply.field("x-request-id"), Some(key.as_str()), "{path}");
            }
        }
        ask(node.admin(), "POST", &format!("/v1/groups/{key}/members"), Some(&all), "{}");
        ask(node.admin(), "DELETE", &format!("/v1/groups/{key}?by={key}&requestId={key}"), Some(&all), "");
    }
    let events = text(&ask(node.admin(), "GET", "/v1/events", Some(&all), "").body);
    let lines = fs::read_to_string(data.join("audit.jsonl")).expect("an audit file");
    assert!(lines.lines().count() > 10 && events.contains("tidegate.audit"), "{lines}");
    let metrics = text(&ask(node.admin(), "GET", "/metrics", None, "").body);
    for (what, content) in
        [("log", node.stderr()), ("audit", lines), ("events", events), ("metrics", metrics)]
    {
        for key in [&all, &wrong] {
            assert!(!content.contains(&key[13..50]), "the {what} has a key");
        }
    }
    fs::remove_dir_all(&keys.data).ok();
}

#[test]
fn response_of_an_abort_is_not_needed_for_its_record() {
    let keys = Keys::new();
    let all = keys.add("root", "operate", &[]);
    // Only a node of `tidegate up` can be crashed; this one refuses, and the record before it is there.
    let node = keys.start(&[]);
    let reply = ask(node.admin(), "POST", "/v1/dev/abort", Some(&all), "");
    assert_eq!(reply.status, 403);
    let lines = audit(&keys.data);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0]["status"].is_null() && lines[1]["status"] == 403, "{lines:?}");
    let mut end = TcpStream::connect_timeout(&node.admin(), WAIT_MAX).expect("it lives");
    end.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    end.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn messages_need_their_scope_survive_a_kill_and_leave_no_content_in_the_audit_log() {
    let keys = Keys::new();
    let (bot, crm) = (keys.add("bot", "messages", &[]), keys.add("crm", "groups,users,operate", &[]));
    let mut killed = keys.start(&[]);
    let body = r#"{"to":"bob","from":"ann","content":{"text":"planted secret"},"requestId":"m-1"}"#;
    assert_eq!(ask(killed.admin(), "POST", "/v1/messages", Some(&crm), body).status, 403);
    let sent = ask(killed.admin(), "POST", "/v1/messages", Some(&bot), body);
    assert_eq!(sent.status, 201, "{}", text(&sent.body));
    let sent: Value = serde_json::from_slice(&sent.body).expect("JSON");
    killed.signal(Signal::KILL);
    killed.exit();
    let node = keys.start(&[]);
    let again = ask(node.admin(), "POST", "/v1/messages", Some(&bot), body);
    let repeated: Value = serde_json::from_slice(&again.body).expect("JSON");
    assert_eq!((again.status, &repeated["seq"], &repeated["time"]), (200, &sent["seq"], &sent["time"]));
    let batch = format!(
        r#"{{"messages":[{body},{{"to":"g:team","content":{{"text":"planted secret"}}}},{{"to":"planted secret"}}]}}"#
    );
    assert_eq!(ask(node.admin(), "POST", "/v1/messages/batch", Some(&bot), &batch).status, 200);
    let recall = ask(node.admin(), "DELETE", "/v1/conversations/d%3Abob%3Aann/messages/1", Some(&bot), "");
    assert_eq!(recall.status, 200, "{}", text(&recall.body));
    let lines = audit(&keys.data);
    let of = |it: &Value| {
        (it["route"].as_str().expect("a route").to_owned(), it["status"].as_u64(), it["targets"].clone())
    };
    let outcomes: Vec<_> = lines.iter().map(of).collect();
    let one = serde_json::json!({"to": ["bob"], "from": ["ann"]});
    let two = serde_json::json!({
        "to": ["bob", "g:team"], "from": ["ann"], "messages": ["3"], "requestId": ["m-1"],
    });
    let entry = serde_json::json!({"conversation": ["d:bob:ann"], "seq": ["1"]});
    assert_eq!(
        outcomes,
        [
            ("/v1/messages".to_owned(), Some(403), one.clone()),
            ("/v1/messages".to_owned(), Some(201), one.clone()),
            ("/v1/messages".to_owned(), Some(200), one),
            ("/v1/messages/batch".to_owned(), Some(200), two),
            ("/v1/conversations/{conversation}/messages/{seq}".to_owned(), Some(200), entry),
        ]
    );
    assert_eq!(lines[1]["requestId"], "m-1", "{}", lines[1]);
    let log = fs::read_to_string(keys.data.join("audit.jsonl")).expect("the audit log");
    let events = text(&ask(node.admin(), "GET", "/v1/events", Some(&crm), "").body);
    assert!(events.contains("/v1/messages/batch"), "{events}");
    for (what, content) in [("audit", log), ("log", node.stderr()), ("events", events)] {
        assert!(!content.contains("planted"), "the {what} has a content: {content}");
    }
}
