//! Login: registers the route of the device, stops the session that it replaces, and loads its chain and groups.

use std::time::Duration;

use tidegate_protocol::id::{DeviceId, UserId};

use crate::{
    cluster::Cluster,
    routes::{DevicePolicy, Route, RoutesError, Token},
};

mod answer;
mod register;
mod renew;
mod step_times;
mod takeover;

pub use self::{
    answer::answer_all,
    register::{ReceivedHello, TOO_LATE, login},
    renew::renew,
};

/// Delay between attempts to call an unavailable port.
const PORT_RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Returns the rows of the user.
async fn rows_of_user(cluster: &Cluster, user: &UserId) -> Result<Vec<(DeviceId, Token)>, RoutesError> {
    let rows = cluster.ports.routes.lookup(std::slice::from_ref(user)).await?;
    Ok(rows.into_iter().flatten().collect())
}

/// Returns the token in the device's row.
async fn current_token(cluster: &Cluster, route: &Route) -> Result<Option<Token>, RoutesError> {
    let rows = rows_of_user(cluster, &route.user).await?.into_iter();
    Ok(rows.filter(|(device, _)| *device == route.device).map(|(_, token)| token).next())
}

/// Returns whether newer sessions of the user replace that of the route. A session that was replaced before its shard
/// had indexed it is found by nothing else (flaws S1, S2).
///
/// # Errors
/// Returns the error of the lookup.
pub async fn is_replaced(
    cluster: &Cluster,
    policy: DevicePolicy,
    route: &Route,
) -> Result<bool, RoutesError> {
    Ok(policy.is_replaced(route, &rows_of_user(cluster, &route.user).await?))
}
