//! Edit of a message.

use bytes::Bytes;

use super::{Hash16, body_hash};
use crate::{
    code::Code,
    id::{ConversationId, DeviceId, MsgId, UserId},
    pb,
};

/// Replacement of a message's content, for all users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Conversation of the message.
    pub conversation: ConversationId,
    /// Seq of the message.
    pub seq: u64,
    /// User who edits it, `None` for the admin API.
    pub by: Option<UserId>,
    /// Device of the user.
    pub device: DeviceId,
    /// Id of the edit, per (conversation, by, device).
    pub msg_id: MsgId,
    /// Encoded [`crate::content::Content`]; empty in a row of history, since the row of the message has it.
    pub content: Bytes,
    /// [`body_hash`] of the content that the client sent.
    pub body_hash: Hash16,
    /// Refusal by the application or a block list; the content is left out.
    pub denied: Option<Code>,
}

impl Edit {
    /// Returns the hash that distinguishes a repeated edit from another one under the same id: over message and content.
    pub fn key_hash(&self) -> Hash16 {
        body_hash(&[&self.seq.to_be_bytes()[..], &self.body_hash].concat())
    }

    pub(super) fn to_pb(&self) -> pb::EditRecord {
        pb::EditRecord {
            conversation: self.conversation.to_string(),
            seq: self.seq,
            by: self.by.as_ref().map(ToString::to_string).unwrap_or_default(),
            device: self.device.to_string(),
            msg_id: self.msg_id.to_string(),
            content: self.content.clone(),
            body_hash: Bytes::copy_from_slice(&self.body_hash),
            denied: self.denied.map_or(0, |code| code.number().into()),
        }
    }
}
