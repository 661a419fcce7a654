//! Topic queues: one per node topic sends records in order, many in one call; a stalled topic delays no other.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{sync::mpsc, time};

use super::{GroupRecord, MissedRanges, weight_of};
use crate::{
    bus::Bus,
    link::{BestEffortMessage, BestEffortQueues},
    metrics::Metrics,
    routes::NodeBoot,
};

/// Batches that may wait for one node.
const QUEUE_BATCHES_MAX: usize = 1_024;

/// Bytes of records that may wait for one node.
const QUEUE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Approximate bytes passed to the bus in one call.
const CALL_BYTES: usize = 512 * 1024;

/// Delay between attempts to publish the hints for missed records.
const HINT_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Time without traffic after which a queue without missed records ends; the next record opens it again.
const QUEUE_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Attempts to publish hints to a topic that accepts nothing, while there is no other traffic.
const HINT_TRIES: u32 = 600;

/// One bounded queue per node topic.
pub(super) struct TopicQueues {
    bus: Arc<dyn Bus>,
    best_effort: Arc<BestEffortQueues>,
    metrics: Metrics,
    queues: Mutex<HashMap<NodeBoot, QueueSender>>,
}

#[derive(Clone)]
struct QueueSender {
    batches: mpsc::Sender<Vec<GroupRecord>>,
    queued_bytes: Arc<AtomicUsize>,
    missed: Arc<Mutex<MissedRanges>>,
}

struct TopicQueue {
    to: NodeBoot,
    batches: mpsc::Receiver<Vec<GroupRecord>>,
    queued_bytes: Arc<AtomicUsize>,
    missed: Arc<Mutex<MissedRanges>>,
    bus: Arc<dyn Bus>,
    best_effort: Arc<BestEffortQueues>,
    metrics: Metrics,
}

impl TopicQueues {
    /// Creates the set without queues: each starts with its first record.
    pub(super) fn new(bus: Arc<dyn Bus>, best_effort: Arc<BestEffortQueues>, metrics: Metrics) -> Self {
        Self { bus, best_effort, metrics, queues: Mutex::default() }
    }

    /// Queues records after earlier ones, or notes them as missed; never waits.
    pub(super) fn send(&self, to: &NodeBoot, mut batch: Vec<GroupRecord>) {
        let weight = weight_of(&batch);
        // The queue may just have ended for lack of traffic: the second attempt opens another.
        for _ in 0..2 {
            let queue = self.queue(to);
            let before = queue.queued_bytes.fetch_add(weight, Ordering::Relaxed);
            let failed = match before == 0 || before + weight <= QUEUE_BYTES_MAX {
                true => queue.batches.try_send(batch),
                false => Err(mpsc::error::TrySendError::Full(batch)),
            };
            let Err(failed) = failed else { return };
            queue.queued_bytes.fetch_sub(weight, Ordering::Relaxed);
            let is_full = matches!(failed, mpsc::error::TrySendError::Full(_));
            batch = failed.into_inner();
            if is_full {
                break;
            }
        }
        self.metrics.fan_outs_lost.increment(batch.len() as u64);
        let queue = self.queue(to);
        let mut missed = queue.missed.lock();
        batch.iter().for_each(|item| missed.add(item.group.as_str(), item.seq));
    }

    /// Notes hints that the node has yet to get.
    pub(super) fn add_missed(&self, to: &NodeBoot, hints: &[Bytes]) {
        let queue = self.queue(to);
        {
            let mut missed = queue.missed.lock();
            hints.iter().for_each(|hint| missed.add_record(hint.clone()));
        }
        // An empty batch wakes the task.
        self.send(to, Vec::new());
    }

    /// Returns whether records wait that have not been offered to their topics.
    pub(super) fn is_busy(&self) -> bool {
        let queues = self.queues.lock();
        queues.values().any(|queue| queue.queued_bytes.load(Ordering::Relaxed) > 0)
    }

    fn queue(&self, to: &NodeBoot) -> QueueSender {
        let mut queues = self.queues.lock();
        if let Some(queue) = queues.get(to).filter(|queue| !queue.batches.is_closed()) {
            return queue.clone();
        }
        queues.retain(|_, queue| !queue.batches.is_closed());
        let (sender, batches) = mpsc::channel(QUEUE_BATCHES_MAX);
        let (queued_bytes, missed) = (Arc::new(AtomicUsize::new(0)), Arc::<Mutex<MissedRanges>>::default());
        let queue = TopicQueue {
            to: to.clone(),
            batches,
            queued_bytes: Arc::clone(&queued_bytes),
            missed: Arc::clone(&missed),
            bus: Arc::clone(&self.bus),
            best_effort: Arc::clone(&self.best_effort),
            metrics: self.metrics.clone(),
        };
        tokio::spawn(queue.run());
        let sender = QueueSender { batches: sender, queued_bytes, missed };
        queues.insert(to.clone(), sender.clone());
        sender
    }
}

impl TopicQueue {
    async fn run(mut self) {
        let mut tries = 0;
        loop {
            let has_missed = !self.missed.lock().is_empty() && tries < HINT_TRIES;
            match time::timeout(
                if has_missed { HINT_RETRY_INTERVAL } else { QUEUE_IDLE_TIMEOUT },
                self.batches.recv(),
            )
            .await
            {
                Ok(Some(first)) => {
                    tries = 0;
                    let batch = self.merge_queued(first);
                    self.send_batch(batch).await;
                }
                Ok(None) => return,
                Err(_) if has_missed => {
                    tries += 1;
                    self.send_batch(Vec::new()).await;
                }
                Err(_) => {
                    // Close first, then take what was queued in the meantime.
                    self.batches.close();
                    while let Ok(last) = self.batches.try_recv() {
                        self.send_batch(last).await;
                    }
                    return;
                }
            }
        }
    }

    fn merge_queued(&mut self, mut batch: Vec<GroupRecord>) -> Vec<GroupRecord> {
        let mut weight = weight_of(&batch);
        while weight < CALL_BYTES
            && let Ok(more) = self.batches.try_recv()
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
        let missed = self.missed.lock().take_hints();
        let records: Vec<Bytes> =
            missed.iter().cloned().chain(batch.iter().map(|item| item.bytes.clone())).collect();
        if !records.is_empty() {
            let published = self.bus.publish_node(&self.to, records).await;
            match published {
                Ok(()) => self.metrics.fan_outs.increment(batch.len() as u64),
                Err(error) => {
                    tracing::debug!(%error, node = %self.to, "node topic unavailable; sending over the link");
                    self.metrics.fan_outs_beside.increment(batch.len() as u64);
                    let mut remaining = self.missed.lock();
                    missed.into_iter().for_each(|hint| remaining.add_record(hint));
                    for item in batch {
                        remaining.add(item.group.as_str(), item.seq);
                        let record = item.bytes;
                        self.best_effort
                            .send(&self.to, BestEffortMessage::FanOut { group: item.group, record });
                    }
                }
            }
        }
        self.queued_bytes.fetch_sub(weight, Ordering::Relaxed);
    }
}
