//! Conversations, newest messages, marks and unread counts of users.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_protocol::{Code, codec::Wire, pb};

use super::{get, refused, seqs};
use crate::support::{ServerBody, TestNode, ask, let_time_pass};

/// Starts a node on which alice and carol have written to bob, and alice to a group of all.
fn talked() -> TestNode {
    let node = TestNode::start(|_| {});
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    let mut carol = node.login(Wire::WsText, "carol", "desk");
    let next_time = || let_time_pass("entries get times of their own", Duration::from_millis(3));
    assert_eq!(alice.text("bob", "m1", "hi"), 1);
    next_time();
    let group = node.group("team", &["alice", "bob", "carol"]);
    assert_eq!(alice.text(&group, "m2", "all"), 2);
    next_time();
    assert_eq!(carol.text("bob", "m3", "hello"), 1);
    next_time();
    assert_eq!(alice.text("bob", "m4", "again"), 2);
    node
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().expect("a list").iter().filter_map(|it| it["conversation"].as_str()).collect()
}

#[test]
fn conversations_of_a_user_are_listed_by_key_and_by_time() {
    let node = talked();
    let all = get(&node, "/v1/users/bob/conversations");
    assert_eq!(names(&all["conversations"]), ["d:alice:bob", "d:bob:carol", "g:team"]);
    assert_eq!(all.get("next"), None);
    let state = all["conversations"][0].clone();
    assert_eq!((&state["peer"], &state["maxSeq"], &state["minSeq"]), (&json!("alice"), &json!(2), &json!(1)));
    assert_eq!((&state["unread"], &state["readSeq"], &state["member"]), (&json!(2), &json!(0), &json!(true)));
    assert_eq!(state["last"]["content"], json!({"text": "again"}));
    assert_eq!(all["conversations"][2].get("peer"), None);
    let mut path = "/v1/users/bob/conversations?order=recent&limit=1".to_owned();
    let mut found = Vec::new();
    loop {
        let page = get(&node, &path);
        found.extend(names(&page["conversations"]).into_iter().map(str::to_owned));
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/v1/users/bob/conversations?order=recent&limit=1&cursor={next}");
    }
    assert_eq!(found, ["d:alice:bob", "d:bob:carol", "g:team"], "the newest first");
    let first = get(&node, "/v1/users/bob/conversations?limit=1");
    let next = first["next"].as_str().expect("a cursor");
    let rest = get(&node, &format!("/v1/users/bob/conversations?cursor={next}"));
    assert_eq!(names(&rest["conversations"]), ["d:bob:carol", "g:team"]);
    let one = get(&node, "/v1/users/bob/conversations/d:bob:alice");
    assert_eq!(one, state);
    let missing = |path| refused(&node, "GET", path, &Value::Null);
    let not_found = (404, u64::from(Code::NotFound.number()));
    assert_eq!(missing("/v1/users/eve/conversations/g:team"), not_found);
    assert_eq!(missing("/v1/users/bob/conversations/g:none"), not_found);
    assert_eq!(get(&node, "/v1/users/nobody/conversations")["conversations"], json!([]));
}

#[test]
fn conversations_without_a_user_are_listed_by_kind_and_prefix() {
    let node = talked();
    node.group("tea", &["alice"]);
    let list = |query: &str| get(&node, &format!("/v1/conversations{query}"));
    assert_eq!(names(&list("")["conversations"]), ["d:alice:bob", "d:bob:carol", "g:tea", "g:team"]);
    assert_eq!(names(&list("?kind=group&prefix=tea")["conversations"]), ["g:tea", "g:team"]);
    let first = list("?kind=direct&limit=1");
    let next = first["next"].as_str().expect("a cursor");
    let rest = list(&format!("?kind=direct&cursor={next}"));
    assert_eq!((names(&rest["conversations"]), rest.get("next")), (vec!["d:bob:carol"], None));
    let team = json!({"conversation": "g:team", "maxSeq": 2, "minSeq": 1, "messages": 1, "members": 3, "ended": false});
    assert_eq!(get(&node, "/v1/conversations/g:team"), team);
    assert_eq!(refused(&node, "GET", "/v1/conversations/g:none", &Value::Null).0, 404);
    for query in ["?prefix=te", "?kind=room", "?kind=group&prefix=a%20b"] {
        assert_eq!(
            refused(&node, "GET", &format!("/v1/conversations{query}"), &Value::Null).0,
            400,
            "{query}"
        );
    }
    let named = json!({"conversations": ["g:team", "d:carol:bob", "g:none"]});
    let (status, heads) = node.admin("POST", "/v1/conversations/heads", &named);
    let heads_of = json!([{"conversation": "g:team", "maxSeq": 2, "minSeq": 1},
        {"conversation": "d:bob:carol", "maxSeq": 1, "minSeq": 1}, null]);
    assert_eq!((status, &heads["heads"]), (200, &heads_of));
    let (status, heads) = node.admin("POST", "/v1/users/bob/conversations/heads", &named);
    let heads_of = json!([{"conversation": "g:team", "maxSeq": 2, "minSeq": 1, "readSeq": 0, "unread": 1},
        {"conversation": "d:bob:carol", "maxSeq": 1, "minSeq": 1, "readSeq": 0, "unread": 1}, null]);
    assert_eq!((status, &heads["heads"]), (200, &heads_of));
    let many: Vec<String> = (0..1_001).map(|n| format!("g:g{n}")).collect();
    assert_eq!(refused(&node, "POST", "/v1/conversations/heads", &json!({"conversations": many})).0, 400);
}

