//! Live rooms: the one lossy class. Numbered and fanned out at once, here and on the nodes that have members; never logged.
//!
//! A shard asks once for all that was said in a room in its turn: for the numbers, and for the nodes. Neither is on the
//! way of anything else, and while Redis is away rooms go on (ADR 12).

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use bytes::Bytes;
use dashmap::DashMap;
use foldhash::quality::RandomState;
use tidegate_protocol::{Code, id::ConversationId};
use tokio::time::{self, Instant};

use self::unrouted::Blind;
use crate::{
    directory::Directory,
    link::{Stray, StrayLanes},
    mail::Turn,
    ports::Ports,
    routes::NodeBoot,
    scratch::Numbers,
};

/// Between two renewals of the interest in a room; its lease is three times as long.
const RENEW_EVERY: Duration = Duration::from_secs(20);

/// The same for rooms of which the others could not be told.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// Rooms renewed in one call.
const PAGE: usize = 500;

/// The generation of every interest in a room: rooms keep no index that could be old.
const GENERATION: u64 = 1;

/// Has the members here of those rooms hear that they may lack something, and nobody knows how much; and those who could not
/// hear of it before.
type Tell = Box<dyn Fn(Vec<ConversationId>) + Send + Sync>;

/// Who numbers rooms, and the other nodes.
pub struct Rooms {
    numbers: Arc<dyn Numbers>,
    /// None = there are no other nodes.
    abroad: Option<Abroad>,
}

/// The nodes that may have members, and how they are told.
struct Abroad {
    ports: Arc<Ports>,
    directory: Arc<Directory>,
    lanes: Arc<StrayLanes>,
    /// The rooms that have members here.
    declared: DashMap<ConversationId, Known, RandomState>,
    blind: Blind,
    tell: Tell,
}

/// What the other nodes know of a room.
#[derive(Clone, Copy)]
struct Known {
    /// That it has members here.
    now: bool,
    /// They may have passed it by, and its members were not told of that.
    passed_by: bool,
}

impl Rooms {
    /// Rooms of a node on its own.
    pub fn alone(numbers: Arc<dyn Numbers>) -> Self {
        Self { numbers, abroad: None }
    }

    /// Rooms of a node among others; [`Self::keep`] is to run beside. `tell` has the members here of some rooms hear that
    /// they may lack something, and nobody knows how much; called without any, it tries again what it could not do before.
    pub fn among_others(
        numbers: Arc<dyn Numbers>,
        ports: Arc<Ports>,
        directory: Arc<Directory>,
        lanes: Arc<StrayLanes>,
        tell: impl Fn(Vec<ConversationId>) + Send + Sync + 'static,
    ) -> Self {
        let (declared, tell) = (DashMap::default(), Box::new(tell));
        let blind = Blind::default();
        Self { numbers, abroad: Some(Abroad { ports, directory, lanes, declared, blind, tell }) }
    }

    /// Numbers for what was said in a room, and the other nodes that have members of it. A message that is sent after
    /// somebody has heard of being in the room finds that member's node.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE` when nobody can give a number that is new for certain.
    pub async fn turn(&self, room: &ConversationId, count: NonZeroU64) -> Result<Turn, Code> {
        let Some(abroad) = &self.abroad else {
            let numbers = self.numbers.take(room.as_str(), count).await;
            return Ok(Turn { numbers: numbers.map_err(refusal)?, nodes: Vec::new() });
        };
        let (numbers, nodes) =
            tokio::join!(self.numbers.take(room.as_str(), count), abroad.nodes(room, count));
        Ok(Turn { numbers: numbers.map_err(refusal)?, nodes })
    }

    /// Hands one message, an encoded `Push`, to those nodes.
    pub fn carry(&self, nodes: &[NodeBoot], room: &ConversationId, push: &Bytes) {
        let Some(abroad) = &self.abroad else { return };
        for node in nodes {
            abroad.lanes.send(node, Stray::Talk { room: room.clone(), push: push.clone() });
        }
    }

    /// Whether the other nodes can know that the room has members here.
    pub fn is_declared(&self, room: &ConversationId) -> bool {
        self.abroad.as_ref().is_none_or(|it| it.declared.get(room).is_some_and(|known| known.now))
    }

