//! Room messages that were sent while the routes could not name the nodes with members.
//!
//! They went to the discovered nodes only. A node that is discovered shortly afterwards may have had members, and is
//! sent the number of messages that they may have missed.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use parking_lot::Mutex;
use tidegate_protocol::id::ConversationId;
use tokio::time::Instant;

use crate::routes::NodeBoot;

/// Time for which unrouted messages are remembered. By then every node that takes clients is discovered, since nodes
/// renew their leases every 3 s.
const UNROUTED_RETENTION: Duration = Duration::from_secs(10);

/// Most rooms whose messages are counted; losses in further rooms are not reported.
const UNROUTED_ROOMS_MAX: usize = 4_096;

/// Counts of unrouted messages by room, for nodes that are discovered later.
#[derive(Default)]
pub(super) struct UnroutedPosts(Mutex<State>);

#[derive(Default)]
struct State {
    posts: BTreeMap<ConversationId, (u64, Instant)>,
    nodes: BTreeSet<NodeBoot>,
}

impl UnroutedPosts {
    /// Counts messages that are about to go to the discovered nodes only; call it before looking these up.
    pub(super) fn record(&self, room: &ConversationId, count: u64, now: Instant) {
        let mut state = self.0.lock();
        if state.posts.len() < UNROUTED_ROOMS_MAX || state.posts.contains_key(room) {
            let (posts, last) = state.posts.entry(room.clone()).or_insert((0, now));
            *posts += count;
            *last = now;
        }
    }

    /// Takes the nodes discovered now; returns the new ones with the counts they may have missed, never too low.
    pub(super) fn missed_by_new(
        &self,
        nodes: Vec<NodeBoot>,
        now: Instant,
    ) -> Vec<(NodeBoot, Vec<(ConversationId, u64)>)> {
        let mut state = self.0.lock();
        let before = std::mem::replace(&mut state.nodes, nodes.into_iter().collect());
        let new = state.nodes.difference(&before).filter(|_| !state.posts.is_empty());
        let posts = || state.posts.iter().map(|(room, (count, _))| (room.clone(), *count)).collect();
        let missed = new.map(|node| (node.clone(), posts())).collect();
        // Expire last, so that a late call still returns what an earlier one would have returned.
        state.posts.retain(|_, (_, last)| *last + UNROUTED_RETENTION > now);
        missed
    }
}
