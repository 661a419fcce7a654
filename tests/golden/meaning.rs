//! Meanings of records in the golden files: every field by name, as JSON.

use serde_json::{Value, json};
use tidegate_protocol::{
    codec::{self, Decoded, Framing},
    pb,
    record::{Body, MemberChange, Message, Record},
};

use crate::convert::hex;

/// Describes a record of the log.
pub(crate) fn record(it: &Record) -> Value {
    let (kind, body) = match &it.body {
        Body::Message(it) => ("message", message(it)),
        Body::Member(it) => ("member", member(it)),
        Body::Recall(it) => (
            "recall",
            json!({"conversation": it.conversation.as_str(), "seq": it.seq, "by": it.by.as_ref().map(|by| by.as_str())}),
        ),
        Body::Edit(it) => (
            "edit",
            json!({
                "conversation": it.conversation.as_str(),
                "seq": it.seq,
                "by": it.by.as_ref().map(|by| by.as_str()),
                "device": it.device.as_str(),
                "msgId": it.msg_id.as_str(),
                "content": hex(&it.content),
                "bodyHash": hex(&it.body_hash),
                "denied": it.denied.map(|code| code.name()),
            }),
        ),
        Body::Prune(it) => ("prune", json!({"conversation": it.conversation.as_str(), "upTo": it.up_to})),
        Body::Rules(it) => (
            "rules",
            json!({"version": it.ledger_version, "dedupWindow": it.dedup_window, "keysFrom": it.keys_from}),
        ),
    };
    let origin = &it.origin;
    json!({
        "origin": {"node": origin.node.as_str(), "boot": origin.boot, "conn": origin.conn, "request": origin.request},
        "receivedAt": it.received_at,
        "trace": it.trace.map(|trace| trace.to_string()),
        kind: body,
    })
}

fn message(it: &Message) -> Value {
    let mut means = json!({
        "conversation": it.conversation.as_str(),
        "sender": it.sender.as_str(),
        "device": it.device.as_str(),
        "msgId": it.msg_id.as_str(),
        "attempt": it.attempt,
        "content": hex(&it.content),
        "epoch": it.order.epoch,
        "n": it.order.n,
        "chained": it.order.chained,
        "flags": it.flags,
        "bodyHash": hex(&it.body_hash),
    });
    // Records of the first versions have none.
    if !it.mode.is_ordinary() {
        let mode = it.mode;
        means["mode"] = json!({
            "transient": mode.is_transient,
            "silent": mode.is_silent,
            "operator": mode.is_operator,
            "denied": mode.denied.map(|code| code.name()),
        });
    }
    means
}

fn member(it: &MemberChange) -> Value {
    json!({
        "conversation": it.conversation.as_str(),
        "action": it.action,
        "users": it.users.iter().map(|user| user.as_str()).collect::<Vec<_>>(),
        "role": it.role,
        "by": it.by.as_ref().map(|by| by.as_str()),
        "settings": it.settings,
        "requestId": it.request_id.as_str(),
    })
}

/// Describes a record of a node topic.
pub(crate) fn fan_out(it: &pb::FanOut) -> Value {
    json!({
        "conversation": it.conversation,
        "seq": it.seq,
        "push": push(&it.push),
        "memberSeq": it.member_seq,
        "change": it.change,
        "node": it.node,
        "boot": it.boot,
        "conn": it.conn,
        "traceparent": it.traceparent,
        "largeFrom": it.large_from,
    })
}

/// Describes an encoded push; null if nothing is pushed.
fn push(bytes: &[u8]) -> Value {
    if bytes.is_empty() {
        return Value::Null;
    }
    let push = prost::Message::decode(bytes).expect("a push");
    frame(&pb::ServerFrame { id: 0, body: Some(pb::server_frame::Body::Push(push)) })
}

/// Describes a frame of a broker by its canonical JSON.
pub(crate) fn frame(it: &pb::ServerFrame) -> Value {
    let mut text = Vec::new();
    codec::encode_server(it, Framing::Json, &mut text);
    serde_json::from_slice(&text).expect("JSON")
}

/// Reads a frame of a broker.
pub(crate) fn read_frame(payload: &[u8], framing: Framing) -> Value {
    match codec::decode_server(payload, framing).expect("a frame of a broker") {
        Decoded::Frame(it) => frame(&it),
        Decoded::Empty => panic!("an empty frame"),
    }
}
