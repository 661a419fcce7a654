//! Webhooks of a single node, over real sockets: order, completeness, crashes, failures, secrets and replay.

use std::{fs, time::Duration};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Process, WebhookReceiver, eventually, fresh_data, http, let_time_pass};

fn text_of(body: &Value) -> String {
    if body.is_null() { String::new() } else { body.to_string() }
}

/// Sends a request with a JSON body, and returns the answer.
pub(super) fn call(node: &Process, method: &str, path: &str, body: &Value) -> Value {
    let (status, text) = http::ask(node.admin(), method, path, &text_of(body));
    let answer: Value = serde_json::from_str(&text).unwrap_or_default();
    assert!(status < 300, "{method} {path}: {status} {text}");
    answer
}

pub(super) fn refused(node: &Process, method: &str, path: &str, body: &Value) -> (u16, String) {
    let (status, text) = http::ask(node.admin(), method, path, &text_of(body));
    let answer: Value = serde_json::from_str(&text).unwrap_or_default();
    (status, answer["detail"].as_str().unwrap_or(&text).to_owned())
}

pub(super) fn say(node: &Process, to: &str, text: &str) -> u64 {
    let body = json!({"to": to, "content": {"text": text}, "requestId": format!("id-{text}")});
    call(node, "POST", "/v1/messages", &body)["seq"].as_u64().expect("a seq")
}

/// Creates an endpoint that the receiver trusts, and returns its secret.
pub(super) fn subscribe(node: &Process, id: &str, receiver: &WebhookReceiver, more: &Value) -> String {
    let mut form = json!({"url": receiver.url(), "types": ["tidegate.*"], "content": true, "batch": {"max": 10, "waitMs": 0}});
    if let (Some(form), Some(more)) = (form.as_object_mut(), more.as_object()) {
        form.extend(more.clone());
    }
    let made = call(node, "PUT", &format!("/v1/webhooks/{id}"), &form);
    let secret = made["secrets"][0]["secret"].as_str().expect("a new endpoint shows its secret").to_owned();
    receiver.trust(&secret);
    secret
}

fn has_all(receiver: &WebhookReceiver, conversation: &str, last: u64) {
    let what = format!("{conversation} is delivered up to {last}");
    let seqs = eventually(&what, || {
        let seqs = receiver.seqs().remove(conversation).unwrap_or_default();
        seqs.contains(&last).then_some(seqs)
    });
    let first = seqs[0];
    assert_eq!(seqs, (first..=last).collect::<Vec<u64>>(), "in order, without a hole");
}

#[test]
fn events_arrive_in_order_and_survive_a_kill_of_the_node() {
    let receiver = WebhookReceiver::start();
    let mut node = Process::start(&[]);
    call(&node, "POST", "/v1/groups", &json!({"id": "tea", "members": ["ann", "bob"]}));
    say(&node, "g:tea", "before");
    subscribe(&node, "crm", &receiver, &json!({}));
    for n in 0..20 {
        say(&node, if n % 2 == 0 { "g:tea" } else { "ann" }, &format!("m{n}"));
    }
    has_all(&receiver, "g:tea", 12);
    has_all(&receiver, "d:ann:system", 10);
    assert_eq!(receiver.seqs()["g:tea"][0], 3, "it starts with what is accepted after the answer");
    assert_eq!(receiver.unsigned(), 0);
    assert_eq!(receiver.header("tidegate-webhook").as_deref(), Some("crm"));
    let first = receiver.take().into_iter().find(|event| event["id"] == "g:tea/3").expect("it was taken");
    assert_eq!(
        (&first["type"], &first["data"]["content"]["text"]),
        (&json!("tidegate.message.accepted"), &json!("m0"))
    );
    // The receiver is down; the node is killed while events wait.
    receiver.answer(|_| 500);
    for n in 20..40 {
        say(&node, "g:tea", &format!("m{n}"));
    }
    let seen = receiver.seen();
    eventually("the receiver refuses again", || (receiver.seen() > seen).then_some(()));
    node.signal(Signal::KILL);
    node.exit();
    let data = fresh_data();
    fs::rename(node.data(), &data).expect("the node has ended");
    receiver.answer(|_| 200);
    let again = Process::start_on(&data, &[]);
    say(&again, "g:tea", "last");
    has_all(&receiver, "g:tea", 33);
    eventually("nothing is left", || {
        let shown = call(&again, "GET", "/v1/webhooks/crm", &Value::Null);
        (shown["behind"] == 0 && shown["state"] == "active" && shown["lagMs"] == 0).then_some(())
    });
    assert!(again.metric("webhook_events_total") >= 21.0);
}

