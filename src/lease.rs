//! This node among the others: it renews its lease, keeps the list of its peers, puts its routes back after a loss of
//! them, and sweeps up after nodes that died (DESIGN 7).
//!
//! While the routes are away nothing of this ends the node: the last known list of peers stays. What ends it is the word
//! that its run was retired: somebody took it for dead and has given its users to others.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{
    mail::ShardHandle,
    metrics::Metrics,
    ports::Ports,
    routes::{Lease, NodeBoot, NodeInfo, NodeState, Retire, RoutesError, Standing},
};

mod reaper;
mod reassert;
mod view;

pub use self::reaper::reap;
use self::{
    reassert::{Losses, Putter},
    view::View,
};

/// Between two renewals; the lease is more than three times as long.
pub const RENEW_EVERY: Duration = Duration::from_secs(3);
/// The same while the routes do not answer, a run stands still whose lease is about to end, or a node leaves: who follows
/// that sees it go on, and where its clients get to.
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// Between two renewals at least, whatever calls for one.
const RENEW_LEAST: Duration = Duration::from_millis(250);
/// How long the routes are waited for, beyond what their adapter grants itself.
const CALL_MAX: Duration = Duration::from_secs(3);
/// How long leaving may take.
const LEAVE_MAX: Duration = Duration::from_secs(1);

/// How long what was noted may take to be told then.
const TELL_MAX: Duration = Duration::from_millis(300);

/// How long [`leave`] takes at most.
pub const LEAVING_MAX: Duration = LEAVE_MAX.saturating_add(TELL_MAX);

/// What is said with each renewal.
type Say = Box<dyn Fn() -> NodeInfo + Send + Sync>;

/// Told of the addresses of the peers after each look.
type Tell = Box<dyn Fn(Vec<(NodeBoot, String)>) + Send + Sync>;

/// The node's lease and what hangs on it.
pub struct Member {
    ports: Arc<Ports>,
    say: Say,
    tell: Tell,
    metrics: Metrics,
    view: View,
    losses: Arc<Losses>,
    putter: Option<Putter>,
    reaper: JoinSet<()>,
}

impl Member {
    /// The lease of this run of the node, not announced yet. `lease` is how long the routes grant it; `say` is what the
    /// node says of itself; `tell` hears who the peers are, in the runtime that [`Self::run`] is on.
    pub fn new(
        ports: Arc<Ports>,
        lease: Duration,
        shards: Vec<ShardHandle>,
        say: impl Fn() -> NodeInfo + Send + Sync + 'static,
        tell: impl Fn(Vec<(NodeBoot, String)>) + Send + Sync + 'static,
        metrics: Metrics,
    ) -> Self {
        let losses = Arc::new(Losses::default());
        let putter = Putter {
            routes: Arc::clone(&ports.routes),
            shards,
            losses: Arc::clone(&losses),
            metrics: metrics.clone(),
        };
        Self {
            view: View::new(ports.me.clone(), lease),
            ports,
            say: Box::new(say),
            tell: Box::new(tell),
            metrics,
            losses,
            putter: Some(putter),
            reaper: JoinSet::new(),
        }
    }

    /// Renews the lease and looks at the nodes, once: before anybody is let in.
    ///
    /// # Errors
    /// Why the node must end.
    pub async fn announce(&mut self) -> Result<(), String> {
        match self.renew().await {
            Ok(()) => Ok(()),
            Err(RoutesError::LeaseLost) => Err(format!(
                "this run of the node ({}) was retired: the other nodes took it for dead, for it did not renew its lease \
                 for too long (frozen, or cut off from Redis); start it again, which makes it a new run",
                self.ports.me
            )),
            Err(error) => {
                if !self.view.is_stale() {
                    tracing::warn!(%error, "the routes do not answer: the node goes on with the peers it knows");
                }
                self.metrics.lease_failures.increment(1);
                let is_late = matches!(error, RoutesError::Late(_));
                self.ports.peers.set(if is_late { self.view.late() } else { self.view.failed() });
                Ok(())
            }
        }
    }

