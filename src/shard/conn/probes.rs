//! Conversations that one connection has probed, in bounded memory.

use std::{collections::VecDeque, hash::BuildHasher as _};

use foldhash::quality::RandomState;
use tidegate_protocol::id::ConversationId;

/// Most conversations that are remembered; a probe of an older one counts again.
const PROBED_MAX: usize = 64;

/// Hashes of the conversations that a connection has probed last, under a key that clients do not know.
#[derive(Default)]
pub(in crate::shard) struct ProbedConversations {
    hasher: RandomState,
    recent: VecDeque<u64>,
}

impl ProbedConversations {
    /// Adds a conversation, and returns whether it is not among the last ones.
    pub(in crate::shard) fn insert(&mut self, conversation: &ConversationId) -> bool {
        let hash = self.hasher.hash_one(conversation.as_str());
        if self.recent.contains(&hash) {
            return false;
        }
        if self.recent.len() >= PROBED_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(hash);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversation_is_new_once_among_the_last_ones() {
        let group = |n: usize| ConversationId::parse(&format!("g:x{n}")).unwrap();
        let mut probed = ProbedConversations::default();
        assert!((0..1_000).all(|n| probed.insert(&group(n))));
        assert_eq!(probed.recent.len(), PROBED_MAX);
        assert!((1_000 - PROBED_MAX..1_000).all(|n| !probed.insert(&group(n))));
        assert!(probed.insert(&group(0)), "it was forgotten");
    }
}