    /// Tells the other nodes that the room has members here; it must be in the directory by then. Where they can't be told,
    /// it is tried again: until then they ask everybody, as Redis is away for them too, or they pass this node by.
    pub async fn declare(&self, room: &ConversationId) {
        if let Some(abroad) = &self.abroad {
            abroad.declare(std::slice::from_ref(room)).await;
        }
    }

    /// Keeps the other nodes knowing which rooms have members here, and the numbers new after Redis lost something, for as
    /// long as the node lives. Members of a room that may have been passed by hear so once it is known again.
    pub async fn keep(self: Arc<Self>) {
        let Some(abroad) = &self.abroad else { return };
        let mut seen = abroad.ports.peers.changes();
        let (mut losses, mut renewed) = (seen.borrow().losses, Instant::now());
        let mut numbers_are_new = true;
        loop {
            // The sender lives as long as the ports.
            time::timeout(RETRY_EVERY, seen.wait_for(|seen| seen.losses != losses)).await.ok();
            let now = seen.borrow_and_update().losses;
            let lost = std::mem::replace(&mut losses, now) != now;
            if lost {
                abroad.declared.iter_mut().for_each(|mut it| it.passed_by = true);
            }
            numbers_are_new &= !lost;
            let all = lost || renewed.elapsed() >= RENEW_EVERY;
            if all {
                renewed = Instant::now();
            }
            abroad.tell_new_nodes();
            let numbers = async { numbers_are_new || self.numbers.changed().await.is_ok() };
            (numbers_are_new, ()) = tokio::join!(numbers, abroad.renew(all));
            // A shard that was full then is told again.
            (abroad.tell)(Vec::new());
        }
    }
}

/// No number is shown twice: without one for certain, the sender is to try again.
fn refusal(error: crate::scratch::ScratchError) -> Code {
    tracing::debug!(%error, "a room has no numbers");
    Code::StoreUnavailable
}

impl Abroad {
    /// The nodes that may have members of the room.
    async fn nodes(&self, room: &ConversationId, count: NonZeroU64) -> Vec<NodeBoot> {
        if let Some(nodes) = self.ports.nodes_with(std::slice::from_ref(room)).await {
            return nodes.into_iter().flatten().collect();
        }
        self.blind.note(room, count.get(), Instant::now());
        self.ports.peers.runs()
    }

    /// Has the members on nodes that were not known hear that they may lack something.
    fn tell_new_nodes(&self) {
        for (node, rooms) in self.blind.missed(self.ports.peers.runs(), Instant::now()) {
            for (room, count) in rooms {
                self.lanes.send(&node, Stray::Missed { room, count });
            }
        }
    }

    async fn declare(&self, rooms: &[ConversationId]) {
        let interests: Vec<(ConversationId, u64)> =
            rooms.iter().map(|room| (room.clone(), GENERATION)).collect();
        let told = self.ports.routes.declare(&self.ports.me, &interests).await;
        if let Err(error) = &told {
            tracing::debug!(%error, "the other nodes do not know of members of rooms here yet");
        }
        let mut passed_by = Vec::new();
        for room in rooms {
            let known = Known { now: told.is_ok(), passed_by: told.is_err() };
            let before = self.declared.insert(room.clone(), known);
            if known.now && before.is_some_and(|it| it.passed_by) {
                passed_by.push(room.clone());
            }
        }
        if !passed_by.is_empty() {
            (self.tell)(passed_by);
        }
    }

    /// Tells of rooms again: of all, or of those of which the others could not be told. Rooms without members lapse.
    async fn renew(&self, all: bool) {
        let due = |known: &Known| all || !known.now;
        let rooms: Vec<ConversationId> =
            self.declared.iter().filter(|it| due(it.value())).map(|it| it.key().clone()).collect();
        for page in rooms.chunks(PAGE) {
            let mut here = Vec::with_capacity(page.len());
            for room in page {
                if self.directory.conversation(room).is_empty() {
                    self.declared.remove(room);
                    // Who came in meanwhile is in the directory first, and looks here then.
                    if self.directory.conversation(room).is_empty() {
                        continue;
                    }
                }
                here.push(room.clone());
            }
            if !here.is_empty() {
                self.declare(&here).await;
            }
        }
    }
}

#[cfg(test)]
mod tests;
mod unrouted;
