//! Large groups on this node: takes what is accepted in them, from this node's topic and its own owners, keeps who is a
//! member here exact, and hands each push to the shards (DESIGN 6.4, ADR 15).
//!
//! One task sees records, logins and changes of members one after the other, and posts to the shards in that order. It
//! never holds a membership: only up to which seq the shards' indexes are right. What it may have missed, members here are
//! told as `Behind`: nothing is missed in silence.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use dashmap::DashSet;
use foldhash::quality::RandomState;
use prost::Message as _;
use tidegate_protocol::{
    id::{ConversationId, UserId},
    pb,
};
use tokio::{
    sync::{mpsc, oneshot},
    time,
};

use crate::{
    bus::NodeFeed,
    delivery::local::Outbound,
    directory::Directory,
    login::Membership,
    mail::{ConnKey, Delivery},
    metrics::Metrics,
    ports::Ports,
};

mod index;
mod members;
mod missed;
mod task;

pub(crate) use self::missed::Owed;
use self::task::Keeper;

/// Orders that may wait for the task, and bytes in those that carry records.
const ORDERS_MAX: usize = 4_096;
const BYTES_MAX: usize = 8 * 1024 * 1024;

/// How long who hands over a change of members of a small group waits until it is told.
const TOLD_MAX: Duration = Duration::from_millis(200);

/// The generation of every interest in a group: who is a member here is known by seqs.
const GENERATION: u64 = 1;

/// The way to the task.
pub struct Crowds {
    ports: Arc<Ports>,
    /// Groups up to this many members are small.
    small_max: u64,
    orders: mpsc::Sender<Order>,
    shared: Arc<Shared>,
    metrics: Metrics,
}

/// What the task and those who call it share.
#[derive(Default)]
struct Shared {
    /// Bytes of records that wait.
    waiting: AtomicUsize,
    /// Records that had no room.
    owed: Mutex<Owed>,
    /// Groups of which the other nodes know that they have members here.
    declared: DashSet<ConversationId, RandomState>,
}

/// Where a record came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// An owner on this node, which tells all it has whether anybody is here or not.
    Here,
    /// Another node, which takes this one for one with members.
    Peer,
}

/// What the task is given to do.
enum Order {
    /// An encoded `FanOut`, which came from there.
    Record(Bytes, Source),
    /// A connection waits for its groups.
    Login(Box<Login>),
    /// A change of members that the owner of a small group told: the push, whom here it is for, and who waits until they have it.
    OfPeer(Box<(pb::Push, Delivery)>, oneshot::Sender<()>),
}

/// A connection that waits for its groups.
struct Login {
    key: ConnKey,
    user: UserId,
    groups: Vec<Membership>,
    /// Whether they are in the indexes; false = what the store said then is older than those.
    placed: oneshot::Sender<bool>,
}

impl Crowds {
    /// Begins with the node's topic, opened; tells the shards through `out`. In a runtime only.
    pub fn start(
        ports: &Arc<Ports>,
        directory: &Arc<Directory>,
        small_group_max: usize,
        feed: Box<dyn NodeFeed>,
        out: Outbound,
        metrics: Metrics,
    ) -> Arc<Self> {
        let (orders, waiting) = mpsc::channel(ORDERS_MAX);
        let shared = Arc::new(Shared::default());
        let (small_max, ports) = (small_group_max as u64, Arc::clone(ports));
        let keeper = Keeper::new(
            Arc::clone(&ports),
            Arc::clone(directory),
            Arc::clone(&shared),
            small_max,
            out,
            metrics.clone(),
        );
        tokio::spawn(keeper.run(waiting, feed));
        Arc::new(Self { ports, small_max, orders, shared, metrics })
    }

    /// Hands over what was accepted in large groups, each an encoded `FanOut`; never waits. What has no room is told to the
    /// members here as `Behind`.
    pub fn records(&self, from: Source, records: impl IntoIterator<Item = Bytes>) {
        for record in records {
            let weight = record.len();
            let before = self.shared.waiting.fetch_add(weight, Ordering::Relaxed);
            let taken = (before == 0 || before + weight <= BYTES_MAX)
                && self.orders.try_send(Order::Record(record.clone(), from)).is_ok();
            if !taken {
                self.shared.waiting.fetch_sub(weight, Ordering::Relaxed);
                self.metrics.fan_outs_lost.increment(1);
                self.shared.owed.lock().unwrap_or_else(PoisonError::into_inner).add_record(record);
            }
        }
    }

    /// Hands over a push of a small group that may say how its members change, behind everything before it; back when the
    /// shards have it, so that what comes next in the group comes behind it. A task that waits for the store holds nobody up.
    pub(crate) async fn of_peer(&self, push: pb::Push, delivery: Delivery) {
        let (told, is_told) = oneshot::channel();
        // The task ends with the runtime.
        self.orders.send(Order::OfPeer(Box::new((push, delivery)), told)).await.ok();
        if time::timeout(TOLD_MAX, is_told).await.is_err() {
            tracing::debug!("a change of members is told behind what comes next");
        }
    }

    /// Puts a connection into the indexes of its groups, as the store had them, and lets it go on; false = read them again.
    /// The other nodes know by then that large ones have a member here, or are told as soon as they can be (DESIGN 6.4: the
    /// user is in this node's index, then interest, then the client reads).
    pub(crate) async fn login(&self, key: ConnKey, user: &UserId, groups: Vec<Membership>) -> bool {
        let new: Vec<(ConversationId, u64)> = groups
            .iter()
            .filter(|it| it.members > self.small_max && !self.shared.declared.contains(&it.group))
            .map(|it| (it.group.clone(), GENERATION))
            .collect();
        if !new.is_empty() {
            match self.ports.routes.declare(&self.ports.me, &new).await {
                Ok(()) => new.into_iter().for_each(|(group, _)| {
                    self.shared.declared.insert(group);
                }),
                Err(error) => tracing::debug!(%error, "interest in large groups is declared later"),
            }
        }
        let (placed, said) = oneshot::channel();
        let login = Login { key, user: user.clone(), groups, placed };
        if self.orders.send(Order::Login(Box::new(login))).await.is_err() {
            return true;
        }
        said.await.unwrap_or(true)
    }
}

/// What a node topic carries when pushes up to that seq were left out.
pub(crate) fn hint(group: &str, seq: u64) -> Bytes {
    pb::FanOut { conversation: group.to_owned(), seq, ..Default::default() }.encode_to_vec().into()
}

/// Groups by what they are called.
type Groups<T> = HashMap<ConversationId, T, RandomState>;
