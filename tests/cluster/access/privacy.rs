//! Export and erasure of a user whose conversations lie on the owners of two nodes, one of which is killed in between.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tidegate::bus::partition_of;
use tidegate_protocol::id::ConversationId;

use super::call;
use crate::support::{Cluster, eventually};

/// Users to whom ann writes: enough for each partition.
const PEERS: usize = 12;

/// Messages that ann has sent: two to each of them, and one to her group.
const SENT: i64 = 2 * PEERS as i64 + 1;

const DATA: &str = "/v1/users/ann/data";

fn peers() -> Vec<String> {
    (0..PEERS).map(|n| format!("peer-{n:02}")).collect()
}

/// Returns the number of messages of ann that the store has with their content.
fn kept(cluster: &Cluster) -> i64 {
    cluster.number("SELECT count(*) FROM messages WHERE sender = 'ann' AND length(content) > 0")
}

/// Sends a request until it is not refused for now, as a back end does; returns the answer.
fn answer(cluster: &Cluster, nth: usize, method: &str, path: &str) -> Value {
    eventually("the request is not refused", || {
        let body = if method == "GET" { Value::Null } else { json!({}) };
        let (status, answer) = call(cluster, nth, method, path, &body);
        assert!([200, 503].contains(&status), "{method} {path}: {status} {answer}");
        (status == 200).then_some(answer)
    })
}

/// Reads an export in small pages, each from the next of these nodes; returns its messages.
fn exported(cluster: &Cluster, nodes: &[usize]) -> Vec<Value> {
    let (mut messages, mut cursor) = (Vec::new(), String::new());
    for nth in nodes.iter().cycle() {
        let page = answer(cluster, *nth, "GET", &format!("/v1/users/ann/export?limit=7{cursor}"));
        messages.extend(page["messages"].as_array().cloned().unwrap_or_default());
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    messages
}

/// Has ann write to users in all partitions and to a group of hers, reads her export through both nodes, and erases a part of
/// her data; returns the cursor of the rest.
pub(super) fn erase_a_part(cluster: &Cluster) -> String {
    let partitions: BTreeSet<u32> = peers()
        .iter()
        .map(|peer| partition_of(&ConversationId::parse(&format!("d:ann:{peer}")).expect("a key"), 4))
        .collect();
    assert_eq!(partitions.len(), 4, "the owners on both nodes have some of the conversations");
    let group = json!({"id": "hers", "owner": "ann", "members": ["cid", "dan"]});
    assert_eq!(call(cluster, 0, "POST", "/v1/groups", &group).0, 201);
    let message = |from: &str, to: &str, nth: usize| {
        let content = json!({"text": format!("by {from}")});
        json!({"from": from, "to": to, "content": content, "requestId": format!("{nth}-{from}-{}", to.replace(':', "-"))})
    };
    let mut all = vec![message("ann", "g:hers", 0)];
    for peer in peers() {
        all.extend([message("ann", &peer, 0), message("ann", &peer, 1), message(&peer, "ann", 0)]);
    }
    let (status, sent) = call(cluster, 1, "POST", "/v1/messages/batch", &json!({"messages": all}));
    assert_eq!((status, &sent["failed"]), (200, &json!(0)), "{sent}");
    eventually("all is archived", || (kept(cluster) == SENT).then_some(()));
    let messages = exported(cluster, &[0, 1]);
    assert_eq!(messages.len() as i64, SENT, "{messages:?}");
    assert!(messages.iter().all(|it| it["content"]["text"] == "by ann" && it["sender"] == "ann"));
    let first = answer(cluster, 0, "DELETE", &format!("{DATA}?limit=7"));
    assert_eq!((&first["done"], first["recalled"].as_u64() <= Some(7)), (&json!(false), true), "{first}");
    first["next"].as_str().expect("a cursor").to_owned()
}

/// Erases the rest through the node that is left, and checks that nothing but what others wrote is there.
pub(super) fn erase_the_rest(cluster: &Cluster, cursor: String) {
    assert!(kept(cluster) > 0, "there is a rest");
    let mut query = format!("&cursor={cursor}");
    // Not done before the killed node has confirmed or its lease has expired.
    let last = eventually("the erasure is done", || {
        let step = answer(cluster, 1, "DELETE", &format!("{DATA}?limit=7{query}"));
        match step["next"].as_str() {
            Some(next) => query = format!("&cursor={next}"),
            None => return Some(step),
        }
        None
    });
    assert_eq!(last["done"], true, "{last}");
    assert!(last["remains"].as_array().is_some_and(|it| it.iter().any(|it| it["what"] == "log")), "{last}");
    assert_eq!(kept(cluster), 0);
    let left = exported(cluster, &[1]);
    assert!(left.iter().all(|it| it["content"].is_null() && !it["recalled"].is_null()), "{left:?}");
    let again = answer(cluster, 1, "DELETE", DATA);
    let counts = ["left", "recalled", "unblocked"].map(|name| again[name].as_u64());
    assert_eq!((&again["done"], counts), (&json!(true), [Some(0); 3]), "{again}");
    for peer in peers() {
        let path = format!("/v1/conversations/d:ann:{peer}/messages");
        let page = answer(cluster, 1, "GET", &path);
        let entries = page["messages"].as_array().expect("a list").iter();
        let texts: Vec<&Value> =
            entries.filter(|it| it["kind"] == "message").map(|it| &it["content"]["text"]).collect();
        assert_eq!(texts, [&format!("by {peer}")], "{page}");
    }
    let members = answer(cluster, 1, "GET", "/v1/groups/hers/members");
    let users: Vec<&Value> =
        members["members"].as_array().expect("a list").iter().map(|it| &it["user"]).collect();
    assert_eq!(users, ["cid", "dan"]);
}
