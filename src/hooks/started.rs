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

/// Read of whether a conversation has messages, for all hooks that are asked about one message.
///
/// The first hook that needs it reads, within its own time. A read that it gives up ends at once, and later hooks neither wait
/// for it nor begin another one: the message has waited for the store already.
pub struct StartedRead<R> {
    read: Option<R>,
    found: Option<bool>,
}

impl<R: Future<Output = Option<bool>>> StartedRead<R> {
    /// Creates a read that has not begun.
    pub const fn new(read: R) -> Self {
        Self { read: Some(read), found: None }
    }

    /// Returns what the store has, which the first call reads; `None` if the store can't tell, or the first call was dropped.
    pub async fn get(&mut self) -> Option<bool> {
        if let Some(read) = self.read.take() {
            self.found = read.await;
        }
        self.found
    }
}

fn question(conversation: &ConversationId) -> PairQuestion<'_, ()> {
    PairQuestion { about: (), one: conversation.as_str(), two: "" }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        future::{pending, ready},
    };

    use tokio::sync::oneshot::{self, error::TryRecvError};

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

    #[tokio::test(start_paused = true)]
    async fn read_that_one_hook_gives_up_ends_and_the_next_hook_does_not_wait_for_it() {
        let hooks = [300, 3_000].map(|ms| StartedConversations::new(Duration::from_millis(ms)));
        let place = ConversationId::parse("d:ann:bob").unwrap();
        let (holds, mut ended) = oneshot::channel::<()>();
        let mut read = StartedRead::new(async move {
            let found = pending().await;
            drop(holds);
            found
        });
        let began = tokio::time::Instant::now();
        assert_eq!(hooks[0].has_messages(&place, read.get()).await, None);
        assert_eq!(ended.try_recv(), Err(TryRecvError::Closed), "the store is not asked any more");
        assert_eq!(hooks[1].has_messages(&place, read.get()).await, None);
        assert_eq!(began.elapsed(), Duration::from_millis(150));
    }

    #[tokio::test]
    async fn what_one_hook_has_read_is_not_read_again_for_the_next() {
        let place = ConversationId::parse("d:ann:bob").unwrap();
        for found in [None, Some(false), Some(true)] {
            let reads = Cell::new(0);
            let mut read = StartedRead::new(async {
                reads.set(reads.get() + 1);
                found
            });
            for _ in 0..2 {
                let started = StartedConversations::new(Duration::from_secs(1));
                assert_eq!(started.has_messages(&place, read.get()).await, found);
            }
            assert_eq!(reads.get(), 1, "{found:?}");
        }
    }
}
