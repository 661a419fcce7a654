//! Tasks of a broker on the log: they append to it, own partitions, answer logins, and recover lost answers.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::mpsc,
    task::{JoinError, JoinHandle},
    time,
};
use tokio_util::sync::CancellationToken;

use super::Broker;
use crate::{
    bus::Bus,
    cluster::{Cluster, follow_blocks, follow_guard},
    delivery::{notices::NoticeSender, peer_queue::PeerQueues, router::Router},
    fault::planted::{Planted, is_planted},
    guard::{Sentinel, profiles},
    ingest::{appender, intake::Outlets, recovery},
    large_group::publisher::GroupPublisher,
    limits::RuleGuard,
    login,
    mail::ConnKey,
    partition::{
        assignment::{self, OwnerContext},
        dispatcher::Dispatcher,
        owner,
        storm_actions::StormPorts,
    },
    routes::Route,
    supervised,
};

/// Time for the owners to archive, publish and release their partitions.
const RELEASE_MAX: Duration = Duration::from_secs(3);

/// Time to store the histories of limits, while the owners release their partitions.
const HISTORIES_MAX: Duration = Duration::from_secs(2);

const _: () = assert!(HISTORIES_MAX.as_millis() <= RELEASE_MAX.as_millis());

/// Time for the log to confirm pending appends, and before that for node topics and queues to peers.
const APPENDS_FLUSH_MAX: Duration = Duration::from_secs(1);

/// Longest time that [`RunningTasks::stop`] takes: the owners, node topics and the log.
pub const STOP_MAX: Duration =
    RELEASE_MAX.saturating_add(APPENDS_FLUSH_MAX).saturating_add(APPENDS_FLUSH_MAX);

/// Logins of one turn of a shard.
type Logins = Vec<(ConnKey, Route)>;

/// Tasks that run until the broker stops.
pub struct RunningTasks {
    append: JoinHandle<()>,
    /// Task that asks owners for lost answers; `None` on a single node.
    recovery: Option<JoinHandle<()>>,
    owners: Option<JoinHandle<()>>,
    /// Makes the owners release their partitions and end.
    shutdown: CancellationToken,
    /// Publisher of large-group records; `None` unless owners run on a node with topics.
    group_publisher: Option<Arc<GroupPublisher>>,
    /// Queues of pushes and replies to peers; `None` unless owners run on a node with peers.
    peer_queues: Option<Arc<PeerQueues>>,
    /// Rules whose histories are stored at the end; `None` without shards.
    rules: Option<Arc<RuleGuard>>,
    cluster: Arc<Cluster>,
}

impl Broker {
    /// Starts the tasks. `owners` has the settings of the owners; `None` makes a broker that owns no partition, for a
    /// mesh of nodes on one log in memory, which does not share out its partitions. Must run in a runtime.
    pub fn start(&self, outlets: Outlets, owners: Option<owner::Settings>) -> RunningTasks {
        let shutdown = CancellationToken::new();
        let (intake, cluster) = (Arc::clone(&self.intake), Arc::clone(&self.cluster));
        let append = appender::append_all(outlets.records, intake, cluster, self.local.dispatcher());
        let append = supervised::spawn("the log appender", append);
        if self.remote.is_some() || !self.is_clustered {
            let following = follow_blocks(Arc::clone(&self.cluster), !self.is_clustered);
            supervised::spawn("the block lists", following);
        }
        if let Some(mirror) = self.cluster.storms.mirror() {
            let mirroring = Arc::clone(mirror).run(Arc::clone(&self.cluster.ports.scratch));
            supervised::spawn("the mirror of storm windows", mirroring);
        }
        let logins = self.start_logins(outlets.logins);
        let recovery = self.is_clustered.then(|| {
            let recovery = recovery::ask_again(
                Arc::clone(&self.cluster),
                Arc::clone(&self.local.pending),
                Arc::clone(&self.answer_cache),
                self.local.dispatcher(),
                self.metrics.clone(),
            );
            supervised::spawn("the recovery of answers", recovery)
        });
        // Without services to other nodes there are none, or this is a simulation without clients.
        if self.remote.is_some() || !self.is_clustered {
            let following = Arc::clone(&self.connections).follow_revocations(self.is_clustered);
            supervised::spawn("the revocations", following);
            let following = follow_guard(Arc::clone(&self.cluster), self.metrics.clone());
            supervised::spawn("the entries of the guard", following);
            let (cluster, connections) = (Arc::clone(&self.cluster), Arc::clone(&self.connections));
            let sentinel = Sentinel::new(cluster, connections, self.metrics.clone());
            supervised::spawn("the evidence", sentinel.run());
            supervised::spawn("the cursors of removed webhooks", Arc::clone(&self.webhooks).sweep());
        }
        let mut group_publisher = None;
        let peer_queues = (self.is_clustered && owners.is_some())
            .then(|| PeerQueues::new(&self.cluster, self.metrics.clone()));
        let owners = owners.map(|settings| {
            group_publisher = self.remote.as_ref().map(|remote| remote.start_publisher(&self.local));
            let context = OwnerContext {
                cluster: Arc::clone(&self.cluster),
                logins,
                dispatcher: self.dispatchers(peer_queues.clone(), group_publisher.clone()),
                answered: self.is_clustered.then(|| Arc::clone(&self.answer_cache)),
                storm_ports: Arc::new(self.storm_ports()),
                settings,
                metrics: self.metrics.clone(),
                leaving: shutdown.clone(),
            };
            supervised::spawn("the owners", assignment::own_all(context))
        });
        let (rules, cluster) = (self.rules.get().cloned(), Arc::clone(&self.cluster));
        RunningTasks { append, recovery, owners, shutdown, group_publisher, peer_queues, rules, cluster }
    }

