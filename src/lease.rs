//! Node lease: renews the lease of this run, refreshes the list of peers, re-asserts lost routes, and reaps dead runs.
//!
//! While the routes are unavailable the node continues with the last list of peers. It ends only when its run is
//! retired: peers have taken it for dead, and its users have moved to other nodes. A node that alone is cut off from the
//! routes learns that from its peers.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{
    cluster::Cluster,
    events::NodeChange,
    mail::ShardHandle,
    metrics::Metrics,
    routes::{DevicePolicy, Lease, NodeBoot, NodeInfo, NodeState, PartitionLag, Retire, Routes, RoutesError},
    supervised,
};

mod changes;
mod isolation;
mod reaper;
mod reassert;
mod view;

pub use self::reaper::reap;
use self::{
    changes::{ClusterChanges, LiveRun},
    isolation::Isolation,
    reassert::{ReassertTask, RouteLosses},
    view::ClusterView,
};

/// Interval between renewals; the lease lasts more than three times as long.
pub const RENEW_INTERVAL: Duration = Duration::from_secs(3);
/// Interval while the routes do not answer, a run may be dead, or a node drains. An operator who follows the drain then
/// sees its progress, and where the clients go.
const FAST_RENEW_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest interval between two renewals, whatever requests one.
const RENEW_INTERVAL_MIN: Duration = Duration::from_millis(250);
/// Timeout of a call to the routes, in case that their adapter exceeds its own.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// Timeout for the reply of a peer to a node that can't reach the routes.
const PEER_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout for retiring the run and sweeping its routes.
const RETIRE_TIMEOUT: Duration = Duration::from_secs(1);

/// Timeout for publishing the remaining events after that.
const EVENTS_TIMEOUT: Duration = Duration::from_millis(300);

/// Longest time that [`leave`] takes.
pub const LEAVING_MAX: Duration = RETIRE_TIMEOUT.saturating_add(EVENTS_TIMEOUT);

/// Describes the node for each renewal.
type Describe = Box<dyn Fn() -> NodeInfo + Send + Sync>;

/// Takes the addresses of the peers after each fetch.
type OnPeers = Box<dyn Fn(Vec<(NodeBoot, String)>) + Send + Sync>;

/// Lease of a node's run, and the tasks that depend on it.
pub struct NodeLease {
    cluster: Arc<Cluster>,
    describe: Describe,
    on_peers: OnPeers,
    metrics: Metrics,
    view: ClusterView,
    changes: ClusterChanges,
    isolation: Isolation,
    losses: Arc<RouteLosses>,
    /// Number of the last request for a recheck that was carried out.
    rechecked: Option<u64>,
    reassert_task: Option<ReassertTask>,
    reaper: JoinSet<()>,
}

impl NodeLease {
    /// Creates the lease of this run, not announced yet. `lease` is how long the routes grant it, `describe` returns
    /// what the node announces, and `on_peers` gets the peers' addresses, in the runtime of [`Self::run`].
    pub fn new(
        cluster: Arc<Cluster>,
        lease: Duration,
        shards: Vec<ShardHandle>,
        describe: impl Fn() -> NodeInfo + Send + Sync + 'static,
        on_peers: impl Fn(Vec<(NodeBoot, String)>) + Send + Sync + 'static,
        metrics: Metrics,
    ) -> Self {
        let losses = Arc::new(RouteLosses::default());
        let reassert_task = ReassertTask {
            routes: Arc::clone(&cluster.ports.routes),
            shards,
            losses: Arc::clone(&losses),
            devices: DevicePolicy::default(),
            metrics: metrics.clone(),
        };
        Self {
            view: ClusterView::new(cluster.me.clone(), lease),
            changes: ClusterChanges::default(),
            isolation: Isolation::new(lease),
            cluster,
            describe: Box::new(describe),
            on_peers: Box::new(on_peers),
            metrics,
            losses,
            rechecked: None,
            reassert_task: Some(reassert_task),
            reaper: JoinSet::new(),
        }
    }

