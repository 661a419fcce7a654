//! Answers to logins on a cluster: indexes the groups of each connection and checks that its route is still current.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Semaphore, mpsc},
    time,
};

use super::{PORT_RETRY_INTERVAL, rows_of_user, step_times::StepTimes};
use crate::{
    cluster::Cluster,
    delivery::{local::LocalDispatcher, memberships::groups_of},
    large_group::subscriber::GroupSubscriber,
    log_limit::log_limited,
    mail::{ConnKey, Mail, Reassert},
    routes::{DevicePolicy, Route},
    supervised,
};

/// Logins whose groups are read concurrently. The store batches their queries; even at 200 ms per batch, a node admits
/// several hundred clients of a draining node per second.
const GROUP_READS_MAX: usize = 128;

/// How long a login tries to index its groups; longer than its session waits for them.
const GROUPS_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection's route is checked while the routes are unavailable.
const CHECK_MAX: Duration = Duration::from_secs(60);

/// Answers logins in a cluster, where no owner has the whole log: indexes each connection's groups, and checks that its
/// route is still current. Runs until the shards are gone.
pub async fn answer_all(
    mut logins: mpsc::Receiver<Vec<(ConnKey, Route)>>,
    cluster: Arc<Cluster>,
    policy: DevicePolicy,
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
            let (cluster, subscriber, mut out) = (Arc::clone(&cluster), Arc::clone(&subscriber), outbound());
            supervised::spawn("the answer to a login", async move {
                let check = check(key, &route, &cluster, policy, &mut out).await;
                steps.done("current_route");
                if check == RouteCheck::Replaced {
                    return;
                }
                index_groups(key, &route, &cluster, &subscriber, &mut steps).await;
                steps.log(key, &route, "answered");
                drop(permit);
                if check == RouteCheck::Unknown {
                    check_again(key, &route, &cluster, policy, &mut out).await;
                }
            });
        }
    }
}

/// Returns the mail that ends connections of the device below this epoch.
fn replaced(route: &Route, epoch: u64) -> Mail {
    Mail::Replaced(route.user.clone(), route.device.clone(), epoch, None)
}

/// Result of the check of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RouteCheck {
    /// The connection stays.
    Current,
    /// A newer session replaces it; its shard is notified.
    Replaced,
    /// The routes did not answer.
    Unknown,
}

/// Checks the route of a login, whose connection is indexed by now. A newer login that replaced it before could not find
/// it, so it checks its own route, and those of the other devices that may take its place (flaws S1, S2).
async fn check(
    key: ConnKey,
    route: &Route,
    cluster: &Cluster,
    policy: DevicePolicy,
    out: &mut LocalDispatcher,
) -> RouteCheck {
    let is_replaced = match rows_of_user(cluster, &route.user).await {
        Ok(rows) if policy.is_replaced(route, &rows) => true,
        Ok(rows) if rows.iter().any(|(device, _)| *device == route.device) => false,
        Err(error) => {
            tracing::debug!(%error, "failed to check the route of a login");
            return RouteCheck::Unknown;
        }
        // The row was removed before the connection was indexed.
        Ok(_) => match cluster.ports.routes.reassert(std::slice::from_ref(route)).await {
            // A newer connection had the row, and has closed since.
            Ok(current) if current == [false] => true,
            // If the connection has closed since, its shard must remove the row: no other node will (flaws S2, S5).
            Ok(_) => {
                let settled = vec![(key, route.clone(), true)];
                out.post_to_conn(key, Mail::Reassert(Reassert::Settle(settled))).await;
                false
            }
            Err(error) => {
                tracing::debug!(%error, "failed to re-assert a lost route");
                return RouteCheck::Unknown;
            }
        },
    };
    if !is_replaced {
        return RouteCheck::Current;
    }
    out.post_to_conn(key, replaced(route, route.token.epoch.saturating_add(1))).await;
    RouteCheck::Replaced
}

