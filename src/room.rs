//! Live rooms, the lossy class: messages are numbered and fanned out at once, here and
//! on nodes with members; never logged.
//!
//! For all messages of a room in a turn, a shard requests the numbers and the nodes once. These requests delay nothing
//! else, and rooms keep working while Redis is unavailable (ADR 12).

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use bytes::Bytes;
use dashmap::DashMap;
use std::hash::RandomState;
use tidegate_protocol::{Code, id::ConversationId};
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{self, Instant},
};

use self::{join_queue::JoinQueue, unrouted::UnroutedPosts};
use crate::{
    cluster::Cluster,
    directory::Directory,
    link::{BestEffortMessage, BestEffortQueues},
    mail::RoomNumbers,
    room_tallies::RoomTallies,
    routes::NodeBoot,
    scratch::Numbers,
    storms::RoomStorms,
};

/// Interval between renewals of the interest in a room; the interest's lease is three times as long.
const INTEREST_RENEW_INTERVAL: Duration = Duration::from_secs(20);

/// Delay before retrying an interest that could not be declared.
const INTEREST_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Age at which a new interest is declared once more. A fail-over of a Redis cluster may lose the last writes and keep the
/// node's renewal counter, so that only a missing interest shows it.
const INTEREST_CONFIRM_DELAY: Duration = Duration::from_secs(5);
/// Most rooms whose interest is declared or renewed in one call.
const INTEREST_PAGE_ROOMS: usize = 500;

/// Generation of every interest in a room, always the same: rooms keep no index that could be outdated.
const INTEREST_GENERATION: u64 = 1;

/// Callback that notifies this node's members of rooms that messages may be missing, in unknown number. It also retries
/// earlier notifications that failed.
type NotifyLoss = Box<dyn Fn(Vec<ConversationId>) + Send + Sync>;

/// Numbering of room messages, and their forwarding to other nodes.
pub struct Rooms {
    numbers: Arc<dyn Numbers>,
    storms: Arc<RoomStorms>,
    tallies: Arc<RoomTallies>,
    /// State for other nodes; `None` on a single node.
    remote: Option<Remote>,
}

/// Interest in rooms and forwarding, on a clustered node.
struct Remote {
    cluster: Arc<Cluster>,
    directory: Arc<Directory>,
    queues: Arc<BestEffortQueues>,
    /// Rooms with members on this node.
    declared: DashMap<ConversationId, RoomInterest, RandomState>,
    joins: JoinQueue,
    unrouted: UnroutedPosts,
    notify_loss: NotifyLoss,
}

/// Place of a join among those of the node that wait for their declaration, released on drop.
pub struct JoinPlace {
    _permit: Option<OwnedSemaphorePermit>,
}

/// State of this node's interest in a room.
#[derive(Clone, Copy, Default)]
struct RoomInterest {
    /// Whether the last attempt to declare it succeeded.
    is_declared: bool,
    /// Whether members may have missed messages, and were not notified yet.
    may_have_missed: bool,
    /// Time of the declaration that confirms the first one; `None` once confirmed.
    confirm_at: Option<Instant>,
}

impl Rooms {
    /// Creates the rooms of a single node.
    pub fn alone(numbers: Arc<dyn Numbers>, storms: Arc<RoomStorms>) -> Self {
        Self { numbers, storms, tallies: Arc::default(), remote: None }
    }

    /// Creates the rooms of a clustered node; [`Self::keep`] must run in the background.
    ///
    /// `notify_loss` notifies this node's members of the given rooms that messages may be missing, in unknown number.
    /// Called without rooms, it retries earlier notifications that failed.
    pub fn among_others(
        numbers: Arc<dyn Numbers>,
        storms: Arc<RoomStorms>,
        cluster: Arc<Cluster>,
        directory: Arc<Directory>,
        queues: Arc<BestEffortQueues>,
        notify_loss: impl Fn(Vec<ConversationId>) + Send + Sync + 'static,
    ) -> Self {
        let (declared, notify_loss) = (DashMap::default(), Box::new(notify_loss));
        let (joins, unrouted) = (JoinQueue::default(), UnroutedPosts::default());
        let remote = Remote { cluster, directory, queues, declared, joins, unrouted, notify_loss };
        Self { numbers, storms, tallies: Arc::default(), remote: Some(remote) }
    }

    /// Returns the members and reactions of the rooms of this node.
    pub fn tallies(&self) -> &Arc<RoomTallies> {
        &self.tallies
    }

