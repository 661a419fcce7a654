//! Admin port: messages, groups, nodes, presence, traces, events, storms, health, metrics and the console over HTTP. It refuses web pages of
//! other origins, and callers without a key if it has keys.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{
    Json,
    body::Bytes,
    extract::{DefaultBodyLimit, Query, State, rejection::QueryRejection},
    http::StatusCode,
    middleware::{from_fn, from_fn_with_state},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    machine::{drain::NodePhase, session::SubmitAnswer},
};
use tokio::net::TcpListener;

pub mod access;
mod blocks;
mod caller;
pub mod console;
pub mod conversations;
pub mod dev;
mod extract;
mod groups;
pub mod http_server;
pub mod messages;
mod nodes;
pub mod observe;
mod peer_figures;
mod presence;
mod problem;
pub mod reload;
pub mod routes;
mod same_origin;
pub mod stats;

use self::{
    access::AdminGate,
    console::Console,
    conversations::ApiReads,
    dev::DevTools,
    messages::MessageSender,
    observe::event_stream::EventStreams,
    problem::{Problem, ProblemDetails, refusal},
    reload::Reload,
    stats::StatsFeed,
};
use crate::{
    assign::Assigner, budget::Admission, cluster::Cluster, connections::Connections, drain::Drainer,
    ingest::admin::Admin, limits::RuleGuard, load::LoadFigures, metrics::MetricsPage, net::tls::Certificates,
    webhooks::Webhooks,
};

/// State shared by the handlers.
#[derive(Clone)]
pub struct Api {
    /// Appender of group changes.
    pub admin: Admin,
    /// Ports and peers of the node, for queries.
    pub cluster: Arc<Cluster>,
    /// Assignment of clients to nodes.
    pub assigner: Arc<Assigner>,
    /// Connection counts, for `/healthz` and `/readyz`.
    pub admission: Arc<Admission>,
    /// Renderer of `/metrics`.
    pub metrics: MetricsPage,
    /// Drain of the node, for `/readyz` and `/v1/drain`.
    pub drainer: Arc<Drainer>,
    /// Sender of messages.
    pub messages: Arc<MessageSender>,
    /// Connections of all nodes.
    pub connections: Arc<Connections>,
    /// Time after which every token that was issued before has expired; `None` if tokens may be valid for any time. A
    /// reload does not change it.
    pub token_lifetime: Option<Duration>,
    /// Settings of the console.
    pub console: Arc<Console>,
    /// Figures of the nodes.
    pub stats: Arc<StatsFeed>,
    /// Streams of the feed.
    pub event_streams: Arc<EventStreams>,
    /// Keys, their scopes, and the audit log.
    pub gate: Arc<AdminGate>,
    /// Bound on reads of conversations, and the devices that changes of marks notify.
    pub reads: Arc<ApiReads>,
    /// Endpoints of webhooks.
    pub webhooks: Arc<Webhooks>,
    /// Rules of limits.
    pub rules: Arc<RuleGuard>,
    /// Load of the node, for `/readyz?verbose`.
    pub load: Arc<LoadFigures>,
    /// Reads the configuration again.
    pub reload: Arc<dyn Reload>,
    /// Means of development; `None` on a node that is for something else.
    pub dev: Option<Arc<DevTools>>,
}

/// Serves the admin port until `stop` is done, over TLS if it has certificates.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<Certificates>>,
    api: Api,
    stop: impl Future<Output = ()>,
) {
    let port = same_origin::Port::of(&listener, tls.is_some());
    let (stats, events) = (Arc::clone(&api.stats), Arc::clone(&api.event_streams));
    let drainer = Arc::clone(&api.drainer);
    let gate = Arc::clone(&api.gate);
    let may_send_large: http_server::LargeBodyCheck = Arc::new(move |headers, ends| {
        gate.may_send_messages(headers, ends.map(|ends| ends.caller.ip().to_canonical()))
    });
    let router = routes::router(&api.gate)
        .fallback(console::page)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(Arc::clone(&api.console), console::refuse_changes))
        .layer(from_fn_with_state(port, same_origin::check))
        // The server has read and bounded the body.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn(access::with_request_id))
        .with_state(api);
    let stopping = async {
        stop.await;
        stats.end();
        events.stop();
    };
    tokio::select! {
        () = http_server::serve(listener, tls, router, Some(may_send_large), stopping) => {}
        () = stats.run() => {}
        () = events.run(|| drainer.phase() > NodePhase::Ready) => {}
    }
}

