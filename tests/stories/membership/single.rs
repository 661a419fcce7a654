//! Single members, and names and metadata of groups, as a back end changes them.

use serde_json::{Value, json};
use tidegate_protocol::{codec::Wire, pb};

use super::event;
use crate::support::{TestNode, http};

type Answer = (u16, Value);

fn field(answer: &Answer, name: &str) -> (u16, Value) {
    (answer.0, answer.1[name].clone())
}

#[test]
fn single_member_is_added_changed_and_removed() {
    let node = TestNode::start(|config| config.node.store = "memory".into());
    node.group("tea", &["ann"]);
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    let bob = |method: &str, query: &str, body: &Value| {
        node.admin(method, &format!("/v1/groups/tea/members/bob{query}"), body)
    };
    let added = bob("PUT", "", &json!({"role": "admin", "requestId": "r1"}));
    assert_eq!(added, (201, json!({"conversation": "g:tea", "seq": 2, "duplicate": false, "changed": true})));
    assert_eq!(ann.expect_push().seq, 2);
    // A member stays as it is, and there is no record.
    let unchanged = (200, json!({"conversation": "g:tea", "changed": false}));
    assert_eq!(bob("PUT", "", &json!({"role": "member"})), unchanged);
    assert_eq!(bob("PUT", "", &json!({"role": "admin", "requestId": "r1"})), unchanged);
    let (_, shown) = node.admin("GET", "/v1/groups/tea/members/bob", &Value::Null);
    assert_eq!(shown["role"], json!("admin"));
    // What a user may not do is refused, also where nothing would change.
    assert_eq!(field(&bob("PUT", "", &json!({"by": "ann"})), "name"), (403, json!("FORBIDDEN")));
    assert_eq!(field(&bob("PUT", "", &json!({"by": "eve"})), "name"), (403, json!("NOT_A_MEMBER")));

    assert_eq!(field(&bob("PATCH", "", &json!({"role": "owner"})), "seq"), (200, json!(3)));
    assert_eq!(field(&bob("PATCH", "", &json!({"muted": true, "requestId": "r2"})), "seq"), (200, json!(4)));
    assert_eq!(
        field(&bob("PATCH", "", &json!({"muted": true, "requestId": "r2"})), "duplicate"),
        (200, json!(true))
    );
    assert_eq!(field(&bob("PATCH", "", &json!({"muted": false})), "seq"), (200, json!(5)));
    for body in [
        json!({}),
        json!({"role": "owner", "muted": true}),
        json!({"role": "king"}),
        json!({"rank": "owner"}),
    ] {
        assert_eq!(field(&bob("PATCH", "", &body), "name"), (400, json!("BAD_CONTENT")), "{body}");
    }
    assert_eq!(bob("DELETE", "?by=ann", &Value::Null).0, 403);
    assert_eq!(field(&bob("DELETE", "?requestId=r3", &Value::Null), "seq"), (200, json!(6)));
    assert_eq!(field(&bob("DELETE", "?requestId=r3", &Value::Null), "duplicate"), (200, json!(true)));
    for gone in [bob("DELETE", "", &Value::Null), bob("PATCH", "", &json!({"muted": true}))] {
        assert_eq!(field(&gone, "name"), (404, json!("NOT_A_MEMBER")));
    }
    // A late copy of the first request adds nobody.
    let late = bob("PUT", "", &json!({"role": "admin", "requestId": "r1"}));
    assert_eq!(late, (200, json!({"conversation": "g:tea", "seq": 2, "duplicate": true, "changed": false})));
    assert_eq!(node.admin("GET", "/v1/groups/tea/members/bob", &Value::Null).0, 404);
    // A user who asks for the own removal leaves.
    let (status, left) = node.admin("DELETE", "/v1/groups/tea/members/ann?by=ann", &Value::Null);
    assert_eq!((status, &left["seq"]), (200, &json!(7)));
    let missing = node.admin("PUT", "/v1/groups/none/members/bob", &json!({}));
    assert_eq!(field(&missing, "name"), (404, json!("NOT_FOUND")));
}

#[test]
fn list_of_members_is_one_change() {
    let node = TestNode::start(|config| config.node.store = "memory".into());
    node.group("tea", &["ann"]);
    let post = |body: &Value| node.admin("POST", "/v1/groups/tea/members", body);
    for body in [json!({}), json!({"add": []}), json!({"add": ["bob"], "remove": ["ann"]})] {
        assert_eq!(field(&post(&body), "name"), (400, json!("BAD_CONTENT")), "{body}");
    }
    let (_, shown) = node.admin("GET", "/v1/groups/tea", &Value::Null);
    assert_eq!(shown["members"], json!(["ann"]), "a refused request changes nothing");
    assert_eq!(field(&post(&json!({"add": ["bob"], "remove": []})), "seq"), (200, json!(2)));
}