    /// Sets the policy by which newer sessions replace those of this node when it re-asserts its routes.
    pub fn with_devices(mut self, devices: DevicePolicy) -> Self {
        if let Some(task) = &mut self.reassert_task {
            task.devices = devices;
        }
        self
    }

    /// Renews the lease and fetches the list of nodes, once: before clients are admitted.
    ///
    /// # Errors
    /// The reason why the node must end.
    pub async fn announce(&mut self) -> Result<(), String> {
        match self.renew().await {
            Ok(()) => Ok(()),
            Err(RoutesError::LeaseLost) => Err(format!(
                "run {} of this node was retired: its lease expired (frozen, or cut off from Redis), so the other \
                 nodes took it for dead; restart the node, which begins a new run",
                self.cluster.me
            )),
            Err(error) => {
                if !self.view.is_stale() {
                    tracing::warn!(%error, "routes unavailable; continuing with the last list of peers");
                }
                self.metrics.lease_failures.increment(1);
                let is_late = matches!(error, RoutesError::Late(_));
                self.cluster.peers.set(if is_late { self.view.late() } else { self.view.failed() });
                self.check_isolation().await
            }
        }
    }

    /// Asks the peers once they would have taken this run for dead.
    ///
    /// # Errors
    /// They have: this node alone is cut off from the routes.
    async fn check_isolation(&self) -> Result<(), String> {
        if !self.isolation.must_ask(Instant::now()) {
            return Ok(());
        }
        let (me, link, others) = (&self.cluster.me, &self.cluster.ports.link, self.cluster.peers.others());
        let ask = |peer| timeout(PEER_TIMEOUT, link.lease_status(me, peer));
        let replies = join_all(others.iter().map(|row| ask(&row.info.boot))).await;
        let answers: Vec<_> = replies.into_iter().flatten().flatten().collect();
        if !Isolation::is_given_up(&answers) {
            return Ok(());
        }
        let renewing = answers.iter().filter(|it| it.renews).count();
        Err(format!(
            "run {me} of this node is cut off from Redis while {renewing} of its peers are not, and they took it for \
             dead; restore its way to Redis and restart the node, which begins a new run"
        ))
    }

    /// Renews for as long as the node lives; returns the reason why it must end.
    pub async fn run(mut self) -> String {
        let mut tasks = JoinSet::new();
        if let Some(reassert_task) = self.reassert_task.take() {
            supervised::spawn_in(&mut tasks, "the re-assertion of routes", reassert_task.run());
        }
        let mut owned = self.cluster.owned.changes();
        loop {
            let begun = Instant::now();
            if let Err(reason) = self.announce().await {
                return reason;
            }
            let waits = self.view.is_stale() || self.view.is_any_suspect(Instant::now());
            let soon = waits || self.view.is_any_draining();
            let pause = if soon { FAST_RENEW_INTERVAL } else { RENEW_INTERVAL };
            sleep(RENEW_INTERVAL_MIN).await;
            tokio::select! {
                biased;
                () = sleep_until(begun + pause) => {}
                // The change is announced soon. The sender lives as long as the ports.
                _ = owned.changed() => {}
                () = self.cluster.peers.refresh_requested() => {}
                () = state_changed(&self.describe, self.view.announced_state()) => {}
            }
        }
    }

