//! One lane to each peer for what may be lost by name: live rooms, signals, marks; and pushes of large groups while a node
//! topic takes none.
//!
//! Apart from the lanes of answers and pushes, so nothing of a conversation ever waits behind it. What waits for a peer is
//! bounded in bytes, and the bounds differ: signals are the first to be dropped, marks the last. What a room loses is
//! counted, and its members there are told how much (DESIGN 1.6). Nothing is sent twice.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tidegate_protocol::id::ConversationId;
use tokio::{
    runtime::Handle,
    sync::mpsc::{self, error::TrySendError},
    time,
};

use super::{Link, LinkError, Stray};
use crate::{metrics::Metrics, routes::NodeBoot};

/// Strays that may wait for one peer, and up to how many waiting bytes each kind is taken.
const STRAYS_MAX: usize = 16_384;
const SIGNAL_BYTES: usize = 256 * 1024;
const TALK_BYTES: usize = 4 * 1024 * 1024;
const MARK_BYTES: usize = 5 * 1024 * 1024;

/// Bytes in one call, about; a stray that is larger goes alone.
const CALL_BYTES: usize = 256 * 1024;

/// What a stray, an id or a count weighs beside its bytes.
const ENTRY_BYTES: usize = 64;

/// Rooms whose losses are remembered for one peer; those of others are only counted.
const MISSED_MAX: usize = 4_096;

/// Between two tries to tell a peer what was lost, and how many of them while nothing else is to be told.
const AGAIN: Duration = Duration::from_millis(300);
const TELL_TRIES: u32 = 20;

/// A lane without traffic for so long ends; the next stray opens it again.
const IDLE: Duration = Duration::from_secs(60);

/// The lanes of a node to its peers.
pub struct StrayLanes {
    link: Arc<dyn Link>,
    runtime: Handle,
    metrics: Metrics,
    lanes: Mutex<HashMap<NodeBoot, Sender>>,
}

/// What was lost on the way to a peer and not told yet.
type Missed = Arc<Mutex<HashMap<ConversationId, u64>>>;

#[derive(Clone)]
struct Sender {
    strays: mpsc::Sender<Stray>,
    waiting: Arc<AtomicUsize>,
    missed: Missed,
}

/// The far end of a lane, in its task.
struct Lane {
    to: NodeBoot,
    strays: mpsc::Receiver<Stray>,
    waiting: Arc<AtomicUsize>,
    missed: Missed,
    lanes: Arc<StrayLanes>,
}

/// How much of each kind is in a call, for when it is lost.
#[derive(Default)]
struct Load {
    talk: HashMap<ConversationId, u64>,
    missed: HashMap<ConversationId, u64>,
    signals: u64,
    marks: u64,
    fan_outs: u64,
}

impl StrayLanes {
    /// No lanes yet: each begins with its first stray, on that runtime.
    pub fn new(link: Arc<dyn Link>, runtime: Handle, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self { link, runtime, metrics, lanes: Mutex::default() })
    }

    /// Hands a stray over behind those before it, or drops it; from any thread, at once.
    pub fn send(self: &Arc<Self>, to: &NodeBoot, mut stray: Stray) {
        let (weight, bound) = (stray.weight(), stray.bound());
        // A lane that just ended for want of traffic is closed: the next one is open.
        for _ in 0..2 {
            let lane = self.lane(to);
            let before = lane.waiting.fetch_add(weight, Ordering::Relaxed);
            let failed = match before == 0 || before + weight <= bound {
                true => lane.strays.try_send(stray),
                false => Err(TrySendError::Full(stray)),
            };
            let Err(failed) = failed else { return };
            lane.waiting.fetch_sub(weight, Ordering::Relaxed);
            match failed {
                TrySendError::Closed(back) => stray = back,
                TrySendError::Full(back) => return self.lost(&lane.missed, Load::of(&[back])),
            }
        }
        let missed = self.lane(to).missed;
        self.lost(&missed, Load::of(&[stray]));
    }

    fn lane(self: &Arc<Self>, to: &NodeBoot) -> Sender {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let before = lanes.get(to);
        if let Some(lane) = before.filter(|lane| !lane.strays.is_closed()) {
            return lane.clone();
        }
        let missed = before.map(|lane| Arc::clone(&lane.missed)).unwrap_or_default();
        let (sender, strays) = mpsc::channel(STRAYS_MAX);
        let waiting = Arc::new(AtomicUsize::new(0));
        let lane = Lane {
            to: to.clone(),
            strays,
            waiting: Arc::clone(&waiting),
            missed: Arc::clone(&missed),
            lanes: Arc::clone(self),
        };
        self.runtime.spawn(lane.run());
        let sender = Sender { strays: sender, waiting, missed };
        lanes.insert(to.clone(), sender.clone());
        sender
    }

    /// Forgets the runs that are over, with what they were to be told. One that ended its lane for want of traffic is still
    /// owed that.
    pub fn forget_ended(&self, is_live: impl Fn(&NodeBoot) -> bool) {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.retain(|run, lane| !lane.strays.is_closed() || is_live(run));
    }

    /// Counts what was lost, and notes what is to be told of it.
    fn lost(&self, missed: &Missed, load: Load) {
        self.metrics.shed.increment(load.talk.values().sum());
        self.metrics.signals_dropped.increment(load.signals);
        self.metrics.peer_marks_lost.increment(load.marks);
        self.metrics.fan_outs_lost.increment(load.fan_outs);
        let mut missed = lock(missed);
        for (room, count) in load.talk.into_iter().chain(load.missed) {
            if missed.len() < MISSED_MAX || missed.contains_key(&room) {
                *missed.entry(room).or_default() += count;
            }
        }
    }
}

