//! Admin API of the rules of limits: those of the file of this node, and those that the API keeps for all nodes.

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
};
use serde_json::{Value, json};
use tidegate_protocol::{Code, id::check_id};

use crate::{
    api::{
        Api, Problem,
        extract::{IdPath, JsonObject, expected_version, tagged},
        refusal,
    },
    cluster::GuardChange,
    guard::rules::{RuleError, put_rule, remove_rule},
    limits::{RuleDraft, RuleForm, RuleSource, RuleState, RuleView},
    store::{GUARD_VALUE_BYTES_MAX, GuardOutcome, StoreError},
};

/// Returns all rules that this node knows, and which of them refuses first where they overlap.
pub(in crate::api) async fn list(State(api): State<Api>) -> Json<Value> {
    let rules: Vec<Value> = api.rules.views().iter().map(view).collect();
    let node = api.cluster.me.node.as_str();
    Json(json!({"node": node, "rules": rules, "overlaps": api.rules.overlaps()}))
}

/// Returns the rules of one id that this node knows: at most one of the API and one of the file.
pub(in crate::api) async fn show(
    State(api): State<Api>,
    IdPath(id): IdPath<String>,
) -> Result<Response, Problem> {
    let id = checked(id)?;
    let found: Vec<RuleView> = api.rules.views().into_iter().filter(|it| it.id == id).collect();
    if found.is_empty() {
        return Err(no_rule(&id));
    }
    let version = found.iter().find_map(|it| it.version);
    let rules: Vec<Value> = found.iter().map(view).collect();
    let body = Json(json!({"id": id, "node": api.cluster.me.node.as_str(), "rules": rules}));
    Ok(tagged(body.into_response(), version))
}

/// Checks a rule together with those of this node; keeps nothing.
pub(in crate::api) async fn validate(
    State(api): State<Api>,
    JsonObject(form): JsonObject<RuleForm>,
) -> Json<Value> {
    let id = form.id.clone().unwrap_or_default();
    let draft = api.rules.check_rule(&id, form);
    let RuleDraft { problems, overlaps, .. } = draft;
    Json(json!({"id": id, "valid": problems.is_empty(), "problems": problems, "overlaps": overlaps}))
}

/// Puts a rule in force on all nodes.
pub(in crate::api) async fn put(
    State(api): State<Api>,
    IdPath(id): IdPath<String>,
    headers: HeaderMap,
    JsonObject(form): JsonObject<RuleForm>,
) -> Result<Response, Problem> {
    let id = checked(id)?;
    let expected = expected_version(&headers)?;
    if form.id.as_ref().is_some_and(|named| *named != id) {
        return Err(Problem(Code::BadContent, "id: leave it out, or name the rule of the path".to_owned()));
    }
    let RuleDraft { problems, is_full, overlaps } = api.rules.check_rule(&id, form.clone());
    if is_full {
        let cure = "Remove a rule of the API or of the file of this node, or lower keys_max.";
        return Ok(refusal(StatusCode::CONFLICT, Code::Conflict, &problems.join("; "), cure).into_response());
    }
    if !problems.is_empty() {
        return Ok(invalid(&problems));
    }
    let change = match put_rule(&api.cluster, &id, &form, expected).await {
        Ok(change) => change,
        Err(error) => return refused(error),
    };
    let version = match change.outcome {
        GuardOutcome::Stored(version) => version,
        ref outcome => return Ok(not_stored(&id, outcome)),
    };
    let body = json!({
        "id": id,
        "version": version,
        "overlaps": overlaps,
        "overridesFile": is_in_file(&api, &id),
        "inForce": change.is_in_force,
        "pending": change.pending,
    });
    Ok(tagged(Json(body).into_response(), Some(version)))
}

