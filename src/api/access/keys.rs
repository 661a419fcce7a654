//! Admin API of the keys: which there are, without their hashes, and their revocation.

use std::{io, sync::Arc, time::Duration};

use axum::{
    Extension, Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use serde_json::{Value, json};
use tidegate_protocol::{Code, id::check_id};
use tokio::time;

use super::{
    super::{Api, Problem, extract::IdPath, refusal},
    Caller,
};
use crate::{
    audit::Actor,
    clock::wall_ms,
    keys::{KeyEntry, KeyRing},
    supervised,
};

/// Interval between attempts while another process changes the file.
const LOCK_INTERVAL: Duration = Duration::from_millis(50);

/// Attempts before the request is refused, after about 2 s.
const LOCK_ATTEMPTS: u32 = 40;

/// Cure of a file that the node can't change.
const FILE_CURE: &str = "Revoke the key where the file is kept, with `tidegate key revoke`, or let the node change \
                         the file and its directory (admin.keys_file); then send the request again.";

/// Lists all keys of the node.
pub(in crate::api) async fn list(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
) -> Json<Value> {
    let now = wall_ms();
    let entries = api.gate.ring.as_ref().map(|ring| ring.entries()).unwrap_or_default();
    let keys: Vec<Value> = entries.iter().map(|entry| view(entry, &caller, now)).collect();
    Json(json!({ "keys": keys }))
}

/// Revokes a key, permanently. The caller may revoke its own.
pub(in crate::api) async fn revoke(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    IdPath(id): IdPath<String>,
) -> Result<Response, Problem> {
    check_id(&id).map_err(|error| Problem(Code::BadId, format!("id: {error}")))?;
    let unknown = || Problem(Code::NotFound, "there is no such key; see GET /v1/keys".into());
    let ring = api.gate.ring.as_ref().ok_or_else(unknown)?;
    match revoke_in_file(ring, &id).await? {
        Ok(None) => Err(unknown()),
        Ok(Some((entry, is_change))) => {
            tracing::warn!(key = entry.id, name = entry.name, by = caller.actor.id(), "key revoked");
            let mut body = view(&entry, &caller, wall_ms());
            body["changed"] = is_change.into();
            Ok(Json(body).into_response())
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(Problem(Code::Busy, "another process changes the file of keys; repeat the request".into()))
        }
        Err(error) => {
            let why = format!("the key is not revoked, because the file of keys can't be changed: {error}");
            Ok(refusal(StatusCode::SERVICE_UNAVAILABLE, Code::StoreUnavailable, &why, FILE_CURE)
                .into_response())
        }
    }
}

type Revoked = io::Result<Option<(KeyEntry, bool)>>;

/// Revokes a key as soon as no other process changes the file.
async fn revoke_in_file(ring: &Arc<KeyRing>, id: &str) -> Result<Revoked, Problem> {
    let mut attempt = 1;
    loop {
        let (ring, id) = (Arc::clone(ring), id.to_owned());
        let revoked = supervised::run_blocking(move || ring.revoke(&id)).await;
        let revoked = revoked.map_err(|_stopping| Problem(Code::Unknown, "the node stops".into()))?;
        let is_locked = matches!(&revoked, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        if !is_locked || attempt == LOCK_ATTEMPTS {
            return Ok(revoked);
        }
        attempt += 1;
        time::sleep(LOCK_INTERVAL).await;
    }
}

/// Returns a key, and whether the caller holds it.
fn view(entry: &KeyEntry, caller: &Caller, now_ms: u64) -> Value {
    let is_own = matches!(&caller.actor, Actor::Key { id, .. } if *id == entry.id);
    let mut view = entry.view(now_ms);
    view["own"] = is_own.into();
    view
}