    /// Renews for as long as the node lives; ends with the reason why it must not live on.
    pub async fn run(mut self) -> String {
        let mut parts = JoinSet::new();
        if let Some(putter) = self.putter.take() {
            parts.spawn(putter.run());
        }
        let mut owned = self.ports.owned.changes();
        loop {
            let begun = Instant::now();
            if let Err(why) = self.announce().await {
                return why;
            }
            let waits = self.view.is_stale() || self.view.is_waiting_for_one(Instant::now());
            let soon = waits || self.view.is_any_leaving();
            let pause = if soon { RETRY_EVERY } else { RENEW_EVERY };
            sleep(RENEW_LEAST).await;
            tokio::select! {
                () = sleep_until(begun + pause) => {}
                // The others are to hear of it soon. The sender lives as long as the ports.
                _ = owned.changed() => {}
                () = self.ports.peers.asked() => {}
                () = state_is_not(&self.say, self.view.said()) => {}
            }
        }
    }

    async fn renew(&mut self) -> Result<(), RoutesError> {
        let info = NodeInfo { asserting: self.losses.are_open(), ..(self.say)() };
        let routes = Arc::clone(&self.ports.routes);
        let state = info.state;
        self.view.asks();
        let beat = within(routes.renew(&info)).await?;
        let was_stale = self.view.is_stale();
        if self.view.renewed(beat, state, Instant::now()) {
            tracing::warn!(beat, "the routes were away or lost something: this node puts its own back");
            self.metrics.routes_lost.increment(1);
            self.losses.one_more();
            // The others may have lost nothing themselves: they are to hear of this soon.
            self.ports.peers.look_again();
        } else if was_stale {
            tracing::info!("the routes answer again");
        }
        let rows = within(routes.nodes()).await?;
        let (seen, dead) = self.view.looked(rows, Instant::now());
        if seen.lease_of(&self.ports.me) == Some(Lease::Retired) {
            return Err(RoutesError::LeaseLost);
        }
        self.metrics.nodes_live.set((seen.others.len() + 1) as f64);
        let mine = self.ports.owned.standings();
        let lag = |of: fn(&Standing) -> u64| mine.iter().map(of);
        self.metrics.archive_lag.set(lag(Standing::behind).sum::<u64>() as f64);
        self.metrics.archive_lag_seconds.set(lag(|it| it.behind_ms).max().unwrap_or(0) as f64 / 1e3);
        let lags = self.ports.peers.lags();
        lags.look(seen.standings().chain(mine), Instant::now());
        self.metrics.archive_behind.set(lags.count() as f64);
        (self.tell)(seen.addresses());
        self.ports.peers.set(seen);
        while self.reaper.try_join_next().is_some() {}
        if !dead.is_empty() && self.reaper.is_empty() {
            self.reaper.spawn(reaper::reap(Arc::clone(&self.ports), dead, self.metrics.clone()));
        }
        Ok(())
    }
}

/// Ends the lease of a node that has nobody left, takes away what rows it still has, and waits a moment for events that are on
/// their way; about a second at most. Who left and did not come back is told by the others, as after a crash.
pub async fn leave(ports: &Ports) {
    let left = async {
        ports.routes.retire(&ports.me, Retire::Leaving).await?;
        reaper::sweep(ports, &ports.me, reaper::Untold::Leave).await
    };
    let left = timeout(LEAVE_MAX, left).await;
    // What was read just now was to be gathered a little longer.
    ports.events.tell_reads();
    if timeout(TELL_MAX, ports.events.quiet()).await.is_err() {
        tracing::warn!("some events were not told; who left is told by the other nodes");
    }
    match left {
        Ok(Ok(swept)) => tracing::debug!(rows = swept.removed, "left the other nodes"),
        Ok(Err(error)) => tracing::warn!(%error, "the others were not told that this node leaves"),
        Err(_) => tracing::warn!("telling the others that this node leaves took too long"),
    }
}

/// The call's answer; an adapter that breaks its promise to answer does not stop the lease.
async fn within<T>(call: impl Future<Output = Result<T, RoutesError>>) -> Result<T, RoutesError> {
    let late = |_| Err(RoutesError::Late(format!("no answer in {CALL_MAX:?}")));
    timeout(CALL_MAX, call).await.unwrap_or_else(late)
}

/// Ready once the node's state is another one: a drain is told at once.
async fn state_is_not(say: &Say, said: Option<NodeState>) {
    while said == Some(say().state) {
        sleep(RENEW_LEAST).await;
    }
}