    /// Returns numbers for `count` messages of a room, and the other nodes with members. A message that is sent after a
    /// join is confirmed reaches that member's node.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE` if no number is certain to be new.
    pub async fn assign_numbers(
        &self,
        room: &ConversationId,
        count: NonZeroU64,
    ) -> Result<RoomNumbers, Code> {
        let take = async {
            let Some(rule) = self.storms.rule() else {
                return Ok((self.numbers.take(room.as_str(), count).await?, None));
            };
            self.numbers.take_counted(room.as_str(), count, rule, self.storms.known(room)).await
        };
        let (taken, nodes) = match &self.remote {
            None => (take.await, Vec::new()),
            Some(remote) => tokio::join!(take, remote.nodes(room, count)),
        };
        let (numbers, window) = taken.map_err(refusal)?;
        self.storms.note(room, &numbers, window.as_ref());
        Ok(RoomNumbers { numbers, nodes })
    }

    /// Forwards one message, an encoded `Push`, to the nodes, with the class of its sender and the number of
    /// messages that were left out of the room since the last report.
    pub fn forward(&self, nodes: &[NodeBoot], room: &ConversationId, push: &Bytes, class: u8, left_out: u64) {
        let Some(remote) = &self.remote else { return };
        for node in nodes {
            let (room, push) = (room.clone(), push.clone());
            remote.queues.send(node, BestEffortMessage::RoomMessage { room, push, class, left_out });
        }
    }

    /// Reports to the nodes with members of a room how many of its messages were left out since the last report.
    pub async fn report_left_out(&self, room: &ConversationId, left_out: u64) {
        let Some(remote) = &self.remote else { return };
        let nodes = remote.cluster.nodes_with(std::slice::from_ref(room)).await;
        let nodes =
            nodes.map_or_else(|| remote.cluster.peers.runs(), |it| it.into_iter().flatten().collect());
        self.forward(&nodes, room, &Bytes::new(), 0, left_out);
    }

    /// Returns whether the interest in the room is declared, or need not be.
    pub fn is_declared(&self, room: &ConversationId) -> bool {
        self.remote
            .as_ref()
            .is_none_or(|it| it.declared.get(room).is_some_and(|interest| interest.is_declared))
    }

    /// Reserves a place for a join that must wait for [`Self::declare`]; `None` if too many joins of this node wait.
    pub fn reserve_join(&self) -> Option<JoinPlace> {
        match &self.remote {
            Some(remote) => remote.joins.reserve().map(|permit| JoinPlace { _permit: Some(permit) }),
            None => Some(JoinPlace { _permit: None }),
        }
    }

    /// Declares to the other nodes that the room has members here; the room must be in the directory already. Joins
    /// that wait share one call to the routes.
    ///
    /// A failed declaration is retried by [`Self::keep`]. Until then the other nodes forward to all nodes if the routes
    /// are unavailable for them as well, or else leave this node out.
    pub async fn declare(&self, room: &ConversationId, _place: JoinPlace) {
        let Some(remote) = &self.remote else { return };
        let Some(mut turn) = remote.joins.turn(room).await else { return };
        loop {
            let mut rooms = turn.rooms(INTEREST_PAGE_ROOMS);
            let count = rooms.len();
            rooms.sort_unstable();
            rooms.dedup();
            rooms.retain(|room| !self.is_declared(room));
            if !rooms.is_empty() {
                remote.declare(&rooms).await;
            }
            if turn.finish(count) {
                return;
            }
        }
    }

    /// Forgets the interest in a room without members on this node. Called after a member has left it; the interest
    /// expires in the routes.
    pub fn left(&self, room: &ConversationId) {
        if let Some(remote) = &self.remote {
            remote.forget_if_empty(room);
        }
    }

    /// Finds the ends of the storms of rooms until the node stops.
    pub async fn watch_storms(self: Arc<Self>) {
        let others = || self.remote.as_ref().map_or(0, |remote| remote.cluster.peers.runs().len());
        Arc::clone(&self.storms).run(Arc::clone(&self.numbers), || others() + 1).await;
    }

    /// Renews the interest in rooms, and the numbers after a loss in Redis, until the node stops. Members of a room
    /// that may have been left out are notified once its interest is declared again.
    pub async fn keep(self: Arc<Self>) {
        let Some(remote) = &self.remote else { return };
        let peers = &remote.cluster.peers;
        let mut changes = peers.changes();
        let (mut losses, mut renewed) = (peers.losses(), Instant::now());
        let mut numbers_are_new = true;
        loop {
            let loss = async {
                while peers.losses() == losses {
                    changes.changed().await;
                }
            };
            time::timeout(INTEREST_RETRY_INTERVAL, loss).await.ok();
            let now = peers.losses();
            let lost = std::mem::replace(&mut losses, now) != now;
            if lost {
                remote.declared.iter_mut().for_each(|mut it| it.may_have_missed = true);
            }
            numbers_are_new &= !lost;
            let all = lost || renewed.elapsed() >= INTEREST_RENEW_INTERVAL;
            if all {
                renewed = Instant::now();
            }
            remote.report_to_new_nodes();
            let numbers = async { numbers_are_new || self.numbers.changed().await.is_ok() };
            (numbers_are_new, ()) = tokio::join!(numbers, remote.renew(all));
            // Retry the shards whose mailboxes were full.
            (remote.notify_loss)(Vec::new());
        }
    }
}