    /// Starts to answer logins on a clustered node, where no owner knows all memberships. Returns the logins on a
    /// single node, whose owner knows them in log order and answers.
    fn start_logins(&self, logins: mpsc::Receiver<Logins>) -> Option<mpsc::Receiver<Logins>> {
        if let Some(remote) = &self.remote {
            let (cluster, subscriber) = (Arc::clone(&self.cluster), Arc::clone(&remote.subscriber));
            let local = self.local.clone();
            let answering =
                login::answer_all(logins, cluster, self.devices, subscriber, move || local.dispatcher());
            supervised::spawn("the answering of logins", answering);
            return None;
        }
        (!self.is_clustered).then_some(logins)
    }

    /// Returns what owners need to act on storms.
    fn storm_ports(&self) -> StormPorts {
        let (directory, shards) = (Arc::clone(&self.local.directory), Arc::clone(&self.local.handles));
        let best_effort = self.remote.as_ref().map(|remote| Arc::clone(&remote.best_effort));
        let notices = NoticeSender::new(directory, shards, best_effort, self.metrics.clone());
        StormPorts { admin: self.admin.clone(), notices }
    }

    /// Returns a function that creates the output of one owner.
    fn dispatchers(
        &self,
        queues: Option<Arc<PeerQueues>>,
        publisher: Option<Arc<GroupPublisher>>,
    ) -> Box<dyn Fn() -> Dispatcher + Send + Sync> {
        let (local, cluster) = (self.local.clone(), Arc::clone(&self.cluster));
        let Some(queues) = queues else { return Box::new(move || Dispatcher::new(local.dispatcher())) };
        Box::new(move || {
            let router = Router::start(&cluster, Arc::clone(&queues));
            Dispatcher::clustered(local.dispatcher(), router, publisher.clone())
        })
    }
}

impl RunningTasks {
    /// Returns the name of a task that has ended; the broker is broken then, unless it was stopped.
    pub fn ended(&self) -> Option<&'static str> {
        if self.append.is_finished() {
            return Some("the log appender");
        }
        if self.recovery.as_ref().is_some_and(JoinHandle::is_finished) {
            return Some("the recovery of answers");
        }
        self.owners.as_ref().is_some_and(JoinHandle::is_finished).then_some("the owner")
    }

    /// Stops the broker once all sends are appended. The owners archive, publish and release their partitions, so that
    /// other nodes take over at once, then queues to peers, node topics and the log are flushed. Meanwhile
    /// the histories of limits are stored. Takes at most [`STOP_MAX`].
    pub async fn stop(mut self, bus: &dyn Bus) {
        let (rules, cluster) = (self.rules.take(), Arc::clone(&self.cluster));
        let histories = async {
            if let Some(rules) = rules {
                profiles::store_last(&rules, &cluster, HISTORIES_MAX).await;
            }
        };
        let (released, ()) = tokio::join!(time::timeout(RELEASE_MAX, self.release()), histories);
        if released.is_err() {
            tracing::warn!(
                "partitions not released in time; other nodes take them over after the session timeout"
            );
        }
        // What the owners have published, to topics and peers at once.
        let topics = async {
            if let Some(publisher) = &self.group_publisher {
                publisher.settle(APPENDS_FLUSH_MAX).await;
            }
        };
        let peers = async {
            if let Some(queues) = &self.peer_queues
                && !is_planted(Planted::PeersNotFlushed)
            {
                queues.settle(APPENDS_FLUSH_MAX).await;
            }
        };
        tokio::join!(topics, peers);
        if let Err(error) = bus.close(APPENDS_FLUSH_MAX).await {
            tracing::warn!(%error, "log not closed cleanly; the last appends may be unconfirmed");
        }
    }

    /// Makes the owners release their partitions, and waits until they have ended.
    ///
    /// # Errors
    /// The task of the owners panicked.
    pub async fn release(&mut self) -> Result<(), JoinError> {
        self.shutdown.cancel();
        match self.owners.take() {
            Some(owners) => owners.await,
            None => Ok(()),
        }
    }

    /// Aborts the tasks, as a crash of the process does. Queues to peers and services of shards are not among them.
    pub fn abort(&self) {
        let tasks = [Some(&self.append), self.recovery.as_ref(), self.owners.as_ref()];
        tasks.into_iter().flatten().for_each(JoinHandle::abort);
    }
}

#[cfg(test)]
mod tests;
