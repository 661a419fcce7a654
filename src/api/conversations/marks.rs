//! Admin API of a user's own state of a conversation: read mark, clears and hidden entries, as clients change them, the
//! preference for push notices, and the bound of what the user can read.

use std::time::Duration;

use axum::{Extension, Json, extract::State};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    id::{ConversationId, UserId},
    machine::session::{Query as ClientQuery, SEQS_MAX},
    pb::server_frame::Body as FrameBody,
    settings::Push,
};
use tokio::time::timeout;

use super::{
    NUMBER_MAX, READ_TIMEOUT, ReadCaller, bad, conversation,
    entries::state,
    of_user::{may_read_content, never_in, read_one},
    turns::not_confirmed,
    user,
};
use crate::{
    api::{
        Api, Problem,
        access::{Caller, CallerPresence},
        extract::{IdPath, JsonObject, named},
    },
    mail::Refusal,
    supervised,
};

/// Time that a change of one mark may take, with its wait for a turn.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(8);

/// Marks that a request moves, which only rise, and the bound and the preference that it sets or, with `null`, removes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(in crate::api) struct MarksChange {
    read_seq: Option<u64>,
    min_seq: Option<u64>,
    #[serde(default, deserialize_with = "named")]
    max_seq: Option<Option<u64>>,
    #[serde(default, deserialize_with = "named")]
    push: Option<Option<String>>,
}

/// Setting of a user for a conversation, which a request sets or removes.
enum MarkSetting {
    /// Bound of what the user can read.
    Bound(Option<u64>),
    /// Preference for push notices.
    Push(Option<Push>),
}

/// Returns the preference with this word.
pub(in crate::api) fn push(word: &str) -> Result<Push, Problem> {
    let cure = || Problem(Code::BadSetting, format!("push: one of {}", Push::words()));
    Push::from_word(word).ok_or_else(cure)
}

/// Entries that a request hides.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct HideRequest {
    seqs: Vec<u64>,
}

/// Bounds what the user can read, raises the read mark, clears entries below the lowest one that is to be visible, and sets the
/// preference for push notices.
pub(in crate::api) async fn change(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Extension(presence): Extension<CallerPresence>,
    IdPath((id, of)): IdPath<(String, String)>,
    JsonObject(body): JsonObject<MarksChange>,
) -> Result<Json<Value>, Problem> {
    let (user, conversation) = (user(&id)?, conversation(&of)?);
    if body.read_seq.is_none() && body.min_seq.is_none() && body.max_seq.is_none() && body.push.is_none() {
        return Err(bad("name readSeq, minSeq, maxSeq or push"));
    }
    let marks = MarksOf { api: &api, caller: &caller, user: &user, conversation: &conversation };
    let push = body.push.map(|word| word.as_deref().map(push).transpose()).transpose()?;
    if body.read_seq.max(body.min_seq) > Some(NUMBER_MAX) {
        return Err(bad(format!("readSeq, minSeq: at most {NUMBER_MAX}")));
    }
    if let Some(seq) = body.max_seq {
        if seq.is_some_and(|seq| !(1..=NUMBER_MAX).contains(&seq)) {
            return Err(bad(format!("maxSeq: from 1 to {NUMBER_MAX}, or null, which removes the bound")));
        }
        marks.set(presence.clone(), MarkSetting::Bound(seq)).await?;
    }
    if let Some(seq) = body.read_seq {
        marks.apply(ClientQuery::Read { conversation: conversation.clone(), seq }).await?;
    }
    if let Some(seq) = body.min_seq {
        let seq = seq.saturating_sub(1);
        marks.apply(ClientQuery::Clear { conversation: conversation.clone(), seq }).await?;
    }
    if let Some(push) = push {
        marks.set(presence, MarkSetting::Push(push)).await?;
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
    let marks = MarksOf { api: &api, caller: &caller, user: &user, conversation: &conversation };
    let now = match marks.apply(query).await? {
        Some(FrameBody::Hidden(hidden)) => hidden.seqs,
        _ => Vec::new(),
    };
    // A repeated request returns what the first one hid.
    let listed = read_one(&api, &caller, &user, conversation.clone(), false).await?;
    let is_hidden = |seq: &u64| now.contains(seq) || listed.view.user_state().hides(*seq);
    let hidden: Vec<u64> = seqs.into_iter().filter(is_hidden).collect();
    Ok(Json(json!({"conversation": conversation.as_str(), "user": user.as_str(), "hidden": hidden})))
}

/// State of a user in a conversation that a caller changes.
struct MarksOf<'a> {
    api: &'a Api,
    caller: &'a Caller,
    user: &'a UserId,
    conversation: &'a ConversationId,
}

impl MarksOf<'_> {
    /// Sets or removes a setting of the user for the conversation. It changes both ways, so it ends with the wait of its caller,
    /// and undoes no later one.
    async fn set(&self, presence: CallerPresence, setting: MarkSetting) -> Result<(), Problem> {
        let key = ReadCaller::new(self.caller);
        let reads = key.reads(self.api).waiting_at_most(READ_TIMEOUT);
        let work = Box::pin(async {
            match setting {
                MarkSetting::Bound(seq) => reads.bound(self.user, self.conversation, seq).await,
                MarkSetting::Push(push) => reads.prefer(self.user, self.conversation, push).await,
            }
        });
        let set = presence.during(CHANGE_TIMEOUT, work).await;
        set.ok_or_else(not_confirmed)?.map_err(problem)
    }

    /// Makes a change that only rises or adds, and notifies the user's devices, in a task of its own: a mark that is stored has
    /// its event and its notice, also if that takes longer than the caller waits.
    async fn apply(&self, query: ClientQuery) -> Result<Option<FrameBody>, Problem> {
        let (api, key) = (self.api.clone(), ReadCaller::new(self.caller));
        let (user, conversation) = (self.user.clone(), self.conversation.clone());
        let work = async move {
            let reads = key.reads(&api).waiting_at_most(READ_TIMEOUT);
            let changed = reads.change(&user, &conversation, &query).await?;
            let Some((seq, body)) = changed else { return Ok(None) };
            api.reads.devices.notify(&user, &conversation, seq, body.clone(), None);
            Ok(Some(body))
        };
        let task = supervised::spawn("a change of marks", supervised::contained(work));
        match timeout(CHANGE_TIMEOUT, task).await {
            Ok(Ok(Ok(changed))) => changed.map_err(problem),
            Ok(Ok(Err(panicked))) => panicked.resume(),
            Ok(Err(_)) | Err(_) => {
                let why = "not done in time; it may be done later, and can be repeated";
                Err(Problem(Code::StoreUnavailable, why.into()))
            }
        }
    }
}

fn problem(refusal: Refusal) -> Problem {
    match refusal {
        (Code::NotAMember, _) => never_in(),
        other => other.into(),
    }
}
