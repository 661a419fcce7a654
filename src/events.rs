//! Events: who comes and goes, what is read, which chain waits; noted at once, told by others (`docs/events.md`).
//!
//! What is noted goes into a [`Ring`] that this node's followers read, and into a queue for the topic. Noting takes a short lock
//! and never waits. An offline is owed until it was told: the place of its row in the routes stands for it (ADR 14), so a
//! queue that is full only delays it.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use tidegate_protocol::id::{ConversationId, MsgId, UserId};
use tokio::{sync::Notify, time::Instant};

mod cloud;
mod ring;

pub use ring::{Cursor, Page, Ring};

use crate::routes::{Route, Token};

/// What an event takes while it waits, in bytes: the ids are shared, the rest is about this.
const EVENT_BYTES: usize = 256;

/// Bytes of events that are kept for followers.
const RING_BYTES: usize = 1 << 20;

/// Rows to look at again that may wait; what is beyond is found when the run is swept.
const LOOKS_MAX: usize = 1 << 16;

/// Tokens that were replaced on this node and whose connections have not ended yet, as far as they are remembered.
const REPLACED_MAX: usize = 1 << 16;

/// How long a device that left in a drain has to come back elsewhere before it counts as gone.
pub const HOLD: Duration = Duration::from_secs(5);

/// Something that happened; never with the content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When it was noted, in ms since 1970 by the clock of the node that noted it.
    pub at_ms: u64,
    /// What happened.
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A device's route was registered; `replaced` = the owner that it took over from.
    Online(Route, Option<Token>),
    /// A device left, and no newer connection of it was there.
    Offline(Route),
    /// A user's read mark moved to this seq.
    Read(UserId, ConversationId, u64),
    /// The chain of this connection waits too long for that id.
    OrderBlocked(Route, MsgId),
}

impl Event {
    /// Whose it is, by which the topic is partitioned.
    pub fn user(&self) -> &UserId {
        match &self.what {
            What::Online(route, _) | What::Offline(route) | What::OrderBlocked(route, _) => &route.user,
            What::Read(user, ..) => user,
        }
    }
}

/// The events of one node.
pub struct Events {
    source: String,
    ring: Ring,
    queue_bytes_max: usize,
    state: Mutex<State>,
    bell: Notify,
    quiet: Notify,
    holds: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
    noted: AtomicU64,
    lost: AtomicU64,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Arc<Event>>,
    /// Offlines in the queue, each once.
    owed: HashSet<Token>,
    /// Rows of which it is not clear whether their device left, and when to look.
    looks: VecDeque<(Route, Instant)>,
    /// Marks that moved since they were told last.
    reads: HashMap<(UserId, ConversationId), u64>,
    replaced: HashSet<Token>,
}

impl State {
    fn bytes(&self) -> usize {
        (self.queue.len() + self.reads.len()) * EVENT_BYTES
    }
}

/// Keeps events for followers, and queues none.
impl Default for Events {
    fn default() -> Self {
        Self::new("/tidegate", 0, 0)
    }
}

