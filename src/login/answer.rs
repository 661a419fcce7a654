//! Answers to logins on a cluster: indexes the groups of each connection and checks that its route is still current.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Semaphore, mpsc},
    time,
};

use super::{PORT_RETRY_INTERVAL, current_token, step_times::StepTimes};
use crate::{
    cluster::Cluster,
    delivery::{local::LocalDispatcher, memberships::groups_of},
    large_group::subscriber::GroupSubscriber,
    mail::{ConnKey, Mail, Reassert},
    routes::Route,
    supervised,
};

/// Logins whose groups are read concurrently. The store batches their queries; even at 200 ms per batch, a node admits
/// several hundred clients of a draining node per second.
const GROUP_READS_MAX: usize = 128;

/// How long a login tries to index its groups; longer than its session waits for them.
const GROUPS_TIMEOUT: Duration = Duration::from_secs(5);

/// Answers logins in a cluster, where no owner has the whole log: indexes each connection's groups, and checks that its
/// route is still current. Runs until the shards are gone.
pub async fn answer_all(
    mut logins: mpsc::Receiver<Vec<(ConnKey, Route)>>,
    cluster: Arc<Cluster>,
    subscriber: Arc<GroupSubscriber>,
    outbound: impl Fn() -> LocalDispatcher,
) {
    let permits = Arc::new(Semaphore::new(GROUP_READS_MAX));
    while let Some(batch) = logins.recv().await {
        for (key, route) in batch {
            let mut steps = StepTimes::begin();
            // The semaphore is never closed.
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
            steps.done("permit");
            let (cluster, subscriber, out) = (Arc::clone(&cluster), Arc::clone(&subscriber), outbound());
            supervised::spawn("the answer to a login", async move {
                answer(key, &route, &cluster, &subscriber, out, &mut steps).await;
                steps.log(&route, "answered");
                drop(permit);
            });
        }
    }
}

/// Returns the mail that ends connections of the device below this epoch.
fn replaced(route: &Route, epoch: u64) -> Mail {
    Mail::Replaced(route.user.clone(), route.device.clone(), epoch, None)
}

/// Answers one login, whose connection is indexed by now. A newer login that replaced it before could not find it, so
/// it checks its own route (flaws S1, S2).
async fn answer(
    key: ConnKey,
    route: &Route,
    cluster: &Cluster,
    subscriber: &GroupSubscriber,
    mut out: LocalDispatcher,
    steps: &mut StepTimes,
) {
    let row = current_token(cluster, route).await;
    steps.done("current_route");
    match row {
        Ok(Some(token)) if token.epoch > route.token.epoch => {
            return out.post_to_conn(key, replaced(route, token.epoch)).await;
        }
        Ok(Some(_)) | Err(_) => {}
        // The row was removed before the connection was indexed.
        Ok(None) => match cluster.ports.routes.reassert(std::slice::from_ref(route)).await {
            // A newer connection had the row, and has closed since.
            Ok(current) if current == [false] => {
                return out.post_to_conn(key, replaced(route, route.token.epoch.saturating_add(1))).await;
            }
            // If the connection has closed since, its shard must remove the row: no other node will (flaws S2, S5).
            Ok(_) => {
                let settled = vec![(key, route.clone(), true)];
                out.post_to_conn(key, Mail::Reassert(Reassert::Settle(settled))).await;
            }
            Err(error) => tracing::debug!(%error, "failed to re-assert a lost route"),
        },
    }
    // The session's own deadline ends it earlier, and then no caller waits for this.
    let until = time::Instant::now() + GROUPS_TIMEOUT;
    while time::Instant::now() < until {
        let groups = groups_of(&*cluster.ports.store, &route.user).await;
        steps.done("groups");
        match groups {
            // If the indexes are newer, the memberships are read again.
            Ok(groups) => {
                if subscriber.login(key, &route.user, groups).await {
                    return;
                }
            }
            Err(error) => tracing::debug!(%error, "store unavailable; login waits"),
        }
        time::sleep(PORT_RETRY_INTERVAL).await;
    }
}
