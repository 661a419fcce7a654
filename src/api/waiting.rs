//! What a node answers on its ports for probes while it waits for a service that it can't start without.

use axum::{Json, Router, extract::State, http::StatusCode, middleware::from_fn_with_state, routing::get};
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::{Value, json};
use tidegate_protocol::{Code, machine::drain::Phase};
use tokio::{net::TcpListener, sync::watch};

use super::{Problem, same_origin};

/// What it knows by then.
#[derive(Clone)]
pub struct Waiting {
    /// What it waits for, in words. When this ends, so does the waiting.
    pub what: watch::Receiver<String>,
    /// For `/metrics`.
    pub metrics: PrometheusHandle,
}

/// Serves `/healthz`, `/livez`, `/readyz` and `/metrics` until there is nobody who waits; connections that are open are told to go
/// then, so that the next question comes to the node itself. The admin port refuses here what it refuses later.
///
/// # Errors
/// Fails when the listener does.
pub async fn serve(listener: TcpListener, waiting: Waiting, is_admin: bool) -> std::io::Result<()> {
    let listen = listener.local_addr()?.ip();
    let mut what = waiting.what.clone();
    let over = async move { while what.changed().await.is_ok() {} };
    let later = || async {
        Problem(
            Code::Overloaded,
            "the node waits for a service that it can't start without; see /readyz".into(),
        )
    };
    let mut router = Router::new()
        .route("/livez", get(|| async { Json(json!({"state": Phase::Starting.name()})) }))
        .route("/healthz", get(readyz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(|State(waiting): State<Waiting>| async move { waiting.metrics.render() }))
        .fallback(later)
        .method_not_allowed_fallback(later)
        .with_state(waiting);
    if is_admin {
        router = router.layer(from_fn_with_state(listen, same_origin::check));
    }
    axum::serve(listener, router).with_graceful_shutdown(over).await
}

async fn readyz(State(waiting): State<Waiting>) -> (StatusCode, Json<Value>) {
    let what = waiting.what.borrow().clone();
    let body = json!({"state": Phase::Starting.name(), "conns": 0, "waitsFor": what});
    (StatusCode::SERVICE_UNAVAILABLE, Json(body))
}
