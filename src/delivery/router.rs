//! Router: finds the nodes of users with one lookup for many pushes, and passes the pushes to the peer queues.
//!
//! An owner passes on what it has archived, and the routes are read after that. A login reads the store after its route
//! is registered, so one of the two sees the other. Nothing here is on the path of an ack. While the routes can't be
//! read or may be incomplete, pushes go to all peers, and to nodes that the routes name but this node has not
//! discovered (flaw S82).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use tidegate_protocol::{
    id::{DeviceId, UserId},
    trace::TraceContext,
};
use tokio::{sync::mpsc, time::timeout};

use super::{
    peer_queue::PeerQueues,
    user_sessions::{self, UserSessions},
};
use crate::{
    cluster::Cluster,
    link::{Answer, PeerPush, SentBy, Target},
    routes::{NodeBoot, NodeRow},
    supervised,
    trace::traceparent,
};

/// Batches that may wait for the lookup; beyond that, the owner waits.
const QUEUE_BATCHES_MAX: usize = 64;

/// Timeout of the lookup of undiscovered nodes: routes that don't answer must not hold up pushes to the others.
const UNDISCOVERED_TIMEOUT: Duration = Duration::from_millis(200);

/// Approximate number of pushes looked up together.
const LOOKUP_PUSHES_MAX: usize = 4_096;

/// Push for users on other nodes.
#[derive(Clone, Debug)]
pub struct RemotePush {
    /// Encoded `Push`.
    pub push: Bytes,
    /// Recipients.
    pub users: Arc<[UserId]>,
    /// Whether it is resent until acked.
    pub tracked: bool,
    /// Session that sent the message and gets no push.
    pub except: Option<(UserId, DeviceId, u64)>,
    /// Connection that sent the message: its epoch may have changed since, and a broadcast names no sessions.
    pub sent_by: Option<SentBy>,
    /// Trace context, if the message is traced.
    pub trace: Option<TraceContext>,
}

/// Routes one ordered stream of pushes to users on other nodes. Queued pushes are still sent after it is dropped.
pub struct Router {
    peer_queues: Arc<PeerQueues>,
    batches: mpsc::Sender<Vec<RemotePush>>,
}

impl Router {
    /// Starts the stream. Must run in a runtime.
    pub fn start(cluster: &Arc<Cluster>, peer_queues: Arc<PeerQueues>) -> Self {
        let (batches, queue) = mpsc::channel(QUEUE_BATCHES_MAX);
        let task = RouterTask { cluster: Arc::clone(cluster), peer_queues: Arc::clone(&peer_queues) };
        supervised::spawn("a router of pushes", task.run(queue));
        Self { peer_queues, batches }
    }

    /// Queues answers for the node that waits for them.
    pub fn answers(&self, to: &NodeBoot, answers: Vec<Answer>) {
        self.peer_queues.answers(to, answers);
    }

    /// Queues pushes, in order; waits while the queue is full.
    pub async fn pushes(&self, pushes: Vec<RemotePush>) {
        if pushes.is_empty() {
            return;
        }
        self.peer_queues.on_lookup_queued();
        if self.batches.send(pushes).await.is_err() {
            // The task ends only with its senders, or with the runtime.
            self.peer_queues.on_looked_up(1);
        }
    }
}

struct RouterTask {
    cluster: Arc<Cluster>,
    peer_queues: Arc<PeerQueues>,
}

impl RouterTask {
    async fn run(self, mut queue: mpsc::Receiver<Vec<RemotePush>>) {
        while let Some(mut batch) = queue.recv().await {
            let mut batches = 1;
            while batch.len() < LOOKUP_PUSHES_MAX
                && let Ok(more) = queue.try_recv()
            {
                batch.extend(more);
                batches += 1;
            }
            let users = batch.iter().flat_map(|push| push.users.iter()).collect();
            let by_user = user_sessions::lookup(&self.cluster, users).await.unwrap_or_else(|error| {
                tracing::debug!(%error, "routes unavailable; pushing to all peers");
                None
            });
            match by_user {
                Some(by_user) => self.queue(split_by_node(&batch, &by_user)),
                None => {
                    let discovered = self.cluster.peers.others();
                    self.queue(broadcast(&batch, &discovered));
                    self.queue(self.undiscovered(&batch, &discovered).await);
                }
            }
            self.peer_queues.on_looked_up(batches);
        }
    }

    fn queue(&self, pushes: BTreeMap<NodeBoot, Vec<PeerPush>>) {
        for (to, pushes) in pushes {
            self.peer_queues.pushes(&to, pushes);
        }
    }

    /// Returns the pushes to nodes that have a route and are not among the discovered ones: such a run began after the
    /// last list of peers was fetched, or is known by its routes only.
    async fn undiscovered(
        &self,
        batch: &[RemotePush],
        discovered: &[NodeRow],
    ) -> BTreeMap<NodeBoot, Vec<PeerPush>> {
        let users = batch.iter().flat_map(|push| push.users.iter()).collect();
        let lookup = user_sessions::rows(&self.cluster, users);
        let Ok(Ok(by_user)) = timeout(UNDISCOVERED_TIMEOUT, lookup).await else { return BTreeMap::new() };
        let mut found = split_by_node(batch, &by_user);
        found.retain(|run, _| discovered.iter().all(|row| row.info.boot != *run));
        found
    }
}

/// Returns the pushes to all sessions of their users on all discovered nodes.
fn broadcast(batch: &[RemotePush], discovered: &[NodeRow]) -> BTreeMap<NodeBoot, Vec<PeerPush>> {
    let everywhere: Vec<PeerPush> = batch
        .iter()
        .map(|push| delivery(push, push.users.iter().cloned().map(Target::Anywhere).collect()))
        .collect();
    discovered.iter().map(|row| (row.info.boot.clone(), everywhere.clone())).collect()
}

/// Groups the pushes by node, in the order of the batch.
fn split_by_node(batch: &[RemotePush], by_user: &UserSessions) -> BTreeMap<NodeBoot, Vec<PeerPush>> {
    let mut by_node: BTreeMap<NodeBoot, Vec<PeerPush>> = BTreeMap::new();
    for push in batch {
        let mut targets: BTreeMap<&NodeBoot, Vec<Target>> = BTreeMap::new();
        for (at, session) in push.users.iter().filter_map(|user| by_user.get(user)).flatten() {
            let sent_it = push.except.as_ref().is_some_and(|(user, device, epoch)| {
                *user == session.user && *device == session.device && *epoch == session.epoch
            });
            if !sent_it {
                targets.entry(at).or_default().push(Target::Conn(session.clone()));
            }
        }
        for (at, to) in targets {
            by_node.entry(at.clone()).or_default().push(delivery(push, to));
        }
    }
    by_node
}

fn delivery(push: &RemotePush, to: Vec<Target>) -> PeerPush {
    PeerPush {
        push: push.push.clone(),
        to,
        tracked: push.tracked,
        sent_by: push.sent_by.clone(),
        traceparent: traceparent(push.trace),
    }
}

#[cfg(test)]
mod tests;
