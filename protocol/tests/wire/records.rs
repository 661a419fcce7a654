//! Golden file of `vectors/log/`: the exact bytes and hashes of every kind of log record.
//!
//! Logs and stores outlive the program that wrote them. A change here makes stored data unreadable, so it needs a new
//! `RECORD_VERSION`.

use std::collections::BTreeSet;

use bytes::Bytes;
use serde::Deserialize;
use tidegate_protocol::{
    Code,
    code::AppCode,
    id::{ConversationId, DeviceId, MsgId, NodeId, UserId},
    machine::ledger::{edit_key, message_key, request_key},
    record::{
        Body, Edit, MemberAction, MemberChange, Message, MessageMode, Origin, Position, Prune, Recall,
        Record, Role, RuleChange, SenderOrder, body_hash,
        mode::{NO_PUSH, SILENT, TRANSIENT, UNCHECKED},
    },
    trace::TraceContext,
};

use crate::support::json_files;

/// Golden record; `vectors/README.md` explains the fields.
#[derive(Deserialize)]
struct Vector {
    name: String,
    hex: String,
    hash: String,
    key: Option<String>,
}

fn conversation(text: &str) -> ConversationId {
    ConversationId::parse(text).unwrap()
}

fn user(text: &str) -> UserId {
    UserId::new(text).unwrap()
}

fn message(to: &str, msg_id: &str, content: &'static [u8]) -> Message {
    Message {
        conversation: conversation(to),
        sender: user("ann"),
        device: DeviceId::new("phone").unwrap(),
        msg_id: MsgId::new(msg_id).unwrap(),
        attempt: 0,
        content: Bytes::from_static(content),
        order: SenderOrder { epoch: 5, n: 0, chained: false },
        flags: 0,
        mode: Default::default(),
        body_hash: body_hash(content),
    }
}

