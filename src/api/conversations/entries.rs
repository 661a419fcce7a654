//! Entries of histories and states of conversations as JSON.

use serde_json::{Map, Value, json};
use tidegate_protocol::{
    id::ConversationKind,
    record::{Body, MemberAction, MemberChange, Message, flag_words},
};

use crate::{
    conversation::{history::HistoryPage, overview::Listed},
    events::{content_json, put_author},
    store::StoredRow,
};

/// Returns an entry of a history. Its kind is `message`, `recall`, or that of a change of the group.
pub(super) fn entry(row: &StoredRow) -> Map<String, Value> {
    let mut entry = Map::new();
    if let Body::Message(message) = &row.row.body {
        put_author(message, &mut entry);
    }
    let mut put = |name: &str, value: Value| drop(entry.insert(name.to_owned(), value));
    put("seq", json!(row.row.seq));
    put("time", json!(row.row.time));
    match &row.row.body {
        Body::Message(message) => {
            put_message(message, &mut put);
            if let Some((seq, time)) = row.edited {
                put("edited", json!({"seq": seq, "time": time}));
            }
        }
        Body::Member(change) => put_change(change, &mut put),
        Body::Recall(recall) => {
            put("kind", json!("recall"));
            put("sender", json!(recall.by.as_ref().map(|user| user.as_str())));
            put("of", json!(recall.seq));
        }
        Body::Edit(edit) => {
            put("kind", json!("edit"));
            put("sender", json!(edit.by.as_ref().map(|user| user.as_str())));
            put("device", json!(edit.device.as_str()));
            put("msgId", json!(edit.msg_id.as_str()));
            put("of", json!(edit.seq));
        }
        // They have no seq.
        Body::Prune(_) | Body::Rules(_) => {}
    }
    entry
}

fn put_message(message: &Message, put: &mut impl FnMut(&str, Value)) {
    put("kind", json!("message"));
    put("content", content_json(&message.content));
    let flags = flag_words(message.shown_flags());
    if !flags.is_empty() {
        put("flags", json!(flags));
    }
}

fn put_change(change: &MemberChange, put: &mut impl FnMut(&str, Value)) {
    put("kind", json!(kind(change.action)));
    put("sender", json!(change.by.as_ref().map(|user| user.as_str())));
    let users: Vec<&str> = change.users.iter().map(|user| user.as_str()).collect();
    put("users", json!(users));
    if let Some(role) = change.role {
        put("role", json!(role.word()));
    }
    if !change.settings.is_empty() {
        put("settings", json!(change.settings));
    }
}

/// Returns the kind of a change, as events name it.
fn kind(action: MemberAction) -> &'static str {
    match action {
        MemberAction::Create => "created",
        MemberAction::Join => "joined",
        MemberAction::Leave => "left",
        MemberAction::Kick => "kicked",
        MemberAction::Role => "role",
        MemberAction::Settings => "settings",
        MemberAction::Delete => "deleted",
        MemberAction::Mute => "muted",
        MemberAction::Unmute => "unmuted",
    }
}

/// Returns an entry of a page, with the content of an edit.
pub(super) fn page_entry(page: &HistoryPage, row: &StoredRow) -> Map<String, Value> {
    let mut entry = entry(row);
    if let Some(encoded) = page.edits.get(&row.row.seq) {
        entry.insert("content".to_owned(), content_json(encoded));
    }
    entry
}

/// Returns the state of a user's conversation, with its last entry if `with_last`.
pub(super) fn state(listed: &Listed, user: &str, with_last: bool) -> Value {
    let (membership, view) = (&listed.membership, &listed.view);
    let mut state = Map::new();
    let mut put = |name: &str, value: Value| drop(state.insert(name.to_owned(), value));
    put("conversation", json!(membership.conversation.as_str()));
    if let ConversationKind::Direct(one, other) = membership.conversation.kind() {
        put("peer", json!(if one == user { other } else { one }));
    }
    put("member", json!(view.is_in));
    put("members", json!(membership.members));
    put("maxSeq", json!(view.max()));
    put("minSeq", json!(view.min()));
    put("readSeq", json!(view.mark().seq));
    put("clearedSeq", json!(view.user_state().cleared.seq));
    put("unread", json!(listed.unread));
    if let Some(push) = view.user_state().push {
        put("push", json!(push.word()));
    }
    if let Some(bound) = view.user_state().bound {
        put("boundSeq", json!(bound.seq));
    }
    if let Some(time) = listed.time {
        put("time", json!(time));
    }
    if with_last {
        put("last", json!(listed.last.as_ref().map(entry)));
    }
    Value::Object(state)
}
