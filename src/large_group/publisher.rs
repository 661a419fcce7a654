//! Large groups, as their owners tell of them: one record to the topic of each node that has a member, encoded once
//! (DESIGN 6.4 and 7, ADR 15).
//!
//! Nothing here is on the way to an ack, and nobody waits: what has no room, or is taken by no topic, is owed, and its
//! members hear `Behind`. What a node's topic does not take goes over the link meanwhile.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tidegate_protocol::id::ConversationId;
use tokio::{
    sync::mpsc,
    time::{self, Instant},
};

use self::{recent::Recent, topic_queue::Lanes};
use super::subscriber::{Crowds, Owed, Source};
use crate::{link::StrayLanes, metrics::Metrics, ports::Ports, routes::NodeBoot};

mod recent;
mod topic_queue;

/// Batches that may wait for the routes, and bytes in them.
const BATCHES_MAX: usize = 256;
const BYTES_MAX: usize = 16 * 1024 * 1024;

/// Records looked up and handed over in one turn, about.
const TURN_MAX: usize = 1_024;

/// Between two looks at what is owed.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Between two looks at whether everything was offered.
const SETTLE_LOOK: Duration = Duration::from_millis(10);

/// Something accepted in a large group.
#[derive(Clone, Debug)]
pub struct Fan {
    /// Which group.
    pub group: ConversationId,
    /// Its seq there.
    pub seq: u64,
    /// An encoded `FanOut`.
    pub bytes: Bytes,
    /// All nodes are told, not only those that declared interest.
    pub to_all: bool,
}

/// The way of the owners of this node to the members of large groups, on all nodes.
pub struct Spread {
    crowds: Arc<Crowds>,
    batches: mpsc::Sender<Vec<Fan>>,
    shared: Arc<Shared>,
    lanes: Arc<Lanes>,
    metrics: Metrics,
}

#[derive(Default)]
struct Shared {
    waiting: AtomicUsize,
    /// What had no room, for all other nodes.
    owed: Mutex<Owed>,
}

/// Finds the nodes.
struct Finder {
    ports: Arc<Ports>,
    shared: Arc<Shared>,
    lanes: Arc<Lanes>,
}

impl Spread {
    /// Begins; what a topic does not take goes by `strays`. In a runtime only.
    pub fn start(
        ports: &Arc<Ports>,
        crowds: Arc<Crowds>,
        strays: Arc<StrayLanes>,
        metrics: Metrics,
    ) -> Arc<Self> {
        let (batches, waiting) = mpsc::channel(BATCHES_MAX);
        let shared = Arc::new(Shared::default());
        let lanes = Arc::new(Lanes::new(Arc::clone(&ports.bus), strays, metrics.clone()));
        let finder =
            Finder { ports: Arc::clone(ports), shared: Arc::clone(&shared), lanes: Arc::clone(&lanes) };
        tokio::spawn(finder.run(waiting));
        Arc::new(Self { crowds, batches, shared, lanes, metrics })
    }

    /// Waits until everything handed over has been offered to the topics, at most `within`: before the bus is closed.
    pub async fn settle(&self, within: Duration) {
        let settled = async {
            while self.shared.waiting.load(Ordering::Relaxed) > 0 || self.lanes.are_busy() {
                time::sleep(SETTLE_LOOK).await;
            }
        };
        if time::timeout(within, settled).await.is_err() {
            tracing::warn!("not all nodes were told what was accepted last in large groups");
        }
    }

    /// Hands over what is archived, in the order of each group; never waits.
    pub(crate) fn hand(&self, fans: Vec<Fan>) {
        self.crowds.records(Source::Here, fans.iter().map(|fan| fan.bytes.clone()));
        let weight = weight_of(&fans);
        let before = self.shared.waiting.fetch_add(weight, Ordering::Relaxed);
        let fits = before == 0 || before + weight <= BYTES_MAX;
        let fans =
            if fits { self.batches.try_send(fans).err().map(|it| it.into_inner()) } else { Some(fans) };
        if let Some(lost) = fans {
            self.shared.waiting.fetch_sub(weight, Ordering::Relaxed);
            self.metrics.fan_outs_lost.increment(lost.len() as u64);
            let mut owed = self.shared.owed.lock().unwrap_or_else(PoisonError::into_inner);
            lost.iter().for_each(|fan| owed.add(fan.group.as_str(), fan.seq));
        }
    }
}

impl Finder {
    async fn run(self, mut waiting: mpsc::Receiver<Vec<Fan>>) {
        let mut looks = time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
        let mut recent = Recent::default();
        loop {
            let mut turn = tokio::select! {
                batch = waiting.recv() => match batch {
                    Some(batch) => batch,
                    None => return,
                },
                _ = looks.tick() => Vec::new(),
            };
            while turn.len() < TURN_MAX
                && let Ok(more) = waiting.try_recv()
            {
                turn.extend(more);
            }
            let weight = weight_of(&turn);
            let (all, now) = (self.ports.peers.runs(), Instant::now());
            for (node, records) in recent.missed(&all, now) {
                self.lanes.send(&node, records);
            }
            recent.add(turn.iter().filter(|fan| fan.to_all), now);
            let owed = self.shared.owed.lock().unwrap_or_else(PoisonError::into_inner).take();
            if !owed.is_empty() {
                all.iter().for_each(|node| self.lanes.owe(node, &owed));
            }
            for (node, records) in self.find(turn, &all).await {
                self.lanes.send(&node, records);
            }
            self.shared.waiting.fetch_sub(weight, Ordering::Relaxed);
        }
    }

    /// What each node is told, in the order of the turn. Interest is read after the archive: who declares it later reads
    /// the store later.
    async fn find(&self, turn: Vec<Fan>, all: &[NodeBoot]) -> BTreeMap<NodeBoot, Vec<Fan>> {
        let mut groups: Vec<ConversationId> = Vec::new();
        let mut places: HashMap<ConversationId, usize> = HashMap::new();
        for fan in turn.iter().filter(|fan| !fan.to_all) {
            places.entry(fan.group.clone()).or_insert_with(|| {
                groups.push(fan.group.clone());
                groups.len() - 1
            });
        }
        let nodes = if groups.is_empty() { None } else { self.ports.nodes_with(&groups).await };
        // Who came to be known while the routes did not answer is told, too.
        let nodes = nodes.unwrap_or_else(|| vec![self.ports.peers.runs(); groups.len()]);
        let mut told: BTreeMap<NodeBoot, Vec<Fan>> = BTreeMap::new();
        for fan in turn {
            let some = places.get(&fan.group).filter(|_| !fan.to_all).and_then(|place| nodes.get(*place));
            for node in some.map_or(all, Vec::as_slice) {
                told.entry(node.clone()).or_default().push(fan.clone());
            }
        }
        told
    }
}

fn weight_of(fans: &[Fan]) -> usize {
    fans.iter().map(|fan| fan.bytes.len()).sum()
}