#[test]
fn secrets_rotate_and_are_shown_once() {
    let receiver = WebhookReceiver::start();
    let node = Process::start(&[]);
    let first = subscribe(&node, "crm", &receiver, &json!({"headers": {"authorization": "Bearer hidden"}}));
    say(&node, "ann", "a");
    has_all(&receiver, "d:ann:system", 1);
    assert_eq!(receiver.header("authorization").as_deref(), Some("Bearer hidden"));
    for wrong in ["", " ", "whsec_!", "whsec_QUJD"] {
        let (status, why) = refused(&node, "POST", "/v1/webhooks/crm/secrets", &json!({"secret": wrong}));
        assert!(status == 400 && why.contains("secret:"), "{wrong:?}: {status} {why}");
    }
    // Who may not see the headers must not send them elsewhere.
    let moved = json!({"url": "http://127.0.0.1:9/", "types": ["tidegate.*"]});
    let (status, why) = refused(&node, "PUT", "/v1/webhooks/crm", &moved);
    assert!(status == 400 && why.contains("headers:"), "{status} {why}");
    let second = call(&node, "POST", "/v1/webhooks/crm/secrets", &json!({}));
    let second = second["secret"].as_str().expect("it is shown").to_owned();
    assert_eq!(refused(&node, "POST", "/v1/webhooks/crm/secrets", &json!({})).0, 409);
    say(&node, "ann", "b");
    has_all(&receiver, "d:ann:system", 2);
    assert_eq!((receiver.signatures(), receiver.unsigned()), (2, 0));
    receiver.trust_only(&second);
    call(&node, "DELETE", "/v1/webhooks/crm/secrets/s1", &json!({}));
    say(&node, "ann", "c");
    has_all(&receiver, "d:ann:system", 3);
    assert_eq!((receiver.signatures(), receiver.unsigned()), (1, 0));
    assert_eq!(refused(&node, "DELETE", "/v1/webhooks/crm/secrets/s2", &json!({})).0, 400);
    let shown = node.http("GET", "/v1/webhooks/crm", "") + &node.http("GET", "/v1/webhooks", "");
    assert!(shown.contains("\"***\""), "{shown}");
    for hidden in [&first, &second, "hidden"] {
        assert!(!shown.contains(hidden.trim_start_matches("whsec_")), "{shown}");
        assert!(!node.stderr().contains(hidden.trim_start_matches("whsec_")));
    }
    let audit = fs::read_to_string(node.data().join("audit.jsonl")).expect("changes are recorded");
    assert!(audit.contains("/v1/webhooks/{webhook}/secrets") && !audit.contains("whsec_"), "{audit}");
}

