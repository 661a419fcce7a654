//! Admin API: removes the beginning of a history for everybody, as retention does.

use axum::{Extension, Json, extract::State};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    record::{Body, Prune},
};

use super::{bad, conversation, lists::heads_of};
use crate::{
    api::{
        Api, Problem, ProblemDetails,
        access::Caller,
        extract::{IdPath, JsonObject},
        into_seq,
        messages::SendSource,
        now_ms,
    },
    partition::retention::PRUNE_ROWS_MAX,
};

/// Most records of one request; each removes [`PRUNE_ROWS_MAX`] entries at most, and is archived before the next one.
const RECORDS_MAX: usize = 20;

/// Range that a request removes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(in crate::api) struct PruneRequest {
    up_to: u64,
}

/// Removes all entries up to a seq. A repeated request goes on where the former one has ended.
pub(in crate::api) async fn prune(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    source: SendSource,
    IdPath(key): IdPath<String>,
    JsonObject(body): JsonObject<PruneRequest>,
) -> Result<Json<Value>, ProblemDetails> {
    let id = conversation(&key)?;
    api.messages.check_node(&id, &source)?;
    let head = heads_of(&api, &caller, vec![id.clone()]).await?.pop().flatten();
    let head = head.ok_or_else(|| Problem(Code::NotFound, String::new()))?.head;
    if body.up_to > head.last_seq {
        return Err(bad(format!("upTo: the conversation ends at {}", head.last_seq)).into());
    }
    let mut pruned_to = head.pruned_to;
    for _ in 0..RECORDS_MAX {
        if pruned_to >= body.up_to {
            break;
        }
        let up_to = body.up_to.min(pruned_to.saturating_add(PRUNE_ROWS_MAX as u64));
        let prune = Prune { conversation: id.clone(), up_to };
        into_seq(api.admin.append(Body::Prune(prune), now_ms()).await)?;
        pruned_to = up_to;
    }
    let is_complete = pruned_to >= body.up_to;
    Ok(Json(json!({"conversation": id.as_str(), "prunedTo": pruned_to, "complete": is_complete})))
}
