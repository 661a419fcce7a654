//! Partition assignment: starts and stops one owner per partition, as the bus assigns and revokes them.
//!
//! A revoked partition is released between batches, with every decided record archived and published. The owner of a
//! lost partition is aborted, and the store's fence rejects its unfinished write (flaws S6 to S9). Owners that answer
//! first (ADR 16) await their open transaction instead, and publish the records that it archived.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tidegate_protocol::{id::UserId, machine::ledger::Stop};
use tokio::{
    sync::mpsc,
    task::{AbortHandle, Id, JoinSet},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    exit::{OwnerExit, PORT_RETRY_INTERVAL},
    owner::{Owner, Settings},
    stall::{ARCHIVE_STALL_TIMEOUT, StallDetector},
    storm_actions::StormPorts,
};
use crate::{
    backoff::Backoff,
    bus::{Ownership, OwnershipEvent, ReadError},
    cluster::Cluster,
    delivery::answer_cache::AnswerCache,
    mail::ConnKey,
    metrics::Metrics,
    partition::dispatcher::Dispatcher,
    routes::Route,
    store::StoreError,
    supervised,
};

const STALL_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Delay before rejoining the owners group after leaving it; doubles up to [`REJOIN_DELAY_MAX`].
const REJOIN_DELAY: Duration = Duration::from_secs(10);

/// Longest delay before rejoining the owners group.
const REJOIN_DELAY_MAX: Duration = Duration::from_secs(160);

/// Owning for this long resets the rejoin delay; a later stall is a new problem.
const REJOIN_DELAY_RESET: Duration = Duration::from_secs(60).saturating_add(ARCHIVE_STALL_TIMEOUT);

/// Longest wait for the open transaction of a lost partition; exceeds the default statement timeout.
const FINAL_TRANSACTION_MAX: Duration = Duration::from_secs(6);

/// Time within which a member learns of its eviction from the owners group.
const EVICTION_NOTICE_MAX: Duration = Duration::from_secs(3);

/// Dependencies shared by all owners of a node.
pub struct OwnerContext {
    /// Ports of this node, and its view of the cluster.
    pub cluster: Arc<Cluster>,
    /// Logins, if one owner reads the whole log and so knows memberships in log order. `None` if
    /// [`login::answer_all`](crate::login::answer_all) answers them.
    pub logins: Option<mpsc::Receiver<Vec<(ConnKey, Route)>>>,
    /// Creates the output of one owner to clients and peers.
    pub dispatcher: Box<dyn Fn() -> Dispatcher + Send + Sync>,
    /// Recent answers of the owners, for origins that ask again; `None` on a single node.
    pub answered: Option<Arc<AnswerCache>>,
    /// Ways to act on storms.
    pub storm_ports: Arc<StormPorts>,
    /// Settings of each owner.
    pub settings: Settings,
    /// Metrics of the node.
    pub metrics: Metrics,
    /// Cancelled when the node shuts down; its partitions are then released one by one.
    pub leaving: CancellationToken,
}

impl OwnerContext {
    /// Returns a function that records whether a partition is owned, for the lease and so for the peers.
    fn ownership_recorder(&self) -> impl Fn(u32, bool) + Send + use<> {
        let (owned, metrics) = (Arc::clone(&self.cluster.owned), self.metrics.clone());
        move |partition, is_owned| {
            owned.set(partition, is_owned);
            metrics.partitions_owned.set(owned.list().len() as f64);
        }
    }

    fn record_ownership(&self, partition: u32, is_owned: bool) {
        self.ownership_recorder()(partition, is_owned);
    }
}

/// Owner tasks for the partitions assigned to this node.
#[derive(Default)]
struct Assignments {
    tasks: JoinSet<(u32, OwnerExit)>,
    owners: HashMap<u32, OwnerHandle>,
}

struct OwnerHandle {
    stop: CancellationToken,
    lost: CancellationToken,
    task: AbortHandle,
}

/// Reason why the node left the owners group.
enum GroupExit {
    /// The node shuts down, or can own no partition.
    Final,
    /// The archive stalled while those of peers progressed; the node rejoins later.
    Temporary,
    /// The node does not know the rules of the log; it only serves its clients from now on.
    Unfit,
}

/// Consequence of an owner's exit for the whole node.
enum Verdict {
    /// No consequence: the partition was revoked, or other partitions are still owned.
    Continue,
    /// The node does not know the rules of the log.
    Unfit,
    /// No partition is owned, or the store can't be trusted: the node shuts down and reports it (`Node::broken`), so
    /// that peers take over its partitions.
    Broken,
}

