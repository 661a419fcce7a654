//! Lists of groups and of members, as a back end pages through them.

use serde_json::{Value, json};
use tidegate_protocol::Code;

use super::{get, refused};
use crate::support::TestNode;

/// Returns the values of one field on each page of a list.
fn pages(node: &TestNode, path: &str, list: &str, field: &str) -> Vec<Vec<String>> {
    let (mut all, mut at) = (Vec::new(), path.to_owned());
    loop {
        let page = get(node, &at);
        let rows = page[list].as_array().expect("a list");
        all.push(rows.iter().map(|it| it[field].as_str().expect("a text").to_owned()).collect());
        let Some(next) = page["next"].as_str() else { return all };
        at = format!("{path}&cursor={next}");
    }
}

#[test]
fn groups_and_members_are_listed_page_by_page() {
    let node = TestNode::start(|config| config.node.store = "memory".into());
    for id in ["tea", "team", "ten", "coffee"] {
        node.group(id, &["ann", "bob", "cid"]);
    }
    node.admin("DELETE", "/v1/groups/ten", &Value::Null);
    node.kick("team", &["bob"]);
    node.admin("POST", "/v1/groups/tea/roles", &json!({"users": ["bob", "cid"], "role": "admin"}));
    node.admin("POST", "/v1/groups/tea/members", &json!({"mute": ["cid"]}));

    assert_eq!(pages(&node, "/v1/groups?limit=2", "groups", "id"), [vec!["coffee", "tea"], vec!["team"]]);
    assert_eq!(pages(&node, "/v1/groups?prefix=te", "groups", "id"), [["tea", "team"]]);
    let first = get(&node, "/v1/groups?prefix=tea&limit=1")["groups"][0].clone();
    assert_eq!(first, json!({"id": "tea", "name": null, "count": 3, "maxSeq": 3}));

    let members = "/v1/groups/tea/members";
    assert_eq!(pages(&node, &format!("{members}?limit=1"), "members", "user"), [["ann"], ["bob"], ["cid"]]);
    assert_eq!(pages(&node, &format!("{members}?role=admin"), "members", "user"), [["bob", "cid"]]);
    let cid = json!({"user": "cid", "role": "admin", "muted": true, "joinedSeq": 1});
    assert_eq!(get(&node, &format!("{members}/cid")), cid);
    assert_eq!(get(&node, &format!("{members}?limit=1000"))["members"][2], cid);

    assert_eq!(pages(&node, "/v1/users/bob/groups?limit=1", "groups", "id"), [["coffee"], ["tea"]]);
    let of_bob = get(&node, "/v1/users/bob/groups");
    assert_eq!(
        of_bob["groups"][1],
        json!({"id": "tea", "name": null, "role": "admin", "muted": false, "joinedSeq": 1})
    );
    assert_eq!(get(&node, "/v1/users/eve/groups"), json!({"user": "eve", "groups": []}));

    let next = get(&node, &format!("{members}?limit=1"))["next"].as_str().expect("a cursor").to_owned();
    let no = |path: &str| refused(&node, "GET", path, &Value::Null);
    for (path, status, code) in [
        ("/v1/groups/none/members", 404, Code::NotFound),
        ("/v1/groups/ten/members", 404, Code::NotFound),
        ("/v1/groups/none/members/ann", 404, Code::NotFound),
        ("/v1/groups/team/members/bob", 404, Code::NotAMember),
        ("/v1/groups/tea/members?role=king", 400, Code::BadContent),
        ("/v1/groups?limit=1001", 400, Code::BadContent),
        ("/v1/groups?prefix=g:te", 400, Code::BadContent),
        (&format!("/v1/groups/team/members?cursor={next}"), 400, Code::CursorInvalid),
        (&format!("/v1/groups/tea/members?role=admin&cursor={next}"), 400, Code::CursorInvalid),
        (&format!("/v1/groups?cursor={next}"), 400, Code::CursorInvalid),
    ] {
        assert_eq!(no(path), (status, u64::from(code.number())), "{path}");
    }
}

#[test]
fn group_of_more_members_than_a_page_or_a_change_has_is_listed_whole() {
    let node = TestNode::start(|config| config.node.store = "memory".into());
    let names: Vec<String> = (0..1_001).map(|n| format!("u{n:04}")).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    node.group("big", &all[..1_000]);
    node.add("big", &all[1_000..]);
    assert_eq!(get(&node, "/v1/groups?prefix=big")["groups"][0]["count"], 1_001);
    let path = "/v1/groups/big/members";
    for (limit, sizes) in [(1_000, vec![1_000, 1]), (500, vec![500, 500, 1]), (91, vec![91; 11])] {
        let pages = pages(&node, &format!("{path}?limit={limit}"), "members", "user");
        assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), sizes);
        assert_eq!(pages.concat(), names, "each member once, whatever the page has");
    }
    // A removal behind the cursor moves no other member to another page.
    let first = get(&node, &format!("{path}?limit=1000"));
    node.kick("big", &["u0500"]);
    let next = first["next"].as_str().expect("a cursor");
    let rest = get(&node, &format!("{path}?limit=1000&cursor={next}"));
    assert_eq!((&rest["members"][0]["user"], &rest["members"][1]), (&json!("u1000"), &Value::Null));
    assert_eq!(pages(&node, &format!("{path}?limit=1000"), "members", "user").concat().len(), 1_000);
}
