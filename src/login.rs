//! Login: registers the route of the device, stops the session that it replaces, and loads its chain and groups.

use std::{sync::Arc, time::Duration};

use tidegate_protocol::{
    Code,
    id::{DeviceId, UserId},
    settings::UserSettings,
};
use tokio::{
    sync::{Semaphore, mpsc},
    time,
};

use crate::{
    cluster::Cluster,
    delivery::{local::LocalDispatcher, memberships::groups_of},
    large_group::subscriber::GroupSubscriber,
    link::{LinkError, RoutedSession},
    mail::{ConnKey, LoginDone, LoginError, Mail, Reassert, ShardHandles},
    routes::{NodeBoot, Registered, Registration, Route, Routes, RoutesError, Token},
};

/// Logins whose groups are read concurrently. The store batches their queries; even at 200 ms per batch, a node admits
/// several hundred clients of a draining node per second.
const GROUP_READS_MAX: usize = 128;

/// How long a login tries to index its groups; longer than its session waits for them.
const GROUPS_TIMEOUT: Duration = Duration::from_secs(5);

/// Delay between attempts to stop a replaced session.
const STOP_RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Attempts to stop a replaced session while the new login waits.
const STOP_ATTEMPTS: u32 = 3;

/// Attempts to stop a replaced session after the new login has proceeded.
const STOP_ATTEMPTS_BACKGROUND: u32 = 60;

/// How long the new login waits for the replaced session to stop; a frozen node uses up the time of each attempt.
const STOP_MAX: Duration = Duration::from_secs(1);

/// How long a registration whose reply was lost may still take effect once the routes answer again: as long as its
/// connection may resend it.
const LATE_EFFECT_MAX: Duration = Duration::from_secs(15);

/// Delay between attempts to call an unavailable port.
const PORT_RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// How long a login tries to register before it is refused (ADR 17). On a busy machine the routes may be late for a
/// moment. Thousands of clients that are refused then return at once, and each new login costs more than one that
/// waits, so the overload would not end.
const ROUTES_MAX: Duration = Duration::from_secs(2);

/// Stores the user's settings, registers the device's route and loads its chain; the newest login wins at once.
pub async fn login(
    cluster: Arc<Cluster>,
    user: UserId,
    device: DeviceId,
    now: UserSettings,
    shards: ShardHandles,
) -> Result<LoginDone, LoginError> {
    // The settings come first, because the store may wait for a disk. From the registration until the shard has the
    // result nothing may wait: otherwise the mail of a newer login that replaces this one would arrive first and find
    // no session. Lost settings are no reason to refuse.
    let mut steps = StepTimes::begin();
    let settings = cluster.ports.store.merge_settings(&user, now).await.unwrap_or_else(|error| {
        tracing::warn!(%error, "failed to store the settings of a login; using those it sent");
        now
    });
    steps.done("settings");
    let registration = Registration {
        user: user.clone(),
        device: device.clone(),
        at: cluster.me.clone(),
        above: 0,
        only_if: None,
    };
    let doubt = |token| {
        resolve_doubt(
            &cluster,
            Route { user: user.clone(), device: device.clone(), token },
            Arc::clone(&shards),
        );
    };
    let registered = register(&*cluster.ports.routes, registration, doubt).await.map_err(|error| {
        tracing::warn!(%error, "registration failed; login refused");
        LoginError { code: Code::Overloaded, reason: "logins are temporarily unavailable; try again" }
    })?;
    steps.done("route");
    let here = registered.replaced.as_ref().is_some_and(|old| old.at == cluster.me);
    if let Some(old) = registered.replaced.filter(|_| !here) {
        let session = RoutedSession { user: user.clone(), device: device.clone(), epoch: old.epoch };
        stop_elsewhere(&cluster, old.at, session).await;
        steps.done("replaced");
    }
    // A lost chain is no reason to refuse: the client declares its own next id, and retries of done ids are acked.
    let chain = cluster.ports.scratch.load_chain(&user, &device).await.unwrap_or_default();
    steps.done("chain");
    let route = Route { user, device, token: registered.token };
    steps.log(&route, "registered");
    Ok(LoginDone { route, replaced: here, chain, settings })
}

