//! Login: registers the route of the device, stops the session that it replaces, and loads its chain and groups.

use std::time::Duration;

use crate::{
    cluster::Cluster,
    routes::{Route, RoutesError, Token},
};

mod answer;
mod register;
mod renew;
mod step_times;
mod takeover;

pub use self::{answer::answer_all, register::login, renew::renew};

/// Delay between attempts to call an unavailable port.
const PORT_RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Returns the token in the device's row.
async fn current_token(cluster: &Cluster, route: &Route) -> Result<Option<Token>, RoutesError> {
    let rows = cluster.ports.routes.lookup(std::slice::from_ref(&route.user)).await?;
    let row = rows.into_iter().flatten().find(|(device, _)| *device == route.device);
    Ok(row.map(|(_, token)| token))
}
