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
    /// The rooms that have members here, and whether the other nodes can know it.
    declared: DashMap<ConversationId, bool, RandomState>,
}

impl Rooms {
    /// Rooms of a node on its own.
    pub fn alone(numbers: Arc<dyn Numbers>) -> Self {
        Self { numbers, abroad: None }
    }

    /// Rooms of a node among others; [`Self::keep`] is to run beside.
    pub fn among_others(
        numbers: Arc<dyn Numbers>,
        ports: Arc<Ports>,
        directory: Arc<Directory>,
        lanes: Arc<StrayLanes>,
    ) -> Self {
        let declared = DashMap::default();
        Self { numbers, abroad: Some(Abroad { ports, directory, lanes, declared }) }
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
        let (numbers, nodes) = tokio::join!(self.numbers.take(room.as_str(), count), abroad.nodes_with(room));
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
        self.abroad.as_ref().is_none_or(|it| it.declared.get(room).is_some_and(|told| *told))
    }

    /// Tells the other nodes that the room has members here; it must be in the directory by then. Where they can't be told,
    /// it is tried again: until then they ask everybody, as Redis is away for them too, or they pass this node by.
    pub async fn declare(&self, room: &ConversationId) {
        if let Some(abroad) = &self.abroad {
            abroad.declare(std::slice::from_ref(room)).await;
        }
    }

    /// Keeps the other nodes knowing which rooms have members here, and the numbers new after Redis lost something, for as
    /// long as the node lives.
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
            numbers_are_new &= !lost;
            if !numbers_are_new {
                numbers_are_new = self.numbers.changed().await.is_ok();
            }
            let all = lost || renewed.elapsed() >= RENEW_EVERY;
            if all {
                renewed = Instant::now();
            }
            abroad.renew(all).await;
        }
    }
}

/// No number is shown twice: without one for certain, the sender is to try again.
fn refusal(error: crate::scratch::ScratchError) -> Code {
    tracing::debug!(%error, "a room has no numbers");
    Code::StoreUnavailable
}

impl Abroad {
    /// The other nodes that have members of the room, as far as the routes know; all of them while they may know too few.
    async fn nodes_with(&self, room: &ConversationId) -> Vec<NodeBoot> {
        let peers = &self.ports.peers;
        let all = || peers.others().iter().map(|row| row.info.boot.clone()).collect();
        if peers.doubtful() {
            return all();
        }
        let interested = match self.ports.routes.interested(std::slice::from_ref(room)).await {
            Ok(found) => found.into_iter().flatten(),
            Err(error) => {
                tracing::debug!(%error, %room, "all peers are told what is said in a room");
                return all();
            }
        };
        let nodes: Vec<NodeBoot> =
            interested.map(|it| it.node).filter(|node| *node != self.ports.me).collect();
        if nodes.iter().any(|node| !peers.is_live(node)) {
            peers.look_again();
        }
        nodes
    }

    async fn declare(&self, rooms: &[ConversationId]) {
        let interests: Vec<(ConversationId, u64)> =
            rooms.iter().map(|room| (room.clone(), GENERATION)).collect();
        let told = self.ports.routes.declare(&self.ports.me, &interests).await;
        if let Err(error) = &told {
            tracing::debug!(%error, "the other nodes do not know of members of rooms here yet");
        }
        for room in rooms {
            self.declared.insert(room.clone(), told.is_ok());
        }
    }

    /// Tells of rooms again: of all, or of those of which the others could not be told. Rooms without members lapse.
    async fn renew(&self, all: bool) {
        let due = |told: bool| all || !told;
        let rooms: Vec<ConversationId> =
            self.declared.iter().filter(|it| due(*it.value())).map(|it| it.key().clone()).collect();
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