#[test]
fn marks_only_rise_and_the_users_devices_learn_of_them() {
    let node = talked();
    let mut phone = node.login(Wire::Tcp, "bob", "phone");
    let path = "/v1/users/bob/conversations/d:alice:bob";
    let (status, state) = node.admin("PATCH", path, &json!({"readSeq": 1}));
    assert_eq!((status, &state["readSeq"], &state["unread"]), (200, &json!(1), &json!(1)));
    let receipt = phone.expect_receipt();
    assert_eq!((receipt.user.as_str(), receipt.seq), ("bob", 1));
    let (_, state) = node.admin("PATCH", path, &json!({"readSeq": 99, "minSeq": 2}));
    assert_eq!(
        (&state["readSeq"], &state["minSeq"], &state["clearedSeq"]),
        (&json!(2), &json!(2), &json!(1))
    );
    phone.take("the clear", |frame| {
        let cleared = pb::Cleared { conversation: "d:alice:bob".into(), seq: 1 };
        frame.body == Some(ServerBody::Cleared(cleared))
    });
    let (status, same) = node.admin("PATCH", path, &json!({"readSeq": 1, "minSeq": 1}));
    assert_eq!((status, same), (200, state), "lower marks change nothing");
    let (status, hidden) = node.admin("POST", &format!("{path}/hide"), &json!({"seqs": [2, 1, 2, 50]}));
    assert_eq!((status, &hidden["hidden"]), (200, &json!([2])), "1 is cleared, 50 does not exist");
    let (_, again) = node.admin("POST", &format!("{path}/hide"), &json!({"seqs": [2]}));
    assert_eq!(again["hidden"], json!([2]), "a repeated request returns what is hidden");
    assert_eq!(
        seqs(&get(&node, "/v1/conversations/d:alice:bob/messages?as=bob")["messages"]),
        Vec::<u64>::new()
    );
    for word in ["mentions", "none"] {
        let (status, state) = node.admin("PATCH", path, &json!({"push": word}));
        assert_eq!((status, &state["push"]), (200, &json!(word)));
    }
    assert_eq!(get(&node, path)["push"], json!("none"));
    let (status, state) = node.admin("PATCH", path, &json!({"push": null}));
    assert_eq!((status, state.get("push"), &state["readSeq"]), (200, None, &json!(2)));
    for (body, code) in [
        (json!({}), Code::BadContent),
        (json!({"readSeq": -1}), Code::BadContent),
        (json!({"x": 1}), Code::BadContent),
        (json!({"push": "loud"}), Code::BadSetting),
        (json!({"push": ""}), Code::BadSetting),
    ] {
        assert_eq!(refused(&node, "PATCH", path, &body), (400, code.number().into()), "{body}");
    }
    for other in ["/v1/users/eve/conversations/g:team", "/v1/users/bob/conversations/d:bob:eve"] {
        assert_eq!(refused(&node, "PATCH", other, &json!({"readSeq": 1})).0, 404, "{other}");
        assert_eq!(refused(&node, "POST", &format!("{other}/hide"), &json!({"seqs": [1]})).0, 404, "{other}");
    }
    assert_eq!(refused(&node, "POST", &format!("{path}/hide"), &json!({"seqs": []})).0, 400);
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    assert_eq!(alice.page(ask::after("d:alice:bob", 0, 9)).messages.len(), 2, "only bob's view changed");
}

#[test]
fn newest_messages_are_those_of_all_conversations() {
    let node = talked();
    let all = get(&node, "/v1/users/bob/messages");
    let texts = |page: &Value| -> Vec<String> {
        let messages = page["messages"].as_array().expect("a list").clone();
        messages.iter().map(|it| it["content"]["text"].as_str().expect("a text").to_owned()).collect()
    };
    assert_eq!(texts(&all), ["again", "hello", "all", "hi"]);
    let mut path = "/v1/users/bob/messages?limit=1".to_owned();
    let mut paged = Vec::new();
    loop {
        let page = get(&node, &path);
        paged.extend(texts(&page));
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/v1/users/bob/messages?limit=1&cursor={next}");
    }
    assert_eq!(paged, texts(&all));
    node.admin("PATCH", "/v1/users/bob/conversations/d:alice:bob", &json!({"readSeq": 1}));
    let unread = texts(&get(&node, "/v1/users/bob/messages?unread=true"));
    assert_eq!(unread, ["again", "hello", "all"]);
    assert_eq!(get(&node, "/v1/users/alice/messages?unread=true")["messages"], json!([]));
    assert_eq!(
        get(&node, "/v1/users/bob/conversations?unread=true")["conversations"].as_array().map(Vec::len),
        Some(3)
    );
}

#[test]
fn unread_messages_of_many_users_are_counted() {
    let node = talked();
    let bob = json!({"user": "bob", "unread": 4, "conversations": 3});
    assert_eq!(get(&node, "/v1/users/bob/unread"), bob);
    let count = |body: &Value| node.admin("POST", "/v1/unread", body);
    let (status, found) = count(&json!({"users": ["bob", "carol", "eve", "bob"]}));
    let carol = json!({"user": "carol", "unread": 1, "conversations": 1});
    let eve = json!({"user": "eve", "unread": 0, "conversations": 0});
    assert_eq!((status, &found["users"]), (200, &json!([bob, carol, eve, bob])));
    let (_, found) = count(&json!({"users": ["bob"], "cap": 3}));
    assert_eq!(found["users"], json!([{"user": "bob", "unread": 3, "capped": true}]));
    let many: Vec<String> = (0..1_001).map(|n| format!("u{n}")).collect();
    for body in [json!({"users": many}), json!({"users": ["a b"]}), json!({"users": [], "cap": 0}), json!({})]
    {
        assert_eq!(count(&body).0, 400, "{body}");
    }
}
