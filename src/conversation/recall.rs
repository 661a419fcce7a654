//! Recall: takes a message back for all users. Permission and time limit are checked
//! here, permission again by the ledger.
//!
//! The clock is used only before the append: the ledger's answer is a function of the log (ADR 3).

use std::{sync::Arc, time::Duration};

use tidegate_protocol::{
    Code,
    id::{ConversationId, ConversationKind},
    machine::session::SubmitAnswer,
    pb,
    record::{Body, Recall, Role},
};

use super::{
    read_position::{NO_MESSAGES, OwnConversation},
    refusal::store_unavailable,
    unread::View,
};
use crate::{
    ingest::admin::Admin,
    live::Live,
    mail::Refusal,
    store::{Direction, MemberView, PageQuery, StoredRow},
};

/// Checker and sender of recalls and edits.
#[derive(Clone)]
pub struct Recaller {
    /// Sender of records to the log.
    pub admin: Admin,
    /// Time within which a sender may recall a message; owners and admins of a group have no limit.
    pub within: Arc<Live<Duration>>,
    /// Time within which a sender may edit a message, in the same way.
    pub edit_within: Arc<Live<Duration>>,
}

/// Outcome of the check of a permitted recall.
pub enum RecallOutcome {
    /// The message is recalled already.
    Done(pb::SendAck),
    /// The recall may be sent.
    Allowed(Recall),
}

impl Recaller {
    /// Checks whether the user may recall the message, without recalling it; `now_ms` is the wall clock.
    ///
    /// # Errors
    /// `NOT_A_MEMBER` if the user is not a member; `NOT_FOUND` if the user sees no such message; `NOT_YET` if it may
    /// not be stored yet; `FORBIDDEN` if the user is neither its sender nor an admin of the group; `TOO_LATE` for the
    /// sender after the time limit.
    pub async fn check(
        &self,
        of: OwnConversation<'_>,
        seq: u64,
        now_ms: u64,
    ) -> Result<RecallOutcome, Refusal> {
        let (member_view, found) = find(of, seq).await?;
        let OwnConversation { user, conversation, .. } = of;
        if let Some((seq, time)) = found.recalled {
            return Ok(RecallOutcome::Done(ack(conversation, seq, time, true)));
        }
        let Body::Message(message) = &found.row.body else {
            return Err((Code::NotFound, "only messages can be recalled"));
        };
        let leads = leads(conversation, &member_view);
        if !leads && message.sender != *user {
            return Err((Code::Forbidden, "only its sender or an admin of the group can recall a message"));
        }
        let age = Duration::from_millis(now_ms.saturating_sub(found.row.time));
        let within = *self.within.get();
        if !leads && (within.is_zero() || age > within) {
            return Err((Code::TooLate, ""));
        }
        Ok(RecallOutcome::Allowed(Recall { conversation: conversation.clone(), seq, by: Some(user.clone()) }))
    }

    /// Sends a permitted recall to the log. A repeated recall returns the same seq.
    ///
    /// # Errors
    /// The code of the ledger's refusal; `UNKNOWN` if no answer arrived.
    pub async fn recall(&self, recall: Recall, now_ms: u64) -> Result<pb::SendAck, Refusal> {
        let conversation = recall.conversation.clone();
        match self.admin.recall(recall, now_ms).await {
            SubmitAnswer::Accepted { seq, time } => Ok(ack(&conversation, seq, time, false)),
            SubmitAnswer::Duplicate { seq, time } => Ok(ack(&conversation, seq, time, true)),
            SubmitAnswer::Refused { code, .. } => Err((code, "")),
            SubmitAnswer::Unknown | SubmitAnswer::AppendFailed => {
                Err((Code::Unknown, "retry; a message is recalled only once"))
            }
        }
    }
}

fn ack(conversation: &ConversationId, seq: u64, time: u64, duplicate: bool) -> pb::SendAck {
    pb::SendAck { conversation: conversation.to_string(), seq, time, duplicate, ..pb::SendAck::default() }
}

/// Returns whether the user is an owner or admin of the group.
pub(super) fn leads(conversation: &ConversationId, member_view: &MemberView) -> bool {
    matches!(conversation.kind(), ConversationKind::Group(_)) && member_view.member.role >= Role::Admin
}

/// Returns the row and the user's membership, if the user is a member and sees the row.
pub(super) async fn find(of: OwnConversation<'_>, seq: u64) -> Result<(MemberView, StoredRow), Refusal> {
    let OwnConversation { store, user, conversation, above } = of;
    let nothing = (Code::NotFound, "there is no message with this seq");
    let summary = above.summary(store, Some(user), conversation).await;
    let summary = summary.map_err(|refusal| if refusal == NO_MESSAGES { nothing } else { refusal })?;
    let is_in = summary.member_view.filter(|it| it.member.is_in());
    let member_view = is_in.ok_or(above.not_a_member(summary.archived))?;
    // A bound is for reading alone: what a bounded member sends, the member can take back.
    let view = View::whole(conversation, &summary.head, &member_view);
    above.check(&view, summary.archived, seq)?;
    if !view.sees(seq) {
        return Err(nothing);
    }
    let cursor = seq.saturating_sub(1);
    let query = PageQuery { cursor, direction: Direction::Forward, limit: 1, max_bytes: 1 };
    let rows = store.page(conversation, query).await.map_err(store_unavailable)?.rows;
    let found = rows.into_iter().find(|found| found.row.seq == seq).ok_or(nothing)?;
    Ok((member_view, found))
}
