//! Peer queues: one per peer sends replies and pushes in order, many in one call; a slow peer delays no other.
//!
//! A queue is bounded in bytes. When it is full, further pushes and replies are dropped and counted: a client without
//! its reply gets *unknown* and retries by its id; a client without a push sees the hole, or learns of it by its next
//! heartbeat. Nothing is decided here, so no loss has a lasting effect (flaws S1, S2).

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{sync::Semaphore, time};

use crate::{
    cluster::Cluster,
    link::{Answer, Landing, LinkError, PeerPush, RoutedSession, Target},
    metrics::Metrics,
    queue_set::{EndedQueues, Next, Queue, QueueSet, Rejected},
    routes::{NodeBoot, Route, Token},
    supervised,
};

/// Batches that may wait for one peer.
const QUEUE_BATCHES_MAX: usize = 4_096;

/// Bytes that may wait for one peer.
const QUEUE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Items of one kind in one call.
const CALL_ITEMS_MAX: usize = 4_096;

/// Approximate bytes of one call; a single push for many connections may exceed it.
const CALL_BYTES: usize = 1024 * 1024;

/// Delay before resending a batch that a peer did not accept.
const PEER_RETRY_INTERVAL: Duration = Duration::from_millis(300);

/// Attempts to send a batch of replies: in total shorter than the client's deadline (5 s; SPEC, section 4).
const ANSWER_TRIES: usize = 10;

/// Attempts to send a batch of pushes.
const PUSH_TRIES: usize = 3;

/// Concurrent rechecks of missing connections. Beyond that, their routes stay until another push finds them.
const RECHECKS_MAX: usize = 64;

/// Longest time from a connection's route to its entry in the indexes of its node; later, its login has failed.
const LOGIN_MAX: Duration = Duration::from_secs(10);

/// Interval between polls for empty queues in [`PeerQueues::settle`].
const SETTLE_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Bytes charged for an item in addition to its payload.
const ITEM_BYTES: usize = 128;

/// Batch of one kind for a peer.
enum PeerBatch {
    Answers(Vec<Answer>),
    Pushes(Vec<PeerPush>),
}

/// One bounded send queue per peer.
pub struct PeerQueues {
    cluster: Arc<Cluster>,
    metrics: Metrics,
    queues: QueueSet<PeerBatch>,
    /// Number of batches whose nodes are being looked up.
    lookups: AtomicUsize,
    rechecks: Arc<Semaphore>,
}

/// Receiving end of a queue, in its task.
struct PeerQueue {
    queue: Queue<PeerBatch>,
    queues: Arc<PeerQueues>,
}

impl PeerQueues {
    /// Creates the set without queues: each starts with its first batch.
    pub fn new(cluster: &Arc<Cluster>, metrics: Metrics) -> Arc<Self> {
        let rechecks = Arc::new(Semaphore::new(RECHECKS_MAX));
        let queues = QueueSet::new(QUEUE_BATCHES_MAX, EndedQueues::Drop);
        Arc::new(Self {
            cluster: Arc::clone(cluster),
            metrics,
            queues,
            lookups: AtomicUsize::new(0),
            rechecks,
        })
    }

    /// Counts a batch whose nodes are about to be looked up.
    pub(super) fn on_lookup_queued(&self) {
        self.lookups.fetch_add(1, Ordering::AcqRel);
    }

    /// Discounts batches that were looked up, and passed to the queues.
    pub(super) fn on_looked_up(&self, batches: usize) {
        self.lookups.fetch_sub(batches, Ordering::AcqRel);
    }

    /// Waits, at most `within`, until everything was looked up and sent. Call it once no owner publishes any more.
    pub async fn settle(&self, within: Duration) {
        let settled = async {
            while self.lookups.load(Ordering::Acquire) > 0 || !self.queues.is_empty() {
                time::sleep(SETTLE_POLL_INTERVAL).await;
            }
        };
        if time::timeout(within, settled).await.is_err() {
            tracing::warn!(
                "queues to peers not drained in time; clients of other nodes pull the last messages"
            );
        }
    }

