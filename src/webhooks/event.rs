//! Encoding of an entry of the history as a CloudEvent.

use serde_json::{Map, Value, json};
use tidegate_protocol::{
    machine::webhook::{WebhookEvent, WebhookEventKind},
    record::{Body, MemberChange, Message},
};

use super::filter::{ACCEPTED, EDITED, PRUNED, RECALLED, WebhookFilter, change_type};
use crate::{clock::rfc3339, events::content_json, hooks::EncodedEvent, store::StoredRow};

/// What the store has about an event.
pub(crate) enum Found {
    /// Its row.
    Row(Box<StoredRow>),
    /// None: it was removed from the history.
    Pruned,
}

/// Encoder of the events of one endpoint.
#[derive(Clone, Debug)]
pub(crate) struct EventEncoder {
    pub(crate) source: String,
    pub(crate) filter: WebhookFilter,
    pub(crate) with_content: bool,
}

type Data = Map<String, Value>;

impl EventEncoder {
    /// Encodes an event; `None` if the endpoint does not want it. An entry that was removed from the history has the type of
    /// a message, whatever it was.
    pub(crate) fn encode(&self, event: &WebhookEvent, found: &Found) -> Option<EncodedEvent> {
        let mut data = Data::new();
        data.insert("conversation".into(), json!(event.conversation.as_str()));
        let key = event.conversation.as_str();
        let seq = event.seq;
        let (kind, id, time) = match (event.kind, found) {
            (WebhookEventKind::Pruned, _) => {
                data.insert("upTo".into(), json!(seq));
                (PRUNED, format!("pruned/{key}/{seq}"), None)
            }
            (WebhookEventKind::Entry, Found::Pruned) => {
                data.insert("seq".into(), json!(seq));
                data.insert("gone".into(), json!("pruned"));
                (ACCEPTED, format!("{key}/{seq}"), None)
            }
            (WebhookEventKind::Entry, Found::Row(row)) => {
                data.insert("seq".into(), json!(seq));
                data.insert("time".into(), json!(row.row.time));
                (self.put_row(row, &mut data)?, format!("{key}/{seq}"), Some(row.row.time))
            }
        };
        if !self.filter.wants_type(kind) {
            return None;
        }
        let mut cloud = json!({
            "specversion": "1.0",
            "id": id,
            "source": self.source,
            "type": kind,
            "subject": key,
            "partitionkey": key,
            "datacontenttype": "application/json",
            "data": data,
        });
        if let (Some(time), Some(cloud)) = (time, cloud.as_object_mut()) {
            cloud.insert("time".into(), json!(rfc3339(time)));
        }
        Some(EncodedEvent { id, json: cloud.to_string().into_bytes() })
    }

    /// Puts what the row has, and returns the type.
    fn put_row(&self, row: &StoredRow, data: &mut Data) -> Option<&'static str> {
        match &row.row.body {
            Body::Message(message) => {
                self.put_message(message, row.recalled.is_some(), data);
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
                data.insert("of".into(), json!(edit.seq));
                put_by(edit.by.as_ref().map(|by| by.as_str()), data);
                Some(EDITED)
            }
            // They have no seq.
            Body::Prune(_) | Body::Rules(_) => None,
        }
    }

    fn put_message(&self, message: &Message, is_recalled: bool, data: &mut Data) {
        data.insert("sender".into(), json!(message.sender.as_str()));
        data.insert("device".into(), json!(message.device.as_str()));
        data.insert("msgId".into(), json!(message.msg_id.as_str()));
        if is_recalled {
            data.insert("gone".into(), json!("recalled"));
            return;
        }
        if message.mode.is_transient {
            data.insert("gone".into(), json!("transient"));
            return;
        }
        data.insert("bytes".into(), json!(message.content.len()));
        if self.with_content {
            data.insert("content".into(), content_json(&message.content));
        }
    }
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
