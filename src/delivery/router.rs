//! Reaching users on other nodes: looks up where they are, in one turn for many pushes, and hands the pushes to the lanes.
//!
//! The owner gives here what it has archived; the routes are read after that, and a login reads the store after its route
//! stands, so one of the two sees the other (DESIGN 6.4). Nothing here is on the way to an ack. While the routes can't be
//! read, all peers are asked.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use bytes::Bytes;
use tidegate_protocol::{
    id::{DeviceId, UserId},
    trace::TraceContext,
};
use tokio::sync::mpsc;

use super::{local::traceparent, peer_queue::Couriers};
use crate::{
    link::{Answer, Delivery, SentBy, Session, Target},
    ports::Ports,
    routes::NodeBoot,
};

/// Batches that may wait for the routes; full, the owner waits.
const BATCHES_MAX: usize = 64;

/// Pushes looked up in one turn, at most.
const TURN_MAX: usize = 4_096;

/// Users looked up in one call.
const USERS_MAX: usize = 1_000;

/// One push for users wherever they are.
#[derive(Clone, Debug)]
pub struct Parting {
    /// An encoded `Push`.
    pub push: Bytes,
    /// For whom.
    pub users: Arc<[UserId]>,
    /// Whether it is sent again until acked.
    pub tracked: bool,
    /// The session that sent it and knows already.
    pub except: Option<(UserId, DeviceId, u64)>,
    /// Its conn: it may have a newer epoch since, or be asked for anywhere.
    pub sent_by: Option<SentBy>,
    /// How its steps are found again, where they are noted.
    pub trace: Option<TraceContext>,
}

/// A way to the users of other nodes, for one stream of pushes; dropped, what was given is still carried.
pub struct Reach {
    couriers: Arc<Couriers>,
    turns: mpsc::Sender<Vec<Parting>>,
}

impl Reach {
    /// Begins a stream. In a runtime only.
    pub fn start(ports: &Arc<Ports>, couriers: Arc<Couriers>) -> Self {
        let (turns, waiting) = mpsc::channel(BATCHES_MAX);
        let finder = Finder { ports: Arc::clone(ports), couriers: Arc::clone(&couriers) };
        tokio::spawn(finder.run(waiting));
        Self { couriers, turns }
    }

    /// Hands answers to the node that waits for them.
    pub fn answers(&self, to: &NodeBoot, answers: Vec<Answer>) {
        self.couriers.answers(to, answers);
    }

    /// Hands pushes over, in order; waits while too many are waiting for the routes.
    pub async fn pushes(&self, pushes: Vec<Parting>) {
        if !pushes.is_empty() {
            // The finder ends only with its senders, or with the runtime.
            self.turns.send(pushes).await.ok();
        }
    }
}

struct Finder {
    ports: Arc<Ports>,
    couriers: Arc<Couriers>,
}

/// Where users are: the sessions of each on other nodes.
type Places = HashMap<UserId, Vec<(NodeBoot, Session)>>;

impl Finder {
    async fn run(self, mut waiting: mpsc::Receiver<Vec<Parting>>) {
        while let Some(mut turn) = waiting.recv().await {
            while turn.len() < TURN_MAX
                && let Ok(more) = waiting.try_recv()
            {
                turn.extend(more);
            }
            // Routes that may name too few are as good as none.
            let places = if self.ports.peers.doubtful() { None } else { self.find(&turn).await };
            let found = match places {
                Some(places) => apart(&turn, &places),
                None => self.to_all(&turn),
            };
            for (to, pushes) in found {
                self.couriers.pushes(&to, pushes);
            }
        }
    }

    async fn find(&self, turn: &[Parting]) -> Option<Places> {
        let users: BTreeSet<&UserId> = turn.iter().flat_map(|push| push.users.iter()).collect();
        let users: Vec<UserId> = users.into_iter().cloned().collect();
        let mut places = Places::new();
        for page in users.chunks(USERS_MAX) {
            let rows = match self.ports.routes.lookup(page).await {
                Ok(rows) => rows,
                Err(error) => {
                    tracing::debug!(%error, "the routes can't be read: all peers are asked");
                    return None;
                }
            };
            for (user, devices) in page.iter().zip(rows) {
                let elsewhere = devices.into_iter().filter(|(_, token)| token.at != self.ports.me);
                let sessions: Vec<(NodeBoot, Session)> = elsewhere
                    .map(|(device, token)| {
                        (token.at, Session { user: user.clone(), device, epoch: token.epoch })
                    })
                    .collect();
                if !sessions.is_empty() {
                    places.insert(user.clone(), sessions);
                }
            }
        }
        Some(places)
    }

    fn to_all(&self, turn: &[Parting]) -> BTreeMap<NodeBoot, Vec<Delivery>> {
        let others = self.ports.peers.others();
        let everywhere: Vec<Delivery> = turn
            .iter()
            .map(|push| delivery(push, push.users.iter().cloned().map(Target::Anywhere).collect()))
            .collect();
        others.iter().map(|row| (row.info.boot.clone(), everywhere.clone())).collect()
    }
}

/// The pushes of each node, in the order of the turn.
fn apart(turn: &[Parting], places: &Places) -> BTreeMap<NodeBoot, Vec<Delivery>> {
    let mut by_node: BTreeMap<NodeBoot, Vec<Delivery>> = BTreeMap::new();
    for push in turn {
        let mut targets: BTreeMap<&NodeBoot, Vec<Target>> = BTreeMap::new();
        for (at, session) in push.users.iter().filter_map(|user| places.get(user)).flatten() {
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

fn delivery(push: &Parting, to: Vec<Target>) -> Delivery {
    Delivery {
        push: push.push.clone(),
        to,
        tracked: push.tracked,
        sent_by: push.sent_by.clone(),
        traceparent: traceparent(push.trace),
    }
}

#[cfg(test)]
mod tests;
