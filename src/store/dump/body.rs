//! JSON form of a row's body: a message, a membership change, a recall or an edit.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message as _;
use serde::{Deserialize, Serialize};
use tidegate_protocol::{
    content::{self, Content},
    id::{ConversationId, DeviceId, IdError, MsgId, UserId},
    machine::ledger::Row,
    record::{
        Body, Edit, Hash16, MemberAction, MemberChange, Message, MessageMode, Recall, Role, SenderOrder,
    },
};

use super::{form, is_default};
use crate::store::StoredRow;

/// Fields of [`Entry::Row`](super::Entry::Row), named as in [`tidegate_protocol::machine::ledger::Row`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowLine {
    /// Seq of the row.
    pub seq: u64,
    /// Number of messages up to and including this row.
    pub ordinal: u64,
    /// Number of the sender's own messages up to and including this row.
    pub own: u64,
    /// Receive time at the broker, in ms since 1970.
    pub time: u64,
    /// Log offset of the record.
    pub offset: u64,
    /// Seq and time of the recall.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recalled: Option<(u64, u64)>,
    /// Seq and time of the newest edit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edited: Option<(u64, u64)>,
    /// Content of the row.
    pub body: BodyLine,
}

/// Content of a message: text if it is nothing but text, else the encoded bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContentLine {
    /// Text content.
    Text(String),
    /// Encoded `Content`.
    Encoded(#[serde(with = "form::base64")] Vec<u8>),
}

/// Body of a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BodyLine {
    /// [`Message`]; a recalled one has no content.
    Message(MessageLine),
    /// [`MemberChange`].
    Change(ChangeLine),
    /// [`Recall`].
    Recall(RecallLine),
    /// [`Edit`].
    Edit(EditLine),
}

/// Fields of a [`Message`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct MessageLine {
    #[serde(with = "form::text")]
    pub sender: UserId,
    #[serde(with = "form::text")]
    pub device: DeviceId,
    #[serde(with = "form::text")]
    pub msg_id: MsgId,
    pub attempt: u32,
    pub flags: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    pub transient: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pub silent: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pub operator: bool,
    pub epoch: u64,
    pub n: u64,
    pub chained: bool,
    #[serde(with = "form::hex")]
    pub body_hash: Hash16,
    pub content: ContentLine,
}

/// Fields of a [`MemberChange`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct ChangeLine {
    pub action: MemberAction,
    pub users: Vec<String>,
    pub role: Option<Role>,
    pub by: Option<String>,
    pub settings: BTreeMap<String, String>,
    #[serde(with = "form::text")]
    pub request_id: MsgId,
}

/// Fields of a [`Recall`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct RecallLine {
    pub seq: u64,
    pub by: Option<String>,
}

/// Fields of an [`Edit`]; its content is that of the message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct EditLine {
    pub seq: u64,
    pub by: Option<String>,
    #[serde(with = "form::text")]
    pub device: DeviceId,
    #[serde(with = "form::text")]
    pub msg_id: MsgId,
    #[serde(with = "form::hex")]
    pub body_hash: Hash16,
}

impl RowLine {
    /// Creates the line from a stored row; `None` if the record is not part of a history.
    pub fn new(stored: &StoredRow) -> Option<Self> {
        let StoredRow { row, recalled, edited } = stored;
        let Row { seq, ordinal, own, time, offset, body } = row;
        let body = body_line(body)?;
        let (seq, ordinal, own, time) = (*seq, *ordinal, *own, *time);
        Some(Self { seq, ordinal, own, time, offset: *offset, recalled: *recalled, edited: *edited, body })
    }

    /// Returns the row to store.
    ///
    /// # Errors
    /// Names an invalid id.
    pub fn stored(&self, conversation: &ConversationId) -> Result<StoredRow, IdError> {
        let Self { seq, ordinal, own, time, offset, recalled, edited, ref body } = *self;
        let body = body.body(conversation)?;
        Ok(StoredRow { row: Row { seq, ordinal, own, time, offset, body }, recalled, edited })
    }
}

