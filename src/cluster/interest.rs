//! Interest lookup: the other nodes with members of a group or room, read after a message for them is accepted.

use tidegate_protocol::id::ConversationId;

use super::Cluster;
use crate::{
    fault::planted::{Planted, is_planted},
    routes::NodeBoot,
};

impl Cluster {
    /// Returns the other nodes with members of each conversation, in the order asked; `None` if the routes do not
    /// answer. While the routes may be incomplete, each list has all discovered peers too. It may name a node that this
    /// one has not discovered; then a peer refresh is requested.
    pub async fn nodes_with(&self, conversations: &[ConversationId]) -> Option<Vec<Vec<NodeBoot>>> {
        let peers = &self.peers;
        let interested = match self.ports.routes.interested(conversations).await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(%error, "interest lookup failed; publishing to all peers");
                return None;
            }
        };
        let others = |found: Vec<crate::routes::Interest>| -> Vec<NodeBoot> {
            found.into_iter().map(|it| it.node).filter(|node| *node != self.me).collect()
        };
        let mut nodes: Vec<Vec<NodeBoot>> = interested.into_iter().map(others).collect();
        if nodes.iter().flatten().any(|node| !peers.is_live(node)) {
            peers.request_refresh();
        }
        if peers.may_be_incomplete() && !is_planted(Planted::IncompleteRoutesTrusted) {
            let runs = peers.runs();
            for nodes in &mut nodes {
                nodes.extend(runs.iter().cloned());
                nodes.sort();
                nodes.dedup();
            }
        }
        Some(nodes)
    }
}
