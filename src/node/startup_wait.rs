//! Start of a node whose services do not answer yet: it retries, and its probes report what it waits for.
//!
//! If it exited instead, it would be restarted at growing intervals (up to 5 minutes on Kubernetes), and be missing
//! for as long after the service has returned.

use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::{
    ListenSockets,
    ids::{self, IdClaim},
    ports::{self, BuiltPorts},
};
use crate::{
    api::{self, http_server::waiting::StartupStatus},
    config::Config,
    metrics::{Metrics, MetricsPage},
    supervised,
};

/// Interval between two attempts to start.
const START_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Results of an attempt: the configuration with the name of the node, the claim to that name, and the ports.
type Parts = (Config, Option<IdClaim>, BuiltPorts);

/// Retries until the services answer. `waits` is true while nothing is under way, so that the process may end.
///
/// # Errors
/// An attempt fails for a reason that waiting does not remove.
pub(super) async fn parts(
    config: &Config,
    start: Instant,
    sockets: &ListenSockets,
    metrics: &Metrics,
    rendered: &MetricsPage,
    waits: &watch::Sender<bool>,
) -> anyhow::Result<Parts> {
    // Serves probes from the beginning, because the first attempt may take long too.
    let reason = match config.node.profile.as_str() {
        "cluster" => Some(serve_probes("nothing yet: the start begins".to_owned(), sockets, rendered)?),
        _ => None,
    };
    let claimant = rand::random();
    loop {
        let error = match Box::pin(attempt(config, claimant, start, metrics)).await {
            Ok(parts) => return Ok(parts),
            Err(error) if ports::is_unavailable(&error) => format!("{error:#}"),
            Err(error) => return Err(error),
        };
        tracing::warn!(%error, "waiting for dependencies; retrying");
        if let Some(reason) = &reason {
            reason.send_replace(error);
        }
        waits.send_replace(true);
        tokio::time::sleep(START_RETRY_INTERVAL).await;
        waits.send_replace(false);
    }
}

/// Attempts to start once. Releases the leased id if the ports can't be built.
async fn attempt(config: &Config, claimant: u64, start: Instant, metrics: &Metrics) -> anyhow::Result<Parts> {
    let (config, claim) = Box::pin(ids::leased(config, claimant)).await?;
    match ports::build(&config, start, metrics).await {
        Ok(built) => Ok((config, claim, built)),
        Err(error) => {
            if let Some(claim) = claim {
                claim.release(&config.node.id).await;
            }
            Err(error)
        }
    }
}

/// Serves the probes with a reason for the wait, until the returned sender of that reason is dropped.
fn serve_probes(
    first_reason: String,
    sockets: &ListenSockets,
    rendered: &MetricsPage,
) -> anyhow::Result<watch::Sender<String>> {
    let (sender, reason) = watch::channel(first_reason);
    for (port, is_admin) in [(Some(&sockets.admin), true), (sockets.monitor.as_ref(), false)] {
        let Some((listener, tls)) = port else { continue };
        let listener = tokio::net::TcpListener::from_std(listener.try_clone()?)?;
        let status = StartupStatus { reason: reason.clone(), metrics: rendered.clone() };
        let serving = api::http_server::waiting::serve(listener, tls.clone(), status, is_admin);
        supervised::spawn("the API port of a waiting node", serving);
    }
    Ok(sender)
}
