//! Admin API of connections: which there are on all nodes, and their end by an administrator.

use std::{fmt, str::FromStr, time::Duration};

use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    codec::Wire,
    id::{DeviceId, NodeId, UserId},
};

pub(in crate::api) mod revoke;

use crate::{
    api::{Api, Problem, extract::IdPath},
    connections::{OrderOutcome, PagePosition},
    link::{CloseOrder, ConnectionQuery, ConnectionRow, ConnectionSort, Selected},
    routes::NodeBoot,
};

/// Connections of a list without a limit of its own.
const LIMIT_DEFAULT: usize = 50;

/// Wait that `reconnect=after` asks of clients, in ms.
const RECONNECT_AFTER: Duration = Duration::from_secs(5);

/// Largest time that JSON numbers represent exactly, in ms since 1970; a later end is none.
const TIME_MAX: u64 = (1 << 53) - 1;

/// Id of a connection, unique over all nodes and their runs.
struct ConnectionId {
    run: NodeBoot,
    key: u64,
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:x}.{:x}", self.run.node, self.run.boot, self.key)
    }
}

impl FromStr for ConnectionId {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        let bad = || Problem(Code::BadId, "take the id of a connection from GET /v1/connections".into());
        let mut parts = text.rsplitn(3, '.');
        let mut hex = || parts.next().and_then(|part| u64::from_str_radix(part, 16).ok()).ok_or_else(bad);
        let (key, boot) = (hex()?, hex()?);
        let node = parts.next().and_then(|name| NodeId::new(name).ok()).ok_or_else(bad)?;
        Ok(Self { run: NodeBoot { node, boot }, key })
    }
}

/// Parameters of a list of all connections.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct ListQuery {
    node: Option<String>,
    sort: Option<SortName>,
    limit: Option<usize>,
    cursor: Option<String>,
}

/// Name of an order.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SortName {
    Since,
    Outbox,
    Id,
}

/// Parameters of a request that closes connections; `device` is only for those of a user.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct CloseQuery {
    device: Option<String>,
    reason: Option<String>,
    reconnect: Option<ReconnectName>,
}

/// Whether the clients may reconnect.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ReconnectName {
    Never,
    After,
}

type Parameters<T> = Result<Query<T>, QueryRejection>;

/// Lists connections of all nodes, or of one.
pub(in crate::api) async fn list(
    State(api): State<Api>,
    query: Parameters<ListQuery>,
) -> Result<Json<Value>, Problem> {
    let Query(ListQuery { node, sort, limit, cursor }) = query.map_err(bad_query)?;
    let limit = limit.unwrap_or(LIMIT_DEFAULT);
    if !(1..=ConnectionQuery::LIMIT_MAX).contains(&limit) {
        let why = format!("limit: between 1 and {}", ConnectionQuery::LIMIT_MAX);
        return Err(Problem(Code::BadContent, why));
    }
    let unknown = || Problem(Code::NotFound, "there is no such node".into());
    let only = node.map(|node| api.connections.run_of(&node).ok_or_else(unknown)).transpose()?;
    let sort = match sort {
        Some(SortName::Id) => return page(&api, cursor.as_deref(), limit, only.as_ref()).await,
        _ if cursor.is_some() => {
            return Err(Problem(Code::BadContent, "cursor: only with sort=id".into()));
        }
        Some(SortName::Outbox) => ConnectionSort::Outbox,
        Some(SortName::Since) | None => ConnectionSort::Since,
    };
    let query = ConnectionQuery { selected: Selected::All, sort, limit };
    Ok(listed(&api, &query, only.as_ref()).await)
}

/// Lists a page of the connections in the order of their ids.
async fn page(
    api: &Api,
    cursor: Option<&str>,
    limit: usize,
    only: Option<&NodeBoot>,
) -> Result<Json<Value>, Problem> {
    let bad = |_| Problem(Code::BadContent, "cursor: take it from the last page".into());
    let from = cursor.map(|text| text.parse::<ConnectionId>().map_err(bad)).transpose()?;
    let from = from.map(|id| PagePosition { run: id.run, from_key: id.key.checked_add(1) });
    let page = api.connections.page(from, limit, only).await;
    let rows: Vec<Value> = page.rows.iter().map(|(run, row)| connection(run, row)).collect();
    let mut body = json!({"connections": rows, "silent": names(&page.silent)});
    if let Some(PagePosition { run, from_key }) = page.next {
        // A cursor has the form of the last id before it, which need not exist.
        let last = from_key.map_or(u64::MAX, |key| key.saturating_sub(1));
        body["next"] = ConnectionId { run, key: last }.to_string().into();
    }
    Ok(Json(body))
}

/// Lists the connections of a user.
pub(in crate::api) async fn of_user(
    State(api): State<Api>,
    IdPath(user): IdPath<String>,
) -> Result<Json<Value>, Problem> {
    let selected = Selected::User(parse_user(&user)?, None);
    let (sort, limit) = (ConnectionSort::Since, ConnectionQuery::LIMIT_MAX);
    Ok(listed(&api, &ConnectionQuery { selected, sort, limit }, None).await)
}

async fn listed(api: &Api, query: &ConnectionQuery, only: Option<&NodeBoot>) -> Json<Value> {
    let list = api.connections.list(query, only).await;
    let rows: Vec<Value> = list.rows.iter().map(|(run, row)| connection(run, row)).collect();
    Json(json!({"connections": rows, "total": list.total, "silent": names(&list.silent)}))
}

