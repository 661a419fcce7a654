//! Event recorder of a node: online, offline, read marks, blocked chains, the audit log, storms, security events and
//! changes of the cluster (`docs/events.md`). The module `event_publisher` publishes the recorded events.
//!
//! A recorded event goes into a [`Ring`] that followers of this node read, and into a queue for the topic. Recording
//! takes a short lock and never waits. An offline event stays pending until it is published: the list entry of its row
//! in the routes marks it (ADR 14), so a full queue only delays it.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tidegate_protocol::id::{ConversationId, MsgId, UserId};
use tokio::{sync::Notify, time::Instant};

mod body;
mod cloud;
mod eventing;
mod node;
mod ring;
mod security;
mod storm;

pub(crate) use body::{content_json, put_author};
pub use eventing::{AnnouncedRoutes, DEPARTURE_RECHECK_DELAY, Sorted, sort};
pub use node::{NODE_EVENT_TYPES, NodeChange, NodeNotice};
pub use ring::{Cursor, EventsPage, Ring};
pub use security::{SECURITY_ROWS_MAX, SecurityNotice};
pub use storm::StormNotice;

use crate::{
    audit::AuditEntry,
    clock::wall_ms,
    routes::{NodeBoot, Route, Token},
};

/// Approximate memory of a queued event; its ids are shared.
const EVENT_BYTES: usize = 256;

/// Memory of the events kept for followers.
const RING_BYTES: usize = 1 << 20;

/// Memory of the changes of the cluster kept for streams.
const NODE_RING_BYTES: usize = 1 << 16;

/// Limit on the rows scheduled for a lookup; departures beyond it are found when the run is swept.
const SCHEDULED_LOOKUPS_MAX: usize = 1 << 16;

/// Limit on the remembered tokens that were replaced on this node and whose connections are still open.
const REPLACED_TOKENS_MAX: usize = 1 << 16;

/// Time in which a device that left in a drain may reconnect elsewhere before it counts as offline.
pub const RECONNECT_GRACE: Duration = Duration::from_secs(5);

/// Recorded event, which never contains the content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Time of the recording, in ms since 1970 by the node's clock.
    pub at_ms: u64,
    /// Kind and details of the event.
    pub what: What,
}

/// Kind of an event, with its details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Route of a device registered, with the owner that it replaced.
    Online(Route, Option<Token>),
    /// Departure of a device that has no newer connection.
    Offline(Route),
    /// Read mark of a user moved to this seq.
    Read(UserId, ConversationId, u64),
    /// Chain of a connection blocked too long, with the expected id.
    OrderBlocked(Route, MsgId),
    /// Change by the admin API, or key that it refused.
    Audit(Arc<AuditEntry>),
    /// Start or end of a storm of a group.
    Storm(Arc<StormNotice>),
    /// Security events of a second.
    Security(Arc<SecurityNotice>),
    /// Change of the cluster.
    Node(Arc<NodeNotice>),
}

impl Event {
    /// Returns the user of the event, the caller of the admin port, the conversation of a storm, or the node of security
    /// events and of changes of the cluster; the topic is partitioned by it.
    pub fn subject(&self) -> String {
        match &self.what {
            What::Online(route, _) | What::Offline(route) | What::OrderBlocked(route, _) => {
                route.user.to_string()
            }
            What::Read(user, ..) => user.to_string(),
            What::Audit(entry) => entry.subject().to_string(),
            What::Storm(notice) => notice.id.conversation.to_string(),
            What::Security(notice) => notice.node.clone(),
            What::Node(notice) => notice.change.run().node.to_string(),
        }
    }

    /// Returns the type of the event, if it is a change of the cluster.
    pub fn node_kind(&self) -> Option<&'static str> {
        match &self.what {
            What::Node(notice) => Some(notice.change.kind()),
            _ => None,
        }
    }

    /// Returns approximately how many bytes the event has in memory.
    fn bytes(&self) -> usize {
        match &self.what {
            What::Audit(entry) => EVENT_BYTES + entry.bytes(),
            What::Storm(notice) => EVENT_BYTES + notice.bytes(),
            What::Security(notice) => EVENT_BYTES + notice.bytes(),
            What::Node(_) => EVENT_BYTES + node::NOTICE_BYTES,
            _ => EVENT_BYTES,
        }
    }
}

