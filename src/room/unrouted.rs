//! What was said in rooms while the routes did not say who is there: a node that nobody knew yet may have had members.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tidegate_protocol::id::ConversationId;
use tokio::time::Instant;

use crate::routes::NodeBoot;

/// A node that takes clients is known to the others by then: it renews its lease every 3 s, and so do they.
const KEPT: Duration = Duration::from_secs(10);

/// Rooms noted at once; of others nothing is told.
const ROOMS_MAX: usize = 4_096;

/// Counted by room, for nodes that come to be known.
#[derive(Default)]
pub(super) struct Blind(Mutex<State>);

#[derive(Default)]
struct State {
    said: HashMap<ConversationId, (u64, Instant)>,
    nodes: BTreeSet<NodeBoot>,
}

impl Blind {
    /// So much is about to be said there, to the nodes that are known: to be called before these are looked up.
    pub(super) fn note(&self, room: &ConversationId, count: u64, now: Instant) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.said.len() < ROOMS_MAX || state.said.contains_key(room) {
            let (said, last) = state.said.entry(room.clone()).or_insert((0, now));
            *said += count;
            *last = now;
        }
    }

    /// The nodes that are known now: those that were not before, and what they may have missed; never less than they did.
    pub(super) fn missed(
        &self,
        nodes: Vec<NodeBoot>,
        now: Instant,
    ) -> Vec<(NodeBoot, Vec<(ConversationId, u64)>)> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut state.nodes, nodes.into_iter().collect());
        let new = state.nodes.difference(&before).filter(|_| !state.said.is_empty());
        let said = || state.said.iter().map(|(room, (count, _))| (room.clone(), *count)).collect();
        let missed = new.map(|node| (node.clone(), said())).collect();
        // Afterwards: a look that was late tells what it would have told in time.
        state.said.retain(|_, (_, last)| *last + KEPT > now);
        missed
    }
}