/// Returns one connection.
pub(in crate::api) async fn one(
    State(api): State<Api>,
    IdPath(id): IdPath<String>,
) -> Result<Json<Value>, Problem> {
    let id: ConnectionId = id.parse()?;
    find_run(&api, &id)?;
    let query = ConnectionQuery { selected: Selected::Key(id.key), sort: ConnectionSort::Since, limit: 1 };
    let list = api.connections.list(&query, Some(&id.run)).await;
    match (list.rows.first(), list.silent.is_empty()) {
        (Some((run, row)), _) => Ok(Json(connection(run, row))),
        (None, true) => Err(not_found()),
        (None, false) => Err(Problem(Code::Busy, "its node did not answer; try again".into())),
    }
}

/// Closes the connections of a user, on one device or on all.
pub(in crate::api) async fn close_of_user(
    State(api): State<Api>,
    IdPath(user): IdPath<String>,
    query: Parameters<CloseQuery>,
) -> Result<Json<Value>, Problem> {
    let Query(query) = query.map_err(bad_query)?;
    let device = query.device.as_deref().map(parse_device).transpose()?;
    let order = close_order(Selected::User(parse_user(&user)?, device), query)?;
    Ok(closed(&api.connections.close(&order, None).await))
}

/// Closes one connection.
pub(in crate::api) async fn close_one(
    State(api): State<Api>,
    IdPath(id): IdPath<String>,
    query: Parameters<CloseQuery>,
) -> Result<Json<Value>, Problem> {
    let Query(query) = query.map_err(bad_query)?;
    let id: ConnectionId = id.parse()?;
    if query.device.is_some() {
        return Err(Problem(Code::BadContent, "device: the id names one connection already".into()));
    }
    let order = close_order(Selected::Key(id.key), query)?;
    find_run(&api, &id)?;
    let outcome = api.connections.close(&order, Some(&id.run)).await;
    if outcome == OrderOutcome::default() {
        return Err(not_found());
    }
    Ok(closed(&outcome))
}

fn close_order(selected: Selected, query: CloseQuery) -> Result<CloseOrder, Problem> {
    let reason = parse_reason(query.reason)?;
    let reconnect_after = match query.reconnect {
        Some(ReconnectName::After) => Some(RECONNECT_AFTER),
        Some(ReconnectName::Never) | None => None,
    };
    Ok(CloseOrder { selected, reason, reconnect_after })
}

fn find_run(api: &Api, id: &ConnectionId) -> Result<(), Problem> {
    if api.connections.is_run(&id.run) { Ok(()) } else { Err(not_found()) }
}

fn not_found() -> Problem {
    Problem(Code::NotFound, "there is no such connection, or it has ended".into())
}

fn closed(outcome: &OrderOutcome) -> Json<Value> {
    Json(json!({"closed": outcome.count, "silent": names(&outcome.silent)}))
}

pub(in crate::api) fn names(runs: &[NodeBoot]) -> Vec<&str> {
    runs.iter().map(|run| run.node.as_str()).collect()
}

fn connection(run: &NodeBoot, row: &ConnectionRow) -> Value {
    json!({
        "id": ConnectionId { run: run.clone(), key: row.key }.to_string(),
        "user": row.user.as_str(),
        "device": row.device.as_str(),
        "node": run.node.as_str(),
        "address": row.address.to_string(),
        "transport": match row.wire {
            Wire::Tcp => "tcp-proto",
            Wire::JsonLine => "tcp-json",
            Wire::WsBinary => "websocket-proto",
            Wire::WsText => "websocket-json",
        },
        "sinceMs": row.since_ms,
        "outboxBytes": row.outbox_bytes,
        "window": row.unacked,
        "prio": row.class,
        "held": row.held,
        "expiresMs": (row.expires_ms <= TIME_MAX).then_some(row.expires_ms),
    })
}

fn bad_query(rejection: QueryRejection) -> Problem {
    Problem(Code::BadContent, rejection.body_text())
}

pub(super) fn parse_user(user: &str) -> Result<UserId, Problem> {
    UserId::addressable(user).map_err(|error| Problem(Code::BadId, format!("user: {error}")))
}

pub(super) fn parse_device(device: &str) -> Result<DeviceId, Problem> {
    DeviceId::addressable(device).map_err(|error| Problem(Code::BadId, format!("device: {error}")))
}

/// Returns the reason for a client; empty without one.
pub(super) fn parse_reason(reason: Option<String>) -> Result<String, Problem> {
    let (reason, most) = (reason.unwrap_or_default(), CloseOrder::REASON_BYTES_MAX);
    if reason.len() > most || reason.contains(char::is_control) {
        let why = format!("reason: at most {most} bytes, without control characters");
        return Err(Problem(Code::BadContent, why));
    }
    Ok(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_of_a_connection_names_its_run_and_key() {
        for node in ["n1", "a.b-c_d", "1.2.3"] {
            let run = NodeBoot { node: NodeId::new(node).unwrap(), boot: 0xfeed };
            let text = ConnectionId { run: run.clone(), key: u64::MAX }.to_string();
            let Ok(id) = text.parse::<ConnectionId>() else { panic!("{text}") };
            assert_eq!((id.run, id.key), (run, u64::MAX));
        }
        for wrong in ["", "n1", "n1.1", "n1.1.x", ".1.1", "n 1.1.1", "n1.10000000000000000.1"] {
            assert!(wrong.parse::<ConnectionId>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn reason_fits_into_the_close_frame_of_a_websocket() {
        let query = |reason: &str| CloseQuery { device: None, reason: Some(reason.into()), reconnect: None };
        let order = |reason: &str| close_order(Selected::Key(1), query(reason)).map(|order| order.reason);
        assert_eq!(order(&"x".repeat(120)).ok().map(|reason| reason.len()), Some(120));
        assert!(order(&"x".repeat(121)).is_err() && order("a\nb").is_err());
    }
}
