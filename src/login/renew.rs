//! Renewal of a route with a newer epoch, for a connection whose epoch the ledger no longer accepts.

use std::sync::Arc;

use tokio::time;

use super::{
    current_token,
    takeover::{STOP_ATTEMPTS, STOP_RETRY_INTERVAL, resolve_doubt},
};
use crate::{
    cluster::Cluster,
    mail::ShardHandles,
    routes::{DevicePolicy, Registration, Route, RoutesError},
};

/// Takes an epoch above `newest` for the connection that has this route, unless a newer connection has it. The ledger
/// requires that after the clock that issues epochs was set back (ADR 9).
///
/// # Errors
/// [`RoutesError::NotCurrent`] names the newer connection; after any other error the route is unchanged or one epoch
/// higher.
pub async fn renew(
    cluster: Arc<Cluster>,
    route: Route,
    newest: u64,
    shards: ShardHandles,
) -> Result<Route, RoutesError> {
    let registration = Registration {
        user: route.user.clone(),
        device: route.device.clone(),
        at: cluster.me.clone(),
        above: newest,
        only_if: Some(route.token.clone()),
        policy: DevicePolicy::default(),
    };
    let registered = match cluster.ports.routes.register(registration.clone()).await {
        // The row was lost with all others, and is not re-asserted yet.
        Err(RoutesError::NotCurrent(None)) => {
            cluster.ports.routes.reassert(std::slice::from_ref(&route)).await?;
            cluster.ports.routes.register(registration).await
        }
        other => other,
    };
    match registered {
        Ok(registered) => Ok(Route { token: registered.token, ..route }),
        Err(RoutesError::InDoubt { token, why }) => {
            let lost = Route { token, ..route };
            for _ in 0..STOP_ATTEMPTS {
                if let Ok(now) = current_token(&cluster, &lost).await {
                    if now.as_ref() == Some(&lost.token) {
                        return Ok(lost);
                    }
                    break;
                }
                time::sleep(STOP_RETRY_INTERVAL).await;
            }
            resolve_doubt(&cluster, lost.clone(), shards);
            Err(RoutesError::InDoubt { why, token: lost.token })
        }
        Err(error) => Err(error),
    }
}