/// Repeats the check of a route until the routes answer, for at most [`CHECK_MAX`].
async fn check_again(
    key: ConnKey,
    route: &Route,
    cluster: &Cluster,
    policy: DevicePolicy,
    out: &mut LocalDispatcher,
) {
    let until = time::Instant::now() + CHECK_MAX;
    while time::Instant::now() < until {
        time::sleep(PORT_RETRY_INTERVAL).await;
        if check(key, route, cluster, policy, out).await != RouteCheck::Unknown {
            return;
        }
    }
    log_limited!(warn, "the route of a login was not checked: the routes are unavailable");
}

/// Indexes the groups of the connection, which answers its login.
async fn index_groups(
    key: ConnKey,
    route: &Route,
    cluster: &Cluster,
    subscriber: &GroupSubscriber,
    steps: &mut StepTimes,
) {
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

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tidegate_protocol::{
        Time,
        id::{DeviceId, NodeId, UserId},
    };

    use super::*;
    use crate::{
        fault::{Fault, FaultPlan, Faulty},
        link::LocalLink,
        mail::{ShardHandles, mailbox},
        ports::Ports,
        routes::{Leases, MemoryRoutes, NodeBoot, OnePer, Registration, Routes},
    };

    fn cluster(plan: &Arc<FaultPlan>) -> Cluster {
        let memory = Arc::new(MemoryRoutes::new(1, Leases::default(), || Time::ZERO));
        let routes = Arc::new(Faulty::<dyn Routes>::new(memory as Arc<dyn Routes>, Arc::clone(plan)));
        let ports = Ports { routes, ..Ports::in_memory(Arc::new(LocalLink)) };
        Cluster::new(NodeBoot { node: NodeId::new("n1").unwrap(), boot: 1 }, ports)
    }

    async fn register(cluster: &Cluster, device: &str) -> Route {
        let (user, device) = (UserId::new("ann").unwrap(), DeviceId::new(device).unwrap());
        let registration = Registration {
            user: user.clone(),
            device: device.clone(),
            at: cluster.me.clone(),
            above: 0,
            only_if: None,
            policy: DevicePolicy::default(),
        };
        Route { token: cluster.ports.routes.register(registration).await.unwrap().token, user, device }
    }

    #[tokio::test(start_paused = true)]
    async fn replaced_session_ends_although_the_routes_failed_at_first() {
        let plan = FaultPlan::none();
        let cluster = cluster(&plan);
        let (older, newer) = (register(&cluster, "phone-a").await, register(&cluster, "phone-b").await);
        let (handle, mut mailbox) = mailbox(Waker::noop().clone(), 1 << 16);
        let shards = ShardHandles::default();
        assert!(shards.set(vec![handle]).is_ok());
        let mut out = LocalDispatcher::new(cluster.me.clone(), Arc::default(), shards, Arc::default());
        let policy = DevicePolicy { one_per: OnePer::Class, ..DevicePolicy::default() };
        let key = ConnKey { shard: 0, slot: 0, generation: 0 };
        (0..4).for_each(|_| plan.plan("lookup", Fault::Fail));
        assert_eq!(check(key, &older, &cluster, policy, &mut out).await, RouteCheck::Unknown);
        check_again(key, &older, &cluster, policy, &mut out).await;
        let Some(Mail::Replaced(user, device, below, _)) = mailbox.take() else { panic!("it stays") };
        assert_eq!((&user, &device), (&older.user, &older.device));
        assert!(below > older.token.epoch, "{below}");
        assert_eq!(plan.calls("lookup"), 5);
        check_again(key, &newer, &cluster, policy, &mut out).await;
        assert!(mailbox.take().is_none(), "the newer one stays");
    }

    #[tokio::test(start_paused = true)]
    async fn check_of_a_route_is_repeated_for_a_limited_time() {
        let plan = FaultPlan::none();
        let cluster = cluster(&plan);
        let route = register(&cluster, "phone").await;
        let mut out =
            LocalDispatcher::new(cluster.me.clone(), Arc::default(), Arc::default(), Arc::default());
        (0..1_000).for_each(|_| plan.plan("lookup", Fault::Fail));
        let begun = time::Instant::now();
        let key = ConnKey { shard: 0, slot: 0, generation: 0 };
        check_again(key, &route, &cluster, DevicePolicy::default(), &mut out).await;
        assert!((CHECK_MAX..=CHECK_MAX + PORT_RETRY_INTERVAL).contains(&begun.elapsed()));
    }
}
