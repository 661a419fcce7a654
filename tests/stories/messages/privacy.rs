//! Export and erasure of a user by the admin API.

use serde_json::{Value, json};
use tidegate_protocol::{Code, codec::Wire, pb};

use crate::support::{Client, TestNode, ask, hello, text_of};

const DATA: &str = "/v1/users/ann/data";

/// Reads an export in pages of this size, and returns the pages as one.
fn exported(node: &TestNode, user: &str, limit: usize) -> Value {
    let (mut all, mut cursor) = (json!({"blocks": [], "conversations": [], "messages": []}), String::new());
    loop {
        let path = format!("/v1/users/{user}/export?limit={limit}{cursor}");
        let (status, mut page) = node.admin("GET", &path, &Value::Null);
        assert_eq!(status, 200, "{page}");
        assert!(page["messages"].as_array().expect("a list").len() <= limit);
        for list in ["blocks", "conversations", "messages"] {
            let more = page[list].take();
            let more = more.as_array().cloned().unwrap_or_default();
            all[list].as_array_mut().expect("a list").extend(more);
        }
        for (name, value) in page.as_object().expect("an object") {
            if !value.is_null() {
                all[name] = value.clone();
            }
        }
        let Some(next) = page["next"].as_str() else { break };
        assert!(page["remains"].is_null());
        cursor = format!("&cursor={next}");
    }
    assert!(all["remains"].as_array().is_some_and(|it| it.len() > 5), "{all}");
    all
}

/// Returns conversation, seq and text of each exported message; without a text it was recalled.
fn texts(export: &Value) -> Vec<(String, u64, Option<String>)> {
    let text = |it: &Value| it["content"]["text"].as_str().map(str::to_owned);
    let all = export["messages"].as_array().expect("a list").iter();
    all.map(|it| {
        let (place, seq) = (it["conversation"].as_str().expect("a key"), it["seq"].as_u64().expect("a seq"));
        assert_eq!((&it["sender"], it["recalled"].is_null()), (&json!("ann"), text(it).is_some()), "{it}");
        (place.to_owned(), seq, text(it))
    })
    .collect()
}

fn admin(node: &TestNode, method: &str, path: &str, body: &Value) -> Value {
    let (status, answer) = node.admin(method, path, body);
    assert!([200, 201].contains(&status), "{method} {path}: {answer}");
    answer
}

/// Gives ann two groups, one of them left and one of which she can't read her message, two direct conversations, marks, a block
/// and a setting.
fn with_data(node: &TestNode) -> (Client, Client) {
    let settings = Some(pb::Settings { unread: "direct".into(), ..pb::Settings::default() });
    let mut ann = node.connect(Wire::Tcp);
    ann.login(pb::Hello { settings, ..hello(&node.token("ann"), "phone") });
    let bob = node.login(Wire::WsText, "bob", "phone");
    admin(node, "POST", "/v1/groups", &json!({"id": "tea", "owner": "ann", "members": ["bob", "cid"]}));
    admin(node, "POST", "/v1/groups", &json!({"id": "old", "members": ["ann", "bob"]}));
    ann.text("g:tea", "t1", "first");
    ann.text("g:old", "o1", "once");
    admin(node, "POST", "/v1/groups/old/members", &json!({"remove": ["ann"]}));
    for n in 1..=5 {
        ann.text("bob", &format!("b{n}"), &format!("to bob {n}"));
    }
    ann.text("cid", "c1", "to cid");
    let recall = ann.say(ask::recall("d:ann:bob", 5));
    ann.expect_ack(recall);
    admin(node, "PATCH", "/v1/conversations/d:ann:bob/messages/1", &json!({"content": {"text": "edited"}}));
    admin(node, "PATCH", "/v1/users/ann/conversations/g:tea", &json!({"maxSeq": 1}));
    admin(node, "PUT", "/v1/users/ann/blocks/eve", &json!({}));
    admin(node, "PUT", "/v1/users/ann/blocks/fay", &json!({}));
    admin(node, "PUT", "/v1/users/bob/blocks/eve", &json!({}));
    admin(node, "PUT", "/v1/users/ann/prio", &json!({"prio": 2}));
    (ann, bob)
}

