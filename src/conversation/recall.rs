//! Recall: takes a message back for everybody; who may and until when is checked here, who may by the ledger once more.
//!
//! The clock decides before the append only: what the ledger answers follows from the log (DESIGN 6.1).

use std::time::Duration;

use tidegate_protocol::{
    Code,
    id::{ConversationId, ConversationKind, UserId},
    machine::session::Answer,
    pb,
    record::{Body, Recall, Role},
};

use super::{
    history::{Refusal, away},
    read_position::{Above, NOT_STORED},
    unread::View,
};
use crate::{
    ingest::admin::Admin,
    store::{Direction, PageQuery, Standing, Store, StoredRow},
};

/// What a recall goes through.
#[derive(Clone)]
pub struct Recaller {
    /// The way to the log.
    pub admin: Admin,
    /// How long a sender may take a message back; owners and admins of a group always may.
    pub within: Duration,
}

/// What is to be done for a recall that is allowed.
pub enum Judged {
    /// Nothing: it was done before.
    Done(pb::SendAck),
    /// This.
    Allowed(Recall),
}

impl Recaller {
    /// Whether the message may be taken back, or was; `now_ms` is the wall clock. Nothing is done yet.
    ///
    /// # Errors
    /// `NOT_A_MEMBER` for who is not in; `NOT_FOUND` where the user sees no message; `NOT_YET` where there may be one that is
    /// not stored yet; `FORBIDDEN` for who neither sent it nor leads the group; `TOO_LATE` for its sender after the time.
    pub async fn judge(
        &self,
        store: &dyn Store,
        user: &UserId,
        conversation: &ConversationId,
        (seq, above): (u64, Above),
        now_ms: u64,
    ) -> Result<Judged, Refusal> {
        let (standing, found) = find(store, user, conversation, (seq, above)).await?;
        if let Some((seq, time)) = found.recalled {
            return Ok(Judged::Done(ack(conversation, (seq, time), true)));
        }
        let Body::Message(message) = &found.row.body else {
            return Err((Code::NotFound, "only messages can be recalled"));
        };
        let leads =
            matches!(conversation.kind(), ConversationKind::Group(_)) && standing.member.role >= Role::Admin;
        if !leads && message.sender != *user {
            return Err((Code::Forbidden, "a message is recalled by its sender, or by who leads the group"));
        }
        let age = Duration::from_millis(now_ms.saturating_sub(found.row.time));
        if !leads && (self.within.is_zero() || age > self.within) {
            return Err((Code::TooLate, ""));
        }
        Ok(Judged::Allowed(Recall { conversation: conversation.clone(), seq, by: Some(user.clone()) }))
    }

    /// Takes back what may be. Doing it again gives the same seq.
    ///
    /// # Errors
    /// What the ledger says; `UNKNOWN` when its answer did not come.
    pub async fn take_back(&self, recall: Recall, now_ms: u64) -> Result<pb::SendAck, Refusal> {
        let conversation = recall.conversation.clone();
        match self.admin.recall(recall, now_ms).await {
            Answer::Accepted { seq, time } => Ok(ack(&conversation, (seq, time), false)),
            Answer::Duplicate { seq, time } => Ok(ack(&conversation, (seq, time), true)),
            Answer::Refused { code, .. } => Err((code, "")),
            Answer::Unknown | Answer::AppendFailed => {
                Err((Code::Unknown, "ask again: a recall is done once"))
            }
        }
    }
}

fn ack(conversation: &ConversationId, (seq, time): (u64, u64), duplicate: bool) -> pb::SendAck {
    pb::SendAck { conversation: conversation.to_string(), seq, time, duplicate, ..pb::SendAck::default() }
}

/// The row, if the user is in the conversation and sees it.
async fn find(
    store: &dyn Store,
    user: &UserId,
    conversation: &ConversationId,
    (seq, above): (u64, Above),
) -> Result<(Standing, StoredRow), Refusal> {
    let summary = store.summary(conversation, Some(user)).await.map_err(away)?;
    let nothing = (Code::NotFound, "there is no message with this seq");
    let Some(summary) = summary else {
        return Err(match (conversation.is_direct_of(user), above) {
            (true, Above::Nothing) => nothing,
            (true, Above::Unknown) => NOT_STORED,
            (false, _) => (Code::NotAMember, ""),
        });
    };
    let standing = summary.standing.filter(|it| it.member.is_in()).ok_or((Code::NotAMember, ""))?;
    let view = View::new(conversation, &summary.head, &standing);
    above.check(&view, seq)?;
    if !view.sees(seq) {
        return Err(nothing);
    }
    let cursor = seq.saturating_sub(1);
    let query = PageQuery { cursor, direction: Direction::Forward, limit: 1, max_bytes: 1 };
    let rows = store.page(conversation, query).await.map_err(away)?.rows;
    let found = rows.into_iter().find(|found| found.row.seq == seq).ok_or(nothing)?;
    Ok((standing, found))
}
