//! Reload of the configuration by the admin API.

use std::sync::Arc;

use axum::{
    Json,
    body::Bytes,
    extract::State,
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use serde_json::{Value, json};
use tidegate_protocol::Code;

use super::{Api, Problem, extract::parse_object};
use crate::{
    config::{ConfigChanges, ConfigError},
    supervised,
};

/// Reads the configuration of a running node again.
pub trait Reload: Send + Sync {
    /// Puts the changed settings in force that need no restart. Blocks, for as long as the disk takes.
    ///
    /// # Errors
    /// The configuration or a file that it names can't be used; the error names all problems, and nothing has changed.
    fn reload(&self) -> Result<ConfigChanges, ConfigError>;
}

/// Reads the configuration again, as SIGHUP does.
pub(super) async fn reload(State(api): State<Api>, body: Bytes) -> Result<Response, Problem> {
    if !body.is_empty() && parse_object::<NoFields>(&body).is_err() {
        return Err(Problem(Code::BadContent, "send no body, or {}".into()));
    }
    let reloader = Arc::clone(&api.reload);
    let reloaded = supervised::run_blocking(move || reloader.reload()).await;
    match reloaded.map_err(|_stopping| Problem(Code::Unknown, "the node stops".into()))? {
        Ok(changes) => {
            Ok(Json(json!({"changed": changes.live, "needsRestart": changes.needs_restart})).into_response())
        }
        Err(ConfigError(problems)) => Ok(refused(&problems)),
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct NoFields {}

fn refused(problems: &[String]) -> Response {
    let fields: Vec<Value> = problems
        .iter()
        .map(|problem| {
            let (path, reason) = ConfigError::key_and_reason(problem);
            json!({"path": path, "reason": reason})
        })
        .collect();
    let message =
        format!("the configuration has {} problem(s); the former one stays in force", problems.len());
    let cure = "Correct the named settings or files, and reload again.";
    super::refusal(StatusCode::BAD_REQUEST, Code::BadSetting, &message, cure)
        .with("fields", fields)
        .into_response()
}
