//! User sessions: finds the sessions of many users on other nodes with few calls to the routes.

use std::collections::{BTreeSet, HashMap};

use tidegate_protocol::id::UserId;

use crate::{
    cluster::Cluster,
    fault::planted::{Planted, is_planted},
    link::RoutedSession,
    routes::{NodeBoot, RoutesError},
};

/// Users in one call to the routes.
const LOOKUP_USERS_MAX: usize = 1_000;

/// Sessions of each user on other nodes; users without one are absent.
pub(super) type UserSessions = HashMap<UserId, Vec<(NodeBoot, RoutedSession)>>;

/// Looks up the sessions of `users` on other nodes. `None` if the routes may be incomplete: such a lookup is as good as
/// none, and all peers must be asked.
///
/// # Errors
/// Fails at the first call that the routes do not answer; all peers must be asked then too.
pub(super) async fn lookup(
    cluster: &Cluster,
    users: BTreeSet<&UserId>,
) -> Result<Option<UserSessions>, RoutesError> {
    if cluster.peers.may_be_incomplete() && !is_planted(Planted::IncompleteRoutesTrusted) {
        return Ok(None);
    }
    rows(cluster, users).await.map(Some)
}

/// Looks up the sessions of `users` on other nodes, although the routes may be incomplete.
///
/// # Errors
/// Fails at the first call that the routes do not answer.
pub(super) async fn rows(cluster: &Cluster, users: BTreeSet<&UserId>) -> Result<UserSessions, RoutesError> {
    let users: Vec<UserId> = users.into_iter().cloned().collect();
    let mut by_user = UserSessions::new();
    for page in users.chunks(LOOKUP_USERS_MAX) {
        let rows = cluster.ports.routes.lookup(page).await?;
        for (user, devices) in page.iter().zip(rows) {
            let elsewhere = devices.into_iter().filter(|(_, token)| token.at != cluster.me);
            let sessions: Vec<(NodeBoot, RoutedSession)> = elsewhere
                .map(|(device, token)| {
                    (token.at, RoutedSession { user: user.clone(), device, epoch: token.epoch })
                })
                .collect();
            if !sessions.is_empty() {
                by_user.insert(user.clone(), sessions);
            }
        }
    }
    Ok(by_user)
}