/// Registers the route, retrying for [`ROUTES_MAX`]. A registration whose reply is lost is passed to `doubt` and
/// repeated with a higher epoch, so the retry wins in either order.
async fn register(
    routes: &dyn Routes,
    mut registration: Registration,
    doubt: impl Fn(Token),
) -> Result<Registered, RoutesError> {
    let until = time::Instant::now() + ROUTES_MAX;
    loop {
        let error = match routes.register(registration.clone()).await {
            Err(error @ (RoutesError::Unavailable(_) | RoutesError::Unknown(_))) => error,
            Err(RoutesError::InDoubt { why, token }) => {
                registration.above = registration.above.max(token.epoch);
                doubt(token.clone());
                RoutesError::InDoubt { why, token }
            }
            other => return other,
        };
        if time::Instant::now() >= until {
            return Err(error);
        }
        time::sleep(PORT_RETRY_INTERVAL).await;
    }
}

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

/// Returns the token in the device's row.
async fn current_token(cluster: &Cluster, route: &Route) -> Result<Option<Token>, RoutesError> {
    let rows = cluster.ports.routes.lookup(std::slice::from_ref(&route.user)).await?;
    let row = rows.into_iter().flatten().find(|(device, _)| *device == route.device);
    Ok(row.map(|(_, token)| token))
}

/// Stops the replaced session on its node, even if that node is not discovered yet. Continues in the background after
/// [`STOP_MAX`]; until it succeeds the ledger voids the old connection's sends.
async fn stop_elsewhere(cluster: &Arc<Cluster>, at: NodeBoot, session: RoutedSession) {
    if matches!(time::timeout(STOP_MAX, try_stop(cluster, &at, &session, STOP_ATTEMPTS)).await, Ok(true)) {
        return;
    }
    let cluster = Arc::clone(cluster);
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(async move {
            if !try_stop(&cluster, &at, &session, STOP_ATTEMPTS_BACKGROUND).await {
                tracing::warn!(peer = %at, "replaced session not stopped; giving up");
            }
        });
    }
}

/// Resolves a registration whose reply was lost. It may have replaced a session that no later login can find, because
/// that login finds this registration's route. So all nodes stop sessions older than the current route. If the current
/// route is still this registration's, which has no connection, it is removed (flaws S1, S2).
fn resolve_doubt(cluster: &Arc<Cluster>, lost: Route, shards: ShardHandles) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    let cluster = Arc::clone(cluster);
    runtime.spawn(async move {
        // Counted from when the routes answer again: a stuck call may take effect that long afterwards.
        let (mut since, mut stopped) = (None, None);
        loop {
            match current_token(&cluster, &lost).await {
                Ok(Some(token)) if token.epoch >= lost.token.epoch => {
                    if stopped.replace(token.epoch) != Some(token.epoch) {
                        stop_older(&cluster, &lost, token.epoch, &shards).await;
                    }
                    // By the full token, so that a newer route stays.
                    if token != lost.token
                        || cluster.ports.routes.remove(std::slice::from_ref(&lost)).await.is_ok()
                    {
                        return;
                    }
                }
                // The row has an older token, or is lost and will be re-asserted: our registration has not landed yet.
                Ok(_) if since.get_or_insert_with(time::Instant::now).elapsed() >= LATE_EFFECT_MAX => return,
                Ok(_) => {}
                Err(_) => since = None,
            }
            time::sleep(STOP_RETRY_INTERVAL).await;
        }
    });
}

/// Stops sessions of the device with an epoch below `than`, on this node and all others.
async fn stop_older(cluster: &Arc<Cluster>, lost: &Route, than: u64, shards: &ShardHandles) {
    for shard in shards.get().into_iter().flatten() {
        shard.post(Mail::Replaced(lost.user.clone(), lost.device.clone(), than, None)).await.ok();
    }
    let Some(epoch) = than.checked_sub(1) else { return };
    for peer in cluster.peers.others().iter() {
        let session = RoutedSession { user: lost.user.clone(), device: lost.device.clone(), epoch };
        stop_elsewhere(cluster, peer.info.boot.clone(), session).await;
    }
}