/// Removes a rule of the API on all nodes. A rule of the file with its id is in force again.
pub(in crate::api) async fn remove(
    State(api): State<Api>,
    IdPath(id): IdPath<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let id = checked(id)?;
    let expected = expected_version(&headers)?;
    let change = match remove_rule(&api.cluster, &id, expected).await {
        Ok(change) => change,
        Err(error) => return refused(error),
    };
    let GuardChange { outcome, is_in_force, pending } = change;
    match outcome {
        GuardOutcome::Stored(_) => Ok(Json(json!({
            "id": id,
            "removed": true,
            "fileInForce": is_file_in_force(&api, &id),
            "inForce": is_in_force,
            "pending": pending,
        }))
        .into_response()),
        GuardOutcome::Unchanged if is_in_file(&api, &id) => {
            let message = format!("the rule `{id}` is one of limits.rules_file");
            let cure = "Remove it from the file of each node and reload, or override it by PUT with dry_run.";
            Ok(refusal(StatusCode::CONFLICT, Code::Conflict, &message, cure).into_response())
        }
        GuardOutcome::Unchanged => Err(no_rule(&id)),
        outcome => Ok(not_stored(&id, &outcome)),
    }
}

fn view(it: &RuleView) -> Value {
    let (state, problems) = match &it.state {
        RuleState::InForce => ("in force", &[][..]),
        RuleState::Overridden => ("overridden", &[][..]),
        RuleState::Unusable(problems) => ("unusable", problems.as_slice()),
    };
    json!({
        "id": it.id,
        "source": it.source.name(),
        "state": state,
        "problems": problems,
        "version": it.version,
        "rule": it.form,
    })
}

fn is_in_file(api: &Api, id: &str) -> bool {
    api.rules.views().iter().any(|it| it.id == id && it.source == RuleSource::File)
}

fn is_file_in_force(api: &Api, id: &str) -> bool {
    let is_it = |it: &RuleView| it.source == RuleSource::File && it.state == RuleState::InForce;
    api.rules.views().iter().any(|it| it.id == id && is_it(it))
}

fn checked(id: String) -> Result<String, Problem> {
    match check_id(&id) {
        Ok(()) => Ok(id),
        Err(error) => Err(Problem(Code::BadId, format!("rule: {error}"))),
    }
}

fn no_rule(id: &str) -> Problem {
    Problem(Code::NotFound, format!("there is no rule `{id}`"))
}

/// Returns the response that lists the problems of a rule.
fn invalid(problems: &[String]) -> Response {
    let message = format!("the rule has {} problem(s): {}", problems.len(), problems.join("; "));
    let cure =
        "Correct the named fields; docs/limits.md describes them, and POST /v1/rules:validate checks a rule.";
    let refusal = refusal(StatusCode::BAD_REQUEST, Code::BadContent, &message, cure);
    refusal.with("problems", json!(problems)).into_response()
}

fn refused(error: RuleError) -> Result<Response, Problem> {
    match error {
        RuleError::Id => Err(Problem(Code::BadId, "rule: must match [A-Za-z0-9_.-]{1,64}".to_owned())),
        RuleError::Large => {
            let problem =
                format!("a rule of the API has at most {GUARD_VALUE_BYTES_MAX} bytes; shorten `except`");
            Ok(invalid(&[problem]))
        }
        RuleError::Store(error @ StoreError::Unknown(_)) => {
            Err(Problem(Code::Unknown, format!("it is not known whether the rule has changed: {error}")))
        }
        RuleError::Store(error) => {
            Err(Problem(Code::StoreUnavailable, format!("nothing has changed: {error}")))
        }
    }
}

fn not_stored(id: &str, outcome: &GuardOutcome) -> Response {
    let (message, cure) = match outcome {
        GuardOutcome::Conflict(_, 0) => {
            (format!("there is no rule `{id}` of the API"), "Read it again, then repeat.")
        }
        GuardOutcome::Conflict(_, version) => {
            (format!("the rule `{id}` has version {version}"), "Read it again, then repeat with its ETag.")
        }
        _ => ("the store has the maximum number of rules".to_owned(), "Remove rules that are not needed."),
    };
    refusal(StatusCode::CONFLICT, Code::Conflict, &message, cure).into_response()
}
