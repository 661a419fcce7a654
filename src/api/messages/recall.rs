//! Recall of a message by the admin API: by the operator, or by a user with that user's rights.

use std::time::Duration;

use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    id::{ConversationId, ConversationKind, UserId},
    machine::session::SubmitAnswer,
    record::Recall,
};
use tokio::time::timeout;

use super::{
    SendSource,
    form::{conversation, quoted},
};
use crate::{
    api::{Api, Problem, ProblemDetails, extract::IdPath, into_seq, now_ms},
    conversation::{
        consistent::beyond_head,
        read_position::{NOT_STORED, OwnConversation},
        recall::RecallOutcome,
    },
    store::ConversationSeq,
};

/// Longest wait for the read barrier.
pub(super) const BARRIER_TIMEOUT: Duration = Duration::from_secs(5);

/// Query of a recall.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct RecallQuery {
    by: Option<String>,
}

/// Recalls a message for all users. A message is recalled once, so a repeated request changes nothing.
pub(in crate::api) async fn recall(
    State(api): State<Api>,
    source: SendSource,
    IdPath((key, of)): IdPath<(String, u64)>,
    query: Result<Query<RecallQuery>, QueryRejection>,
) -> Result<Json<Value>, ProblemDetails> {
    let Query(query) = query.map_err(|rejection| {
        Problem(Code::BadContent, format!("only by is allowed: {}", rejection.body_text()))
    })?;
    let conversation = conversation(&key).map_err(|error| Problem(Code::BadId, error))?;
    if matches!(conversation.kind(), ConversationKind::Room(_)) {
        return Err(Problem(Code::NotFound, "messages of live rooms are not stored".to_owned()).into());
    }
    let by = query.by.as_deref().map(user).transpose()?;
    api.messages.check_node(&conversation, &source)?;
    if let Some(by) = &by {
        api.messages.check_sender(by)?;
    }
    let recalled = |seq: u64, time: u64, is_duplicate: bool| {
        Json(json!({
            "conversation": conversation.as_str(),
            "seq": seq,
            "of": of,
            "time": time,
            "duplicate": is_duplicate,
        }))
    };
    if let Some(by) = &by
        && let Some((seq, time)) = check(&api, by, &conversation, of).await?
    {
        return Ok(recalled(seq, time, true));
    }
    let recall = Recall { conversation: conversation.clone(), seq: of, by };
    match api.admin.recall(recall, now_ms()).await {
        SubmitAnswer::Accepted { seq, time } => Ok(recalled(seq, time, false)),
        SubmitAnswer::Duplicate { seq, time } => Ok(recalled(seq, time, true)),
        SubmitAnswer::Refused { code, message } => Err(Problem(code, message.into_owned()).into()),
        SubmitAnswer::Unknown | SubmitAnswer::AppendFailed => {
            let why = "repeat the request: a message is recalled only once".to_owned();
            Err(Problem(Code::Unknown, why).into())
        }
    }
}

/// Outcome of a recall for the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::api) enum OperatorRecall {
    /// The message is recalled now.
    Recalled,
    /// The message was recalled before.
    Repeated,
    /// The ledger does not have it: retention removed it, or its group was deleted.
    NotFound,
}

/// Recalls a message for the operator.
pub(in crate::api) async fn recall_for_operator(
    api: &Api,
    source: &SendSource,
    at: ConversationSeq,
) -> Result<OperatorRecall, ProblemDetails> {
    api.messages.check_node(&at.conversation, source)?;
    let recall = Recall { conversation: at.conversation, seq: at.seq, by: None };
    match api.admin.recall(recall, now_ms()).await {
        SubmitAnswer::Duplicate { .. } => Ok(OperatorRecall::Repeated),
        SubmitAnswer::Refused { code: Code::NotFound, .. } => Ok(OperatorRecall::NotFound),
        answer => Ok(into_seq(answer).map(|_| OperatorRecall::Recalled)?),
    }
}

/// Checks the rights of a user, also the time limit, which the ledger does not know. Returns seq and time of the recall if
/// the message is recalled already.
async fn check(
    api: &Api,
    by: &UserId,
    conversation: &ConversationId,
    of: u64,
) -> Result<Option<(u64, u64)>, Problem> {
    let cluster = &api.cluster;
    // Bounded: while the archive is away, the caller tries again.
    let above = timeout(BARRIER_TIMEOUT, beyond_head(cluster, conversation)).await.map_err(|_| NOT_STORED)?;
    let own = OwnConversation::new(&*cluster.ports.store, by, conversation, above);
    let checked = api.messages.parts.recaller.check(own, of, now_ms()).await;
    match checked.map_err(|(code, message)| Problem(code, message.to_owned()))? {
        RecallOutcome::Done(ack) => Ok(Some((ack.seq, ack.time))),
        RecallOutcome::Allowed(_) => Ok(None),
    }
}

pub(super) fn user(id: &str) -> Result<UserId, Problem> {
    user_in("by", id)
}

/// Returns the user whom the field names.
pub(super) fn user_in(field: &str, id: &str) -> Result<UserId, Problem> {
    UserId::addressable(id)
        .map_err(|error| Problem(Code::BadId, format!("{field}: user {}: {error}", quoted(id))))
}