fn body_line(body: &Body) -> Option<BodyLine> {
    let by = |by: &Option<UserId>| by.as_ref().map(ToString::to_string);
    Some(match body {
        Body::Message(it) => BodyLine::Message(MessageLine {
            sender: it.sender.clone(),
            device: it.device.clone(),
            msg_id: it.msg_id.clone(),
            attempt: it.attempt,
            flags: it.flags,
            transient: it.mode.is_transient,
            silent: it.mode.is_silent,
            operator: it.mode.is_operator,
            epoch: it.order.epoch,
            n: it.order.n,
            chained: it.order.chained,
            body_hash: it.body_hash,
            content: ContentLine::new(&it.content),
        }),
        Body::Member(it) => BodyLine::Change(ChangeLine {
            action: it.action,
            users: it.users.iter().map(ToString::to_string).collect(),
            role: it.role,
            by: by(&it.by),
            settings: it.settings.clone(),
            request_id: it.request_id.clone(),
        }),
        Body::Recall(it) => BodyLine::Recall(RecallLine { seq: it.seq, by: by(&it.by) }),
        Body::Edit(it) => BodyLine::Edit(EditLine {
            seq: it.seq,
            by: by(&it.by),
            device: it.device.clone(),
            msg_id: it.msg_id.clone(),
            body_hash: it.body_hash,
        }),
        Body::Prune(_) | Body::Rules(_) => return None,
    })
}

impl BodyLine {
    /// Returns the body of a row of the conversation.
    ///
    /// # Errors
    /// Names an invalid id.
    pub fn body(&self, conversation: &ConversationId) -> Result<Body, IdError> {
        let conversation = conversation.clone();
        let by = |by: &Option<String>| by.as_deref().map(UserId::new).transpose();
        Ok(match self {
            Self::Message(it) => Body::Message(Message {
                conversation,
                sender: it.sender.clone(),
                device: it.device.clone(),
                msg_id: it.msg_id.clone(),
                attempt: it.attempt,
                content: it.content.encoded(),
                order: SenderOrder { epoch: it.epoch, n: it.n, chained: it.chained },
                flags: it.flags,
                mode: MessageMode {
                    is_transient: it.transient,
                    is_silent: it.silent,
                    is_operator: it.operator,
                    denied: None,
                },
                body_hash: it.body_hash,
            }),
            Self::Change(it) => Body::Member(MemberChange {
                conversation,
                action: it.action,
                users: it.users.iter().map(|user| UserId::new(user)).collect::<Result<_, _>>()?,
                role: it.role,
                by: by(&it.by)?,
                settings: it.settings.clone(),
                request_id: it.request_id.clone(),
            }),
            Self::Recall(it) => Body::Recall(Recall { conversation, seq: it.seq, by: by(&it.by)? }),
            Self::Edit(it) => Body::Edit(Edit {
                conversation,
                seq: it.seq,
                by: by(&it.by)?,
                device: it.device.clone(),
                msg_id: it.msg_id.clone(),
                content: Bytes::new(),
                body_hash: it.body_hash,
                denied: None,
            }),
        })
    }

    /// Returns whether the row counts as a message, which a silent one does not.
    pub fn is_message(&self) -> bool {
        matches!(self, Self::Message(message) if !message.silent)
    }
}

impl MessageLine {
    /// Returns whether the message is one of its sender's own, as [`Message::is_own`] does.
    pub fn is_own(&self, conversation: &ConversationId) -> bool {
        !self.silent && (!self.operator || conversation.is_direct_of(&self.sender))
    }
}

impl ContentLine {
    fn new(bytes: &Bytes) -> Self {
        let text = match Content::decode(bytes.clone()) {
            Ok(it) if it.is_plain() => match it.body {
                Some(content::ContentBody::Text(text)) => text,
                _ => return Self::Encoded(bytes.to_vec()),
            },
            _ => return Self::Encoded(bytes.to_vec()),
        };
        // Text that encodes to other bytes is kept as bytes, so that an import restores the content exactly.
        let line = Self::Text(text);
        if line.encoded() == bytes { line } else { Self::Encoded(bytes.to_vec()) }
    }

    fn encoded(&self) -> Bytes {
        match self {
            Self::Text(text) => Content::text(text.clone()).encode_to_vec().into(),
            Self::Encoded(bytes) => Bytes::copy_from_slice(bytes),
        }
    }
}