/// Tries to stop the session; true once it is stopped or its node's run has ended.
async fn try_stop(cluster: &Cluster, at: &NodeBoot, session: &RoutedSession, attempts: u32) -> bool {
    for _ in 0..attempts {
        match cluster.ports.link.stop_sessions(at, vec![session.clone()]).await {
            Ok(_) | Err(LinkError::NotHere) => return true,
            Err(error) => tracing::debug!(%error, peer = %at, "replaced session not stopped yet"),
        }
        if !cluster.peers.is_live(at) {
            cluster.peers.request_refresh();
        }
        time::sleep(STOP_RETRY_INTERVAL).await;
    }
    false
}

/// Duration of each step of a login, logged at level `debug`.
struct StepTimes {
    since: time::Instant,
    all: Vec<(&'static str, Duration)>,
}

impl StepTimes {
    fn begin() -> Self {
        Self { since: time::Instant::now(), all: Vec::new() }
    }

    fn done(&mut self, step: &'static str) {
        let now = time::Instant::now();
        self.all.push((step, now - self.since));
        self.since = now;
    }

    fn log(&self, route: &Route, stage: &'static str) {
        tracing::debug!(user = %route.user, device = %route.device, steps = ?self.all, stage, "login timings");
    }
}

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
            tokio::spawn(async move {
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

#[cfg(test)]
mod tests {
    use tidegate_protocol::{Time, id::NodeId};

    use super::*;
    use crate::{
        fault::{Fault, FaultPlan, Faulty},
        routes::{Leases, MemoryRoutes},
    };

    fn registration() -> Registration {
        Registration {
            user: UserId::new("ann").unwrap(),
            device: DeviceId::new("phone").unwrap(),
            at: NodeBoot { node: NodeId::new("n1").unwrap(), boot: 1 },
            above: 0,
            only_if: None,
        }
    }

    /// Registers over routes of which `times` calls fail. Returns the result, the number of calls, the time taken and
    /// the doubtful epochs.
    async fn after(fault: Fault, times: usize) -> (Result<Registered, RoutesError>, u64, Duration, Vec<u64>) {
        let (plan, begun) = (FaultPlan::none(), time::Instant::now());
        (0..times).for_each(|_| plan.plan("register", fault.clone()));
        let memory = Arc::new(MemoryRoutes::new(0, Leases::default(), || Time::ZERO));
        let routes = Faulty::<dyn Routes>::new(memory as Arc<dyn Routes>, Arc::clone(&plan));
        let doubts = std::sync::Mutex::new(Vec::new());
        let registered =
            register(&routes, registration(), |token| doubts.lock().unwrap().push(token.epoch)).await;
        (registered, plan.calls("register"), begun.elapsed(), doubts.into_inner().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn login_retries_unavailable_routes_for_a_limited_time() {
        let (registered, calls, took, doubts) = after(Fault::Fail, 5).await;
        assert!(registered.is_ok(), "{registered:?}");
        assert_eq!((calls, took, doubts.len()), (6, 5 * PORT_RETRY_INTERVAL, 0));
        let (registered, _, took, _) = after(Fault::Fail, 100).await;
        assert!(matches!(registered, Err(RoutesError::Unavailable(_))), "{registered:?}");
        assert!((ROUTES_MAX..=ROUTES_MAX + PORT_RETRY_INTERVAL).contains(&took), "{took:?}");
    }

    /// Covers flaws S1 and S2.
    #[tokio::test(start_paused = true)]
    async fn lost_registration_is_reported_and_repeated_above_its_epoch() {
        let (registered, calls, took, doubts) = after(Fault::LoseAnswer, 2).await;
        let token = registered.unwrap().token;
        assert_eq!((calls, took, doubts.len()), (3, 2 * PORT_RETRY_INTERVAL, 2));
        assert!(doubts[0] < doubts[1] && doubts[1] < token.epoch, "{doubts:?} {token}");
        let (registered, calls, _, doubts) = after(Fault::LoseAnswer, 100).await;
        assert!(matches!(registered, Err(RoutesError::InDoubt { .. })), "{registered:?}");
        assert_eq!(doubts.len() as u64, calls, "each may take effect, the last one too");
    }
}