impl Lane {
    async fn run(mut self) {
        let mut told = 0;
        loop {
            let owes = !lock(&self.missed).is_empty() && told < TELL_TRIES;
            match time::timeout(if owes { AGAIN } else { IDLE }, self.strays.recv()).await {
                Ok(Some(first)) => {
                    told = 0;
                    self.carry(Some(first)).await;
                }
                Ok(None) => return,
                Err(_) if owes => {
                    told += 1;
                    self.carry(None).await;
                }
                Err(_) => {
                    // Nothing comes in from here on; what came in meanwhile is taken out.
                    self.strays.close();
                    while let Ok(last) = self.strays.try_recv() {
                        self.carry(Some(last)).await;
                    }
                    return;
                }
            }
        }
    }

    /// One call: what was lost before, then what waits.
    async fn carry(&mut self, first: Option<Stray>) {
        let missed = std::mem::take(&mut *lock(&self.missed));
        let mut strays: Vec<Stray> =
            missed.into_iter().map(|(room, count)| Stray::Missed { room, count }).collect();
        let mut weight = 0;
        let mut next = first;
        while let Some(stray) = next {
            weight += stray.weight();
            strays.push(stray);
            next = (weight < CALL_BYTES).then(|| self.strays.try_recv().ok()).flatten();
        }
        let load = Load::of(&strays);
        match self.lanes.link.strays(&self.to, strays).await {
            Ok(()) => {}
            // Nobody is left there who could be told.
            Err(LinkError::NotHere) => self.lanes.lost(&Missed::default(), load),
            // What is in doubt counts as lost: a client may be told of more than it lacks, never of less.
            Err(error) => {
                tracing::debug!(%error, peer = %self.to, "a peer took no strays");
                self.lanes.lost(&self.missed, load);
            }
        }
        self.waiting.fetch_sub(weight, Ordering::Relaxed);
    }
}

impl Load {
    fn of(strays: &[Stray]) -> Self {
        let mut load = Self::default();
        for stray in strays {
            match stray {
                Stray::Talk { room, .. } => *load.talk.entry(room.clone()).or_default() += 1,
                Stray::Missed { room, count } => *load.missed.entry(room.clone()).or_default() += count,
                Stray::Signal { .. } => load.signals += 1,
                Stray::Mark { .. } => load.marks += 1,
                Stray::FanOut { .. } => load.fan_outs += 1,
            }
        }
        load
    }
}

impl Stray {
    fn weight(&self) -> usize {
        match self {
            Self::Talk { push, .. } => 2 * ENTRY_BYTES + push.len(),
            Self::Missed { .. } => 2 * ENTRY_BYTES,
            Self::Signal { users, frame, .. } => (2 + users.len()) * ENTRY_BYTES + frame.len(),
            Self::Mark { frame, .. } => 3 * ENTRY_BYTES + frame.len(),
            Self::FanOut { record, .. } => 2 * ENTRY_BYTES + record.len(),
        }
    }

    /// Up to how many waiting bytes it is taken.
    fn bound(&self) -> usize {
        match self {
            Self::Signal { .. } => SIGNAL_BYTES,
            Self::Talk { .. } => TALK_BYTES,
            Self::Missed { .. } | Self::Mark { .. } | Self::FanOut { .. } => MARK_BYTES,
        }
    }
}

fn lock(missed: &Missed) -> MutexGuard<'_, HashMap<ConversationId, u64>> {
    missed.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