    /// Queues replies; calls for one peer keep their order. Must run in a runtime.
    pub fn answers(self: &Arc<Self>, to: &NodeBoot, answers: Vec<Answer>) {
        if !answers.is_empty() {
            self.send(to, PeerBatch::Answers(answers));
        }
    }

    /// Queues pushes after everything queued before. Must run in a runtime.
    pub fn pushes(self: &Arc<Self>, to: &NodeBoot, pushes: Vec<PeerPush>) {
        let (mut batch, mut weight) = (Vec::new(), 0);
        for push in pushes {
            let one = weight_of(&push);
            if weight + one > CALL_BYTES && !batch.is_empty() {
                self.send(to, PeerBatch::Pushes(std::mem::take(&mut batch)));
                weight = 0;
            }
            weight += one;
            batch.push(push);
        }
        if !batch.is_empty() {
            self.send(to, PeerBatch::Pushes(batch));
        }
    }

    fn send(self: &Arc<Self>, to: &NodeBoot, batch: PeerBatch) {
        let weight = batch.weight();
        let start = |queue| {
            supervised::spawn("a queue to a peer", PeerQueue { queue, queues: Arc::clone(self) }.run());
        };
        match self.queues.send(to, batch, weight, QUEUE_BYTES_MAX, start) {
            Ok(()) => {}
            Err(Rejected::Full(batch)) => self.drop_batch(to, &batch, "queue full"),
            Err(Rejected::Closed(batch)) => self.drop_batch(to, &batch, "queue closed"),
        }
    }

    fn drop_batch(&self, to: &NodeBoot, batch: &PeerBatch, reason: &str) {
        let items = match batch {
            PeerBatch::Answers(answers) => answers.len(),
            PeerBatch::Pushes(pushes) => pushes.iter().map(|push| push.to.len()).sum(),
        };
        match batch {
            PeerBatch::Answers(_) => self.metrics.peer_answers_lost.increment(items as u64),
            PeerBatch::Pushes(_) => self.metrics.peer_pushes_lost.increment(items as u64),
        }
        tracing::debug!(peer = %to, items, reason, "batch to peer dropped");
    }
}

impl PeerBatch {
    fn weight(&self) -> usize {
        match self {
            Self::Answers(answers) => answers.len() * ITEM_BYTES,
            Self::Pushes(pushes) => pushes.iter().map(weight_of).sum(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Answers(answers) => answers.len(),
            Self::Pushes(pushes) => pushes.len(),
        }
    }

    /// Appends the other batch, if it is of the same kind and both fit one call.
    fn merge(&mut self, other: Self) -> Result<(), Self> {
        if self.len() + other.len() > CALL_ITEMS_MAX || self.weight() + other.weight() > CALL_BYTES {
            return Err(other);
        }
        match (self, other) {
            (Self::Answers(mine), Self::Answers(more)) => mine.extend(more),
            (Self::Pushes(mine), Self::Pushes(more)) => mine.extend(more),
            (_, other) => return Err(other),
        }
        Ok(())
    }
}

impl PeerQueue {
    async fn run(mut self) {
        let mut next = None;
        loop {
            let first = match next.take() {
                Some(batch) => batch,
                None => match self.queue.next(None).await {
                    Some(Next::Item(batch)) => batch,
                    Some(Next::Retry) | None => return,
                },
            };
            let (batch, rest) = self.merge_queued(first);
            next = rest;
            let weight = batch.weight();
            self.send_batch(batch).await;
            self.queue.release(weight);
        }
    }

    fn merge_queued(&mut self, mut batch: PeerBatch) -> (PeerBatch, Option<PeerBatch>) {
        while let Some(more) = self.queue.try_next() {
            if let Err(other) = batch.merge(more) {
                return (batch, Some(other));
            }
        }
        (batch, None)
    }