#[test]
fn endpoint_is_paused_fails_recovers_replays_and_ends() {
    let receiver = WebhookReceiver::start();
    let node = Process::start(&[]);
    say(&node, "ann", "a");
    subscribe(&node, "crm", &receiver, &json!({"from": "oldest", "types": ["tidegate.message.accepted"]}));
    has_all(&receiver, "d:ann:system", 1);
    assert_eq!(call(&node, "POST", "/v1/webhooks/crm/pause", &json!({}))["state"], "paused");
    receiver.take();
    say(&node, "ann", "b");
    let_time_pass("nothing is sent", Duration::from_millis(300));
    assert_eq!(receiver.ids(), [""; 0], "it is paused");
    call(&node, "POST", "/v1/webhooks/crm/resume", &json!({}));
    has_all(&receiver, "d:ann:system", 2);
    // 410 disables it until it is resumed, also across a restart of the deliveries.
    receiver.answer(|_| 410);
    say(&node, "ann", "c");
    eventually("it is disabled", || {
        (call(&node, "GET", "/v1/webhooks/crm", &Value::Null)["state"] == "disabled").then_some(())
    });
    let later = json!({"from": {"time": 4_000_000_000_000_u64}});
    let (status, why) = refused(&node, "POST", "/v1/webhooks/crm/replay", &later);
    assert!(status == 409 && why.contains("would be left out"), "{status} {why}");
    receiver.answer(|_| 200);
    call(&node, "POST", "/v1/webhooks/crm/resume", &json!({}));
    has_all(&receiver, "d:ann:system", 3);
    receiver.take();
    let replayed = http::ask(node.admin(), "POST", "/v1/webhooks/crm/replay", r#"{"from":"oldest"}"#);
    assert_eq!(replayed.0, 202, "{}", replayed.1);
    has_all(&receiver, "d:ann:system", 3);
    assert_eq!(receiver.ids(), ["d:ann:system/1", "d:ann:system/2", "d:ann:system/3"]);
    let test = call(&node, "POST", "/v1/webhooks/crm/test", &json!({}));
    assert_eq!((&test["taken"], &test["status"]), (&json!(true), &json!(200)));
    receiver.answer(|_| 418);
    let test = call(&node, "POST", "/v1/webhooks/crm/test", &json!({}));
    assert_eq!((&test["taken"], &test["status"]), (&json!(false), &json!(418)));
    call(&node, "DELETE", "/v1/webhooks/crm", &json!({}));
    let seen = receiver.seen();
    say(&node, "ann", "d");
    let_time_pass("nothing is sent", Duration::from_millis(300));
    assert_eq!(receiver.seen(), seen, "it is removed");
    assert_eq!(refused(&node, "GET", "/v1/webhooks/crm", &Value::Null).0, 404);
}

#[test]
fn bad_endpoints_are_refused_with_a_reason() {
    let node = Process::start(&["webhooks.content_hosts=[crm.internal]"]);
    let put = |id: &str, more: Value| {
        let mut form = json!({"url": "https://crm.internal/tg", "types": ["tidegate.*"]});
        if let (Some(form), Some(more)) = (form.as_object_mut(), more.as_object()) {
            form.extend(more.clone());
        }
        refused(&node, "PUT", &format!("/v1/webhooks/{id}"), &form)
    };
    for (id, more, why) in [
        ("a%20b", json!({}), "webhook: must match"),
        ("crm", json!({"types": []}), "1 to 64 types"),
        ("crm", json!({"url": "ftp://x/"}), "https://"),
        ("crm", json!({"url": "http://203.0.113.9/"}), "for http none that is public"),
        ("crm", json!({"url": "https://169.254.169.254/"}), "link"),
        ("crm", json!({"content": true, "url": "https://evil.example/"}), "webhooks.content_hosts"),
        ("crm", json!({"parallel": 0}), "parallel"),
        ("crm", json!({"headers": {"webhook-id": "x"}}), "headers"),
        ("crm", json!({"from": "yesterday"}), "from"),
        ("crm", json!({"colour": "red"}), "colour"),
    ] {
        let (status, detail) = put(id, more.clone());
        assert!(status == 400 && detail.contains(why), "{id} {more}: {status} {detail}");
    }
    assert_eq!(put("crm", json!({"content": true})).0, 201);
    let full = json!({"conversations": (0..64).map(|n| format!("g:{n:0>150}")).collect::<Vec<_>>()});
    let (status, detail) = put("big", full);
    assert!(status == 400 && detail.contains("3072"), "{status} {detail}");
    for n in 0..31 {
        assert_eq!(put(&format!("w{n}"), json!({})).0, 201, "{n}");
    }
    let (status, detail) = put("one-more", json!({}));
    assert!(status == 409 && detail.contains("32 webhooks"), "{status} {detail}");
    assert_eq!(put("crm", json!({})).0, 200, "one that exists can be replaced");
}
