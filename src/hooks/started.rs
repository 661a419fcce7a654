//! Direct conversations that have messages, as hooks know them: the first message of one is a question of its own.

use std::time::{Duration, Instant};

use tidegate_protocol::id::ConversationId;
use tokio::time::timeout;

use super::cache::{PairMap, PairQuestion};

/// Time for which a conversation is known to have messages.
const STARTED_TTL: Duration = Duration::from_secs(600);

/// Cache of the conversations that have messages, in front of the store.
pub(super) struct StartedConversations {
    known: PairMap<(), ()>,
    /// Longest time of a read.
    read_timeout: Duration,
}

impl StartedConversations {
    /// Creates an empty cache; a read takes at most half of the time of a question, so that the rest is left to the server.
    pub(super) fn new(question_timeout: Duration) -> Self {
        Self { known: PairMap::new(), read_timeout: question_timeout / 2 }
    }

    /// Returns whether the conversation is known to have messages.
    pub(super) fn is_known(&self, conversation: &ConversationId) -> bool {
        self.known.get(&question(conversation), Instant::now()).is_some()
    }

    /// Returns whether the conversation has messages; `None` if the store is unavailable or slow. `read` asks the store if
    /// that is not known, with the same result.
    pub(super) async fn has_messages(
        &self,
        conversation: &ConversationId,
        read: impl Future<Output = Option<bool>>,
    ) -> Option<bool> {
        if self.is_known(conversation) {
            return Some(true);
        }
        let has_messages = timeout(self.read_timeout, read).await.ok().flatten();
        if has_messages == Some(true) {
            self.known.insert(&question(conversation), (), Instant::now() + STARTED_TTL, 0);
        }
        has_messages
    }
}

fn question(conversation: &ConversationId) -> PairQuestion<'_, ()> {
    PairQuestion { about: (), one: conversation.as_str(), two: "" }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn slow_store_can_not_tell_and_what_is_known_is_not_read_again() {
        let started = StartedConversations::new(Duration::from_millis(300));
        let place = ConversationId::parse("d:ann:bob").unwrap();
        let began = tokio::time::Instant::now();
        assert_eq!(started.has_messages(&place, pending()).await, None);
        assert_eq!(began.elapsed(), Duration::from_millis(150), "half of the time is left to the server");
        for found in [None, Some(false)] {
            assert_eq!(started.has_messages(&place, ready(found)).await, found);
            assert!(!started.is_known(&place));
        }
        assert_eq!(started.has_messages(&place, ready(Some(true))).await, Some(true));
        assert!(started.is_known(&place));
        assert_eq!(started.has_messages(&place, async { unreachable!("it is known") }).await, Some(true));
    }
}
