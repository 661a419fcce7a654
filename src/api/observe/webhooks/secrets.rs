//! Secrets of endpoints: a second one, and the end of the first.

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use serde::Deserialize;
use serde_json::json;
use tidegate_protocol::Code;

use super::change::{change, respond};
use crate::{
    api::{
        Api, Problem,
        extract::{IdPath, JsonObject, tagged},
        refusal,
    },
    hooks::is_secret,
    webhooks::EndpointSecret,
};

/// Body of a new secret.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct SecretRequest {
    secret: Option<String>,
}

/// Adds a secret, which is shown this once. Both sign until the former one is removed, or for a day.
pub(in crate::api) async fn add_secret(
    State(api): State<Api>,
    IdPath(id): IdPath<String>,
    JsonObject(request): JsonObject<SecretRequest>,
) -> Result<Response, Problem> {
    if request.secret.as_deref().is_some_and(|secret| !is_secret(secret)) {
        let why = "secret: `whsec_` and the base64 of 24 to 64 random bytes; or leave it out, and the node makes one";
        return Err(Problem(Code::BadContent, why.to_owned()));
    }
    let now_ms = api.cluster.guard.now_ms();
    let added = change(&api, &id, None, |endpoint| {
        let added: Option<EndpointSecret> = endpoint.add_secret(request.secret.clone(), now_ms).cloned();
        Ok(added)
    });
    let added = match added.await? {
        Ok(added) => added,
        Err(response) => return Ok(response),
    };
    let Some(secret) = added.value else {
        let message = format!("the webhook `{id}` has two secrets");
        let cure = "Remove the former one first: DELETE /v1/webhooks/{webhook}/secrets/{secret}.";
        return Ok(refusal(StatusCode::CONFLICT, Code::Conflict, &message, cure).into_response());
    };
    let shown = json!({
        "id": secret.id,
        "secret": secret.secret,
        "createdMs": secret.created_ms,
        "pending": added.pending,
    });
    Ok(tagged((StatusCode::CREATED, Json(shown)).into_response(), Some(added.found.version)))
}

/// Removes a secret. The newest one stays.
pub(in crate::api) async fn remove_secret(
    State(api): State<Api>,
    IdPath((id, secret)): IdPath<(String, String)>,
) -> Result<Response, Problem> {
    let removed = change(&api, &id, None, |endpoint| match endpoint.remove_secret(&secret) {
        Some(true) => Ok(()),
        Some(false) => {
            let why = "it is the newest secret; add another one first".to_owned();
            Err(Problem(Code::BadSetting, why))
        }
        None => Err(Problem(Code::NotFound, format!("the webhook `{id}` has no secret `{secret}`"))),
    });
    respond(&api, &id, removed.await?).await
}
