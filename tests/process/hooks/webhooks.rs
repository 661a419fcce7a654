//! Webhooks of a single node, over real sockets: order, completeness, crashes, failures, events set aside, slow receivers,
//! secrets and replay.

use std::{fs, time::Duration};

use rustix::process::Signal;
use serde_json::{Value, json};
use tidegate_protocol::codec::Wire;

use crate::{
    support::{Process, SilentReceiver, WebhookReceiver, eventually, fresh_data, http, let_time_pass},
    tidegate,
};

/// Setting that has a failing event set aside at its next failure while others succeed.
pub(super) const ASIDE_SOON: &str = "fault.webhook_aside_ms=1";

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

/// Has the first message of the system to each of these users set aside, while messages to others pass. The node needs
/// [`ASIDE_SOON`].
pub(super) fn set_aside(node: &Process, webhook: &str, receiver: &WebhookReceiver, users: &[&str]) {
    let refused: Vec<String> = users.iter().map(|user| format!("d:{user}:system")).collect();
    receiver.answer(move |events| {
        let is_refused = |event: &Value| refused.iter().any(|subject| event["subject"] == **subject);
        if events.iter().any(is_refused) { 503 } else { 204 }
    });
    let mut count = 0;
    // To several users, some of whom share no lane with those that fail.
    let mut pass_another = || {
        count += 1;
        say(node, &format!("z{}", count % 8), &format!("other-{count}"));
    };
    for user in users {
        say(node, user, &format!("to-{user}"));
        pass_another();
    }
    eventually("the events are set aside", || {
        pass_another();
        let listed = call(node, "GET", &format!("/v1/webhooks/{webhook}/aside"), &Value::Null);
        (listed["count"] == users.len()).then_some(())
    });
    receiver.answer(|_| 204);
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
    again.metric_becomes("webhook_lag_seconds_count", again.metric("webhook_events_total"));
    let quick = again.metric("webhook_lag_seconds_bucket{le=\"0.05\"}");
    assert!(quick <= 1.0, "all but the last have waited for the receiver: {quick}");
}

#[test]
fn failing_events_are_set_aside_while_others_pass_then_sent_again_or_dropped() {
    let receiver = WebhookReceiver::start();
    let node = Process::start(&[ASIDE_SOON]);
    subscribe(&node, "crm", &receiver, &json!({}));
    set_aside(&node, "crm", &receiver, &["ann", "bob"]);
    let aside = "/v1/webhooks/crm/aside";
    let page = call(&node, "GET", &format!("{aside}?limit=1"), &Value::Null);
    let (first, next) = (&page["events"][0], page["next"].as_str().expect("there is another page"));
    assert_eq!((&first["conversation"], &first["seq"]), (&json!("d:ann:system"), &json!(1)));
    assert!(first["tries"].as_u64() >= Some(2), "{page}");
    let page = call(&node, "GET", &format!("{aside}?limit=1&cursor={next}"), &Value::Null);
    assert_eq!(page["events"][0]["conversation"], "d:bob:system");
    assert_eq!((&page["count"], &page["next"]), (&json!(2), &Value::Null));
    // Their conversations go on without them.
    let (ann, bob) = (format!("{aside}/d:ann:system/1"), format!("{aside}/d:bob:system/1"));
    say(&node, "ann", "second");
    eventually("it is delivered", || receiver.ids().contains(&"d:ann:system/2".to_owned()).then_some(()));
    assert!(!receiver.ids().contains(&"d:ann:system/1".to_owned()));
    receiver.answer(|events| if events[0]["subject"] == "d:ann:system" { 500 } else { 204 });
    let sent = call(&node, "POST", &format!("{ann}/resend"), &json!({}));
    assert_eq!((&sent["taken"], &sent["status"]), (&json!(false), &json!(500)));
    receiver.answer(|_| 204);
    let listed = tidegate(&node, &["webhook", "aside", "crm"]);
    let has_both =
        ["EVENT ", "\nd:ann:system/1  ", "\nd:bob:system/1  "].iter().all(|it| listed.1.contains(it));
    assert!(listed.0 && has_both, "{listed:?}");
    let done = |action: &str, event: &str| tidegate(&node, &["webhook", action, "crm", event]);
    assert_eq!(done("resend", "d:ann:system/1"), (true, "taken with status 204\n".to_owned()));
    assert_eq!(receiver.resent(), ["d:ann:system/1"], "only that one, and once");
    assert_eq!(done("drop", "d:bob:system/1"), (true, "d:bob:system/1 dropped\n".to_owned()));
    for path in [format!("{ann}/resend"), format!("{bob}/resend")] {
        assert_eq!(refused(&node, "POST", &path, &json!({})).0, 404, "it is not set aside any more");
    }
    assert_eq!(call(&node, "GET", aside, &Value::Null)["count"], 0);
    eventually("nothing is left", || {
        let shown = call(&node, "GET", "/v1/webhooks/crm", &Value::Null);
        let is_done = shown["behind"] == 0 && shown["parkedCount"] == 0 && shown["asideCount"] == 0;
        (is_done && shown["state"] == "active").then_some(())
    });
    assert_eq!(receiver.seqs().get("d:bob:system"), None, "it was dropped");
}

#[test]
fn receiver_that_never_answers_delays_no_ack_and_no_other_endpoint() {
    const PARALLEL: usize = 3;
    const USERS: usize = 20;
    let (quick, silent) = (WebhookReceiver::start(), SilentReceiver::start());
    let node = Process::start(&[]);
    subscribe(&node, "quick", &quick, &json!({}));
    let form = json!({
        "url": silent.url(), "types": ["tidegate.*"], "batch": {"max": 10, "waitMs": 0}, "parallel": PARALLEL,
        "timeoutMs": 60_000,
    });
    call(&node, "PUT", "/v1/webhooks/silent", &form);
    let mut ann = node.login(Wire::WsText, "ann", "phone");
    for n in 0..200 {
        // What follows is sent while each lane of the silent one hangs.
        if n == USERS {
            eventually("all lanes hang", || (silent.requests() == (PARALLEL, 0)).then_some(()));
        }
        let (user, id) = (format!("u{:02}", n % USERS), format!("m{n}"));
        ann.text(&user, &id, "hello");
    }
    assert_eq!(silent.requests(), (PARALLEL, 0), "all acks came before a request of the silent one ended");
    for user in 0..USERS {
        has_all(&quick, &format!("d:ann:u{user:02}"), 10);
    }
    assert_eq!(silent.requests(), (PARALLEL, 0), "the quick one had all before a request ended");
    let shown = call(&node, "GET", "/v1/webhooks/silent", &Value::Null);
    assert!(shown["behind"].as_u64() >= Some(100), "what it has not taken waits in the feed: {shown}");
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
