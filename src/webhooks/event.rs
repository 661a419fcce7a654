//! Encoding of an entry of the history as a CloudEvent.

use std::ops::RangeInclusive;

use serde_json::{Map, Value, json};
use tidegate_protocol::{
    content::Content,
    id::ConversationKind,
    machine::webhook::{WebhookEvent, WebhookEventKind},
    record::{Body, Edit, MemberAction, MemberChange, Message, flag_words},
};

use super::{
    content::Found,
    filter::{ACCEPTED, EDITED, PRUNED, RECALLED, WebhookFilter, change_type},
    plan::WebhookPlan,
};
use crate::{
    clock::{rfc3339, wall_ms},
    events::{content_json, put_author},
    hooks::EncodedEvent,
    store::{FeedKind, StoredRow},
};

/// Type of the event that an operator sends as a test.
const TEST: &str = "tidegate.webhook.test";

/// Type of the event on a topic about what the feed no longer has.
const GAP: &str = "tidegate.feed.gap";

/// What an event has in place of content that is too large for the topic of messages.
const OVERSIZED: &str = "oversized";

/// Encoder of the events of one endpoint.
#[derive(Clone, Debug)]
pub(crate) struct EventEncoder {
    pub(crate) source: String,
    pub(crate) filter: WebhookFilter,
    pub(crate) with_content: bool,
}

type Data = Map<String, Value>;

/// Returns the kind of the event of an entry of the feed.
pub(crate) const fn event_kind(kind: FeedKind) -> WebhookEventKind {
    match kind {
        FeedKind::Message => WebhookEventKind::Message,
        FeedKind::Change => WebhookEventKind::Change,
        FeedKind::Recall => WebhookEventKind::Recall,
        FeedKind::Edit => WebhookEventKind::Edit,
        FeedKind::Prune => WebhookEventKind::Pruned,
        FeedKind::Unknown(_) => WebhookEventKind::Entry,
    }
}

impl EventEncoder {
    pub(super) fn new(plan: &WebhookPlan) -> Self {
        let WebhookPlan { source, filter, with_content, .. } = plan;
        Self { source: source.clone(), filter: filter.clone(), with_content: *with_content }
    }

    /// Returns an encoder that encodes all events.
    pub(super) fn unfiltered(plan: &WebhookPlan) -> Self {
        Self { filter: WebhookFilter::all(), ..Self::new(plan) }
    }

    /// Encodes an event; `None` if the endpoint does not want it. An entry that was removed from the history has the type of its
    /// kind, and `gone`. One of unknown kind is left out then: the event of the removal, which follows, includes it.
    pub(crate) fn encode(&self, event: &WebhookEvent, found: &Found) -> Option<EncodedEvent> {
        if !self.filter.wants_conversation(&event.conversation) || !self.filter.wants_users(event, found) {
            return None;
        }
        let mut data = Data::new();
        let (key, seq) = (event.conversation.as_str(), event.seq);
        data.insert("conversation".into(), json!(key));
        let (kind, id, time) = match (event.kind, found) {
            (WebhookEventKind::Pruned, _) => {
                data.insert("upTo".into(), json!(seq));
                (PRUNED, format!("pruned/{key}/{seq}"), None)
            }
            (kind, Found::Pruned) => {
                data.insert("seq".into(), json!(seq));
                data.insert("gone".into(), json!("pruned"));
                (removed_type(kind)?, format!("{key}/{seq}"), None)
            }
            (_, Found::Row(row, message)) => {
                data.insert("seq".into(), json!(seq));
                data.insert("time".into(), json!(row.row.time));
                let kind = self.put_row(row, message.as_deref(), &mut data)?;
                (kind, format!("{key}/{seq}"), Some(row.row.time))
            }
        };
        if !self.filter.wants_type(kind) {
            return None;
        }
        let event = cloud_event(CloudEvent { id, kind, source: &self.source, subject: key, time, data });
        Some(EncodedEvent { entry_ms: time, ..event })
    }

    /// Puts what the row has, and returns the type.
    fn put_row(&self, row: &StoredRow, message: Option<&StoredRow>, data: &mut Data) -> Option<&'static str> {
        match &row.row.body {
            Body::Message(message) => {
                self.put_message(message, row, data);
                Some(ACCEPTED)
            }
            Body::Member(change) => {
                put_change(change, data);
                Some(change_type(change.action))
            }
            Body::Recall(recall) => {
                data.insert("of".into(), json!(recall.seq));
                put_by(recall.by.as_ref().map(|by| by.as_str()), data);
                Some(RECALLED)
            }
            Body::Edit(edit) => {
                self.put_edit(edit, message, data);
                Some(EDITED)
            }
            // They have no seq.
            Body::Prune(_) | Body::Rules(_) => None,
        }
    }

    fn put_message(&self, message: &Message, row: &StoredRow, data: &mut Data) {
        put_author(message, data);
        if let ConversationKind::Direct(one, other) = message.conversation.kind() {
            let to = if one == message.sender.as_str() { other } else { one };
            if message.conversation.is_direct_of(&message.sender) {
                data.insert("to".into(), json!(to));
            }
        }
        let flags = flag_words(message.shown_flags());
        if !flags.is_empty() {
            data.insert("flags".into(), json!(flags));
        }
        if let Some((seq, time)) = row.edited {
            data.insert("edited".into(), json!({"seq": seq, "time": time}));
        }
        if let Some(gone) = gone(row, message) {
            data.insert("gone".into(), json!(gone));
            return;
        }
        data.insert("bytes".into(), json!(message.content.len()));
        if self.with_content {
            put_header(message, data);
            data.insert("content".into(), content_json(&message.content));
        }
    }

    /// Puts an edit, with the newest content of the message: there is no other.
    fn put_edit(&self, edit: &Edit, message: Option<&StoredRow>, data: &mut Data) {
        data.insert("of".into(), json!(edit.seq));
        put_by(edit.by.as_ref().map(|by| by.as_str()), data);
        let Some(row) = message else {
            data.insert("gone".into(), json!("pruned"));
            return;
        };
        let Body::Message(message) = &row.row.body else { return };
        if let Some(gone) = gone(row, message) {
            data.insert("gone".into(), json!(gone));
        } else if self.with_content {
            data.insert("content".into(), content_json(&message.content));
        }
    }
}

