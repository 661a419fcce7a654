//! A lane to the topic of each node: records in order, many in one call, and a topic that takes none delays no other.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{sync::mpsc, time};

use super::{Fan, Owed, weight_of};
use crate::{
    bus::Bus,
    link::{Stray, StrayLanes},
    metrics::Metrics,
    routes::NodeBoot,
};

/// Batches that may wait for one node, and bytes in them.
const BATCHES_MAX: usize = 1_024;
const BYTES_MAX: usize = 8 * 1024 * 1024;

/// Bytes handed to the bus in one call, about.
const CALL_BYTES: usize = 512 * 1024;

/// Between two tries to pay what is owed.
const AGAIN: Duration = Duration::from_secs(1);

/// A lane without traffic that owes nothing ends after so long; the next record opens it again.
const IDLE: Duration = Duration::from_secs(60);

/// So often what is owed to a node is offered to a topic that takes nothing, while there is no other traffic.
const TRIES: u32 = 600;

pub(super) struct Lanes {
    bus: Arc<dyn Bus>,
    strays: Arc<StrayLanes>,
    metrics: Metrics,
    lanes: Mutex<HashMap<NodeBoot, Sender>>,
}

#[derive(Clone)]
struct Sender {
    batches: mpsc::Sender<Vec<Fan>>,
    waiting: Arc<AtomicUsize>,
    owed: Arc<Mutex<Owed>>,
}

struct Lane {
    to: NodeBoot,
    batches: mpsc::Receiver<Vec<Fan>>,
    waiting: Arc<AtomicUsize>,
    owed: Arc<Mutex<Owed>>,
    bus: Arc<dyn Bus>,
    strays: Arc<StrayLanes>,
    metrics: Metrics,
}

impl Lanes {
    /// No lanes yet: each begins with its first record.
    pub(super) fn new(bus: Arc<dyn Bus>, strays: Arc<StrayLanes>, metrics: Metrics) -> Self {
        Self { bus, strays, metrics, lanes: Mutex::default() }
    }

    /// Hands records over behind those before them, or notes that they are owed; at once.
    pub(super) fn send(&self, to: &NodeBoot, mut fans: Vec<Fan>) {
        let weight = weight_of(&fans);
        // A lane that just ended for want of traffic is closed: the next one is open.
        for _ in 0..2 {
            let lane = self.lane(to);
            let before = lane.waiting.fetch_add(weight, Ordering::Relaxed);
            let failed = match before == 0 || before + weight <= BYTES_MAX {
                true => lane.batches.try_send(fans),
                false => Err(mpsc::error::TrySendError::Full(fans)),
            };
            let Err(failed) = failed else { return };
            lane.waiting.fetch_sub(weight, Ordering::Relaxed);
            let is_full = matches!(failed, mpsc::error::TrySendError::Full(_));
            fans = failed.into_inner();
            if is_full {
                break;
            }
        }
        self.metrics.fan_outs_lost.increment(fans.len() as u64);
        let lane = self.lane(to);
        let mut owed = lock(&lane.owed);
        fans.iter().for_each(|fan| owed.add(fan.group.as_str(), fan.seq));
    }

    /// Notes that these hints are owed to the node.
    pub(super) fn owe(&self, to: &NodeBoot, hints: &[Bytes]) {
        let lane = self.lane(to);
        {
            let mut owed = lock(&lane.owed);
            hints.iter().for_each(|hint| owed.add_record(hint.clone()));
        }
        // Wakes it.
        self.send(to, Vec::new());
    }

    /// Whether records wait that their topics were not offered yet.
    pub(super) fn are_busy(&self) -> bool {
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.values().any(|lane| lane.waiting.load(Ordering::Relaxed) > 0)
    }

    fn lane(&self, to: &NodeBoot) -> Sender {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lane) = lanes.get(to).filter(|lane| !lane.batches.is_closed()) {
            return lane.clone();
        }
        lanes.retain(|_, lane| !lane.batches.is_closed());
        let (sender, batches) = mpsc::channel(BATCHES_MAX);
        let (waiting, owed) = (Arc::new(AtomicUsize::new(0)), Arc::<Mutex<Owed>>::default());
        let lane = Lane {
            to: to.clone(),
            batches,
            waiting: Arc::clone(&waiting),
            owed: Arc::clone(&owed),
            bus: Arc::clone(&self.bus),
            strays: Arc::clone(&self.strays),
            metrics: self.metrics.clone(),
        };
        tokio::spawn(lane.run());
        let sender = Sender { batches: sender, waiting, owed };
        lanes.insert(to.clone(), sender.clone());
        sender
    }
}

impl Lane {
    async fn run(mut self) {
        let mut tries = 0;
        loop {
            let owes = !lock(&self.owed).is_empty() && tries < TRIES;
            match time::timeout(if owes { AGAIN } else { IDLE }, self.batches.recv()).await {
                Ok(Some(first)) => {
                    tries = 0;
                    let fans = self.gather(first);
                    self.carry(fans).await;
                }
                Ok(None) => return,
                Err(_) if owes => {
                    tries += 1;
                    self.carry(Vec::new()).await;
                }
                Err(_) => {
                    // Nothing comes in from here on; what came in meanwhile is taken out.
                    self.batches.close();
                    while let Ok(last) = self.batches.try_recv() {
                        self.carry(last).await;
                    }
                    return;
                }
            }
        }
    }

    fn gather(&mut self, mut fans: Vec<Fan>) -> Vec<Fan> {
        let mut weight = weight_of(&fans);
        while weight < CALL_BYTES
            && let Ok(more) = self.batches.try_recv()
        {
            weight += weight_of(&more);
            fans.extend(more);
        }
        fans
    }

    /// One call: what is owed, then what waits. What the topic does not take for certain goes over the link, now, and stays
    /// owed: the link may lose it.
    async fn carry(&self, fans: Vec<Fan>) {
        let weight = weight_of(&fans);
        let owed = lock(&self.owed).take();
        let records: Vec<Bytes> =
            owed.iter().cloned().chain(fans.iter().map(|fan| fan.bytes.clone())).collect();
        if !records.is_empty() {
            let published = self.bus.publish_node(&self.to, records).await;
            match published {
                Ok(()) => self.metrics.fan_outs.increment(fans.len() as u64),
                Err(error) => {
                    tracing::debug!(%error, node = %self.to, "a node's topic takes nothing: the link does");
                    self.metrics.fan_outs_beside.increment(fans.len() as u64);
                    let mut still = lock(&self.owed);
                    owed.into_iter().for_each(|hint| still.add_record(hint));
                    for fan in fans {
                        still.add(fan.group.as_str(), fan.seq);
                        let record = fan.bytes;
                        self.strays.send(&self.to, Stray::FanOut { group: fan.group, record });
                    }
                }
            }
        }
        self.waiting.fetch_sub(weight, Ordering::Relaxed);
    }
}

fn lock(owed: &Mutex<Owed>) -> MutexGuard<'_, Owed> {
    owed.lock().unwrap_or_else(PoisonError::into_inner)
}