fn place<'a>(export: &'a Value, key: &str) -> &'a Value {
    let all = export["conversations"].as_array().expect("a list");
    all.iter().find(|it| it["conversation"] == key).unwrap_or_else(|| panic!("{key}: {export}"))
}

#[test]
fn export_has_what_the_user_sent_and_keeps_in_pages_of_any_size() {
    let node = TestNode::start(|config| config.node.store = "memory".into());
    let (mut ann, mut bob) = with_data(&node);
    bob.text("ann", "r1", "from bob");
    ann.expect_done(ask::read("d:ann:bob", 3));
    ann.expect_done(ask::clear("d:ann:bob", 2));
    ann.expect_done(ask::hide("d:ann:bob", &[4]));
    let all = exported(&node, "ann", 1_000);
    let found = texts(&all);
    let row = |key: &str, seq, text: &str| (key.to_owned(), seq, Some(text.to_owned()));
    let expected = [
        row("d:ann:bob", 1, "edited"),
        row("d:ann:bob", 2, "to bob 2"),
        row("d:ann:bob", 3, "to bob 3"),
        row("d:ann:bob", 4, "to bob 4"),
        ("d:ann:bob".to_owned(), 5, None),
        row("d:ann:cid", 1, "to cid"),
        row("g:old", 2, "once"),
        row("g:tea", 2, "first"),
    ];
    assert_eq!(found, expected);
    assert_eq!(all["messages"][0]["edited"]["seq"], 7, "{all}");
    assert_eq!(all["blocks"].as_array().map(Vec::len), Some(2), "{all}");
    assert_eq!((&all["blocks"][0]["user"], &all["prio"]["prio"]), (&json!("eve"), &json!(2)));
    assert_eq!(
        (&all["devices"][0]["device"], &all["settings"]),
        (&json!("phone"), &json!({"unread": "direct"}))
    );
    let direct = place(&all, "d:ann:bob");
    assert_eq!(
        (&direct["peer"], &direct["readSeq"], &direct["clearedSeq"], &direct["hidden"]),
        (&json!("bob"), &json!(3), &json!(2), &json!([4]))
    );
    let (tea, old) = (place(&all, "g:tea"), place(&all, "g:old"));
    assert_eq!(
        (&tea["role"], &tea["member"], &old["member"]),
        (&json!("owner"), &json!(true), &json!(false))
    );
    assert_eq!((&tea["boundSeq"], old.get("boundSeq")), (&json!(1), None));
    for limit in [1, 2, 3, 7] {
        let paged = exported(&node, "ann", limit);
        for list in ["blocks", "conversations", "messages"] {
            assert_eq!(paged[list], all[list], "{limit}");
        }
    }
    let of_nobody = exported(&node, "nobody", 10);
    assert_eq!((&of_nobody["messages"], &of_nobody["devices"]), (&json!([]), &json!([])));
}

