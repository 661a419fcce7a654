//! Admin API of a user's own state of a conversation: read mark, clears and hidden entries, as clients change them.

use std::time::Duration;

use axum::{Extension, Json, extract::State};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    id::{ConversationId, UserId},
    machine::session::{Query as ClientQuery, SEQS_MAX},
    pb::server_frame::Body as FrameBody,
};
use tokio::time::timeout;

use super::{
    NUMBER_MAX, READ_TIMEOUT, ReadCaller, bad, conversation,
    entries::state,
    of_user::{may_read_content, never_in, read_one},
    user,
};
use crate::{
    api::{
        Api, Problem,
        access::Caller,
        extract::{IdPath, JsonObject},
    },
    mail::Refusal,
    supervised,
};

/// Time that a change of one mark may take, with its wait for a turn.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(8);

/// Marks that a request moves; they only rise.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(in crate::api) struct MarksChange {
    read_seq: Option<u64>,
    min_seq: Option<u64>,
}

/// Entries that a request hides.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct HideRequest {
    seqs: Vec<u64>,
}

/// Raises the read mark, and clears entries below the lowest one that is to be visible.
pub(in crate::api) async fn change(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    IdPath((id, of)): IdPath<(String, String)>,
    JsonObject(body): JsonObject<MarksChange>,
) -> Result<Json<Value>, Problem> {
    let (user, conversation) = (user(&id)?, conversation(&of)?);
    if body.read_seq.is_none() && body.min_seq.is_none() {
        return Err(bad("name readSeq or minSeq"));
    }
    if body.read_seq.max(body.min_seq) > Some(NUMBER_MAX) {
        return Err(bad(format!("readSeq, minSeq: at most {NUMBER_MAX}")));
    }
    if let Some(seq) = body.read_seq {
        let query = ClientQuery::Read { conversation: conversation.clone(), seq };
        apply(&api, &caller, &user, &conversation, query).await?;
    }
    if let Some(seq) = body.min_seq {
        let query = ClientQuery::Clear { conversation: conversation.clone(), seq: seq.saturating_sub(1) };
        apply(&api, &caller, &user, &conversation, query).await?;
    }
    let with_last = may_read_content(&caller);
    let listed = read_one(&api, &caller, &user, conversation, with_last).await?;
    Ok(Json(state(&listed, user.as_str(), with_last)))
}

/// Hides entries for the user.
pub(in crate::api) async fn hide(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    IdPath((id, of)): IdPath<(String, String)>,
    JsonObject(HideRequest { mut seqs }): JsonObject<HideRequest>,
) -> Result<Json<Value>, Problem> {
    let (user, conversation) = (user(&id)?, conversation(&of)?);
    let is_seq = |seq: &u64| (1..=NUMBER_MAX).contains(seq);
    if !(1..=SEQS_MAX).contains(&seqs.len()) || !seqs.iter().all(is_seq) {
        return Err(bad(format!("seqs: between 1 and {SEQS_MAX} numbers from 1 on")));
    }
    seqs.sort_unstable();
    seqs.dedup();
    let query = ClientQuery::Hide { conversation: conversation.clone(), seqs: seqs.clone() };
    let now = match apply(&api, &caller, &user, &conversation, query).await? {
        Some(FrameBody::Hidden(hidden)) => hidden.seqs,
        _ => Vec::new(),
    };
    // A repeated request returns what the first one hid.
    let listed = read_one(&api, &caller, &user, conversation.clone(), false).await?;
    let is_hidden = |seq: &u64| now.contains(seq) || listed.view.user_state().hides(*seq);
    let hidden: Vec<u64> = seqs.into_iter().filter(is_hidden).collect();
    Ok(Json(json!({"conversation": conversation.as_str(), "user": user.as_str(), "hidden": hidden})))
}

/// Makes a change of a user's state, and notifies the user's devices, also if that takes longer than the caller waits.
async fn apply(
    api: &Api,
    caller: &Caller,
    user: &UserId,
    conversation: &ConversationId,
    query: ClientQuery,
) -> Result<Option<FrameBody>, Problem> {
    let (api, key, user, conversation) =
        (api.clone(), ReadCaller::new(caller), user.clone(), conversation.clone());
    let work = async move {
        let reads = key.reads(&api).waiting_at_most(READ_TIMEOUT);
        let changed = reads.change(&user, &conversation, &query).await?;
        let Some((seq, body)) = changed else { return Ok(None) };
        api.reads.devices.notify(&user, &conversation, seq, body.clone(), None);
        Ok(Some(body))
    };
    // A task of its own: a mark that is stored has its event and its notice.
    let task = supervised::spawn("a change of marks", supervised::contained(work));
    match timeout(CHANGE_TIMEOUT, task).await {
        Ok(Ok(Ok(changed))) => changed.map_err(|refusal: Refusal| match refusal {
            (Code::NotAMember, _) => never_in(),
            other => other.into(),
        }),
        Ok(Ok(Err(panicked))) => panicked.resume(),
        Ok(Err(_)) | Err(_) => {
            let why = "not done in time; it may be done later, and can be repeated";
            Err(Problem(Code::StoreUnavailable, why.into()))
        }
    }
}
