//! Block lists: a blocked user can't write to the other one directly, and learns nothing else.

use serde_json::{Value, json};
use tidegate_protocol::{Code, codec::Wire};

use crate::support::{ServerBody, TestNode, ask, send, text_of};

fn change(node: &TestNode, method: &str, user: &str, other: &str) -> Value {
    let (status, body) = node.admin(method, &format!("/v1/users/{user}/blocks/{other}"), &json!({}));
    assert_eq!(status, 200, "{body}");
    body
}

#[test]
fn blocked_user_can_not_write_until_the_block_ends() {
    for store in ["memory", "embedded"] {
        let node = TestNode::start(|config| config.node.store = store.into());
        let mut bob = node.login(Wire::Tcp, "bob", "phone");
        for (n, wire) in Wire::ALL.into_iter().enumerate() {
            let eve = &format!("eve{n}");
            let mut client = node.login(wire, eve, "phone");
            client.text("bob", "m1", "before");
            bob.expect_push();
            let changed = change(&node, "PUT", "bob", eve);
            let expected =
                json!({"user": "bob", "other": eve, "blocked": true, "changed": true, "pending": []});
            assert_eq!(changed, expected);
            let ServerBody::Error(error) = client.ask(ask::send(send("bob", "m2", "still there?"))) else {
                panic!("not refused");
            };
            assert_eq!((error.name.as_str(), error.message.as_str()), ("FORBIDDEN", Code::Forbidden.what()));
            assert!(!error.temporary);
            assert_eq!(client.refused(ask::send(send(&format!("d:bob:{eve}"), "m3", "."))), Code::Forbidden);
            assert_eq!(client.refused(ask::signal(&format!("d:bob:{eve}"), "typing", "")), Code::Forbidden);
            // What the two have in common stays: groups, and the history.
            let group = node.group(&format!("tea{n}"), &["bob", eve]);
            bob.expect_push();
            client.text(&group, "g1", "in a group");
            assert_eq!(text_of(&bob.expect_push()), "in a group");
            bob.ack(&group, 2);
            bob.text(eve, "b1", "one-sided");
            client.take(
                "his message",
                |it| matches!(&it.body, Some(ServerBody::Push(push)) if push.msg_id == "b1"),
            );
            client.text("carol", "c1", "others");
            bob.no_push();
            assert_eq!(change(&node, "DELETE", "bob", eve)["changed"], true);
            let seq = client.text("bob", "m2", "still there?");
            assert_eq!((bob.expect_push().seq, seq), (3, 3), "a refusal took no seq");
            bob.ack(&format!("d:bob:{eve}"), 3);
        }
        assert_eq!(node.metric("tidegate_block_lookups_failed_total"), Some(0.0));
    }
}

#[test]
fn refused_message_of_a_chain_is_answered_and_the_chain_continues() {
    let node = TestNode::start(|_| {});
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    let mut eve = node.login_chained(Wire::Tcp, "eve", "phone", "m1");
    change(&node, "PUT", "bob", "eve");
    let chained = |place: &str, id: &str, next: &str| {
        let next_id = next.to_owned();
        ask::send(tidegate_protocol::pb::Send { next_id, ..send(place, id, id) })
    };
    let ids = [("bob", "m1", "m2"), ("carol", "m2", "m3"), ("bob", "m3", "m4"), ("carol", "m4", "m5")]
        .map(|(place, id, next)| eve.say(chained(place, id, next)));
    assert_eq!([ids[0], ids[2]].map(|id| eve.expect_error(id)), [Code::Forbidden; 2]);
    assert_eq!([ids[1], ids[3]].map(|id| eve.expect_ack(id).seq), [1, 2]);
    change(&node, "DELETE", "bob", "eve");
    let id = eve.say(chained("bob", "m5", "m6"));
    assert_eq!(eve.expect_ack(id).seq, 1, "the refused ones used no number of the chain");
    assert_eq!(text_of(&bob.expect_push()), "m5");
}

#[test]
fn block_lists_are_shown_in_pages_and_bad_requests_are_refused() {
    let node = TestNode::start(|_| {});
    for other in ["carol", "ann", "dave"] {
        change(&node, "PUT", "bob", other);
    }
    assert_eq!(change(&node, "PUT", "bob", "ann")["changed"], false);
    let get = |path: &str| node.admin("GET", path, &json!(null));
    let (_, page) = get("/v1/users/bob/blocks?limit=2");
    let names = |page: &Value| -> Vec<String> {
        let blocks = page["blocks"].as_array().expect("a list");
        assert!(blocks.iter().all(|it| it["time"].as_u64() > Some(0)));
        blocks.iter().filter_map(|it| Some(it["user"].as_str()?.to_owned())).collect()
    };
    assert_eq!((names(&page), &page["next"]), (vec!["ann".into(), "carol".into()], &json!("carol")));
    let (_, page) = get("/v1/users/bob/blocks?limit=2&cursor=carol");
    assert_eq!((names(&page), page.get("next")), (vec!["dave".to_owned()], None));
    let (_, shown) = get("/v1/users/bob/blocks/ann");
    assert_eq!(shown, json!({"user": "bob", "other": "ann", "blocked": true}));
    assert_eq!(get("/v1/users/ann/blocks/bob").1["blocked"], false);
    for (method, path, status, code) in [
        ("PUT", "/v1/users/bob/blocks/bob", 400, Code::BadContent),
        ("PUT", "/v1/users/bob/blocks/a%20b", 400, Code::BadId),
        ("DELETE", "/v1/users/b%C3%B6b/blocks/ann", 400, Code::BadId),
        ("GET", "/v1/users/a%20b/blocks", 400, Code::BadId),
        ("GET", "/v1/users/bob/blocks?limit=0", 400, Code::BadContent),
        ("GET", "/v1/users/bob/blocks?limit=1001", 400, Code::BadContent),
        ("GET", "/v1/users/bob/blocks?limit=x", 400, Code::BadContent),
        ("GET", "/v1/users/bob/blocks?page=2", 400, Code::BadContent),
        ("GET", "/v1/users/bob/blocks?cursor=a%20b", 400, Code::BadContent),
    ] {
        let (got, body) = node.admin(method, path, &json!({}));
        assert_eq!((got, &body["code"]), (status, &json!(code.number())), "{method} {path}: {body}");
    }
}

#[test]
fn full_block_list_is_refused_with_its_own_code() {
    let node = TestNode::start(|config| config.node.store = "memory".into());
    for n in 0..10_000 {
        change(&node, "PUT", "bob", &format!("u{n}"));
    }
    let (status, body) = node.admin("PUT", "/v1/users/bob/blocks/eve", &json!({}));
    assert_eq!((status, &body["name"]), (409, &json!("TOO_MANY_BLOCKS")), "{body}");
    change(&node, "DELETE", "bob", "u7");
    change(&node, "PUT", "bob", "eve");
}