#[test]
fn erasure_in_small_steps_over_a_restart_leaves_nothing_but_what_others_wrote() {
    let node = TestNode::start(|config| config.node.store = "embedded".into());
    let (mut ann, mut bob) = with_data(&node);
    for n in 0..3 {
        bob.text("ann", &format!("r{n}"), "from bob");
    }
    ann.expect_done(ask::read("d:ann:bob", 6));
    drop(ann);
    let erase = |node: &TestNode, cursor: &str| {
        let (status, step) = node.admin("DELETE", &format!("{DATA}?limit=2{cursor}"), &json!({}));
        assert_eq!(status, 200, "{step}");
        let changes = ["left", "recalled", "unblocked"].map(|it| step[it].as_u64().expect("a number"));
        assert!(changes.iter().sum::<u64>() <= 2, "{step}");
        step
    };
    let first = erase(&node, "");
    assert_eq!(
        (&first["done"], &first["left"], &first["ownerless"]),
        (&json!(false), &json!(1), &json!(["g:tea"]))
    );
    let mut recalled = first["recalled"].as_u64().expect("a number");
    let second = erase(&node, &format!("&cursor={}", first["next"].as_str().expect("a cursor")));
    recalled += second["recalled"].as_u64().expect("a number");
    assert!(recalled >= 2 && second["done"] == false, "{second}");
    // Its answer was lost, and the node restarts.
    let node = TestNode::start_on(&node.stop(), |config| config.node.store = "embedded".into());
    let mut cursor = format!("&cursor={}", first["next"].as_str().expect("a cursor"));
    let mut unblocked = 0;
    let mut steps = 0;
    let last = loop {
        let step = erase(&node, &cursor);
        recalled += step["recalled"].as_u64().expect("a number");
        unblocked += step["unblocked"].as_u64().expect("a number");
        steps += 1;
        assert!(steps < 20, "{step}");
        match step["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break step,
        }
    };
    assert_eq!((recalled, unblocked, &last["done"]), (7, 2, &json!(true)), "{last}");
    assert!(last["remains"].as_array().is_some_and(|it| it.iter().any(|it| it["what"] == "keys")), "{last}");
    let left = exported(&node, "ann", 1_000);
    assert_eq!(texts(&left).iter().filter(|(.., text)| text.is_some()).count(), 0, "{left}");
    let none = (&json!([]), &json!({}), &json!([]));
    assert_eq!((&left["blocks"], &left["settings"], &left["devices"]), none);
    assert!(left["prio"].is_null() && left["conversations"].as_array().is_some_and(|it| it.len() == 4));
    for it in left["conversations"].as_array().expect("a list") {
        assert_eq!((&it["readSeq"], &it["clearedSeq"], &it["hidden"]), (&json!(0), &json!(0), &json!([])));
        assert_eq!(it.get("boundSeq"), None, "{it}");
        assert_eq!(it["member"], it["conversation"].as_str().expect("a key").starts_with("d:"), "{it}");
    }
    // The other side keeps its own, and learns of each recall.
    let mut bob = node.login(Wire::Tcp, "bob", "tablet");
    let page = bob.page(ask::after("d:ann:bob", 0, 50));
    let texts: Vec<&str> = page.messages.iter().filter(|it| it.content.is_some()).map(text_of).collect();
    assert_eq!(texts, ["from bob"; 3]);
    assert_eq!(page.recalled, [1, 2, 3, 4, 5]);
    assert_eq!(node.admin("GET", "/v1/users/bob/blocks/eve", &Value::Null).1["blocked"], true);
    let again = erase(&node, "");
    let counts = [&again["left"], &again["recalled"], &again["unblocked"]];
    assert_eq!((&again["done"], counts), (&json!(true), [&json!(0); 3]), "{again}");
}

/// Makes the next request of an erasure.
fn go_on(node: &TestNode, step: &Value) -> Value {
    let next = step["next"].as_str().unwrap_or_else(|| panic!("a cursor: {step}"));
    admin(node, "DELETE", &format!("{DATA}?cursor={next}"), &json!({}))
}

#[test]
fn erasure_is_done_after_a_pass_that_found_nothing() {
    let node = TestNode::start(|config| config.node.store = "memory".into());
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    ann.text("yak", "m1", "first");
    ann.text("zed", "m2", "second");
    let step = admin(&node, "DELETE", &format!("{DATA}?limit=1"), &json!({}));
    assert_eq!((&step["recalled"], &step["done"]), (&json!(1), &json!(false)), "{step}");
    // It is stored behind the cursor, and the connection is found at the end of the pass.
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    ann.text("bob", "m3", "behind");
    let step = go_on(&node, &step);
    let found = (&step["recalled"], &step["closed"], &step["done"]);
    assert_eq!(found, (&json!(1), &json!(1), &json!(false)), "{step}");
    let step = go_on(&node, &step);
    assert_eq!((&step["recalled"], &step["done"]), (&json!(1), &json!(false)), "{step}");
    let step = go_on(&node, &step);
    assert_eq!((&step["recalled"], &step["done"]), (&json!(0), &json!(true)), "{step}");
    assert!(texts(&exported(&node, "ann", 10)).iter().all(|(.., text)| text.is_none()));
}

#[test]
fn export_has_no_content_that_others_wrote_after_the_user_had_left() {
    let node = TestNode::start(|config| config.node.store = "memory".into());
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    node.group("tea", &["ann", "bob"]);
    let kept = ann.text("g:tea", "m1", "by ann");
    let edited = ann.text("g:tea", "m2", "by ann as well");
    admin(&node, "POST", "/v1/groups/tea/members", &json!({"remove": ["ann"]}));
    let path = format!("/v1/conversations/g:tea/messages/{edited}");
    admin(&node, "PATCH", &path, &json!({"content": {"text": "by another"}}));
    let all = exported(&node, "ann", 10);
    let [first, second] = [&all["messages"][0], &all["messages"][1]];
    assert_eq!((&first["seq"], &first["content"]["text"]), (&json!(kept), &json!("by ann")));
    assert_eq!((&second["seq"], second["content"].is_null()), (&json!(edited), true), "{second}");
    assert!(second["edited"].is_object(), "{second}");
}