    async fn send_batch(&self, batch: PeerBatch) {
        match &batch {
            PeerBatch::Answers(answers) => {
                let call = || self.queues.cluster.ports.link.answers(&self.queue.to, answers.clone());
                if let Err(error) = self.retry(ANSWER_TRIES, call).await {
                    self.queues.drop_batch(&self.queue.to, &batch, &error.to_string());
                }
            }
            PeerBatch::Pushes(pushes) => {
                let call = || self.queues.cluster.ports.link.deliver(&self.queue.to, pushes.clone());
                match self.retry(PUSH_TRIES, call).await {
                    Ok(landings) => self.remove_stale_routes(pushes, landings),
                    Err(error) => self.queues.drop_batch(&self.queue.to, &batch, &error.to_string()),
                }
            }
        }
    }

    /// Calls up to `tries` times. Fails at once if that run of the peer has ended; requests a peer refresh if the peer
    /// is not discovered.
    async fn retry<T, F>(&self, tries: usize, mut call: impl FnMut() -> F) -> Result<T, LinkError>
    where
        F: Future<Output = Result<T, LinkError>>,
    {
        let mut left = tries;
        loop {
            left -= 1;
            match call().await {
                Err(LinkError::NotHere) => return Err(LinkError::NotHere),
                Err(error) if left == 0 => return Err(error),
                Err(_) => {
                    let peers = &self.queues.cluster.peers;
                    if !peers.is_live(&self.queue.to) {
                        peers.request_refresh();
                    }
                    time::sleep(PEER_RETRY_INTERVAL).await;
                }
                Ok(done) => return Ok(done),
            }
        }
    }

    /// Rechecks missing targets after [`LOGIN_MAX`]. A connection registers its route before it is indexed and reads
    /// this push from the store, so nothing is resent. A target still missing has left a stale route, which is removed
    /// by its full token.
    fn remove_stale_routes(&self, pushes: &[PeerPush], landings: Vec<Vec<Landing>>) {
        let missing: BTreeSet<Target> = pushes
            .iter()
            .zip(landings)
            .flat_map(|(push, landings)| push.to.iter().zip(landings))
            .filter(|(target, landing)| *landing == Landing::NotHere && is_conn(target))
            .map(|(target, _)| target.clone())
            .collect();
        if missing.is_empty() {
            return;
        }
        let Ok(permit) = Arc::clone(&self.queues.rechecks).try_acquire_owned() else { return };
        let (queues, to) = (Arc::clone(&self.queues), self.queue.to.clone());
        supervised::spawn("a recheck of routes", async move {
            time::sleep(LOGIN_MAX).await;
            let to_all = missing.iter().cloned().collect();
            let recheck = PeerPush {
                push: Bytes::new(),
                to: to_all,
                tracked: false,
                sent_by: None,
                traceparent: String::new(),
            };
            // Peer unavailable: the routes stay until another push finds them.
            let Ok(landings) = queues.cluster.ports.link.deliver(&to, vec![recheck]).await else { return };
            let stale: Vec<Route> = missing
                .into_iter()
                .zip(landings.into_iter().flatten())
                .filter(|(_, landing)| *landing == Landing::NotHere)
                .filter_map(|(target, _)| route_of(target, &to))
                .collect();
            if let Err(error) = queues.cluster.ports.routes.remove(&stale).await {
                tracing::debug!(%error, "failed to remove stale routes");
            }
            drop(permit);
        });
    }
}

fn weight_of(push: &PeerPush) -> usize {
    push.push.len() + (1 + push.to.len()) * ITEM_BYTES
}

fn is_conn(target: &Target) -> bool {
    matches!(target, Target::Conn(_))
}

fn route_of(target: Target, at: &NodeBoot) -> Option<Route> {
    match target {
        Target::Conn(RoutedSession { user, device, epoch }) => {
            Some(Route { user, device, token: Token { at: at.clone(), epoch } })
        }
        Target::Anywhere(_) => None,
    }
}

#[cfg(test)]
mod tests;