    async fn renew(&mut self) -> Result<(), RoutesError> {
        let info = NodeInfo { asserting: self.losses.are_pending(), ..(self.describe)() };
        let routes = Arc::clone(&self.cluster.ports.routes);
        // A single node has no cluster that changes.
        let is_clustered = !info.peer_address.is_empty();
        let state = info.state;
        self.view.on_renewal_sent();
        let renewals = call_routes(routes.renew(&info)).await?;
        self.isolation.renewed(Instant::now());
        let was_stale = self.view.is_stale();
        if self.view.renewed(renewals, state, Instant::now()) {
            tracing::warn!(renewals, "routes unavailable or lost; re-asserting local routes");
            self.metrics.routes_lost.increment(1);
            self.losses.record();
            // Peers that noticed no loss must learn of this one soon.
            self.cluster.peers.request_refresh();
        } else if was_stale {
            tracing::info!("routes available again");
        }
        let rows = call_routes(routes.nodes()).await?;
        let (snapshot, dead) = self.view.fetched(rows, Instant::now());
        if snapshot.lease_of(&self.cluster.me) == Some(Lease::Retired) {
            return Err(RoutesError::LeaseLost);
        }
        self.metrics.nodes_live.set((snapshot.others.len() + 1) as f64);
        let mine = self.cluster.owned.partition_lags();
        let lag = |of: fn(&PartitionLag) -> u64| mine.iter().map(of);
        self.metrics.archive_lag.set(lag(PartitionLag::behind).sum::<u64>() as f64);
        self.metrics.archive_lag_seconds.set(lag(|it| it.behind_ms).max().unwrap_or(0) as f64 / 1e3);
        let lags = self.cluster.peers.lags();
        lags.update(snapshot.partition_lags().chain(mine), Instant::now());
        self.metrics.archive_behind.set(lags.count() as f64);
        if is_clustered {
            let me = LiveRun { run: &self.cluster.me, state, owns: &info.owns };
            for change in self.changes.take(&snapshot, self.view.silent_runs(), me) {
                self.cluster.events.node(&self.cluster.me, change);
            }
        }
        (self.on_peers)(snapshot.addresses());
        self.cluster.peers.set(snapshot);
        while self.reaper.try_join_next().is_some() {}
        if !dead.is_empty() && self.reaper.is_empty() {
            let reaping = reaper::reap(Arc::clone(&self.cluster), dead, self.metrics.clone());
            supervised::spawn_in(&mut self.reaper, "the reaper", reaping);
        }
        self.follow_rechecks(&*routes).await;
        Ok(())
    }

    /// Has the sessions of this node compared with the routes if a peer requested it: a newer session on that peer
    /// replaced one here, and the peer could not call this node.
    async fn follow_rechecks(&mut self, routes: &dyn Routes) {
        match call_routes(routes.recheck_requested(&self.cluster.me)).await {
            Ok(requested) if requested != self.rechecked => {
                self.rechecked = requested;
                if requested.is_some() {
                    tracing::info!("a peer could not call this node; comparing its sessions with the routes");
                    self.losses.request_recheck();
                }
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, "requests for a recheck not read; left to the next renewal")
            }
        }
    }
}

/// Ends the lease of a drained node, removes its remaining routes and waits for queued events; takes about a second at
/// most. Departures of clients that did not return are published by other nodes, as after a crash.
pub async fn leave(cluster: &Cluster) {
    let left = async {
        cluster.ports.routes.retire(&cluster.me, Retire::Leaving).await?;
        reaper::sweep(cluster, &cluster.me, reaper::Departures::Leave).await
    };
    let left = timeout(RETIRE_TIMEOUT, left).await;
    if cluster.events.has_node_changes() {
        cluster.events.node(&cluster.me, NodeChange::Left(cluster.me.clone()));
    }
    // Read marks are published now, although they are normally coalesced for longer.
    cluster.events.tell_reads();
    if timeout(EVENTS_TIMEOUT, cluster.events.quiet()).await.is_err() {
        tracing::warn!("events unpublished at shutdown; other nodes publish the departures");
    }
    match left {
        Ok(Ok(swept)) => tracing::debug!(rows = swept.removed, "run retired"),
        Ok(Err(error)) => tracing::warn!(%error, "failed to retire the run; its lease expires instead"),
        Err(_) => tracing::warn!("retiring the run timed out; its lease expires instead"),
    }
}

/// Calls the routes with a timeout, so that an adapter that never answers does not stop the lease.
async fn call_routes<T>(call: impl Future<Output = Result<T, RoutesError>>) -> Result<T, RoutesError> {
    let late = |_| Err(RoutesError::Late(format!("no answer within {CALL_TIMEOUT:?}")));
    timeout(CALL_TIMEOUT, call).await.unwrap_or_else(late)
}

/// Waits until the node's state differs from the announced one, so that a drain is announced at once.
async fn state_changed(describe: &Describe, announced: Option<NodeState>) {
    while announced == Some(describe().state) {
        sleep(RENEW_INTERVAL_MIN).await;
    }
}
