//! Edits, flags and messages of the system by the admin API.

use serde_json::{Value, json};
use tidegate_protocol::codec::Wire;

use super::edits::switched;
use crate::support::{TestNode, text_of};

fn patch(node: &TestNode, place: &str, seq: u64, body: &Value) -> (u16, Value) {
    node.admin("PATCH", &format!("/v1/conversations/{place}/messages/{seq}"), body)
}

fn title(answer: &(u16, Value)) -> (u16, &str) {
    (answer.0, answer.1["title"].as_str().unwrap_or_default())
}

#[test]
fn edit_by_the_system_or_a_user_is_pushed_once_and_shown_with_the_message() {
    let node = switched(|config| config.limits.edit_ms = 0);
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    let place = "d:bob:system";
    let sent = json!({"to": "bob", "content": {"text": "first"}, "requestId": "m-1"});
    assert_eq!(node.admin("POST", "/v1/messages", &sent).0, 201);
    let body = json!({"content": {"json": {"b": 1, "a": 2}, "type": "card"}, "requestId": "e-1"});
    let (status, first) = patch(&node, "d:system:bob", 1, &body);
    let expected = json!({"conversation": place, "seq": 2, "of": 1, "msgId": "e-1", "time": first["time"], "duplicate": false});
    assert_eq!((status, &first), (200, &expected));
    let (status, again) = patch(&node, place, 1, &body);
    assert_eq!((status, &again["seq"], &again["duplicate"]), (200, &json!(2), &json!(true)));
    let other = json!({"content": {"text": "x"}, "requestId": "e-1"});
    assert_eq!(title(&patch(&node, place, 1, &other)), (409, "CONFLICT"));
    let pushes = bob.pushes(2);
    assert_eq!(text_of(&pushes[0]), "first");
    let content = pushes[1].edit.clone().unwrap().content.unwrap();
    assert_eq!((&content.json[..], content.kind.as_str()), (&br#"{"a":2,"b":1}"#[..], "card"));
    bob.ack(place, 2);
    bob.no_push();
    let (_, page) = node.admin("GET", &format!("/v1/conversations/{place}/messages"), &json!({}));
    let entries = page["messages"].as_array().unwrap();
    assert_eq!(entries[0]["kind"], "edit");
    assert_eq!((&entries[0]["of"], &entries[0]["content"]["type"]), (&json!(1), &json!("card")));
    assert_eq!(entries[0]["sender"], Value::Null, "the operator");
    assert_eq!(
        (&entries[1]["content"]["json"], &entries[1]["edited"]["seq"]),
        (&json!({"b": 1, "a": 2}), &json!(2))
    );
    let by = |user: &str, id: &str| json!({"content": {"text": id}, "by": user, "requestId": id});
    assert_eq!(title(&patch(&node, place, 1, &by("bob", "b-1"))), (403, "FORBIDDEN"));
    assert_eq!(title(&patch(&node, place, 1, &by("eve", "b-1"))), (403, "NOT_A_MEMBER"));
    bob.text("system", "c-1", "mine");
    assert_eq!(title(&patch(&node, place, 3, &by("bob", "b-2"))), (403, "TOO_LATE"));
    assert_eq!(title(&patch(&node, place, 9, &json!({"content": {"text": "x"}}))), (404, "NOT_FOUND"));
    for bad in [json!({}), json!({"content": {}}), json!({"content": {"text": "x"}, "flags": []})] {
        assert_eq!(patch(&node, place, 1, &bad).0, 400, "{bad}");
    }
}

#[test]
fn flags_of_the_api_are_words_and_are_shown() {
    let node = switched(|_| {});
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    let say = |flags: Value, id: &str| {
        let body = json!({"to": "bob", "content": {"text": id}, "flags": flags, "requestId": id});
        node.admin("POST", "/v1/messages", &body)
    };
    assert_eq!(say(json!(["silent", "noPush"]), "m-1").0, 201);
    assert_eq!(say(json!(["transient"]), "m-2").0, 201);
    assert_eq!(say(json!(["loud"]), "m-3").0, 400);
    let flags: Vec<u32> = bob.pushes(2).iter().map(|push| push.flags).collect();
    assert_eq!(flags, [6, 1]);
    let (_, page) = node.admin("GET", "/v1/conversations/d:bob:system/messages", &json!({}));
    assert_eq!(page["messages"][0]["flags"], json!(["silent", "noPush"]));
    assert_eq!(page["expired"], json!([{"first": 2, "last": 2}]));
    let (_, unread) = node.admin("GET", "/v1/users/bob/unread", &json!({}));
    assert_eq!(unread["unread"], 1, "{unread}");
    let room = json!({"to": "r:hall", "content": {"text": "x"}, "flags": ["silent"]});
    assert_eq!(node.admin("POST", "/v1/messages", &room).0, 400);
    let cast = json!({"to": ["bob"], "content": {"text": "x"}, "flags": ["silent"], "requestId": "b-1"});
    assert_eq!(node.admin("POST", "/v1/messages/broadcast", &cast).1["failed"], 0);
    let (_, unread) = node.admin("GET", "/v1/users/bob/unread", &json!({}));
    assert_eq!(unread["unread"], 1, "{unread}");
}

#[test]
fn system_speaks_in_groups_and_conversations_of_others_without_being_a_member() {
    let node = switched(|_| {});
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    let group = node.group("team", &["alice", "bob"]);
    bob.expect_push();
    let settings = json!({"settings": {"post": "admins"}});
    assert_eq!(node.admin("POST", "/v1/groups/team/settings", &settings).0, 200);
    bob.expect_push();
    for (to, seq) in [(group.as_str(), 3), ("d:bob:alice", 1)] {
        let (status, sent) = node.admin("POST", "/v1/messages", &json!({"to": to, "content": {"text": to}}));
        assert_eq!((status, &sent["seq"]), (201, &json!(seq)), "{sent}");
        assert_eq!(bob.expect_push().sender, "system");
    }
    let (_, members) = node.admin("GET", "/v1/groups/team", &json!({}));
    assert!(!members["members"].to_string().contains("system"), "{members}");
    let (_, unread) = node.admin("GET", "/v1/users/bob/unread", &json!({}));
    assert_eq!(unread["unread"], 2, "{unread}");
    let (status, refused) =
        node.admin("POST", "/v1/messages", &json!({"to": "g:none", "content": {"text": "x"}}));
    assert_eq!((status, &refused["title"]), (404, &json!("NOT_FOUND")));
}