/// Returns why the content of a message no longer exists.
fn gone(row: &StoredRow, message: &Message) -> Option<&'static str> {
    match (row.recalled.is_some(), message.mode.is_transient) {
        (true, _) => Some("recalled"),
        (false, true) => Some("transient"),
        (false, false) => None,
    }
}

/// Puts what a content says about itself.
fn put_header(message: &Message, data: &mut Data) {
    let Ok(content) = <Content as prost::Message>::decode(message.content.clone()) else { return };
    if !content.kind.is_empty() {
        data.insert("type".into(), json!(content.kind));
    }
    if content.reply_to > 0 {
        data.insert("replyTo".into(), json!(content.reply_to));
    }
    if !content.mentions.is_empty() {
        data.insert("mentions".into(), json!(content.mentions));
    }
}

/// Returns the type of an entry that was removed. That of a change has gone with it.
const fn removed_type(kind: WebhookEventKind) -> Option<&'static str> {
    match kind {
        WebhookEventKind::Message => Some(ACCEPTED),
        WebhookEventKind::Recall => Some(RECALLED),
        WebhookEventKind::Edit => Some(EDITED),
        WebhookEventKind::Change => Some(change_type(MemberAction::Settings)),
        WebhookEventKind::Entry | WebhookEventKind::Pruned => None,
    }
}

/// Returns an event by which an operator tests an endpoint.
pub(super) fn test_event(plan: &WebhookPlan) -> EncodedEvent {
    let (name, time) = (plan.consumer.as_str(), wall_ms());
    let mut data = Data::new();
    data.insert("webhook".into(), json!(name));
    data.insert("time".into(), json!(time));
    let id = format!("test/{name}/{}", uuid::Uuid::new_v4().simple());
    cloud_event(CloudEvent { id, kind: TEST, source: &plan.source, subject: name, time: Some(time), data })
}

/// Returns the event of a gap: these numbers of a partition are no longer in the feed.
pub(super) fn gap_event(source: &str, partition: u32, numbers: &RangeInclusive<u64>) -> EncodedEvent {
    let (first, last, subject) = (*numbers.start(), *numbers.end(), partition.to_string());
    let mut data = Data::new();
    data.insert("partition".into(), json!(partition));
    data.insert("first".into(), json!(first));
    data.insert("last".into(), json!(last));
    let id = format!("gap/{partition}/{first}-{last}");
    cloud_event(CloudEvent { id, kind: GAP, source, subject: &subject, time: Some(wall_ms()), data })
}

/// Returns an event without the content of its message, and says so; `None` if it has none.
pub(super) fn without_content(json: &[u8]) -> Option<Vec<u8>> {
    let mut event: Value = serde_json::from_slice(json).ok()?;
    let data = event.get_mut("data")?.as_object_mut()?;
    data.remove("content")?;
    data.insert("gone".into(), json!(OVERSIZED));
    Some(event.to_string().into_bytes())
}

/// Returns an event with nothing but its attributes, the conversation and the number, and says so.
pub(super) fn without_data(json: &[u8]) -> Option<Vec<u8>> {
    let mut event: Value = serde_json::from_slice(json).ok()?;
    let data = event.get_mut("data")?.as_object_mut()?;
    data.retain(|name, _| ["conversation", "seq"].contains(&name.as_str()));
    data.insert("gone".into(), json!(OVERSIZED));
    Some(event.to_string().into_bytes())
}

/// Attributes of a CloudEvent.
pub(crate) struct CloudEvent<'a> {
    pub(crate) id: String,
    pub(crate) kind: &'a str,
    pub(crate) source: &'a str,
    /// Subject, and key by which a receiver may partition events.
    pub(crate) subject: &'a str,
    pub(crate) time: Option<u64>,
    pub(crate) data: Data,
}

pub(crate) fn cloud_event(event: CloudEvent<'_>) -> EncodedEvent {
    let CloudEvent { id, kind, source, subject, time, data } = event;
    let mut cloud = json!({
        "specversion": "1.0",
        "id": id,
        "source": source,
        "type": kind,
        "subject": subject,
        "partitionkey": subject,
        "datacontenttype": "application/json",
        "data": data,
    });
    if let (Some(time), Some(cloud)) = (time, cloud.as_object_mut()) {
        cloud.insert("time".into(), json!(rfc3339(time)));
    }
    EncodedEvent { id, key: subject.to_owned(), json: cloud.to_string().into_bytes(), entry_ms: None }
}

fn put_by(by: Option<&str>, data: &mut Data) {
    if let Some(by) = by {
        data.insert("by".into(), json!(by));
    }
}

fn put_change(change: &MemberChange, data: &mut Data) {
    put_by(change.by.as_ref().map(|by| by.as_str()), data);
    if !change.users.is_empty() {
        let users: Vec<&str> = change.users.iter().map(|user| user.as_str()).collect();
        data.insert("users".into(), json!(users));
    }
    if let Some(role) = change.role {
        data.insert("role".into(), json!(role.word()));
    }
    if !change.settings.is_empty() {
        data.insert("settings".into(), json!(change.settings));
    }
}