/// Owns the partitions that the bus assigns, each in its own task, until the node shuts down.
///
/// Returns early if no partition can be owned, because the node is of no use then. A node whose archive stalls while
/// peers progress leaves the owners group, longer each time until it has owned for a minute without a stall. It leaves
/// with all its partitions, because no consumer group takes a single one from a member that stays.
pub async fn own_all(mut context: OwnerContext) {
    let (leaving, mut backoff) = (context.leaving.clone(), Backoff::new(REJOIN_DELAY, REJOIN_DELAY_MAX));
    loop {
        let began = Instant::now();
        match own(&mut context).await {
            GroupExit::Final => return,
            // Only an upgrade teaches the rules: a node that rejoins would have to release the same partitions again.
            GroupExit::Unfit => return leaving.cancelled().await,
            GroupExit::Temporary => {}
        }
        if began.elapsed() >= REJOIN_DELAY_RESET {
            backoff.reset();
        }
        let rejoin = async {
            tokio::time::sleep(backoff.next_delay()).await;
            wait_for_readable_store(&context.cluster).await;
        };
        tokio::select! {
            biased;
            () = leaving.cancelled() => return,
            () = rejoin => {}
        }
    }
}

/// Waits until the store can be read.
async fn wait_for_readable_store(cluster: &Cluster) {
    let Ok(nobody) = UserId::new("-") else { return };
    while let Err(error) = cluster.ports.store.memberships(&nobody, None, 1).await {
        tracing::debug!(%error, "store unavailable; not rejoining the owners group");
        tokio::time::sleep(STALL_CHECK_INTERVAL).await;
    }
}

async fn join(cluster: &Cluster) -> Box<dyn Ownership> {
    loop {
        match cluster.ports.bus.join(&cluster.me).await {
            Ok(ownership) => return ownership,
            Err(error) => {
                tracing::warn!(%error, "joining the owners group failed; retrying");
                tokio::time::sleep(PORT_RETRY_INTERVAL).await;
            }
        }
    }
}

async fn own(context: &mut OwnerContext) -> GroupExit {
    let cluster = Arc::clone(&context.cluster);
    let mut ownership = join(&cluster).await;
    let (mut assignments, mut has_left, mut exit) = (Assignments::default(), false, GroupExit::Final);
    let (mut stall, mut checks) = (StallDetector::default(), tokio::time::interval(STALL_CHECK_INTERVAL));
    checks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let leaving = context.leaving.clone();
    loop {
        tokio::select! {
            // Fixed order, so that a simulation seed reproduces a run.
            biased;
            event = ownership.next() => match event {
                Some(OwnershipEvent::Assigned(partition)) => {
                    let logins = context.logins.take();
                    assignments.start_owner(partition, context, logins);
                }
                Some(OwnershipEvent::Revoked(partition)) => {
                    if stall.is_stalling(partition, Instant::now()) {
                        // A stalled owner would not stop in time. As after a crash, the fence decides what counts.
                        assignments.abort_owner(partition, context);
                    }
                    if !assignments.stop_owner(partition) {
                        ownership.release(partition).await;
                    }
                }
                Some(OwnershipEvent::Lost(partition)) => assignments.abort_owner(partition, context),
                None => return exit,
            },
            Some(done) = assignments.tasks.join_next_with_id() => match done {
                // Exit of an owner that was replaced or aborted; the partition may have a new owner here.
                Ok((id, (partition, _))) if !assignments.is_current(partition, id) => {}
                Ok((_, (partition, why))) => {
                    context.record_ownership(partition, false);
                    assignments.owners.remove(&partition);
                    ownership.release(partition).await;
                    match assignments.verdict(partition, &why, context) {
                        Verdict::Unfit if !has_left => {
                            (has_left, exit) = (true, GroupExit::Unfit);
                            ownership.leave().await;
                        }
                        Verdict::Broken if !matches!(exit, GroupExit::Unfit) => return GroupExit::Final,
                        _ => {}
                    }
                }
                Err(error) if error.is_cancelled() => {}
                // The state of its work is unknown: the node shuts down, and the next owner resumes from the store.
                Err(error) => {
                    tracing::error!(%error, "owner panicked; node shuts down");
                    return GroupExit::Final;
                }
            },
            () = leaving.cancelled(), if !has_left => {
                has_left = true;
                ownership.leave().await;
            }
            _ = checks.tick(), if !has_left => {
                let owned = &cluster.owned;
                let mine = assignments.owners.keys();
                let mine = mine.map(|it| (*it, owned.progress_of(*it), owned.is_at_log(*it)));
                if let Some(partition) = stall.update(mine, cluster.peers.snapshot().partition_lags(), Instant::now()) {
                    tracing::error!(partition, "archive stalled while peers progress; leaving owners group");
                    context.metrics.given_up.increment(1);
                    (has_left, exit) = (true, GroupExit::Temporary);
                    ownership.leave().await;
                }
            }
        }
    }
}

