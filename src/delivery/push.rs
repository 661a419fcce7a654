//! Pushes made from records: one conversion for dispatchers, large groups and history.

use bytes::Bytes;
use prost::Message as _;
use tidegate_protocol::{
    codec::PushFrame,
    content::Content,
    pb,
    record::{Body, Edit, MemberAction, MemberChange, Recall, Record, Role},
};

/// Returns the push of a recall, as all members get it.
pub(crate) fn recall_push(time: u64, recall: &Recall, seq: u64) -> pb::Push {
    pb::Push {
        conversation: recall.conversation.to_string(),
        seq,
        sender: recall.by.as_ref().map(ToString::to_string).unwrap_or_default(),
        time,
        recall: Some(pb::RecallEvent { seq: recall.seq }),
        ..Default::default()
    }
}

/// Returns the push of an edit with this content, or without one if the receivers have to pull it.
pub(crate) fn edit_push(time: u64, edit: &Edit, seq: u64, content: Option<Content>) -> pb::Push {
    pb::Push {
        conversation: edit.conversation.to_string(),
        seq,
        sender: edit.by.as_ref().map(ToString::to_string).unwrap_or_default(),
        msg_id: edit.msg_id.to_string(),
        time,
        edit: Some(pb::EditEvent { seq: edit.seq, content }),
        ..Default::default()
    }
}

/// Returns the push of an edit as the members get it when it is accepted.
pub(crate) fn live_edit_push(time: u64, edit: &Edit, seq: u64) -> pb::Push {
    edit_push(time, edit, seq, Content::decode(edit.content.clone()).ok())
}

/// Returns the push of a membership change, as the members get it.
pub(crate) fn event_push(time: u64, change: &MemberChange, seq: u64) -> pb::Push {
    let kind = match change.action {
        MemberAction::Create => pb::MemberChange::Created,
        MemberAction::Join => pb::MemberChange::Joined,
        MemberAction::Leave => pb::MemberChange::Left,
        MemberAction::Kick => pb::MemberChange::Kicked,
        MemberAction::Role => pb::MemberChange::Role,
        MemberAction::Settings => pb::MemberChange::Settings,
        MemberAction::Delete => pb::MemberChange::Deleted,
        MemberAction::Mute => pb::MemberChange::Muted,
        MemberAction::Unmute => pb::MemberChange::Unmuted,
    };
    let event = pb::MemberEvent {
        change: kind as i32,
        users: change.users.iter().map(ToString::to_string).collect(),
        role: change.role.map(Role::word).unwrap_or_default().to_owned(),
        settings: change.settings.clone(),
    };
    pb::Push {
        conversation: change.conversation.to_string(),
        seq,
        sender: change.by.as_ref().map(ToString::to_string).unwrap_or_default(),
        time,
        event: Some(event),
        ..Default::default()
    }
}

/// Encodes the `Push` of a record with its seq; `None` for records that are not pushed.
pub(crate) fn encode(record: &Record, seq: u64) -> Option<Bytes> {
    match &record.body {
        Body::Message(message) => PushFrame::from_parts(
            message.conversation.as_str(),
            seq,
            message.sender.as_str(),
            message.msg_id.as_str(),
            record.received_at,
            &message.content,
            message.shown_flags(),
        )
        .push(),
        Body::Member(change) => Some(event_push(record.received_at, change, seq).encode_to_vec().into()),
        Body::Recall(recall) => Some(recall_push(record.received_at, recall, seq).encode_to_vec().into()),
        Body::Edit(edit) => Some(live_edit_push(record.received_at, edit, seq).encode_to_vec().into()),
        Body::Prune(_) | Body::Rules(_) => None,
    }
}