fn change(
    action: MemberAction,
    users: &[&str],
    role: Option<Role>,
    by: &str,
    request: &str,
    set: bool,
) -> Body {
    let settings =
        [("history", "all"), ("post", "")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    Body::Member(MemberChange {
        conversation: conversation("g:tea"),
        action,
        users: users.iter().map(|name| user(name)).collect(),
        role,
        by: (!by.is_empty()).then(|| user(by)),
        settings: if set { settings.into() } else { Default::default() },
        request_id: MsgId::new(request).unwrap(),
    })
}

fn bodies() -> Vec<(&'static str, Body)> {
    use MemberAction::{Create, Delete, Join, Kick, Leave, Mute, Role as SetRole, Settings, Unmute};
    let both = &["bob", "cid"][..];
    let (member, admin) = (Some(Role::Member), Some(Role::Admin));
    let chained = Message {
        attempt: 2,
        order: SenderOrder { epoch: u64::MAX, n: 300, chained: true },
        flags: 3,
        ..message("g:tea", "m2", &[0, 255, 128])
    };
    let flags = TRANSIENT | SILENT | NO_PUSH | UNCHECKED;
    let mode = MessageMode { is_operator: true, denied: Some(Code::Muted), ..MessageMode::of_flags(flags) };
    let moded = Message { flags, mode, content: Bytes::new(), ..message("g:tea", "m3", b"hi") };
    let of_application = AppCode::new(5_001).map(Code::Application);
    let denied = Message {
        mode: MessageMode { denied: of_application, ..MessageMode::default() },
        content: Bytes::new(),
        order: SenderOrder { epoch: 5, n: 2, chained: true },
        ..message("g:tea", "m4", b"hi")
    };
    let edit = |by, denied| Edit {
        conversation: conversation("g:tea"),
        seq: 7,
        by,
        device: DeviceId::new("phone").unwrap(),
        msg_id: MsgId::new("e1").unwrap(),
        content: Bytes::from_static(b"better"),
        body_hash: body_hash(b"better"),
        denied,
    };
    let recall = |conversation, seq, by| Body::Recall(Recall { conversation, seq, by });
    vec![
        ("a message", Body::Message(message("d:ann:bob", "m1", b"hi"))),
        ("a chained message, tried again, with everything set", Body::Message(chained)),
        ("a message with a mode", Body::Message(moded)),
        ("an edit", Body::Edit(edit(Some(user("ann")), None))),
        ("a denied edit by the admin API", Body::Edit(edit(None, Some(Code::Forbidden)))),
        ("a message that the application denies", Body::Message(denied)),
        ("an edit that the application denies", Body::Edit(edit(Some(user("ann")), of_application))),
        ("create", change(Create, both, member, "ann", "r1", true)),
        ("join", change(Join, both, member, "", "r2", false)),
        ("leave", change(Leave, &["bob"], None, "bob", "r3", false)),
        ("kick", change(Kick, both, None, "ann", "r4", false)),
        ("role", change(SetRole, both, admin, "ann", "r5", false)),
        ("settings", change(Settings, &[], None, "ann", "r6", true)),
        ("delete", change(Delete, &[], None, "ann", "r7", false)),
        ("mute", change(Mute, both, None, "ann", "r8", false)),
        ("unmute", change(Unmute, both, None, "ann", "r9", false)),
        ("a recall", recall(conversation("d:ann:bob"), 7, Some(user("ann")))),
        ("a recall by the admin API", recall(conversation("g:tea"), 1, None)),
        ("a prune", Body::Prune(Prune { conversation: conversation("g:tea"), up_to: 1_000 })),
        (
            "rules",
            Body::Rules(RuleChange { ledger_version: 1, dedup_window: Some(1_000_000), keys_from: 1 << 40 }),
        ),
        ("rules that forget nothing", Body::Rules(RuleChange::default())),
        ("a switch", Body::Rules(RuleChange { ledger_version: 2, ..RuleChange::default() })),
        (
            "rules that name no window",
            Body::Rules(RuleChange { dedup_window: Some(0), ..RuleChange::default() }),
        ),
    ]
}

/// Returns the kind of a record. A new kind or action does not compile until it is added here; then it needs a vector.
fn kind(body: &Body) -> String {
    match body {
        Body::Message(it) if it.mode.is_ordinary() => "message".to_owned(),
        Body::Message(_) => "moded message".to_owned(),
        Body::Edit(_) => "edit".to_owned(),
        Body::Member(it) => match it.action {
            MemberAction::Create
            | MemberAction::Join
            | MemberAction::Leave
            | MemberAction::Kick
            | MemberAction::Role
            | MemberAction::Settings
            | MemberAction::Delete
            | MemberAction::Mute
            | MemberAction::Unmute => format!("{:?}", it.action),
        },
        Body::Recall(_) => "recall".to_owned(),
        Body::Prune(_) => "prune".to_owned(),
        Body::Rules(_) => "rules".to_owned(),
    }
}

const KINDS: usize = 15;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn log_records_keep_their_golden_bytes_and_hashes() {
    let files = json_files("vectors/log");
    let vectors: Vec<Vector> = serde_json::from_str(&files[0].1).unwrap();
    let bodies = bodies();
    let kinds: BTreeSet<_> = bodies.iter().map(|(_, body)| kind(body)).collect();
    assert_eq!((vectors.len(), kinds.len()), (bodies.len(), KINDS));
    for (vector, (name, body)) in vectors.iter().zip(bodies) {
        assert_eq!(vector.name, name);
        let key = match &body {
            Body::Message(it) => Some(message_key(it)),
            Body::Member(it) => Some(request_key(it)),
            Body::Edit(it) => Some(edit_key(it)),
            _ => None,
        };
        let origin = Origin { node: NodeId::new("n1").unwrap(), boot: 7, conn: 1 << 63, request: 9 };
        let record = Record { origin, received_at: 1_763_712_000_000, body, trace: None };
        let bytes = record.encode();
        assert_eq!(hex(&bytes), vector.hex, "{name}");
        assert_eq!(hex(&Position::behind(0, &bytes).hash), vector.hash, "{name}");
        assert_eq!(key.map(|key| hex(&key)), vector.key, "{name}");
        assert_eq!(Record::decode(bytes), Ok(record.clone()), "{name}");
        // A trace follows all other fields, and is found without decoding them.
        let trace = TraceContext::new(u128::MAX, 9);
        let traced = Record { trace: Some(trace), ..record };
        let bytes = traced.encode();
        assert_eq!(TraceContext::of_record(&bytes), Some(trace), "{name}");
        assert_eq!(TraceContext::of_record(&bytes[..bytes.len() - 26]), None, "{name}");
        assert!(hex(&bytes).starts_with(&vector.hex), "{name}");
        assert_eq!(Record::decode(bytes), Ok(traced), "{name}");
    }
}
