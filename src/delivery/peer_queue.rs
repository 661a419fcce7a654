//! One lane to each peer: answers and pushes go out in order, many in one call, and a slow peer delays nobody else.
//!
//! What waits for a peer is bounded in bytes. Full, pushes and answers for it are dropped and counted: a client that
//! waits for an answer hears *unknown* and retries by its id, a client that misses a push sees the hole, or learns it from
//! its next heartbeat. Nothing here decides anything, so nothing here can be wrong for long (DESIGN 6.4; flaws S1, S2).

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{sync::Semaphore, sync::mpsc, time};

use crate::{
    link::{Answer, Delivery, Landing, LinkError, Session, Target},
    metrics::Metrics,
    ports::Ports,
    routes::{NodeBoot, Route, Token},
};

/// Parcels that may wait for one peer, and bytes in them.
const PARCELS_MAX: usize = 4_096;
const BYTES_MAX: usize = 8 * 1024 * 1024;

/// Items of one kind in one call, at most.
const CALL_MAX: usize = 4_096;

/// Bytes in one call, about; a push for many conns may be more alone.
const CALL_BYTES: usize = 1024 * 1024;

/// Between two tries of what a peer did not take.
const AGAIN: Duration = Duration::from_millis(300);

/// Tries of a batch of answers: together less than the client's own deadline for its reply (5 s, DESIGN 6.2).
const ANSWER_TRIES: usize = 10;

/// Tries of a batch of pushes.
const PUSH_TRIES: usize = 3;

/// A lane without traffic for so long ends; the next parcel opens it again.
const IDLE: Duration = Duration::from_secs(60);

/// Looks for conns that were not there, at once; beyond, their rows stay for others to find.
const LOOKS_MAX: usize = 64;

/// After this a conn whose route stands is in the indexes of its node, or was never completed.
const LOGIN_MAX: Duration = Duration::from_secs(10);

/// What one call weighs beside its bytes.
const ITEM_BYTES: usize = 128;

/// Something for a peer.
enum Parcel {
    Answers(Vec<Answer>),
    Pushes(Vec<Delivery>),
}

/// The lanes of a node to its peers.
pub struct Couriers {
    ports: Arc<Ports>,
    metrics: Metrics,
    lanes: Mutex<HashMap<NodeBoot, Sender>>,
    looks: Arc<Semaphore>,
}

#[derive(Clone)]
struct Sender {
    parcels: mpsc::Sender<Parcel>,
    waiting: Arc<AtomicUsize>,
}

/// The far end of a lane, in its task.
struct Lane {
    to: NodeBoot,
    parcels: mpsc::Receiver<Parcel>,
    waiting: Arc<AtomicUsize>,
    couriers: Arc<Couriers>,
}

impl Couriers {
    /// No lanes yet: each begins with its first parcel.
    pub fn new(ports: &Arc<Ports>, metrics: Metrics) -> Arc<Self> {
        let looks = Arc::new(Semaphore::new(LOOKS_MAX));
        Arc::new(Self { ports: Arc::clone(ports), metrics, lanes: Mutex::default(), looks })
    }

    /// Hands answers over; the order of calls for one peer is kept. In a runtime only.
    pub fn answers(self: &Arc<Self>, to: &NodeBoot, answers: Vec<Answer>) {
        if !answers.is_empty() {
            self.send(to, Parcel::Answers(answers));
        }
    }

    /// Hands pushes over, behind everything handed over before. In a runtime only.
    pub fn pushes(self: &Arc<Self>, to: &NodeBoot, pushes: Vec<Delivery>) {
        let (mut parcel, mut weight) = (Vec::new(), 0);
        for push in pushes {
            let one = weight_of(&push);
            if weight + one > CALL_BYTES && !parcel.is_empty() {
                self.send(to, Parcel::Pushes(std::mem::take(&mut parcel)));
                weight = 0;
            }
            weight += one;
            parcel.push(push);
        }
        if !parcel.is_empty() {
            self.send(to, Parcel::Pushes(parcel));
        }
    }

    fn send(self: &Arc<Self>, to: &NodeBoot, mut parcel: Parcel) {
        let weight = parcel.weight();
        // A lane that just ended for want of traffic is closed: the next one is open.
        for _ in 0..2 {
            let lane = self.lane(to);
            let before = lane.waiting.fetch_add(weight, Ordering::Relaxed);
            let failed = match before == 0 || before + weight <= BYTES_MAX {
                true => lane.parcels.try_send(parcel),
                false => Err(mpsc::error::TrySendError::Full(parcel)),
            };
            let Err(failed) = failed else { return };
            lane.waiting.fetch_sub(weight, Ordering::Relaxed);
            match failed {
                mpsc::error::TrySendError::Closed(back) => parcel = back,
                mpsc::error::TrySendError::Full(back) => {
                    return self.lost(to, &back, "too much waits for it");
                }
            }
        }
        self.lost(to, &parcel, "its lane ended");
    }

