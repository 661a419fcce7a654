//! The admin port: groups, health, metrics. Loopback only; keys and the rest of the surface come later.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use metrics_exporter_prometheus::PrometheusHandle;
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    id::{ConversationId, GroupId, MsgId, UserId},
    machine::session::Answer,
    record::{MemberAction, MemberChange, Role, USERS_MAX},
};
use tokio::net::TcpListener;

use crate::{budget::Admission, chat::admin::Admin, ports::Ports};

/// What the handlers need.
#[derive(Clone)]
pub struct Api {
    /// Changes groups.
    pub admin: Admin,
    /// Reads groups.
    pub ports: Arc<Ports>,
    /// For `/healthz`.
    pub admission: Arc<Admission>,
    /// For `/metrics`.
    pub metrics: PrometheusHandle,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CreateGroup {
    id: String,
    #[serde(default)]
    members: Vec<String>,
    #[serde(default)]
    owner: Option<String>,
    #[serde(default)]
    request_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeMembers {
    #[serde(default)]
    add: Vec<String>,
    #[serde(default)]
    remove: Vec<String>,
    #[serde(default)]
    request_id: Option<String>,
}

/// A refusal as it goes out: status, code, cure.
struct Problem(Code, String);

/// Serves until the runtime ends.
///
/// # Errors
/// Fails when the listener does.
pub async fn serve(listener: TcpListener, api: Api) -> std::io::Result<()> {
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/metrics", get(metrics))
        .route("/v1/groups", post(create_group))
        .route("/v1/groups/{id}", get(show_group))
        .route("/v1/groups/{id}/members", post(change_members))
        .fallback(|| async { Problem(Code::NotFound, "no such path; see docs/http.md".into()) })
        .with_state(api);
    axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>()).await
}

async fn healthz(State(api): State<Api>) -> Json<Value> {
    Json(json!({
        "status": "ok",
        "node": api.ports.me.node.as_str(),
        "durable": api.ports.bus.durable(),
        "conns": api.admission.conns(),
        "connsMax": api.admission.conns_max(),
    }))
}

async fn metrics(State(api): State<Api>) -> String {
    api.metrics.render()
}

async fn create_group(State(api): State<Api>, Json(body): Json<CreateGroup>) -> Result<Response, Problem> {
    let owner = body.owner.as_deref().map(user).transpose()?;
    let mut change = change(&body.id, MemberAction::Create, &body.members, body.request_id.as_deref())?;
    if let Some(owner) = owner {
        // The first user of a creation with a role is its owner; see the ledger.
        change.users.retain(|user| *user != owner);
        change.users.insert(0, owner);
        change.role = Some(Role::Owner);
    }
    let (seq, duplicate) = settle(api.admin.change(change, now_ms()).await)?;
    let status = if duplicate { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(json!({"conversation": format!("g:{}", body.id), "seq": seq, "duplicate": duplicate})))
        .into_response())
}

async fn change_members(
    State(api): State<Api>,
    Path(id): Path<String>,
    Json(body): Json<ChangeMembers>,
) -> Result<Json<Value>, Problem> {
    if body.add.is_empty() && body.remove.is_empty() {
        return Err(Problem(Code::BadContent, "name users in add or remove".into()));
    }
    if !body.add.is_empty() && !body.remove.is_empty() && body.request_id.is_some() {
        return Err(Problem(Code::BadContent, "with requestId, add and remove are two requests".into()));
    }
    let mut last = (0, false);
    for (action, users) in [(MemberAction::Join, &body.add), (MemberAction::Kick, &body.remove)] {
        if !users.is_empty() {
            let change = change(&id, action, users, body.request_id.as_deref())?;
            last = settle(api.admin.change(change, now_ms()).await)?;
        }
    }
    Ok(Json(json!({"conversation": format!("g:{id}"), "seq": last.0, "duplicate": last.1})))
}

async fn show_group(State(api): State<Api>, Path(id): Path<String>) -> Result<Json<Value>, Problem> {
    let group = group(&id)?;
    let unavailable = |error| Problem(Code::NotYet, format!("the store does not answer: {error}"));
    let summary = api.ports.store.summary(&group, None).await.map_err(unavailable)?;
    let count = summary.map_or(0, |summary| summary.members);
    let members = api.ports.store.members(&group, None, USERS_MAX).await.map_err(unavailable)?;
    if members.is_empty() {
        return Err(Problem(Code::NotFound, String::new()));
    }
    let members: Vec<&str> = members.iter().map(|(user, _)| user.as_str()).collect();
    Ok(Json(json!({"conversation": group.as_str(), "count": count, "members": members})))
}

fn change(
    id: &str,
    action: MemberAction,
    users: &[String],
    request: Option<&str>,
) -> Result<MemberChange, Problem> {
    if users.len() > USERS_MAX {
        return Err(Problem(Code::TooManyMembers, String::new()));
    }
    let bad = |_| Problem(Code::BadId, "requestId: [A-Za-z0-9_.-]{1,64}".into());
    let mut users: Vec<UserId> = users.iter().map(|id| user(id)).collect::<Result<_, _>>()?;
    users.sort_unstable();
    users.dedup();
    Ok(MemberChange {
        conversation: group(id)?,
        action,
        users,
        role: None,
        by: None,
        settings: Default::default(),
        request_id: request.map(MsgId::new).transpose().map_err(bad)?.unwrap_or_else(Admin::fresh_request_id),
    })
}

fn group(id: &str) -> Result<ConversationId, Problem> {
    let id = GroupId::new(id).map_err(|error| Problem(Code::BadId, format!("group {id:?}: {error}")))?;
    Ok(ConversationId::group(&id))
}

fn user(id: &str) -> Result<UserId, Problem> {
    UserId::new(id).map_err(|error| Problem(Code::BadId, format!("user {id:?}: {error}")))
}

fn settle(answer: Answer) -> Result<(u64, bool), Problem> {
    match answer {
        Answer::Accepted { seq, .. } => Ok((seq, false)),
        Answer::Duplicate { seq, .. } => Ok((seq, true)),
        Answer::Refused { code, message } => Err(Problem(code, message.into_owned())),
        Answer::Unknown | Answer::AppendFailed => {
            Err(Problem(Code::Unknown, "send it again with the same requestId".into()))
        }
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Self(code, message) = self;
        let status = match code {
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::AlreadyExists | Code::Conflict => StatusCode::CONFLICT,
            Code::Forbidden | Code::NotAMember => StatusCode::FORBIDDEN,
            code if code.temporary() => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_REQUEST,
        };
        let message = if message.is_empty() { code.what().to_owned() } else { message };
        let body = json!({
            "code": code.number(),
            "name": code.name(),
            "message": message,
            "temporary": code.temporary(),
            "cure": code.cure(),
        });
        (status, Json(body)).into_response()
    }
}