async fn wrong_method() -> ProblemDetails {
    Problem(Code::NotFound, "no such method here; see docs/http.md".into())
        .with_status(StatusCode::METHOD_NOT_ALLOWED)
}

async fn healthz(State(api): State<Api>) -> Json<Value> {
    Json(json!({
        "status": "ok",
        "node": api.cluster.me.node.as_str(),
        "durable": api.cluster.ports.bus.state().durable,
        "conns": api.admission.conns(),
        "connsMax": api.admission.conns_max(),
    }))
}

/// Answers liveness probes. A drain, a full node and unavailable services are no reason to kill the process.
async fn livez(State(api): State<Api>) -> Json<Value> {
    Json(json!({"state": api.drainer.phase().name()}))
}

#[derive(Deserialize)]
struct ReadyzQuery {
    verbose: Option<String>,
}

/// Answers readiness probes: ready if the node has been registered in the routes and is not draining.
///
/// A node started while Redis is unavailable can't log any client in; if it were ready, a rollout would continue and
/// empty the cluster. A node that was registered stays ready, because it still serves its clients. A full node is
/// ready too: otherwise it would block a rollout, or the drain of a machine, and if all nodes were full, a load
/// balancer would have none to send clients to that could refuse them.
async fn readyz(
    State(api): State<Api>,
    query: Result<Query<ReadyzQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(query) = query.map_err(|error| Problem(Code::BadContent, error.body_text()))?;
    let phase = api.drainer.phase();
    let is_registered = !api.cluster.peers.snapshot().rows.is_empty();
    let is_ready = phase == NodePhase::Ready && is_registered;
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let state = match phase {
        NodePhase::Ready if !is_registered => NodePhase::Starting.name(),
        NodePhase::Ready if !api.admission.has_room() => "full",
        phase => phase.name(),
    };
    let mut body = json!({"state": state, "conns": api.admission.conns()});
    if query.verbose.is_some()
        && let Some(body) = body.as_object_mut()
    {
        let peers = api.cluster.peers.snapshot();
        let drain = api.drainer.progress();
        body.insert("node".into(), json!(api.cluster.me.node.as_str()));
        body.insert("connsMax".into(), json!(api.admission.conns_max()));
        body.insert("memory".into(), json!(api.admission.pressure().name()));
        body.insert("drain".into(), json!(drain.as_ref().map(nodes::draining)));
        body.insert("owns".into(), json!(api.cluster.owned.list().len()));
        body.insert("others".into(), json!(peers.others.len()));
        body.insert("load".into(), nodes::load::state(&api.load));
        // Neither makes the node unready, because the other nodes are affected as well.
        body.insert("routes".into(), json!(if peers.stale { "away" } else { "fine" }));
        body.insert("archiveBehind".into(), json!(api.cluster.peers.lags().list()));
    }
    Ok((status, Json(body)).into_response())
}

/// Request for a drain; without a body it is a full one.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct DrainWish {
    #[serde(default)]
    until: DrainEnd,
}

/// How far a drain goes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum DrainEnd {
    /// All clients have their notice; the node goes on.
    Noticed,
    /// The process exits.
    #[default]
    Exit,
}

async fn begin_drain(State(api): State<Api>, body: Bytes) -> Result<Response, Problem> {
    let is_absent = body.is_empty() || body.trim_ascii() == b"null";
    let wish: DrainWish = if is_absent { DrainWish::default() } else { extract::parse_object(&body)? };
    api.drainer.begin(wish.until == DrainEnd::Noticed);
    Ok(drain_state(&api, StatusCode::ACCEPTED))
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

/// Returns the seq of an accepted change and whether it is a duplicate, or the refusal.
fn into_seq(answer: SubmitAnswer) -> Result<(u64, bool), Problem> {
    match answer {
        SubmitAnswer::Accepted { seq, .. } => Ok((seq, false)),
        SubmitAnswer::Duplicate { seq, .. } => Ok((seq, true)),
        SubmitAnswer::Refused { code, message } => Err(Problem(code, message.into_owned())),
        SubmitAnswer::Unknown | SubmitAnswer::AppendFailed => {
            Err(Problem(Code::Unknown, "send it again with the same requestId".into()))
        }
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