/// Event recorder of one node.
pub struct Events {
    source: String,
    ring: Ring,
    /// Changes of the cluster, which are in the other ring, too.
    node_ring: Ring,
    node_notices: AtomicU64,
    queue_bytes_max: usize,
    state: Mutex<State>,
    nonempty: Notify,
    drained: Notify,
    grants_grace: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
    recorded: AtomicU64,
    lost: AtomicU64,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Arc<Event>>,
    /// Bytes of the queued events.
    queued_bytes: usize,
    /// Tokens of the queued offline events, which are queued once each.
    queued_offlines: HashSet<Token>,
    /// Rows whose device may have left, with the time of their lookup.
    lookups: VecDeque<(Route, Instant)>,
    /// Read marks that moved since they were last queued.
    reads: BTreeMap<(UserId, ConversationId), u64>,
    replaced: HashSet<Token>,
}

impl State {
    fn bytes(&self) -> usize {
        self.queued_bytes + self.reads.len() * EVENT_BYTES
    }
}

/// Recorder that keeps events for followers and queues none.
impl Default for Events {
    fn default() -> Self {
        Self::new("/tidegate", 0, 0)
    }
}

impl Events {
    /// Creates the recorder of the run `boot`, whose events carry `source`. Events above `queue_bytes_max` queued bytes
    /// are lost and counted. If it is 0, there is no publisher, and events are not queued.
    pub fn new(source: impl Into<String>, boot: u64, queue_bytes_max: usize) -> Self {
        Self {
            source: source.into(),
            ring: Ring::new(boot, RING_BYTES),
            node_ring: Ring::new(boot, NODE_RING_BYTES),
            node_notices: AtomicU64::new(0),
            queue_bytes_max,
            state: Mutex::default(),
            nonempty: Notify::new(),
            drained: Notify::new(),
            grants_grace: OnceLock::new(),
            recorded: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }

    /// Returns the events that this node recorded last.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Returns the changes of the cluster that this node noticed last.
    pub fn node_ring(&self) -> &Ring {
        &self.node_ring
    }

    /// Returns the source of the events.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Encodes the event as CloudEvents 1.0 JSON, in structured mode.
    pub fn encode(&self, event: &Event) -> Vec<u8> {
        cloud::encode(&self.source, event)
    }

    /// Grants [`RECONNECT_GRACE`] to devices that leave while `grants_grace` returns true. Only the first call counts.
    pub fn hold_while(&self, grants_grace: impl Fn() -> bool + Send + Sync + 'static) {
        self.grants_grace.set(Box::new(grants_grace)).ok();
    }

    /// Records that a route was registered.
    pub fn online(&self, route: &Route, replaced: Option<&Token>) {
        if let Some(old) = replaced.filter(|old| old.at == route.token.at) {
            let mut state = self.state();
            if state.replaced.len() >= REPLACED_TOKENS_MAX {
                state.replaced.clear();
            }
            state.replaced.insert(old.clone());
        }
        self.record(What::Online(route.clone(), replaced.cloned()));
    }

    /// Records that a row was deleted and not replaced. Does nothing while the same event is queued.
    pub fn offline(&self, row: &Route) {
        if self.queue_bytes_max > 0 && !self.state().queued_offlines.insert(row.token.clone()) {
            return;
        }
        if !self.record(What::Offline(row.clone())) {
            self.state().queued_offlines.remove(&row.token);
        }
    }

    /// Records that a row of this node was deleted. In a drain the device is offline only if it does not reconnect in
    /// time.
    pub fn left(&self, row: &Route) {
        match self.grants_grace.get().is_some_and(|grants_grace| grants_grace()) {
            true => self.look(row, RECONNECT_GRACE),
            false => self.offline(row),
        }
    }

    /// Returns whether a newer connection on this node replaced that one, and forgets it. To be called once, when the
    /// older connection ends.
    pub fn was_replaced(&self, token: &Token) -> bool {
        self.state().replaced.remove(token)
    }

    /// Schedules a lookup, after `delay`, of whether the row's device has left.
    pub fn look(&self, row: &Route, delay: Duration) {
        let mut state = self.state();
        if self.queue_bytes_max > 0 && state.lookups.len() < SCHEDULED_LOOKUPS_MAX {
            state.lookups.push_back((row.clone(), Instant::now() + delay));
        }
    }

    /// Records that a read mark moved. Marks are coalesced: only the highest of each second becomes an event.
    pub fn read(&self, user: &UserId, conversation: &ConversationId, seq: u64) {
        let mut state = self.state();
        let bytes = state.bytes();
        let key = (user.clone(), conversation.clone());
        match state.reads.get_mut(&key) {
            Some(before) => *before = seq.max(*before),
            None if self.queue_bytes_max > 0 && bytes < self.queue_bytes_max => {
                state.reads.insert(key, seq);
            }
            None => {
                drop(state);
                self.record(What::Read(key.0, key.1, seq));
            }
        }
    }

    /// Records that a chain has been blocked too long.
    pub fn order_blocked(&self, route: &Route, expected: &MsgId) {
        self.record(What::OrderBlocked(route.clone(), expected.clone()));
    }

    /// Records an entry of the audit log.
    pub fn audit(&self, entry: Arc<AuditEntry>) {
        self.record(What::Audit(entry));
    }

    /// Records the start or the end of a storm.
    pub fn storm(&self, notice: StormNotice) {
        self.record(What::Storm(Arc::new(notice)));
    }

    /// Records security events.
    pub fn security(&self, notice: SecurityNotice) {
        self.record(What::Security(Arc::new(notice)));
    }

    /// Records a change of the cluster that the run `by` noticed. One that another node publishes is kept for followers
    /// only.
    pub fn node(&self, by: &NodeBoot, change: NodeChange) {
        let number = self.node_notices.fetch_add(1, Ordering::Relaxed) + 1;
        let notice = NodeNotice { by: by.clone(), number, change };
        let is_published = notice.is_published();
        let event = self.keep(What::Node(Arc::new(notice)));
        self.node_ring.push(Arc::clone(&event));
        if is_published {
            self.queue(event);
        }
    }

    /// Returns whether changes of the cluster were recorded, the first of which is that this run has joined. A single node has
    /// none.
    pub fn has_node_changes(&self) -> bool {
        self.node_notices.load(Ordering::Relaxed) > 0
    }

    /// Records an event; returns false if the queue for the topic is full.
    fn record(&self, what: What) -> bool {
        let event = self.keep(what);
        self.queue(event)
    }

    /// Keeps an event for followers.
    fn keep(&self, what: What) -> Arc<Event> {
        let event = Arc::new(Event { at_ms: wall_ms(), what });
        self.recorded.fetch_add(1, Ordering::Relaxed);
        self.ring.push(Arc::clone(&event));
        event
    }

    /// Queues an event for the topic, if there is one; returns false if the queue is full.
    fn queue(&self, event: Arc<Event>) -> bool {
        if self.queue_bytes_max == 0 {
            return true;
        }
        let mut state = self.state();
        let bytes = event.bytes();
        let fits = state.bytes() + bytes <= self.queue_bytes_max;
        if fits {
            state.queued_bytes += bytes;
            state.queue.push_back(event);
            drop(state);
            self.nonempty.notify_one();
        } else {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        fits
    }

    /// Returns the oldest queued events, at most `max`, which stay queued until [`Self::confirm`].
    pub fn oldest(&self, max: usize) -> Vec<Arc<Event>> {
        self.state().queue.iter().take(max).cloned().collect()
    }

    /// Removes the `count` oldest events from the queue. To be called by the publisher once they are published.
    pub fn confirm(&self, count: usize) {
        let mut state = self.state();
        for _ in 0..count {
            let Some(event) = state.queue.pop_front() else { break };
            state.queued_bytes = state.queued_bytes.saturating_sub(event.bytes());
            if let What::Offline(row) = &event.what {
                state.queued_offlines.remove(&row.token);
            }
        }
        if state.queue.is_empty() {
            self.drained.notify_waiters();
        }
    }

    /// Records an event for each read mark that moved since the last call.
    pub fn tell_reads(&self) {
        let reads = std::mem::take(&mut self.state().reads);
        for ((user, conversation), seq) in reads {
            self.record(What::Read(user, conversation, seq));
        }
    }

    /// Returns the rows whose lookup is due, at most `max`.
    pub fn due(&self, now: Instant, max: usize) -> Vec<Route> {
        let mut state = self.state();
        let mut due = Vec::new();
        // Checks all of them, since delays differ and the queue is not ordered by time.
        for _ in 0..state.lookups.len() {
            if due.len() == max {
                break;
            }
            match state.lookups.pop_front() {
                Some((row, at)) if at <= now => due.push(row),
                Some(later) => state.lookups.push_back(later),
                None => break,
            }
        }
        due
    }

    /// Waits until an event is queued.
    pub async fn rung(&self) {
        self.nonempty.notified().await;
    }

    /// Waits until the queue is empty.
    pub async fn quiet(&self) {
        loop {
            let drained = self.drained.notified();
            tokio::pin!(drained);
            // Registers before the check, so that a change in between still wakes this task.
            drained.as_mut().enable();
            if self.state().queue.is_empty() {
                return;
            }
            drained.await;
        }
    }

    /// Returns the number of recorded events, the number lost for the topic, and the queued bytes.
    pub fn counts(&self) -> (u64, u64, usize) {
        let queued_bytes = self.state().bytes();
        (self.recorded.load(Ordering::Relaxed), self.lost.load(Ordering::Relaxed), queued_bytes)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests;
