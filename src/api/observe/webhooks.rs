//! Admin API of webhooks: their endpoints, what they have taken, and what was set aside.

mod aside;
mod change;
mod secrets;
mod view;

pub(in crate::api) use self::{
    aside::{drop_aside, list_aside, resend},
    change::{pause, put, remove, replay, resume, test},
    secrets::{add_secret, remove_secret},
    view::{list, show},
};

use tidegate_protocol::{Code, id::check_id};

use crate::{
    api::{Api, Problem},
    store::{GuardKey, GuardKind, StoreError},
    webhooks::{ENDPOINT_ID_BYTES_MAX, StoredEndpoint},
};

/// Endpoint as the store has it.
struct Found {
    stored: StoredEndpoint,
    version: u64,
}

/// Returns the key of an endpoint's entry.
fn key(id: &str) -> Result<GuardKey, Problem> {
    let bad = || format!("webhook: must match [A-Za-z0-9_.-]{{1,{ENDPOINT_ID_BYTES_MAX}}}");
    let is_id = check_id(id).is_ok() && id.len() <= ENDPOINT_ID_BYTES_MAX && ![".", ".."].contains(&id);
    let key = is_id.then(|| GuardKey::new(GuardKind::Webhook, id).ok()).flatten();
    key.ok_or_else(|| Problem(Code::BadId, bad()))
}

/// Reads an endpoint from the store; `None` if there is none.
async fn stored(api: &Api, key: &GuardKey) -> Result<Option<Found>, Problem> {
    let row = api.cluster.ports.store.guard_get(key).await.map_err(unavailable)?;
    let Some(row) = row else { return Ok(None) };
    let newer = || {
        let why = "the endpoint was stored by a newer version; ask a node that runs it";
        Problem(Code::Unsupported, why.to_owned())
    };
    let Some(value) = row.value else { return Ok(None) };
    let stored = StoredEndpoint::decode(&value).ok_or_else(newer)?;
    Ok(Some(Found { stored, version: row.version }))
}

/// Reads an endpoint that has to exist.
async fn existing(api: &Api, id: &str) -> Result<Found, Problem> {
    stored(api, &key(id)?).await?.ok_or_else(|| missing(id))
}

fn missing(id: &str) -> Problem {
    Problem(Code::NotFound, format!("there is no webhook `{id}`"))
}

fn unavailable(error: StoreError) -> Problem {
    let code = if matches!(error, StoreError::Unknown(_)) { Code::Unknown } else { Code::StoreUnavailable };
    Problem(code, error.to_string())
}
