//! Which other nodes have members of a group or a room: asked after what they are to hear of is accepted.

use tidegate_protocol::id::ConversationId;

use crate::{ports::Ports, routes::NodeBoot};

impl Ports {
    /// The other nodes that have members of each conversation, in the order asked, as far as the routes know, and with them all that are
    /// known while those may know too few; none while they do not answer. One that came just now may be known to nobody but them.
    pub async fn nodes_with(&self, conversations: &[ConversationId]) -> Option<Vec<Vec<NodeBoot>>> {
        let peers = &self.peers;
        let interested = match self.routes.interested(conversations).await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(%error, "all peers are told what is for the members of some conversations");
                return None;
            }
        };
        let others = |found: Vec<crate::routes::Interest>| -> Vec<NodeBoot> {
            found.into_iter().map(|it| it.node).filter(|node| *node != self.me).collect()
        };
        let mut nodes: Vec<Vec<NodeBoot>> = interested.into_iter().map(others).collect();
        if nodes.iter().flatten().any(|node| !peers.is_live(node)) {
            peers.look_again();
        }
        if peers.doubtful() {
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