#[test]
fn clients_learn_of_an_erasure_as_of_recalls_and_leaves() {
    let node = TestNode::start(|config| config.node.store = "memory".into());
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    let mut bob = node.login(Wire::WsBinary, "bob", "phone");
    node.group("tea", &["ann", "bob"]);
    ann.text("bob", "m1", "hi");
    ann.text("g:tea", "m2", "hello");
    bob.pushes(3);
    let step = admin(&node, "DELETE", DATA, &json!({}));
    assert_eq!(
        (&step["done"], &step["closed"], &step["recalled"]),
        (&json!(false), &json!(1), &json!(2)),
        "{step}"
    );
    assert_eq!(step["ownerless"], json!([]), "it had no owner before");
    assert_eq!(go_on(&node, &step)["done"], true);
    assert_eq!(ann.expect_close(), Code::Kicked);
    let news = bob.pushes(3);
    let mut recalls: Vec<_> =
        news.iter().filter_map(|it| Some((&*it.conversation, it.recall?.seq))).collect();
    recalls.sort_unstable();
    assert_eq!(recalls, [("d:ann:bob", 1), ("g:tea", 2)]);
    assert!(news.iter().any(|it| it.event.as_ref().is_some_and(|it| it.users == ["ann"])), "{news:?}");
    // A user who comes back is a new one: nothing forbids it.
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    assert_eq!(ann.text("bob", "m9", "again"), 3);
}

#[test]
fn messages_of_deleted_groups_are_named_and_bad_requests_refused() {
    let node = TestNode::start(|config| config.node.store = "memory".into());
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    node.group("gone", &["ann", "bob"]);
    ann.text("g:gone", "m1", "stays");
    admin(&node, "DELETE", "/v1/groups/gone", &json!({}));
    let step = admin(&node, "DELETE", DATA, &json!({}));
    let step = go_on(&node, &step);
    assert_eq!((&step["kept"], &step["done"]), (&json!(["g:gone"]), &json!(true)), "{step}");
    let left = exported(&node, "ann", 10);
    assert_eq!(
        (&left["messages"][0]["content"]["text"], &place(&left, "g:gone")["deleted"]),
        (&json!("stays"), &json!(true))
    );
    let refused = |method: &str, path: &str| {
        let (status, body) = node.admin(method, path, &json!({}));
        (status, body["code"].as_u64().unwrap_or_default())
    };
    let bad = |code: Code| (400, u64::from(code.number()));
    assert_eq!(refused("DELETE", "/v1/users/ann/data?limit=201"), bad(Code::BadContent));
    assert_eq!(refused("DELETE", "/v1/users/ann/data?limit=0"), bad(Code::BadContent));
    assert_eq!(refused("DELETE", "/v1/users/ann/data?all=1"), bad(Code::BadContent));
    assert_eq!(refused("DELETE", "/v1/users/a%20b/data"), bad(Code::BadId));
    let of_system = (403, u64::from(Code::Forbidden.number()));
    assert_eq!(refused("DELETE", "/v1/users/system/data"), of_system);
    assert_eq!(refused("DELETE", "/v1/users/ann/data?cursor=x"), bad(Code::CursorInvalid));
    assert_eq!(refused("GET", "/v1/users/ann/export?limit=1001"), bad(Code::BadContent));
    // A cursor is of one user, and of one of the two.
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    ann.text("bob", "m2", "one");
    ann.text("bob", "m3", "two");
    let next = admin(&node, "GET", "/v1/users/ann/export?limit=1", &Value::Null)["next"].clone();
    let next = next.as_str().expect("a cursor");
    for (method, path) in [("GET", "/v1/users/bob/export"), ("DELETE", DATA)] {
        assert_eq!(refused(method, &format!("{path}?cursor={next}")), bad(Code::CursorInvalid));
    }
}
