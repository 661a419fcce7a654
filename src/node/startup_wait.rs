//! The start of a node whose services do not answer yet: it tries again, and says meanwhile what it waits for.
//!
//! A node that ended instead would be started anew ever more rarely (up to every 5 minutes on Kubernetes), and miss for that time
//! after the service is back.

use std::time::{Duration, Instant};

use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::watch;

use super::{
    Doors,
    ids::{self, Claim},
    ports::{self, Built},
};
use crate::{
    api::{self, waiting::Waiting},
    config::Config,
    metrics::Metrics,
};

/// Between two tries.
const AGAIN: Duration = Duration::from_secs(2);

/// Everything that is tried again: the name of the node, and its ports.
type Parts = (Config, Option<Claim>, Built);

/// Tries until the services are there. `waits` is true while nothing is under way, so that the process may end.
///
/// # Errors
/// Names what is in the way that time does not mend.
pub(super) async fn parts(
    config: &Config,
    start: Instant,
    doors: &Doors,
    (metrics, rendered): (&Metrics, &PrometheusHandle),
    waits: &watch::Sender<bool>,
) -> anyhow::Result<Parts> {
    // A first try may take as long as others.
    let told = match config.node.profile.as_str() {
        "cluster" => Some(tell("nothing yet: it begins".to_owned(), doors, rendered)?),
        _ => None,
    };
    let claimant = rand::random();
    loop {
        let error = match Box::pin(once(config, claimant, start, metrics)).await {
            Ok(parts) => return Ok(parts),
            Err(error) if ports::is_away(&error) => format!("{error:#}"),
            Err(error) => return Err(error),
        };
        tracing::warn!("the node can't start yet, and tries again until it can: {error}");
        if let Some(told) = &told {
            told.send_replace(error);
        }
        waits.send_replace(true);
        tokio::time::sleep(AGAIN).await;
        waits.send_replace(false);
    }
}

/// One try. A node that can't have its ports leaves its id to others.
async fn once(config: &Config, claimant: u64, start: Instant, metrics: &Metrics) -> anyhow::Result<Parts> {
    let (config, claim) = Box::pin(ids::leased(config, claimant)).await?;
    match ports::build(&config, start, metrics).await {
        Ok(built) => Ok((config, claim, built)),
        Err(error) => {
            if let Some(claim) = claim {
                claim.give_back(&config.node.id).await;
            }
            Err(error)
        }
    }
}

/// Says it on the ports for probes from now on, until what is given back is dropped.
fn tell(why: String, doors: &Doors, rendered: &PrometheusHandle) -> anyhow::Result<watch::Sender<String>> {
    let (told, what) = watch::channel(why);
    let doors = [(Some(&doors.admin), true), (doors.monitor.as_ref(), false)];
    for (door, is_admin) in doors.into_iter().filter_map(|(door, is_admin)| Some((door?, is_admin))) {
        let door = tokio::net::TcpListener::from_std(door.try_clone()?)?;
        let waiting = Waiting { what: what.clone(), metrics: rendered.clone() };
        tokio::spawn(async move {
            if let Err(error) = api::waiting::serve(door, waiting, is_admin).await {
                tracing::error!(%error, "a port of the API stopped");
            }
        });
    }
    Ok(told)
}