#[test]
fn name_and_metadata_of_a_group_are_one_change() {
    let node = TestNode::start(|config| config.node.store = "memory".into());
    let tea = json!({"id": "tea", "members": ["ann"], "name": "Tea", "meta": {"color": "red", "old": "x"}});
    assert_eq!(node.admin("POST", "/v1/groups", &tea).0, 201);
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    let patch = json!({"name": "Tea time", "meta": {"old": null, "n": "1"}, "settings": {"post": "all"}, "requestId": "r1"});
    for duplicate in [false, true] {
        let (status, answer) = node.admin("PATCH", "/v1/groups/tea", &patch);
        assert_eq!(
            (status, answer),
            (200, json!({"conversation": "g:tea", "seq": 2, "duplicate": duplicate}))
        );
    }
    let push = ann.expect_push();
    let (kind, change) = event(&push);
    assert_eq!(kind, pb::MemberChange::Settings);
    assert_eq!(change.settings.get("x.n").map(String::as_str), Some("1"));
    let (_, shown) = node.admin("GET", "/v1/groups/tea", &Value::Null);
    assert_eq!((&shown["id"], &shown["name"]), (&json!("tea"), &json!("Tea time")));
    assert_eq!(
        (&shown["meta"], &shown["settings"]),
        (&json!({"color": "red", "n": "1"}), &json!({"post": "all"}))
    );
    let (_, list) = node.admin("GET", "/v1/groups", &Value::Null);
    assert_eq!(list["groups"][0]["name"], json!("Tea time"));
    let (_, list) = node.admin("GET", "/v1/users/ann/groups", &Value::Null);
    assert_eq!(list["groups"][0]["name"], json!("Tea time"));

    // The limit counts what the group has, too.
    let meta: serde_json::Map<String, Value> = (0..30).map(|n| (format!("k{n}"), json!("v"))).collect();
    let many = json!({ "meta": meta });
    assert_eq!(node.admin("PATCH", "/v1/groups/tea", &many).0, 200);
    assert_eq!(node.admin("PATCH", "/v1/groups/tea", &many).0, 200, "the same keys again");
    let refused = node.admin("PATCH", "/v1/groups/tea", &json!({"meta": {"one-more": "v"}}));
    assert_eq!(field(&refused, "name"), (400, json!("BAD_SETTING")));
    assert_eq!(
        node.admin("PATCH", "/v1/groups/tea", &json!({"name": null, "meta": {"k0": null, "one-more": "v"}}))
            .0,
        200
    );
    let (_, shown) = node.admin("GET", "/v1/groups/tea", &Value::Null);
    assert_eq!(
        (&shown["name"], shown["meta"].as_object().map(serde_json::Map::len)),
        (&Value::Null, Some(32))
    );
    assert_eq!(node.admin("PATCH", "/v1/groups/tea", &json!({"name": "x", "by": "eve"})).0, 403);
    assert_eq!(node.admin("PATCH", "/v1/groups/none", &json!({"meta": {"a": "b"}})).0, 404);
}

#[test]
fn header_names_the_request_of_a_group_change() {
    let node = TestNode::start(|config| config.node.store = "memory".into());
    node.group("tea", &["ann"]);
    let port = node.admin_address();
    let send = |method: &str, path: &str, key: &str, body: &str| {
        let head = format!(
            "{method} /v1/groups/tea{path} HTTP/1.1\r\nHost: {port}\r\nContent-Type: application/json\r\nIdempotency-Key: {key}\r\n"
        );
        let (status, text) = http::ask_by(port, &head, body);
        (status, serde_json::from_str::<Value>(&text).expect("JSON"))
    };
    for duplicate in [false, true] {
        assert_eq!(
            field(&send("POST", "/members", "\"k1\"", r#"{"add":["bob"]}"#), "duplicate"),
            (200, json!(duplicate))
        );
        assert_eq!(
            field(&send("PATCH", "/members/ann", "k2", r#"{"muted":true}"#), "duplicate"),
            (200, json!(duplicate))
        );
        assert_eq!(field(&send("DELETE", "/members/bob", "k3", ""), "duplicate"), (200, json!(duplicate)));
    }
    let both = send("POST", "/members", "k4", r#"{"add":["cid"],"requestId":"k5"}"#);
    assert_eq!(field(&both, "name"), (400, json!("BAD_CONTENT")));
    assert_eq!(send("POST", "/members", "k4", r#"{"add":["cid"],"requestId":"k4"}"#).0, 200);
}
