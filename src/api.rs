//! The admin port: groups, health, metrics. Loopback only; keys and the rest of the surface come later.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{
    Json, Router,
    extract::{Path, State, rejection::JsonRejection},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{delete, get, post},
};
use metrics_exporter_prometheus::PrometheusHandle;
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    id::{ConversationId, GroupId, MsgId, UserId},
    machine::{drain::Phase, session::Answer},
    record::{MemberAction, MemberChange, USERS_MAX},
};
use tokio::net::TcpListener;

use crate::{budget::Admission, chat::admin::Admin, drain::Drainer, ports::Ports};

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
    /// For `/readyz` and `/v1/drain`.
    pub drainer: Arc<Drainer>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
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
#[serde(deny_unknown_fields, rename_all = "camelCase")]
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
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/v1/drain", post(begin_drain))
        .route("/v1/drain", delete(abort_drain))
        .route("/v1/groups", post(create_group))
        .route("/v1/groups/{id}", get(show_group))
        .route("/v1/groups/{id}/members", post(change_members))
        .fallback(|| async { Problem(Code::NotFound, "no such path; see docs/http.md".into()) })
        .method_not_allowed_fallback(|| async {
            Problem(Code::NotFound, "no such method here; see docs/http.md".into())
        })
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

async fn readyz(State(api): State<Api>) -> Response {
    let ready = api.drainer.phase() == Phase::Ready;
    drain_state(&api, if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE })
}

async fn begin_drain(State(api): State<Api>) -> Response {
    api.drainer.begin();
    drain_state(&api, StatusCode::ACCEPTED)
}

async fn abort_drain(State(api): State<Api>) -> Response {
    let aborted = api.drainer.abort();
    drain_state(&api, if aborted { StatusCode::OK } else { StatusCode::CONFLICT })
}

fn drain_state(api: &Api, status: StatusCode) -> Response {
    let body = json!({"state": api.drainer.phase().name(), "conns": api.admission.conns()});
    (status, Json(body)).into_response()
}

async fn metrics(State(api): State<Api>) -> String {
    api.metrics.render()
}

async fn create_group(
    State(api): State<Api>,
    body: Result<Json<CreateGroup>, JsonRejection>,
) -> Result<Response, Problem> {
    let Json(body) = body.map_err(bad_body)?;
    let (seq, duplicate) = settle(api.admin.change(creation(&body)?, now_ms()).await)?;
    let status = if duplicate { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(json!({"conversation": format!("g:{}", body.id), "seq": seq, "duplicate": duplicate})))
        .into_response())
}

/// The owner creates the group, so it alone has that role; it is named among the users because they are told and indexed.
fn creation(body: &CreateGroup) -> Result<MemberChange, Problem> {
    let owner = body.owner.as_deref().map(user).transpose()?;
    let mut change = change(&body.id, MemberAction::Create, &body.members, body.request_id.as_deref())?;
    if let Some(owner) = &owner {
        change.users.retain(|user| user != owner);
        change.users.insert(0, owner.clone());
    }
    if change.users.len() > USERS_MAX {
        return Err(Problem(Code::TooManyMembers, String::new()));
    }
    change.by = owner;
    Ok(change)
}

async fn change_members(
    State(api): State<Api>,
    Path(id): Path<String>,
    body: Result<Json<ChangeMembers>, JsonRejection>,
) -> Result<Json<Value>, Problem> {
    let Json(body) = body.map_err(bad_body)?;
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
    let Some(summary) = summary.filter(|summary| summary.head.deleted_seq == 0) else {
        return Err(Problem(Code::NotFound, String::new()));
    };
    let members = api.ports.store.members(&group, None, USERS_MAX).await.map_err(unavailable)?;
    let members: Vec<&str> = members.iter().map(|(user, _)| user.as_str()).collect();
    Ok(Json(json!({"conversation": group.as_str(), "count": summary.members, "members": members})))
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

fn bad_body(rejection: JsonRejection) -> Problem {
    Problem(Code::BadContent, format!("the body is not what is expected here: {}", rejection.body_text()))
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tidegate_protocol::{
        id::NodeId,
        machine::ledger::{Ledger, Loaded, Need},
        record::{Body, Origin, Position, Record, Role, Rules},
    };

    use super::*;

    fn body(text: &str) -> CreateGroup {
        serde_json::from_str(text).unwrap()
    }

    /// Once, whoever was named beside an owner became an owner as well.
    #[test]
    fn the_owner_of_a_new_group_is_one_user() {
        let text = r#"{"id":"g","members":["ann","bob"],"owner":"bob","requestId":"r"}"#;
        let Ok(change) = creation(&body(text)) else { panic!("a good request") };
        assert_eq!(change.request_id.as_str(), "r");
        let group = change.conversation.clone();
        let origin = Origin { node: NodeId::new("n").unwrap(), boot: 0, conn: 0, request: 0 };
        let record = Record { origin, received_at: 0, body: Body::Member(change) };
        let mut ledger = Ledger::resume(Position::START, Rules::default(), 0);
        let mut needs = BTreeSet::new();
        ledger.needs(&record, &mut needs);
        let absent = |need| match need {
            Need::Head(id) => Loaded::Head(id, None),
            Need::Member(id, user) => Loaded::Member(id, user, None),
            Need::Device(id, user, device) => Loaded::Device(id, user, device, None),
            Need::Key(hash) => Loaded::Key(hash, None),
            Need::Row(id, seq) => Loaded::Row(id, seq, None),
        };
        ledger.load(Position::START, needs.into_iter().map(absent)).unwrap();
        ledger.apply(0, &record).unwrap();
        let role =
            |name| ledger.member(&group, &UserId::new(name).unwrap()).unwrap().map(|member| member.role);
        assert_eq!((role("bob"), role("ann")), (Some(Role::Owner), Some(Role::Member)));
    }

    #[test]
    fn an_owner_beside_as_many_members_as_fit_is_one_too_many() {
        let members: Vec<String> = (0..USERS_MAX).map(|n| format!("u{n}")).collect();
        let mut group = body(r#"{"id":"g"}"#);
        group.members = members;
        assert!(creation(&group).is_ok());
        group.owner = Some("u1".into());
        assert!(creation(&group).is_ok());
        group.owner = Some("boss".into());
        assert!(matches!(creation(&group), Err(Problem(Code::TooManyMembers, _))));
    }
}
