//! Newest acks of a connection, by which a node answers whether a device has seen a message.

use std::collections::VecDeque;

use tidegate_protocol::id::ConversationId;

/// Most conversations of a connection whose acks are kept; the one that was acked the longest ago is forgotten, so that its
/// messages count as not acked.
const ACKED_CONVERSATIONS_MAX: usize = 16;

/// Newest acked seq of the conversations that a connection has acked last.
#[derive(Debug, Default)]
pub(in crate::shard) struct RecentAcks(VecDeque<AckedConversation>);

#[derive(Debug)]
struct AckedConversation {
    conversation: ConversationId,
    seq: u64,
}

impl RecentAcks {
    /// Notes an ack. Lower ones change nothing.
    pub(in crate::shard) fn note(&mut self, conversation: &ConversationId, seq: u64) {
        let at = self.0.iter().position(|it| it.conversation == *conversation);
        let acked = match at.and_then(|at| self.0.remove(at)) {
            Some(former) => AckedConversation { seq: former.seq.max(seq), ..former },
            None => AckedConversation { conversation: conversation.clone(), seq },
        };
        if self.0.len() >= ACKED_CONVERSATIONS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(acked);
    }

    /// Returns whether the connection has acked the seq or a later one, as far as it is kept.
    pub(in crate::shard) fn has(&self, conversation: &ConversationId, seq: u64) -> bool {
        self.0.iter().any(|it| it.conversation == *conversation && it.seq >= seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acks_are_kept_by_conversation_and_the_oldest_is_forgotten() {
        let key = |n: usize| ConversationId::parse(&format!("g:{n}")).unwrap();
        let mut acks = RecentAcks::default();
        acks.note(&key(0), 7);
        acks.note(&key(0), 5);
        assert!(acks.has(&key(0), 7) && acks.has(&key(0), 1) && !acks.has(&key(0), 8));
        for n in 1..ACKED_CONVERSATIONS_MAX {
            acks.note(&key(n), 1);
        }
        acks.note(&key(0), 9);
        acks.note(&key(99), 1);
        assert!(acks.has(&key(0), 9) && acks.has(&key(99), 1) && !acks.has(&key(1), 1));
        assert_eq!(acks.0.len(), ACKED_CONVERSATIONS_MAX);
    }
}
