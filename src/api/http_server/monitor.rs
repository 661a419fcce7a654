//! Port for probes and metrics, which an orchestrator may reach from outside; it offers nothing that changes the node.

use std::sync::Arc;

use axum::{Router, http::StatusCode, routing::get};
use tokio::net::TcpListener;

use crate::{
    api::{self, Api, Problem, http_server},
    net::tls::Certificates,
};
use tidegate_protocol::Code;

/// Serves `/healthz`, `/livez`, `/readyz` and `/metrics` until `stop` is done, over TLS if the port has certificates.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<Certificates>>,
    api: Api,
    stop: impl Future<Output = ()>,
) {
    let not_here = || async { Problem(Code::NotFound, "not on this port; see docs/http.md".into()) };
    let router = Router::new()
        .route("/healthz", get(api::healthz))
        .route("/livez", get(api::livez))
        .route("/readyz", get(api::readyz))
        .route("/metrics", get(api::metrics))
        .fallback(not_here)
        .method_not_allowed_fallback(|| async { StatusCode::METHOD_NOT_ALLOWED })
        .with_state(api);
    http_server::serve(listener, tls, router, None, stop).await;
}
