//! Edit: replaces the content of a message for all users. The ledger checks the rights; the time limit is checked here.
//!
//! The clock is used only before the append. An edit that comes too late is appended as a denied one, so that a repeated edit
//! gets the answer of the first, whatever the time is now.

use std::time::Duration;

use bytes::Bytes;
use tidegate_protocol::{
    Code,
    machine::session::SubmitAnswer,
    pb,
    record::{Body, Edit},
};

use super::{
    read_position::OwnConversation,
    recall::{Recaller, find, leads},
};
use crate::mail::Refusal;

impl Recaller {
    /// Returns the code by which a user's edit of the message is denied, `None` if the ledger alone decides; `now_ms` is the wall clock.
    ///
    /// # Errors
    /// `NOT_YET` if the message may not be stored yet; the store can't be read.
    pub async fn edit_denial(
        &self,
        of: OwnConversation<'_>,
        seq: u64,
        now_ms: u64,
    ) -> Result<Option<Code>, Refusal> {
        let (member_view, found) = match find(of, seq).await {
            Ok(found) => found,
            // The user may have sent the edit before, when there was such a message.
            Err((code @ (Code::NotFound | Code::NotAMember), _)) => return Ok(Some(code)),
            Err(refusal) => return Err(refusal),
        };
        let age = Duration::from_millis(now_ms.saturating_sub(found.row.time));
        let within = *self.edit_within.get();
        let is_late = within.is_zero() || age > within;
        Ok((is_late && !leads(of.conversation, &member_view)).then_some(Code::TooLate))
    }

    /// Sends an edit to the log. A repeated edit returns the same seq.
    ///
    /// # Errors
    /// The code of the ledger's refusal, with the reason if it has one; `UNKNOWN` if no answer arrived.
    pub async fn edit(&self, mut edit: Edit, now_ms: u64) -> Result<pb::SendAck, (Code, String)> {
        if edit.denied.is_some() {
            // What is refused is not kept; the hash of a repetition is that of the content all the same.
            edit.content = Bytes::new();
        }
        let (conversation, msg_id) = (edit.conversation.to_string(), edit.msg_id.to_string());
        let (seq, time, duplicate) = match self.admin.append(Body::Edit(edit), now_ms).await {
            SubmitAnswer::Accepted { seq, time } => (seq, time, false),
            SubmitAnswer::Duplicate { seq, time } => (seq, time, true),
            SubmitAnswer::Refused { code, message } => return Err((code, message.into_owned())),
            SubmitAnswer::Unknown | SubmitAnswer::AppendFailed => {
                return Err((Code::Unknown, format!("repeat the edit under the id {msg_id}")));
            }
        };
        Ok(pb::SendAck { conversation, msg_id, seq, time, duplicate })
    }
}
