//! Large-group publisher: sends one record to the topic of each node with a member, encoded once (ADR 15).
//!
//! Nothing here is on the path of an ack, and no caller waits. A record that does not fit, or that no topic accepts, is
//! noted as missed, and its members get `Behind`. A record that a node's topic does not accept goes over the link too.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tidegate_protocol::id::ConversationId;
use tokio::{
    sync::mpsc,
    time::{self, Instant},
};

use self::{recent::RecentRecords, topic_queue::TopicQueues};
use super::subscriber::{GroupSubscriber, MissedRanges, RecordSource};
use crate::{cluster::Cluster, link::BestEffortQueues, metrics::Metrics, routes::NodeBoot, supervised};

mod recent;
mod topic_queue;

/// Batches that may wait for the lookup.
const QUEUE_BATCHES_MAX: usize = 256;

/// Bytes of records that may wait for the lookup.
const QUEUE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Approximate number of records looked up together.
const LOOKUP_RECORDS_MAX: usize = 1_024;

/// Interval between checks for missed records and new nodes.
const MISSED_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between polls for empty queues in [`GroupPublisher::settle`].
const SETTLE_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Record accepted in a large group, for other nodes.
#[derive(Clone, Debug)]
pub struct GroupRecord {
    /// Large group that accepted it.
    pub group: ConversationId,
    /// Seq in the group.
    pub seq: u64,
    /// Encoded `FanOut`.
    pub bytes: Bytes,
    /// Whether all nodes get it, not only those that declared interest.
    pub to_all: bool,
}

/// Publisher of what this node's owners accept in large groups, for the members on all nodes.
pub struct GroupPublisher {
    subscriber: Arc<GroupSubscriber>,
    batches: mpsc::Sender<Vec<GroupRecord>>,
    shared: Arc<Shared>,
    topic_queues: Arc<TopicQueues>,
    metrics: Metrics,
}

#[derive(Default)]
struct Shared {
    queued_bytes: AtomicUsize,
    /// Records that did not fit the queue, for all other nodes.
    missed: Mutex<MissedRanges>,
}

/// Task that looks up the nodes with members.
struct PublisherTask {
    cluster: Arc<Cluster>,
    shared: Arc<Shared>,
    topic_queues: Arc<TopicQueues>,
}

impl GroupPublisher {
    /// Starts the publisher; records that a topic does not accept go by `best_effort`. Must run in a runtime.
    pub fn start(
        cluster: &Arc<Cluster>,
        subscriber: Arc<GroupSubscriber>,
        best_effort: Arc<BestEffortQueues>,
        metrics: Metrics,
    ) -> Arc<Self> {
        let (batches, queue) = mpsc::channel(QUEUE_BATCHES_MAX);
        let shared = Arc::new(Shared::default());
        let topic_queues =
            Arc::new(TopicQueues::new(Arc::clone(&cluster.ports.bus), best_effort, metrics.clone()));
        let task = PublisherTask {
            cluster: Arc::clone(cluster),
            shared: Arc::clone(&shared),
            topic_queues: Arc::clone(&topic_queues),
        };
        supervised::spawn("the publisher of large groups", task.run(queue));
        Arc::new(Self { subscriber, batches, shared, topic_queues, metrics })
    }

    /// Waits, at most `within`, until every record has been offered to its topics. Call it before the bus closes.
    pub async fn settle(&self, within: Duration) {
        let settled = async {
            while self.shared.queued_bytes.load(Ordering::Relaxed) > 0 || self.topic_queues.is_busy() {
                time::sleep(SETTLE_POLL_INTERVAL).await;
            }
        };
        if time::timeout(within, settled).await.is_err() {
            tracing::warn!("large-group queues not drained in time; some nodes miss the last records");
        }
    }

    /// Publishes archived records, in the order of each group, without waiting.
    pub(crate) fn publish(&self, records: Vec<GroupRecord>) {
        self.subscriber.records(RecordSource::LocalOwner, records.iter().map(|record| record.bytes.clone()));
        let weight = weight_of(&records);
        let before = self.shared.queued_bytes.fetch_add(weight, Ordering::Relaxed);
        let fits = before == 0 || before + weight <= QUEUE_BYTES_MAX;
        let records =
            if fits { self.batches.try_send(records).err().map(|it| it.into_inner()) } else { Some(records) };
        if let Some(lost) = records {
            self.shared.queued_bytes.fetch_sub(weight, Ordering::Relaxed);
            self.metrics.fan_outs_lost.increment(lost.len() as u64);
            let mut missed = self.shared.missed.lock();
            lost.iter().for_each(|record| missed.add(record.group.as_str(), record.seq));
        }
    }
}

impl PublisherTask {
    async fn run(self, mut queue: mpsc::Receiver<Vec<GroupRecord>>) {
        let mut check = time::interval(MISSED_CHECK_INTERVAL);
        check.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
        let mut recent = RecentRecords::default();
        loop {
            let mut batch = tokio::select! {
                biased;
                batch = queue.recv() => match batch {
                    Some(batch) => batch,
                    None => return,
                },
                _ = check.tick() => Vec::new(),
            };
            while batch.len() < LOOKUP_RECORDS_MAX
                && let Ok(more) = queue.try_recv()
            {
                batch.extend(more);
            }
            let weight = weight_of(&batch);
            let (all, now) = (self.cluster.peers.runs(), Instant::now());
            for (node, records) in recent.missed(&all, now) {
                self.topic_queues.send(&node, records);
            }
            recent.add(batch.iter().filter(|record| record.to_all), now);
            let missed = self.shared.missed.lock().take_hints();
            if !missed.is_empty() {
                all.iter().for_each(|node| self.topic_queues.add_missed(node, &missed));
            }
            for (node, records) in self.group_by_node(batch, &all).await {
                self.topic_queues.send(&node, records);
            }
            self.shared.queued_bytes.fetch_sub(weight, Ordering::Relaxed);
        }
    }

    /// Returns the records of each node, in order. Interest is read after the archive: a node that declares it later
    /// reads the store later.
    async fn group_by_node(
        &self,
        batch: Vec<GroupRecord>,
        all: &[NodeBoot],
    ) -> BTreeMap<NodeBoot, Vec<GroupRecord>> {
        let mut groups: Vec<ConversationId> = Vec::new();
        let mut indexes: HashMap<ConversationId, usize> = HashMap::new();
        for record in batch.iter().filter(|record| !record.to_all) {
            indexes.entry(record.group.clone()).or_insert_with(|| {
                groups.push(record.group.clone());
                groups.len() - 1
            });
        }
        let nodes = if groups.is_empty() { None } else { self.cluster.nodes_with(&groups).await };
        // Includes the peers that were discovered while the routes did not answer.
        let nodes = nodes.unwrap_or_else(|| vec![self.cluster.peers.runs(); groups.len()]);
        let mut by_node: BTreeMap<NodeBoot, Vec<GroupRecord>> = BTreeMap::new();
        for record in batch {
            let some =
                indexes.get(&record.group).filter(|_| !record.to_all).and_then(|index| nodes.get(*index));
            for node in some.map_or(all, Vec::as_slice) {
                by_node.entry(node.clone()).or_default().push(record.clone());
            }
        }
        by_node
    }
}

fn weight_of(records: &[GroupRecord]) -> usize {
    records.iter().map(|record| record.bytes.len()).sum()
}
