//! Topic queues: one per node topic sends records in order, many in one call; a stalled topic delays no other.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;

use super::{GroupRecord, MissedRanges, weight_of};
use crate::{
    bus::Bus,
    link::{BestEffortMessage, BestEffortQueues},
    metrics::Metrics,
    queue_set::{EndedQueues, Next, Queue, QueueSet},
    routes::NodeBoot,
    supervised,
};

/// Batches that may wait for one node.
const QUEUE_BATCHES_MAX: usize = 1_024;

/// Bytes of records that may wait for one node.
const QUEUE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Approximate bytes passed to the bus in one call.
const CALL_BYTES: usize = 512 * 1024;

/// Delay between attempts to publish the hints for missed records.
const HINT_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Attempts to publish hints to a topic that accepts nothing, while there is no other traffic.
const HINT_TRIES: u32 = 600;

/// One bounded queue per node topic.
pub(super) struct TopicQueues {
    bus: Arc<dyn Bus>,
    best_effort: Arc<BestEffortQueues>,
    metrics: Metrics,
    queues: QueueSet<Vec<GroupRecord>, Mutex<MissedRanges>>,
}

/// Receiving end of a queue, in its task; its state is what the node has missed.
struct TopicQueue {
    queue: Queue<Vec<GroupRecord>, Mutex<MissedRanges>>,
    bus: Arc<dyn Bus>,
    best_effort: Arc<BestEffortQueues>,
    metrics: Metrics,
}

impl TopicQueues {
    /// Creates the set without queues: each starts with its first record.
    pub(super) fn new(bus: Arc<dyn Bus>, best_effort: Arc<BestEffortQueues>, metrics: Metrics) -> Self {
        let queues = QueueSet::new(QUEUE_BATCHES_MAX, EndedQueues::Drop);
        Self { bus, best_effort, metrics, queues }
    }

    /// Queues records after earlier ones, or notes them as missed; never waits.
    pub(super) fn send(&self, to: &NodeBoot, batch: Vec<GroupRecord>) {
        let weight = weight_of(&batch);
        let Err(rejected) = self.queues.send(to, batch, weight, QUEUE_BYTES_MAX, |queue| self.start(queue))
        else {
            return;
        };
        let batch = rejected.into_inner();
        self.metrics.fan_outs_lost.increment(batch.len() as u64);
        let missed = self.missed(to);
        let mut missed = missed.lock();
        batch.iter().for_each(|item| missed.add(item.group.as_str(), item.seq));
    }

    /// Notes hints that the node has yet to get.
    pub(super) fn add_missed(&self, to: &NodeBoot, hints: &[Bytes]) {
        let missed = self.missed(to);
        {
            let mut missed = missed.lock();
            hints.iter().for_each(|hint| missed.add_record(hint.clone()));
        }
        // An empty batch wakes the task.
        self.send(to, Vec::new());
    }

    /// Returns whether records wait that have not been offered to their topics.
    pub(super) fn is_busy(&self) -> bool {
        !self.queues.is_empty()
    }

    fn missed(&self, to: &NodeBoot) -> Arc<Mutex<MissedRanges>> {
        self.queues.state(to, |queue| self.start(queue))
    }

    fn start(&self, queue: Queue<Vec<GroupRecord>, Mutex<MissedRanges>>) {
        let (bus, best_effort) = (Arc::clone(&self.bus), Arc::clone(&self.best_effort));
        let task = TopicQueue { queue, bus, best_effort, metrics: self.metrics.clone() };
        supervised::spawn("a queue to a node topic", task.run());
    }
}

impl TopicQueue {
    async fn run(mut self) {
        let mut tries = 0;
        loop {
            let has_missed = !self.queue.state.lock().is_empty() && tries < HINT_TRIES;
            match self.queue.next(has_missed.then_some(HINT_RETRY_INTERVAL)).await {
                Some(Next::Item(first)) => {
                    tries = 0;
                    let batch = self.merge_queued(first);
                    self.send_batch(batch).await;
                }
                Some(Next::Retry) => {
                    tries += 1;
                    self.send_batch(Vec::new()).await;
                }
                None => return,
            }
        }
    }

    fn merge_queued(&mut self, mut batch: Vec<GroupRecord>) -> Vec<GroupRecord> {
        let mut weight = weight_of(&batch);
        while weight < CALL_BYTES
            && let Some(more) = self.queue.try_next()
        {
            weight += weight_of(&more);
            batch.extend(more);
        }
        batch
    }

    /// Publishes the hints and the queued records in one call. Records that the topic did not confirm go over the link,
    /// and stay missed because the link may lose them.
    async fn send_batch(&self, batch: Vec<GroupRecord>) {
        let weight = weight_of(&batch);
        let missed = self.queue.state.lock().take_hints();
        let records: Vec<Bytes> =
            missed.iter().cloned().chain(batch.iter().map(|item| item.bytes.clone())).collect();
        if !records.is_empty() {
            let published = self.bus.publish_node(&self.queue.to, records).await;
            match published {
                Ok(()) => self.metrics.fan_outs.increment(batch.len() as u64),
                Err(error) => {
                    tracing::debug!(%error, node = %self.queue.to, "node topic unavailable; sending over the link");
                    self.metrics.fan_outs_beside.increment(batch.len() as u64);
                    let mut remaining = self.queue.state.lock();
                    missed.into_iter().for_each(|hint| remaining.add_record(hint));
                    for item in batch {
                        remaining.add(item.group.as_str(), item.seq);
                        let record = item.bytes;
                        self.best_effort
                            .send(&self.queue.to, BestEffortMessage::FanOut { group: item.group, record });
                    }
                }
            }
        }
        self.queue.release(weight);
    }
}
