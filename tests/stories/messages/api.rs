//! Messages of the admin API on a running node: what they are answered, who gets them, and what refuses them.

use std::{io::Write as _, net::TcpStream};

use serde_json::{Value, json};
use tidegate_protocol::{Code, codec::Wire, pb};

use super::edits::switched;
use crate::support::{Client, ServerBody, TestNode, ask, eventually, hello, http, send, text_of};

pub(super) fn post(node: &TestNode, path: &str, body: &Value) -> (u16, Value) {
    node.admin("POST", path, body)
}

pub(super) fn say(node: &TestNode, body: &Value) -> (u16, Value) {
    post(node, "/v1/messages", body)
}

/// Returns status and name of the refusal of a message.
fn refusal(node: &TestNode, body: &Value) -> (u16, String) {
    let (status, body) = say(node, body);
    assert_eq!(body["status"], status, "{body}");
    (status, body["title"].as_str().unwrap_or_default().to_owned())
}

fn refused(status: u16, code: Code) -> (u16, String) {
    (status, code.name().to_owned())
}

pub(super) fn text(to: &str, text: &str, id: &str) -> Value {
    json!({"to": to, "content": {"text": text}, "requestId": id})
}

#[test]
fn message_is_pushed_and_its_repetition_gets_the_same_seq() {
    let node = TestNode::start(|_| {});
    for (n, wire) in Wire::ALL.into_iter().enumerate() {
        let bob = format!("bob{n}");
        let mut client = node.login(wire, &bob, "phone");
        let (status, sent) = say(&node, &text(&bob, "hi", "m-1"));
        let place = format!("d:{bob}:system");
        let expected = json!({
            "conversation": place, "msgId": "m-1", "seq": 1, "time": sent["time"], "duplicate": false,
        });
        assert_eq!((status, &sent), (201, &expected));
        let push = client.expect_push();
        assert_eq!((push.sender.as_str(), text_of(&push), push.msg_id.as_str()), ("system", "hi", "m-1"));
        assert_eq!(Some(push.time), sent["time"].as_u64());
        client.ack(&place, 1);
        let (status, again) = say(&node, &text(&place, "hi", "m-1"));
        assert_eq!((status, &again["duplicate"], &again["seq"]), (200, &json!(true), &json!(1)));
        assert_eq!(again["time"], sent["time"]);
        assert_eq!(refusal(&node, &text(&bob, "another", "m-1")), refused(409, Code::Conflict));
        client.no_push();
        // A client answers, and gets what is data as it was sent.
        assert_eq!(client.text("system", "c-1", "thanks"), 2);
        let data = json!({"to": format!("d:system:{bob}"), "content": {"data": "AAH/"}});
        let (status, sent) = say(&node, &data);
        assert_eq!((status, &sent["conversation"], &sent["seq"]), (201, &json!(place), &json!(3)), "{sent}");
        let push = client.expect_push();
        assert_eq!(push.content, Some(tidegate_protocol::content::Content::data(vec![0, 1, 0xff])));
        assert_eq!(sent["msgId"], push.msg_id, "the node's own id");
    }
}

#[test]
fn repetition_after_a_restart_gets_the_same_seq() {
    let node = TestNode::start(|_| {});
    let (_, sent) = say(&node, &text("bob", "hi", "m-1"));
    let data = node.stop();
    let node = TestNode::start_on(&data, |_| {});
    let (status, again) = say(&node, &text("bob", "hi", "m-1"));
    assert_eq!((status, &again["seq"], &again["time"]), (200, &sent["seq"], &sent["time"]));
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    assert_eq!(bob.page(ask::after("d:bob:system", 0, 10)).messages.len(), 1);
}

