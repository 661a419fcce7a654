//! Probe endpoints of a node whose start waits for an unavailable service.

use std::sync::Arc;

use axum::{Json, Router, extract::State, http::StatusCode, middleware::from_fn_with_state, routing::get};
use serde_json::{Value, json};
use tidegate_protocol::{Code, machine::drain::NodePhase};
use tokio::{net::TcpListener, sync::watch};

use crate::{
    api::{Problem, http_server, same_origin},
    metrics::MetricsPage,
    net::tls::Certificates,
};

/// State of a node that waits to start.
#[derive(Clone)]
pub struct StartupStatus {
    /// Text that names the missing service. The sender is dropped when the wait ends.
    pub reason: watch::Receiver<String>,
    /// Renderer of `/metrics`.
    pub metrics: MetricsPage,
}

/// Serves `/healthz`, `/livez`, `/readyz` and `/metrics` until the wait ends, then closes open connections
/// gracefully, so that the next request reaches the started node. The admin port already refuses pages of other
/// origins.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<Certificates>>,
    status: StartupStatus,
    is_admin: bool,
) {
    let port = same_origin::Port::of(&listener, tls.is_some());
    let mut reason = status.reason.clone();
    let wait_ended = async move { while reason.changed().await.is_ok() {} };
    let not_started = || async {
        Problem(
            Code::Overloaded,
            "the node waits for a service that it can't start without; see /readyz".into(),
        )
    };
    let mut router = Router::new()
        .route("/livez", get(|| async { Json(json!({"state": NodePhase::Starting.name()})) }))
        .route("/healthz", get(readyz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(|State(status): State<StartupStatus>| async move { status.metrics.render() }))
        .fallback(not_started)
        .method_not_allowed_fallback(not_started)
        .with_state(status);
    if is_admin {
        router = router.layer(from_fn_with_state(port, same_origin::check));
    }
    http_server::serve(listener, tls, router, None, wait_ended).await;
}

async fn readyz(State(status): State<StartupStatus>) -> (StatusCode, Json<Value>) {
    let reason = status.reason.borrow().clone();
    let body = json!({"state": NodePhase::Starting.name(), "conns": 0, "waitsFor": reason});
    (StatusCode::SERVICE_UNAVAILABLE, Json(body))
}