    fn lane(self: &Arc<Self>, to: &NodeBoot) -> Sender {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lane) = lanes.get(to).filter(|lane| !lane.parcels.is_closed()) {
            return lane.clone();
        }
        // Of runs that are over nothing else would take the ended lanes away.
        lanes.retain(|_, lane| !lane.parcels.is_closed());
        let (sender, parcels) = mpsc::channel(PARCELS_MAX);
        let waiting = Arc::new(AtomicUsize::new(0));
        let lane =
            Lane { to: to.clone(), parcels, waiting: Arc::clone(&waiting), couriers: Arc::clone(self) };
        tokio::spawn(lane.run());
        let sender = Sender { parcels: sender, waiting };
        lanes.insert(to.clone(), sender.clone());
        sender
    }

    fn lost(&self, to: &NodeBoot, parcel: &Parcel, why: &str) {
        let items = match parcel {
            Parcel::Answers(answers) => answers.len(),
            Parcel::Pushes(pushes) => pushes.iter().map(|push| push.to.len()).sum(),
        };
        match parcel {
            Parcel::Answers(_) => self.metrics.peer_answers_lost.increment(items as u64),
            Parcel::Pushes(_) => self.metrics.peer_pushes_lost.increment(items as u64),
        }
        tracing::debug!(peer = %to, items, why, "a peer was not told");
    }
}

impl Parcel {
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

    /// Takes the other in behind, if it is of the same kind and both fit one call.
    fn join(&mut self, other: Self) -> Result<(), Self> {
        if self.len() + other.len() > CALL_MAX || self.weight() + other.weight() > CALL_BYTES {
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

impl Lane {
    async fn run(mut self) {
        let mut next = None;
        loop {
            let first = match next.take() {
                Some(parcel) => parcel,
                None => match time::timeout(IDLE, self.parcels.recv()).await {
                    Ok(Some(parcel)) => parcel,
                    Ok(None) => return,
                    Err(_) => {
                        // Nothing comes in from here on; what came in meanwhile is taken out.
                        self.parcels.close();
                        match self.parcels.try_recv() {
                            Ok(parcel) => parcel,
                            Err(_) => return,
                        }
                    }
                },
            };
            let (parcel, rest) = self.gather(first);
            next = rest;
            let weight = parcel.weight();
            self.carry(parcel).await;
            self.waiting.fetch_sub(weight, Ordering::Relaxed);
        }
    }

    fn gather(&mut self, mut parcel: Parcel) -> (Parcel, Option<Parcel>) {
        while let Ok(more) = self.parcels.try_recv() {
            if let Err(other) = parcel.join(more) {
                return (parcel, Some(other));
            }
        }
        (parcel, None)
    }

    async fn carry(&self, parcel: Parcel) {
        match &parcel {
            Parcel::Answers(answers) => {
                let call = || self.couriers.ports.link.answers(&self.to, answers.clone());
                if let Err(error) = self.tried(ANSWER_TRIES, call).await {
                    self.couriers.lost(&self.to, &parcel, &error.to_string());
                }
            }
            Parcel::Pushes(pushes) => {
                let call = || self.couriers.ports.link.deliver(&self.to, pushes.clone());
                match self.tried(PUSH_TRIES, call).await {
                    Ok(landings) => self.look_again(pushes, landings),
                    Err(error) => self.couriers.lost(&self.to, &parcel, &error.to_string()),
                }
            }
        }
    }

    /// Calls until the peer takes it, so often at most. A peer that is not there at all is not asked again; one that this
    /// node has not heard of yet is looked for.
    async fn tried<T, F>(&self, tries: usize, mut call: impl FnMut() -> F) -> Result<T, LinkError>
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
                    let peers = &self.couriers.ports.peers;
                    if !peers.is_live(&self.to) {
                        peers.look_again();
                    }
                    time::sleep(AGAIN).await;
                }
                Ok(done) => return Ok(done),
            }
        }
    }

    /// Who was not there may be about to be: its conn registers its route first and is indexed then, at the latest when
    /// its handshake is over, and reads from the store what this push was about. So nothing is pushed again; one that
    /// still is not there then has left its route behind, which is removed by its whole token.
    fn look_again(&self, pushes: &[Delivery], landings: Vec<Vec<Landing>>) {
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
        let Ok(permit) = Arc::clone(&self.couriers.looks).try_acquire_owned() else { return };
        let (couriers, to) = (Arc::clone(&self.couriers), self.to.clone());
        tokio::spawn(async move {
            time::sleep(LOGIN_MAX).await;
            let to_all = missing.iter().cloned().collect();
            let look = Delivery {
                push: Bytes::new(),
                to: to_all,
                tracked: false,
                sent_by: None,
                traceparent: String::new(),
            };
            // Nobody knows: the rows stay for the next push to find.
            let Ok(landings) = couriers.ports.link.deliver(&to, vec![look]).await else { return };
            let gone: Vec<Route> = missing
                .into_iter()
                .zip(landings.into_iter().flatten())
                .filter(|(_, landing)| *landing == Landing::NotHere)
                .filter_map(|(target, _)| row(target, &to))
                .collect();
            if let Err(error) = couriers.ports.routes.remove(&gone).await {
                tracing::debug!(%error, "rows of conns that are gone were not removed");
            }
            drop(permit);
        });
    }
}

fn weight_of(push: &Delivery) -> usize {
    push.push.len() + (1 + push.to.len()) * ITEM_BYTES
}

fn is_conn(target: &Target) -> bool {
    matches!(target, Target::Conn(_))
}

fn row(target: Target, at: &NodeBoot) -> Option<Route> {
    match target {
        Target::Conn(Session { user, device, epoch }) => {
            Some(Route { user, device, token: Token { at: at.clone(), epoch } })
        }
        Target::Anywhere(_) => None,
    }
}

#[cfg(test)]
mod tests;