#[test]
fn header_names_the_message_as_the_field_does() {
    let node = TestNode::start(|_| {});
    let send = |key: &str, body: &Value| {
        let head = format!(
            "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nIdempotency-Key: {key}\r\n"
        );
        let (status, body) = http::ask_by(node.admin_address(), &head, &body.to_string());
        (status, serde_json::from_str::<Value>(&body).expect("JSON"))
    };
    let plain = json!({"to": "bob", "content": {"text": "hi"}});
    let (status, sent) = send("\"order-81\"", &plain);
    assert_eq!((status, &sent["msgId"]), (201, &json!("order-81")));
    for key in ["order-81", "\"order-81\""] {
        assert_eq!(send(key, &plain).0, 200, "{key}");
        assert_eq!(send(key, &text("bob", "hi", "order-81")).0, 200, "{key}");
    }
    assert_eq!(send("other", &text("bob", "hi", "order-81")).0, 400);
    assert_eq!(send("not an id", &plain).1["title"], "BAD_ID");
    let broadcast = json!({"to": ["bob"], "content": {"text": "hi"}});
    let head = "POST /v1/messages/broadcast HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nIdempotency-Key: order-81\r\n";
    let (status, sent) = http::ask_by(node.admin_address(), head, &broadcast.to_string());
    assert!(status == 200 && sent.contains(r#""duplicate":true"#), "{sent}");
    let batch = json!({"messages": [plain]});
    let head = "POST /v1/messages/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nIdempotency-Key: a\r\n";
    assert_eq!(http::ask_by(node.admin_address(), head, &batch.to_string()).0, 400);
}

#[test]
fn message_as_a_user_has_the_rights_of_that_user() {
    let node = switched(|_| {});
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    let group = node.group("team", &["alice", "bob"]);
    alice.expect_push();
    let of =
        |from: &str, id: &str| json!({"to": group, "from": from, "content": {"text": id}, "requestId": id});
    assert_eq!(say(&node, &of("alice", "a-1")).0, 201);
    // All devices of the sender get it.
    assert_eq!((alice.expect_push().sender.as_str(), alice.inbox.len()), ("alice", 0));
    alice.ack(&group, 2);
    assert_eq!(refusal(&node, &of("eve", "e-1")), refused(403, Code::NotAMember));
    assert_eq!(say(&node, &of("system", "s-1")).0, 201, "the system needs no membership");
    assert_eq!(node.admin("POST", "/v1/groups/team/members", &json!({"mute": ["bob"]})).0, 200);
    assert_eq!(refusal(&node, &of("bob", "b-1")), refused(403, Code::Muted));
    assert_eq!(refusal(&node, &json!({"to": "d:alice:bob", "from": "eve", "content": {"text": ""}})).0, 403);
    node.add(&group, &["system"]);
    assert_eq!(say(&node, &of("system", "s-2")).0, 201);
    // A block of the recipient holds for users, and not for the system.
    for other in ["eve", "system"] {
        assert_eq!(node.admin("PUT", &format!("/v1/users/bob/blocks/{other}"), &json!({})).0, 200);
    }
    let direct = json!({"to": "bob", "from": "eve", "content": {"text": "."}, "requestId": "d-1"});
    assert_eq!(refusal(&node, &direct), refused(403, Code::Forbidden));
    assert_eq!(say(&node, &text("bob", "hi", "d-2")).0, 201);
    // A ban and a suspension hold for messages in the name of a user, too.
    assert_eq!(node.admin("POST", "/v1/bans", &json!({"subject": "user:zoe", "reason": "spam"})).0, 200);
    let from = |user: &str| json!({"to": "bob", "from": user, "content": {"text": "."}});
    assert_eq!(refusal(&node, &from("zoe")), refused(403, Code::Banned));
    let suspend = json!({"subject": "user:carl", "reason": "spam", "ttlMs": 30_000});
    assert_eq!(node.admin("POST", "/v1/suspensions", &suspend).0, 200);
    let (status, body) = say(&node, &from("carl"));
    assert_eq!((status, &body["title"]), (503, &json!("SUSPENDED")));
    assert!(body["retryAfterMs"].as_u64().is_some_and(|ms| ms > 1_000), "{body}");
    assert!(body["msgId"].is_string(), "{body}");
}

#[test]
fn clients_can_not_take_the_names_of_the_api() {
    let node = TestNode::start(|config| config.api.system_user = "shop".into());
    for (user, device, code) in
        [("shop", "phone", Code::Forbidden), ("bob", ".api", Code::BadId), ("bob", "..", Code::BadId)]
    {
        for wire in Wire::ALL {
            let mut client = node.connect(wire);
            let ServerBody::Error(error) = client.ask(ask::hello(hello(&node.token(user), device))) else {
                panic!("{user} {device} is not refused");
            };
            assert_eq!(error.name, code.name(), "{user} {device}");
        }
    }
    let token = json!({"user": "shop"});
    assert_eq!(node.admin("POST", "/v1/dev/token", &token).1["title"], "FORBIDDEN");
    assert_eq!(say(&node, &text("bob", "hi", "m")).1["conversation"], "d:bob:shop");
    node.login(Wire::Tcp, "system", "a.b");
}

#[test]
fn malformed_messages_are_refused_with_the_reason() {
    let node = TestNode::start(|config| config.limits.content_bytes_max = 100);
    let content = json!({"text": "hi"});
    for (body, status, code) in [
        (json!({"content": content}), 400, Code::BadContent),
        (json!({"to": "bob"}), 400, Code::BadContent),
        (json!({"to": "bob", "content": {}}), 400, Code::BadContent),
        (json!({"to": "bob", "content": {"text": "a", "data": "AA=="}}), 400, Code::BadContent),
        (json!({"to": "bob", "content": {"data": "*"}}), 400, Code::BadContent),
        (json!({"to": "bob", "content": content, "more": 1}), 400, Code::BadContent),
        (json!({"to": "bob", "content": content, "requestId": ""}), 400, Code::BadId),
        (json!({"to": "b b", "content": content}), 400, Code::BadId),
        (json!({"to": "x:team", "content": content}), 400, Code::BadId),
        (json!({"to": "bob", "from": "a:b", "content": content}), 400, Code::BadId),
        (text("bob", &"a".repeat(101), "m"), 413, Code::ContentTooLarge),
    ] {
        assert_eq!(refusal(&node, &body), refused(status, code), "{body}");
    }
    let (_, problem) = say(&node, &json!({"to": "b b", "content": content}));
    assert_eq!((&problem["type"], &problem["name"]), (&json!("/errors/1007"), &json!("BAD_ID")));
    let (status, page) = node.admin("GET", "/errors/1007", &Value::Null);
    assert_eq!((status, &page["name"], &page["cure"]), (200, &json!("BAD_ID"), &problem["cure"]));
    assert_eq!(node.admin("GET", "/errors/NONE", &Value::Null).0, 404);
}

#[test]
fn each_message_of_a_batch_has_the_outcome_that_it_would_have_alone() {
    let node = TestNode::start(|_| {});
    let (mut bob, others) = (node.login(Wire::WsText, "bob", "phone"), node.group("others", &["zoe"]));
    let batch = json!({"messages": [
        text("bob", "1", "a-1"),
        {"to": "bob", "content": {}, "requestId": "a-2"},
        {"to": others, "from": "eve", "content": {"text": "2"}, "requestId": "a-3"},
        text("bob", "3", "a-4"),
        text("bob", "3", "a-4"),
        "text",
    ]});
    let (status, body) = post(&node, "/v1/messages/batch", &batch);
    let statuses: Vec<_> =
        body["results"].as_array().expect("a list").iter().map(|it| it["status"].as_u64()).collect();
    let expected = [201, 400, 403, 201, 200, 400].map(Some);
    assert_eq!((status, &statuses[..], &body["failed"]), (200, &expected[..], &json!(3)), "{body}");
    assert_eq!(body["results"][2]["title"], "NOT_A_MEMBER");
    let pushes = bob.pushes(2);
    assert_eq!(pushes.iter().map(text_of).collect::<Vec<_>>(), ["1", "3"]);
    let (_, again) = post(&node, "/v1/messages/batch", &batch);
    assert_eq!(again["results"][3]["duplicate"], true, "{again}");
    assert_eq!(again["results"][3]["seq"], body["results"][3]["seq"]);
    for bad in [
        json!({"messages": []}),
        json!({"messages": [text("bob", "x", "x")], "more": 1}),
        json!({"messages": vec![text("bob", "x", "x"); 1_001]}),
        json!({"ordered": true, "messages": vec![text("bob", "x", "x"); 101]}),
        json!({"ordered": true, "messages": [text("bob", "x", "x"), {"to": "bob", "content": {"text": "x"}}]}),
        json!({"ordered": true, "messages": [text("r:hall", "x", "x")]}),
        json!({"messages": {}}),
        json!([]),
    ] {
        assert_eq!(post(&node, "/v1/messages/batch", &bad).0, 400);
    }
    bob.no_push();
    let stored = bob.page(ask::after("d:bob:system", 0, 10)).messages;
    assert_eq!(stored.iter().map(text_of).collect::<Vec<_>>(), ["1", "3"]);
    // Those of the wrong form count as well: three in each of both requests.
    assert!(node.metric("tidegate_api_messages_refused_total") >= Some(6.0));
    assert_eq!(node.metric("tidegate_api_messages_unknown_total"), Some(0.0));
    assert!(node.metric("tidegate_api_messages_accepted_total") >= Some(2.0));
}

#[test]
fn messages_of_a_batch_keep_their_order_and_an_ordered_one_stops_at_a_refusal() {
    let node = TestNode::start(|_| {});
    for ordered in [false, true] {
        let place = format!("zoe{ordered}");
        let list: Vec<Value> =
            (0..100).map(|n| text(&place, &n.to_string(), &format!("{ordered}-{n}"))).collect();
        let (status, body) =
            post(&node, "/v1/messages/batch", &json!({"messages": list, "ordered": ordered}));
        assert_eq!((status, &body["failed"]), (200, &json!(0)));
        let seqs: Vec<_> =
            body["results"].as_array().expect("a list").iter().map(|it| it["seq"].as_u64()).collect();
        assert_eq!(seqs, (1..=100).map(Some).collect::<Vec<_>>(), "ordered: {ordered}");
    }
    let of = |to: &str, from: &str, id: &str| json!({"to": to, "from": from, "content": {"text": id}, "requestId": id});
    let group = node.group("team", &["alice"]);
    let list =
        [of(&group, "alice", "1"), of(&group, "eve", "2"), of(&group, "alice", "3"), of("bob", "alice", "4")];
    let (_, body) = post(&node, "/v1/messages/batch", &json!({"messages": list, "ordered": true}));
    let titles: Vec<_> =
        body["results"].as_array().expect("a list").iter().map(|it| it["title"].as_str()).collect();
    assert_eq!(titles, [None, Some("NOT_A_MEMBER"), Some("ORDER_BROKEN"), None], "{body}");
    assert_eq!(body["results"][2]["temporary"], true);
    // Refused in the name of eve; alice's message was not appended, and is accepted alone.
    assert_eq!(say(&node, &list[2]).0, 201);
}

#[test]
fn broadcast_reaches_each_target_once_however_often_it_is_repeated() {
    let node = TestNode::start(|_| {});
    let mut clients: Vec<Client> =
        Wire::ALL.iter().enumerate().map(|(n, wire)| node.login(*wire, &format!("u{n}"), "phone")).collect();
    let group = node.group("team", &["u0", "system"]);
    clients[0].expect_push();
    clients[0].ack(&group, 1);
    let mut to: Vec<String> = (0..996).map(|n| format!("u{n}")).collect();
    to.extend([group, "g:none".into(), "b b".into(), "u0".into()]);
    let body = json!({"to": to, "content": {"text": "Sale"}, "requestId": "promo-7"});
    let (status, first) = post(&node, "/v1/messages/broadcast", &body);
    assert_eq!((status, &first["failed"]), (200, &json!(2)));
    let results = first["results"].as_array().expect("a list");
    assert_eq!(results.len(), 1_000);
    assert!(
        results.iter().zip(&to).all(|(result, to)| result["to"] == **to),
        "each outcome names its target"
    );
    assert_eq!(results[..996].iter().filter(|it| it["status"] == 201 && it["seq"] == 1).count(), 996);
    assert_eq!(
        results[996..].iter().map(|it| it["status"].as_u64()).collect::<Vec<_>>(),
        [201, 404, 400, 200].map(Some)
    );
    let (_, again) = post(&node, "/v1/messages/broadcast", &body);
    let repeated = again["results"].as_array().expect("a list").iter().filter(|it| it["duplicate"] == true);
    assert_eq!(repeated.count(), 998);
    assert_eq!(clients[0].pushes(2).iter().map(text_of).collect::<Vec<_>>(), ["Sale", "Sale"]);
    for client in &mut clients[1..] {
        assert_eq!(text_of(&client.expect_push()), "Sale");
    }
    clients.iter_mut().for_each(Client::no_push);
    for bad in [
        json!({"to": ["bob"], "content": {"text": "x"}}),
        json!({"to": [], "content": {"text": "x"}, "requestId": "r"}),
        json!({"to": ["bob", 7], "content": {"text": "x"}, "requestId": "r"}),
        json!({"to": ["bob"], "content": {}, "requestId": "r"}),
        json!({"to": vec!["bob"; 1_001], "content": {"text": "x"}, "requestId": "r"}),
    ] {
        assert_eq!(post(&node, "/v1/messages/broadcast", &bad).0, 400);
    }
}

#[test]
fn rules_count_each_message_by_its_key_user_and_conversation() {
    let node = TestNode::start(|_| {});
    let rule = json!({"level": "conversation", "calls": ["send", "api:send"], "window": "1h", "limit": 3});
    assert_eq!(node.admin("PUT", "/v1/rules/few", &rule).0, 200);
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    bob.text("system", "c-1", "one of a client counts, too");
    let list: Vec<Value> = (0..4).map(|n| text("bob", "x", &format!("m{n}"))).collect();
    let (_, body) = post(&node, "/v1/messages/batch", &json!({"messages": list}));
    let statuses: Vec<_> =
        body["results"].as_array().expect("a list").iter().map(|it| it["status"].as_u64()).collect();
    assert_eq!(statuses, [201, 201, 429, 429].map(Some), "{body}");
    let head = "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let reply = http::exchange(node.admin_address(), head, &text("bob", "x", "m9").to_string());
    assert_eq!((reply.status, reply.field("content-type")), (429, Some("application/problem+json")));
    assert!(
        reply.field("retry-after").is_some_and(|it| it.parse::<u64>().is_ok_and(|it| it > 1)),
        "{}",
        reply.head
    );
    assert_eq!(say(&node, &text("carol", "x", "m9")).0, 201, "another conversation");
    // Rules for requests count no messages, as they did before there were any.
    let rule = json!({"level": "address", "calls": ["api:*"], "window": "1h", "limit": 500});
    assert_eq!(node.admin("PUT", "/v1/rules/requests", &rule).0, 200);
    let list: Vec<Value> = (0..600).map(|n| text(&format!("many{n}"), "x", "m")).collect();
    assert_eq!(post(&node, "/v1/messages/batch", &json!({"messages": list})).1["failed"], 0);
    let rule = json!({"level": "user", "calls": ["api:send"], "window": "1h", "limit": 1});
    assert_eq!(node.admin("PUT", "/v1/rules/user", &rule).0, 200);
    let from = |n: usize| json!({"to": "zoe", "from": "ann", "content": {"text": "x"}, "requestId": format!("n{n}")});
    assert_eq!((say(&node, &from(1)).0, say(&node, &from(2)).0), (201, 429));
    assert_eq!((say(&node, &text("dan", "x", "1")).0, say(&node, &text("dan", "x", "2")).0), (201, 201));
}

#[test]
fn message_to_a_live_room_is_published_and_not_stored() {
    let node = TestNode::start(|_| {});
    let mut members: Vec<Client> =
        Wire::ALL.iter().enumerate().map(|(n, wire)| node.login(*wire, &format!("u{n}"), "phone")).collect();
    members.iter_mut().for_each(|member| member.expect_done(ask::join("hall")));
    let (status, sent) = say(&node, &text("r:hall", "goal", "g-1"));
    assert_eq!((status, &sent["stored"], &sent["conversation"]), (202, &json!(false), &json!("r:hall")));
    for member in &mut members {
        let push = member.expect_push();
        assert_eq!((push.sender.as_str(), text_of(&push)), ("system", "goal"));
        assert_eq!(Some(push.seq), sent["seq"].as_u64());
    }
    let ack = members[0].send(send("r:hall", "c-1", "yes"));
    assert!(Some(ack.seq) > sent["seq"].as_u64(), "one counter numbers both");
}

#[test]
fn recall_by_the_api_is_for_the_operator_or_a_user_with_the_right() {
    let node = TestNode::start(|_| {});
    let mut bob = node.login(Wire::JsonLine, "bob", "phone");
    say(&node, &text("bob", "oops", "m-1"));
    bob.text("system", "c-1", "what?");
    bob.expect_push();
    let recall = |path: &str| node.admin("DELETE", &format!("/v1/conversations/{path}"), &Value::Null);
    let title = |answer: (u16, Value)| (answer.0, answer.1["title"].as_str().unwrap_or_default().to_owned());
    assert_eq!(title(recall("d:bob:system/messages/1?by=bob")), refused(403, Code::Forbidden));
    assert_eq!(title(recall("d:bob:system/messages/1?by=eve")), refused(403, Code::NotAMember));
    assert_eq!(title(recall("d:bob:system/messages/9")), refused(404, Code::NotFound));
    assert_eq!(title(recall("g:none/messages/1")), refused(404, Code::NotFound));
    assert_eq!(title(recall("r:hall/messages/1")), refused(404, Code::NotFound));
    assert_eq!(title(recall("x/messages/1")), refused(400, Code::BadId));
    assert_eq!(title(recall("g:none/messages/x")), refused(400, Code::BadId));
    assert_eq!(title(recall("g:none/messages/1?from=x")), refused(400, Code::BadContent));
    let (status, done) = recall("d%3Asystem%3Abob/messages/1");
    let expected =
        json!({"conversation": "d:bob:system", "seq": 3, "of": 1, "time": done["time"], "duplicate": false});
    assert_eq!((status, &done), (200, &expected));
    assert_eq!(bob.expect_push().recall, Some(pb::RecallEvent { seq: 1 }));
    let (_, again) = recall("d:bob:system/messages/1");
    assert_eq!((&again["seq"], &again["duplicate"]), (&json!(3), &json!(true)));
    let ban = json!({"subject": "user:bob", "reason": "spam"});
    assert_eq!(node.admin("POST", "/v1/bans", &ban).0, 200);
    assert_eq!(title(recall("d:bob:system/messages/2?by=bob")), refused(403, Code::Banned));
    assert_eq!(node.admin("DELETE", "/v1/bans/user:bob", &Value::Null).0, 200);
    let (status, done) = recall("d:bob:system/messages/2?by=bob");
    assert_eq!((status, &done["seq"], &done["of"]), (200, &json!(4), &json!(2)));
    assert_eq!(recall("d:bob:system/messages/2?by=bob").1["duplicate"], true);
}

#[test]
fn batch_goes_on_after_its_caller_has_left() {
    let node = TestNode::start(|_| {});
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    // A window of pushes holds them all: otherwise a slow receiver may be sent `behind`.
    let list: Vec<Value> = (0..200).map(|n| text("bob", &n.to_string(), &format!("m{n}"))).collect();
    let body = json!({"messages": list}).to_string();
    let head = format!(
        "POST /v1/messages/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut caller = TcpStream::connect(node.admin_address()).expect("it listens");
    caller.write_all((head + &body).as_bytes()).expect("it reads");
    let mut caller = Some(caller);
    for n in 0..200 {
        let push = bob.expect_push();
        // It has begun.
        drop(caller.take());
        assert_eq!((text_of(&push), push.seq), (n.to_string().as_str(), n + 1));
        bob.ack("d:bob:system", push.seq);
    }
}

#[test]
fn large_bodies_are_few_at_a_time_and_the_refused_caller_gets_its_response() {
    let node = TestNode::start(|_| {});
    let head = "POST /v1/messages/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let begun: Vec<TcpStream> = (0..4)
        .map(|_| {
            let mut caller = TcpStream::connect(node.admin_address()).expect("it listens");
            caller.write_all(format!("{head}Content-Length: 3000000\r\n\r\n").as_bytes()).expect("it reads");
            caller
        })
        .collect();
    let list: Vec<Value> = (0..100).map(|n| text("bob", &"a".repeat(25_000), &format!("m{n}"))).collect();
    let body = json!({"messages": list}).to_string();
    let (status, refusal) = eventually("four bodies are begun", || {
        Some(http::ask_by(node.admin_address(), head, &body)).filter(|(status, _)| *status != 200)
    });
    assert!(status == 503 && refusal.contains("BUSY"), "{status} {refusal}");
    drop(begun);
    let (_, sent) = eventually("their places are free", || {
        Some(http::ask_by(node.admin_address(), head, &body)).filter(|(status, _)| *status == 200)
    });
    assert!(sent.contains(r#""failed":0"#), "{}", &sent[sent.len() - 100..]);
}

#[test]
fn node_that_drains_refuses_messages_of_the_api_plainly() {
    let node = TestNode::start(|config| config.drain.spread_ms = 20_000);
    let _clients: Vec<Client> = (0..5).map(|n| node.login(Wire::Tcp, &format!("u{n}"), "phone")).collect();
    assert_eq!(node.admin("POST", "/v1/drain", &json!({"until": "exit"})).0, 202);
    let (status, problem) = eventually("the node drains", || {
        Some(say(&node, &json!({"to": "bob", "content": {"text": "."}}))).filter(|(status, _)| *status != 201)
    });
    assert_eq!((status, &problem["title"]), (503, &json!("DRAINING")), "{problem}");
    assert!(problem["msgId"].is_string(), "{problem}");
}