/// Returns the refusal for a failed numbering: no number may be shown twice, so the sender must retry.
fn refusal(error: crate::scratch::ScratchError) -> Code {
    tracing::debug!(%error, "failed to number room messages; refusing them");
    Code::StoreUnavailable
}

impl Remote {
    /// Returns the nodes that may have members of the room: all discovered nodes, if the routes are unavailable.
    async fn nodes(&self, room: &ConversationId, count: NonZeroU64) -> Vec<NodeBoot> {
        if let Some(nodes) = self.cluster.nodes_with(std::slice::from_ref(room)).await {
            return nodes.into_iter().flatten().collect();
        }
        self.unrouted.record(room, count.get(), Instant::now());
        self.cluster.peers.runs()
    }

    /// Reports unrouted messages to newly discovered nodes, whose members may have missed them.
    fn report_to_new_nodes(&self) {
        for (node, rooms) in self.unrouted.missed_by_new(self.cluster.peers.runs(), Instant::now()) {
            for (room, count) in rooms {
                self.queues.send(&node, BestEffortMessage::RoomLoss { room, count });
            }
        }
    }

    /// Declares the interest in the rooms, and notifies the members of rooms that had been left out.
    async fn declare(&self, rooms: &[ConversationId]) {
        let interests: Vec<(ConversationId, u64)> =
            rooms.iter().map(|room| (room.clone(), INTEREST_GENERATION)).collect();
        let result = self.cluster.ports.routes.declare(&self.cluster.me, &interests).await;
        if let Err(error) = &result {
            tracing::debug!(%error, "failed to declare interest in rooms; retrying");
        }
        let (mut to_notify, now) = (Vec::new(), Instant::now());
        for (nth, room) in rooms.iter().enumerate() {
            let was_in_force = result.as_ref().ok().map(|in_force| in_force.get(nth) == Some(&true));
            let mut before = self.declared.entry(room.clone()).or_default();
            let (interest, notify) = before.declared(was_in_force, now);
            *before = interest;
            if notify {
                to_notify.push(room.clone());
            }
        }
        if !to_notify.is_empty() {
            (self.notify_loss)(to_notify);
        }
        // The last member may have left during the call.
        for room in rooms {
            self.forget_if_empty(room);
        }
    }

    /// Forgets the interest in a room without members; returns whether it was in the list.
    ///
    /// A concurrent join is in the directory before it looks at the list, so it either keeps the room or declares it.
    fn forget_if_empty(&self, room: &ConversationId) -> bool {
        self.declared.remove_if(room, |_, _| self.directory.conversation(room).is_empty()).is_some()
    }

    /// Renews the interest in all rooms, or only in those not declared or not confirmed. The interest in rooms without
    /// members expires.
    async fn renew(&self, all: bool) {
        let now = Instant::now();
        let due = |interest: &RoomInterest| all || interest.is_due(now);
        let mut rooms: Vec<ConversationId> =
            self.declared.iter().filter(|it| due(it.value())).map(|it| it.key().clone()).collect();
        rooms.sort_unstable();
        for page in rooms.chunks(INTEREST_PAGE_ROOMS) {
            let mut occupied = Vec::with_capacity(page.len());
            occupied.extend(page.iter().filter(|room| !self.forget_if_empty(room)).cloned());
            if !occupied.is_empty() {
                self.declare(&occupied).await;
            }
        }
    }
}

impl RoomInterest {
    /// Returns the state after an attempt to declare the interest, and whether to notify the members. `was_in_force` says
    /// whether the routes still had it; `None` if the attempt failed.
    fn declared(self, was_in_force: Option<bool>, now: Instant) -> (Self, bool) {
        let Some(was_in_force) = was_in_force else {
            return (Self { is_declared: false, may_have_missed: true, confirm_at: None }, false);
        };
        // Flaw S87: the routes fell back to before the declaration, and this node noticed no loss.
        let was_lost = self.is_declared && !was_in_force;
        let confirm_at = match self.is_declared && !was_lost {
            true => self.confirm_at.filter(|at| now < *at),
            false => Some(now + INTEREST_CONFIRM_DELAY),
        };
        (Self { is_declared: true, may_have_missed: false, confirm_at }, self.may_have_missed || was_lost)
    }

    /// Returns whether the interest must be declared again before the next renewal of all.
    fn is_due(&self, now: Instant) -> bool {
        !self.is_declared || self.confirm_at.is_some_and(|at| now >= at)
    }
}

mod join_queue;
mod publish;
#[cfg(test)]
mod tests;
mod unrouted;