impl Events {
    /// Events of the run `boot` of a node, told as of `source`; above `queue_bytes_max` waiting bytes they are lost and counted. 0:
    /// nobody takes them from the queue, and none is put there.
    pub fn new(source: impl Into<String>, boot: u64, queue_bytes_max: usize) -> Self {
        Self {
            source: source.into(),
            ring: Ring::new(boot, RING_BYTES),
            queue_bytes_max,
            state: Mutex::default(),
            bell: Notify::new(),
            quiet: Notify::new(),
            holds: OnceLock::new(),
            noted: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }

    /// What this node noted lately.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// The event as CloudEvents 1.0 has it, in structured mode: JSON.
    pub fn encode(&self, event: &Event) -> Vec<u8> {
        cloud::encode(&self.source, event)
    }

    /// From now on devices that leave while `holds` says so get [`HOLD`] to come back elsewhere. The first call counts.
    pub fn hold_while(&self, holds: impl Fn() -> bool + Send + Sync + 'static) {
        self.holds.set(Box::new(holds)).ok();
    }

    /// A route was registered.
    pub fn online(&self, route: &Route, replaced: Option<&Token>) {
        if let Some(old) = replaced.filter(|old| old.at == route.token.at) {
            let mut state = self.state();
            if state.replaced.len() >= REPLACED_MAX {
                state.replaced.clear();
            }
            state.replaced.insert(old.clone());
        }
        self.note(What::Online(route.clone(), replaced.cloned()));
    }

    /// A row was deleted, and nothing came in its place. Told once while it waits.
    pub fn offline(&self, row: &Route) {
        if self.queue_bytes_max > 0 && !self.state().owed.insert(row.token.clone()) {
            return;
        }
        if !self.note(What::Offline(row.clone())) {
            self.state().owed.remove(&row.token);
        }
    }

    /// This node's own row was deleted: its device is offline, in a drain only if it does not come back in time.
    pub fn left(&self, row: &Route) {
        match self.holds.get().is_some_and(|holds| holds()) {
            true => self.look(row, HOLD),
            false => self.offline(row),
        }
    }

    /// Whether a newer connection on this node took over from that one. Asked once, when the older one ends.
    pub fn was_replaced(&self, token: &Token) -> bool {
        self.state().replaced.remove(token)
    }

    /// Whether the device of this row left is to be looked up, so much later.
    pub fn look(&self, row: &Route, later: Duration) {
        let mut state = self.state();
        if self.queue_bytes_max > 0 && state.looks.len() < LOOKS_MAX {
            state.looks.push_back((row.clone(), Instant::now() + later));
        }
    }

    /// A read mark moved; told within a second, the last one only.
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
                self.note(What::Read(key.0, key.1, seq));
            }
        }
    }

    /// A chain waits too long.
    pub fn order_blocked(&self, route: &Route, expected: &MsgId) {
        self.note(What::OrderBlocked(route.clone(), expected.clone()));
    }

    /// False if there is a topic and it was not queued for it.
    fn note(&self, what: What) -> bool {
        let event = Arc::new(Event { at_ms: wall_ms(), what });
        self.noted.fetch_add(1, Ordering::Relaxed);
        self.ring.push(Arc::clone(&event));
        if self.queue_bytes_max == 0 {
            return true;
        }
        let mut state = self.state();
        let fits = state.bytes() < self.queue_bytes_max;
        if fits {
            state.queue.push_back(event);
            drop(state);
            self.bell.notify_one();
        } else {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        fits
    }

    /// The oldest of the queue, at most `max`; they stay there until [`Self::told`].
    pub fn oldest(&self, max: usize) -> Vec<Arc<Event>> {
        self.state().queue.iter().take(max).cloned().collect()
    }

    /// So many of the oldest were told. For the one who tells.
    pub fn told(&self, count: usize) {
        let mut state = self.state();
        for _ in 0..count {
            let Some(event) = state.queue.pop_front() else { break };
            if let What::Offline(row) = &event.what {
                state.owed.remove(&row.token);
            }
        }
        if state.queue.is_empty() {
            self.quiet.notify_waiters();
        }
    }

    /// The marks that moved become events.
    pub fn tell_reads(&self) {
        let reads = std::mem::take(&mut self.state().reads);
        for ((user, conversation), seq) in reads {
            self.note(What::Read(user, conversation, seq));
        }
    }

    /// Rows to look up now, at most `max`.
    pub fn due(&self, now: Instant, max: usize) -> Vec<Route> {
        let mut state = self.state();
        let mut due = Vec::new();
        // Some wait longer than others.
        for _ in 0..state.looks.len() {
            if due.len() == max {
                break;
            }
            match state.looks.pop_front() {
                Some((row, at)) if at <= now => due.push(row),
                Some(later) => state.looks.push_back(later),
                None => break,
            }
        }
        due
    }

    /// Ready once something is queued.
    pub async fn rung(&self) {
        self.bell.notified().await;
    }

    /// Ready once nothing waits to be told.
    pub async fn quiet(&self) {
        loop {
            let quiet = self.quiet.notified();
            tokio::pin!(quiet);
            // Before the look, so that the end does not fall between.
            quiet.as_mut().enable();
            if self.state().queue.is_empty() {
                return;
            }
            quiet.await;
        }
    }

    /// How many were noted, how many of those were lost for the topic, and the bytes that wait.
    pub fn counts(&self) -> (u64, u64, usize) {
        let waiting = self.state().bytes();
        (self.noted.load(Ordering::Relaxed), self.lost.load(Ordering::Relaxed), waiting)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The wall clock in ms since 1970: for people.
fn wall_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests;
