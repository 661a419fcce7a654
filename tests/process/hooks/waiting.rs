//! Notices that messages wait, over real sockets: acks of clients, an offline user, a preview, bad definitions, and the push
//! service of docs/push.md.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, sync_channel},
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use tidegate_protocol::codec::Wire;

use super::webhooks::{call, refused, say, subscribe};
use crate::support::{Process, WebhookReceiver, ask, eventually};

/// Returns the notices to a user that the receiver has taken.
fn to(receiver: &WebhookReceiver, user: &str) -> Vec<String> {
    let prefix = format!("waiting/{user}/");
    receiver.ids().into_iter().filter(|id| id.starts_with(&prefix)).collect()
}

#[test]
fn users_who_have_not_acked_a_message_get_a_notice_with_what_the_endpoint_wants() {
    let (receiver, node) = (WebhookReceiver::start(), Process::start(&[]));
    let waiting = json!({"delayMs": 300, "repeatMs": 1000, "preview": "content", "badge": true});
    subscribe(&node, "push", &receiver, &json!({"types": ["tidegate.webhook.test"], "waiting": waiting}));
    // Acks are noted once the endpoint is in force, as the delivery of a test shows.
    eventually("the endpoint is in force", || {
        (call(&node, "GET", "/v1/webhooks/push", &Value::Null)["state"] == "active").then_some(())
    });
    let mut ann = node.login(Wire::JsonLine, "ann", "phone");
    let mut bob = node.login(Wire::Tcp, "bob", "desk");
    for (n, user) in ["ann", "bob", "cat"].iter().enumerate() {
        say(&node, user, &format!("m{n}"));
    }
    let push = ann.expect_push();
    ann.say_as(0, ask::ack(&push.conversation, push.seq));
    bob.expect_push();
    eventually("bob and cat get a notice", || {
        (!to(&receiver, "bob").is_empty() && !to(&receiver, "cat").is_empty()).then_some(())
    });
    assert_eq!(to(&receiver, "ann"), [""; 0], "her device has acked");
    assert_eq!(receiver.unsigned(), 0);
    let taken = receiver.take();
    let of = |user: &str| taken.iter().find(|it| it["data"]["user"] == user).expect("it was taken").clone();
    let (bob, cat) = (of("bob"), of("cat"));
    assert_eq!(cat["type"], "tidegate.message.waiting");
    assert_eq!(bob["data"]["devices"], json!([{"device": "desk", "seen": "unacked"}]));
    let expected = json!({
        "user": "cat", "conversation": "d:cat:system", "seq": 1, "count": 1, "unread": 1, "badge": 1, "mentioned": false,
        "from": "system", "preview": {"text": "m2"}, "devices": [],
    });
    for (name, value) in expected.as_object().expect("an object") {
        assert_eq!(&cat["data"][name], value, "{name}");
    }
    // A read mark is enough, whatever the devices do.
    say(&node, "cat", "m4");
    call(&node, "PATCH", "/v1/users/cat/conversations/d:cat:system", &json!({"readSeq": 2}));
    say(&node, "dan", "m5");
    eventually("dan gets a notice", || (!to(&receiver, "dan").is_empty()).then_some(()));
    assert_eq!(to(&receiver, "cat"), [""; 0]);
}

#[test]
fn bad_definitions_of_notices_are_refused_with_a_reason() {
    let node = Process::start(&[]);
    for (waiting, why) in [
        (json!({"delayMs": 600_001}), "waiting.delayMs"),
        (json!({"repeatMs": 999}), "waiting.repeatMs"),
        (json!({"preview": "content"}), "waiting.preview"),
        (json!({"unless": "never"}), "never"),
        (json!({"colour": "red"}), "colour"),
    ] {
        let form = json!({"url": "https://push.internal/tg", "types": ["tidegate.*"], "waiting": waiting});
        let (status, detail) = refused(&node, "PUT", "/v1/webhooks/push", &form);
        assert!(status == 400 && detail.contains(why), "{form}: {status} {detail}");
    }
    let form = json!({"url": "https://push.internal/tg", "types": ["tidegate.*"], "waiting": {}});
    let made = call(&node, "PUT", "/v1/webhooks/push", &form);
    let defaults =
        json!({"delayMs": 5000, "repeatMs": 30000, "unless": "acked", "preview": "none", "badge": false});
    assert_eq!(made["waiting"], defaults);
}

/// Push service of docs/push.md with fakes of the providers, ended with the test.
struct PushService {
    child: Child,
    lines: Receiver<String>,
}

impl PushService {
    fn start() -> Self {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/third_party/push/play.mjs");
        let mut node = Command::new("node");
        let mut child = node.arg(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("node");
        let (sender, lines) = sync_channel(16);
        let output = BufReader::new(child.stdout.take().expect("piped"));
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, lines }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(Duration::from_secs(30)).expect("a line in time")
    }
}

impl Drop for PushService {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn push_service_of_the_page_sends_a_notice_to_each_device_of_its_user() {
    let (mut service, node) = (PushService::start(), Process::start(&[]));
    let form = json!({
        "url": service.line(), "types": ["tidegate.webhook.test"], "content": true,
        "waiting": {"delayMs": 0, "preview": "content", "badge": true},
    });
    let made = call(&node, "PUT", "/v1/webhooks/push", &form);
    let secret = made["secrets"][0]["secret"].as_str().expect("a new endpoint shows its secret");
    let input = service.child.stdin.as_mut().expect("piped");
    writeln!(input, "{secret}").expect("it runs");
    say(&node, "cat", "shipped");
    // Each fake refuses the first try: the notice comes again.
    let mut pushes: Vec<Value> =
        (0..3).map(|_| serde_json::from_str(&service.line()).expect("JSON")).collect();
    pushes.sort_by_key(|it| it["kind"].to_string());
    let [apns, fcm, web] = &pushes[..] else { panic!("three pushes") };
    assert_eq!((&apns["device"], &apns["topic"]), (&json!("/3/device/a1"), &json!("com.example.app")));
    assert_eq!(apns["aps"]["alert"], json!({"title": "system", "body": "shipped"}));
    assert_eq!((&apns["aps"]["badge"], &apns["seq"]), (&json!(1), &json!(1)));
    assert_eq!((&fcm["token"], &fcm["notification"]["body"]), (&json!("f1"), &json!("shipped")));
    assert_eq!(fcm["android"]["collapse_key"], apns["collapse"], "the conversation is the collapse key");
    assert_eq!((&web["body"], &web["conversation"]), (&json!("shipped"), &json!("d:cat:system")));
}