impl Assignments {
    fn start_owner(
        &mut self,
        partition: u32,
        context: &OwnerContext,
        logins: Option<mpsc::Receiver<Vec<(ConnKey, Route)>>>,
    ) {
        self.abort_owner(partition, context);
        let (stop, lost) = (CancellationToken::new(), CancellationToken::new());
        let (stopping, losing) = (stop.clone(), lost.clone());
        let (cluster, settings) = (Arc::clone(&context.cluster), context.settings.clone());
        let (answered, storm_ports) = (context.answered.clone(), Arc::clone(&context.storm_ports));
        let (metrics, record) = (context.metrics.clone(), context.ownership_recorder());
        let mut out = (context.dispatcher)();
        let mut logins = logins;
        let owner_loop = async move {
            loop {
                let take_over =
                    Owner::take_over(partition, &cluster, answered.as_ref(), settings.clone(), &metrics);
                let taken = tokio::select! {
                    biased;
                    // Nothing is decided before the take-over is done, so there is nothing to wait for.
                    () = losing.cancelled() => Err(OwnerExit::Revoked),
                    () = stopping.cancelled() => Err(OwnerExit::Revoked),
                    taken = take_over => taken,
                };
                let why = match taken {
                    Ok(owner) => {
                        record(partition, true);
                        let owner = owner.with_storm_ports(&storm_ports);
                        Box::pin(owner.run(&mut logins, &mut out, &stopping, &losing)).await
                    }
                    Err(error) => error,
                };
                let pause = match &why {
                    // Another owner has the fence, but the group has not revoked the partition. Either a former owner
                    // came late, or this node is evicted and will learn so within a heartbeat.
                    OwnerExit::Store(StoreError::Fenced) => EVICTION_NOTICE_MAX,
                    // Postgres failed over to a lagging copy or was restored. The log still has the lost records, and
                    // they get the same seqs. The take-over refuses a log that does not match.
                    OwnerExit::Store(StoreError::PositionMismatch(_)) | OwnerExit::Ledger(Stop::NotMine) => {
                        PORT_RETRY_INTERVAL
                    }
                    OwnerExit::Log(ReadError::Unavailable(_)) | OwnerExit::BatchTooLarge(_) => {
                        PORT_RETRY_INTERVAL
                    }
                    _ => return (partition, why),
                };
                tracing::warn!(error = %why, partition, "owner exited; taking over again");
                tokio::select! {
                    biased;
                    () = losing.cancelled() => return (partition, OwnerExit::Revoked),
                    () = stopping.cancelled() => return (partition, OwnerExit::Revoked),
                    () = tokio::time::sleep(pause) => {}
                }
            }
        };
        let is_lost = lost.clone();
        let task = supervised::spawn_in(&mut self.tasks, "an owner", async move {
            let deadline = async {
                is_lost.cancelled().await;
                tokio::time::sleep(FINAL_TRANSACTION_MAX).await;
            };
            tokio::select! {
                biased;
                exit = owner_loop => exit,
                () = deadline => (partition, OwnerExit::Revoked),
            }
        });
        self.owners.insert(partition, OwnerHandle { stop, lost, task });
    }

    fn verdict(&self, partition: u32, why: &OwnerExit, context: &OwnerContext) -> Verdict {
        if matches!(why, OwnerExit::Revoked | OwnerExit::Log(ReadError::NotOwner)) {
            return Verdict::Continue;
        }
        tracing::error!(error = %why, partition, "owner exited; its conversations accept no messages");
        if let OwnerExit::Ledger(Stop::UnknownRules(version)) = why {
            context.metrics.rules_unknown.set(f64::from(*version));
            // In a cluster peers take over the partitions, and this node still serves its clients.
            if context.answered.is_some() {
                tracing::error!(
                    version,
                    "ledger rules unknown; leaving the owners group until this node is upgraded"
                );
                return Verdict::Unfit;
            }
        }
        if self.owners.is_empty() || matches!(why, OwnerExit::Store(StoreError::Broken(_))) {
            return Verdict::Broken;
        }
        Verdict::Continue
    }

    fn is_current(&self, partition: u32, task: Id) -> bool {
        self.owners.get(&partition).is_some_and(|owner| owner.task.id() == task)
    }

    /// Stops the owner between two batches; returns false if there is none.
    fn stop_owner(&self, partition: u32) -> bool {
        let owner = self.owners.get(&partition);
        owner.inspect(|owner| owner.stop.cancel()).is_some()
    }

    /// Stops the owner mid-batch. The fence decides whether its open transaction counts; the owner awaits that, for at
    /// most [`FINAL_TRANSACTION_MAX`], and publishes what it archived: the next owner begins behind it.
    fn abort_owner(&mut self, partition: u32, context: &OwnerContext) {
        if let Some(owner) = self.owners.remove(&partition) {
            owner.lost.cancel();
            context.record_ownership(partition, false);
            tracing::warn!(partition, "partition lost to another node; owner stopped mid-batch");
        }
    }
}
