//! Limits of the watches of a node, and reasons why one does not begin.

use crate::id::{ConversationId, ConversationKind};

/// Limits of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PresenceLimits {
    /// Most watched conversations. A direct conversation counts for each of its two users.
    pub watched_max: usize,
    /// Most members of all watched conversations together, where each watch counts as one more.
    pub members_max: usize,
    /// Most watches of a user, over all connections.
    pub user_watches_max: usize,
    /// Most members that are read in a round, as many settings, and as many users that are looked up.
    pub users_per_round: usize,
    /// Whether direct conversations can be watched.
    pub has_direct: bool,
}

impl Default for PresenceLimits {
    fn default() -> Self {
        Self {
            watched_max: 10_000,
            members_max: 500_000,
            user_watches_max: 128,
            users_per_round: 2_000,
            has_direct: true,
        }
    }
}

impl PresenceLimits {
    /// Returns the reason why no user of the node may watch the conversation; `None` if its members may.
    pub fn refusal_of(&self, conversation: &ConversationId) -> Option<WatchRefusal> {
        if self.watched_max == 0 {
            return Some(WatchRefusal::Off);
        }
        let is_direct = matches!(conversation.kind(), ConversationKind::Direct(..));
        (is_direct && !self.has_direct).then_some(WatchRefusal::DirectOff)
    }
}

/// Reason why a watch does not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchRefusal {
    /// The conversation has more than [`WATCH_MEMBERS_MAX`](super::WATCH_MEMBERS_MAX) members.
    GroupTooLarge,
    /// The node has no watches.
    Off,
    /// The node has no watches of direct conversations.
    DirectOff,
    /// The connection has as many watches as one may have.
    ConnectionFull,
    /// The user has as many watches as one may have.
    UserFull,
    /// The watched conversations, or their members and watches, are as many as the node may have.
    NodeFull,
}
