//! Edit of a message by the admin API: by the operator, or by a user with that user's rights.

use axum::{Json, extract::State, http::HeaderMap};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    id::ConversationKind,
    pb,
    record::{Edit, body_hash},
};
use tokio::time::timeout;

use super::{
    SendSource,
    form::{ContentForm, conversation, message_id, one_id},
    limits::CountedContent,
    recall::{BARRIER_TIMEOUT, user},
};
use crate::{
    api::{
        Api, Problem, ProblemDetails,
        access::idempotency_key,
        extract::{IdPath, JsonObject},
        now_ms,
    },
    conversation::{
        consistent::beyond_head,
        read_position::{NOT_STORED, OwnConversation},
    },
    ingest::admin::Admin,
    storms::SlowAdmission,
};

/// Request for an edit.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(in crate::api) struct EditMessage {
    content: ContentForm,
    #[serde(default)]
    by: Option<String>,
    #[serde(default)]
    request_id: Option<String>,
}

/// Replaces the content of a message for all users. A repeated request with its id changes nothing.
pub(in crate::api) async fn edit(
    State(api): State<Api>,
    source: SendSource,
    IdPath((key, of)): IdPath<(String, u64)>,
    headers: HeaderMap,
    JsonObject(body): JsonObject<EditMessage>,
) -> Result<Json<Value>, ProblemDetails> {
    let sender = &api.messages;
    let conversation = conversation(&key).map_err(|error| Problem(Code::BadId, error))?;
    if matches!(conversation.kind(), ConversationKind::Room(_)) {
        return Err(Problem(Code::NotFound, "messages of live rooms are not stored".to_owned()).into());
    }
    // The system edits as the operator.
    let by = body.by.as_deref().map(user).transpose()?.filter(|by| !sender.is_system(by));
    let given = one_id(body.request_id, idempotency_key(&headers)?)?;
    let given = given.as_deref().map(message_id).transpose()?;
    let bytes_max = sender.parts.conn_settings.get().limits.content_bytes_max as usize;
    let content = body.content.encoded(bytes_max)?;
    let msg_id = given.or_else(|| source.fresh.clone()).unwrap_or_else(Admin::fresh_request_id);
    let edit = Edit {
        conversation,
        seq: of,
        by,
        device: sender.device.clone(),
        msg_id,
        body_hash: body_hash(&content),
        content,
        denied: None,
    };
    let id = edit.msg_id.clone();
    let ack =
        checked_edit(&api, &source, edit).await.map_err(|problem| problem.with("msgId", id.as_str()))?;
    Ok(Json(json!({
        "conversation": ack.conversation,
        "seq": ack.seq,
        "of": of,
        "msgId": ack.msg_id,
        "time": ack.time,
        "duplicate": ack.duplicate,
    })))
}

/// Checks an edit as one by a client, and sends it.
async fn checked_edit(api: &Api, source: &SendSource, mut edit: Edit) -> Result<pb::SendAck, ProblemDetails> {
    let (cluster, sender) = (&api.cluster, &api.messages);
    sender.check_node(&edit.conversation, source)?;
    sender.check_rules()?;
    let recaller = &sender.parts.recaller;
    if let Some(by) = &edit.by {
        sender.check_sender(by)?;
        // Bounded: while the archive is away, the caller tries again.
        let above = timeout(BARRIER_TIMEOUT, beyond_head(cluster, &edit.conversation)).await;
        let above = above.map_err(|_| Problem::from(NOT_STORED))?;
        let own = OwnConversation::new(&*cluster.ports.store, by, &edit.conversation, above);
        let denied = recaller.edit_denial(own, edit.seq, now_ms()).await;
        edit.denied = match denied.map_err(Problem::from)? {
            None if sender.is_blocked(by, &edit.conversation).await? => Some(Code::Forbidden),
            denied => denied,
        };
    }
    // The rules come last, so that no refusal by anything else counts in them.
    let Edit { conversation, by, msg_id, content, .. } = &edit;
    let counted = CountedContent { conversation, sender: by.as_ref(), msg_id, content };
    let slowed = match edit.denied {
        None => sender.check_limits(counted, source).await?,
        Some(_) => None,
    };
    // The node and the rights of the user may have changed meanwhile.
    let checked = by.as_ref().map_or(Ok(()), |by| sender.check_sender(by));
    if let Err(refusal) = checked.and_then(|()| sender.check_node(conversation, source)) {
        slowed.into_iter().for_each(SlowAdmission::withdraw);
        return Err(refusal);
    }
    let sent = recaller.edit(edit, now_ms()).await;
    sent.map_err(|(code, why)| Problem(code, why).into())
}
