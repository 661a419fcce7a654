//! Reads of back ends: histories, conversations and unread counts by the admin API, as clients and the application have left
//! them.

mod bound;
mod groups;
mod history;
mod of_user;
mod people;

use serde_json::{Value, json};

use crate::support::TestNode;

/// Sends a GET that succeeds.
fn get(node: &TestNode, path: &str) -> Value {
    let (status, body) = node.admin("GET", path, &Value::Null);
    assert_eq!(status, 200, "{path}: {body}");
    body
}

/// Returns the status and the code of a refusal.
fn refused(node: &TestNode, method: &str, path: &str, body: &Value) -> (u16, u64) {
    let (status, body) = node.admin(method, path, body);
    (status, body["code"].as_u64().unwrap_or_default())
}

/// Returns the seqs of entries.
fn seqs(entries: &Value) -> Vec<u64> {
    let entries = entries.as_array().expect("a list");
    entries.iter().map(|it| it["seq"].as_u64().expect("a seq")).collect()
}

/// Returns the ranges of seqs that are not there.
fn expired(page: &Value) -> Value {
    let ranges = page["expired"].as_array().expect("a list");
    ranges.iter().map(|it| json!([it["first"], it["last"]])).collect()
}
