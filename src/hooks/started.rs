//! Direct conversations that have messages, as hooks know them: the first message of one is a question of its own.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
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
/// Each hook waits for it within its own time. A read that one gives up goes on for the next, and ends when the last one
/// gives it up.
pub struct StartedRead<R>(Mutex<ReadState<R>>);

struct ReadState<R> {
    /// Read, until it ends.
    read: Option<Pin<Box<R>>>,
    has_begun: bool,
    found: Option<bool>,
    /// Hooks that have not got the result or given it up.
    hooks: usize,
    /// Whether one of them waits now.
    is_awaited: bool,
}

/// Hook that may wait for a read.
struct Reading<'a, R>(&'a StartedRead<R>);

impl<R> Drop for Reading<'_, R> {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.is_awaited = false;
        state.hooks = state.hooks.saturating_sub(1);
        if state.hooks == 0 {
            state.read = None;
        }
    }
}

impl<R: Future<Output = Option<bool>>> StartedRead<R> {
    /// Creates a read that has not begun, for so many hooks, each of which gets the result once.
    pub fn new(read: R, hooks: usize) -> Self {
        let read = Some(Box::pin(read));
        Self(Mutex::new(ReadState { read, has_begun: false, found: None, hooks, is_awaited: false }))
    }

    /// Returns what the store has, which is read once; `None` if the store can't tell.
    pub fn get(&self) -> impl Future<Output = Option<bool>> {
        // Also a hook that never asks is one less to go on for.
        let reading = Reading(self);
        async move {
            let found = poll_fn(|cx| reading.0.0.lock().poll_awaited(cx)).await;
            // Without this use of the whole, the future would hold only the reference in it.
            drop(reading);
            found
        }
    }

    /// Waits for a decision, during which a read that has begun goes on. A read that stood still would keep its session of
    /// the store from others.
    pub async fn during<T>(&self, decision: impl Future<Output = T>) -> T {
        let mut decision = pin!(decision);
        poll_fn(|cx| {
            let decided = decision.as_mut().poll(cx);
            if decided.is_pending() {
                self.0.lock().go_on(cx);
            }
            decided
        })
        .await
    }
}

impl<R: Future<Output = Option<bool>>> ReadState<R> {
    fn poll_awaited(&mut self, cx: &mut Context<'_>) -> Poll<Option<bool>> {
        (self.has_begun, self.is_awaited) = (true, true);
        self.move_on(cx);
        match self.read {
            Some(_) => Poll::Pending,
            None => Poll::Ready(self.found),
        }
    }

    /// Moves a read on that has begun, and that no hook waits for.
    fn go_on(&mut self, cx: &mut Context<'_>) {
        if self.has_begun && !self.is_awaited {
            self.move_on(cx);
        }
    }

    fn move_on(&mut self, cx: &mut Context<'_>) {
        if let Some(read) = &mut self.read
            && let Poll::Ready(found) = read.as_mut().poll(cx)
        {
            (self.read, self.found) = (None, found);
        }
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
    async fn read_that_one_hook_gives_up_goes_on_for_the_next_and_ends_with_that() {
        let place = ConversationId::parse("d:ann:bob").unwrap();
        for hooks in [1, 2] {
            let (holds, mut ended) = oneshot::channel::<()>();
            let read = async move {
                let found = pending().await;
                drop(holds);
                found
            };
            let read = StartedRead::new(read, hooks);
            let (began, mut waited) = (tokio::time::Instant::now(), 0);
            for ms in [300, 3_000].into_iter().take(hooks) {
                assert_eq!(ended.try_recv(), Err(TryRecvError::Empty), "the store is asked");
                let started = StartedConversations::new(Duration::from_millis(ms));
                assert_eq!(started.has_messages(&place, read.get()).await, None);
                waited += ms / 2;
                assert_eq!(began.elapsed(), Duration::from_millis(waited), "each has its own time");
            }
            assert_eq!(ended.try_recv(), Err(TryRecvError::Closed), "the store is not asked any more");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn read_that_is_too_slow_for_one_hook_goes_on_during_its_answer_and_is_the_result_for_the_next() {
        let pass = |ms| timeout(Duration::from_millis(ms), pending::<()>());
        let hook = StartedConversations::new(Duration::from_millis(300));
        let place = ConversationId::parse("d:ann:bob").unwrap();
        for (answer, end) in [(100, 500), (1_000, 1_150)] {
            let read = async {
                // Two steps, the second of which begins only if the read is not left alone.
                pass(250).await.ok();
                pass(250).await.ok();
                Some(true)
            };
            let read = StartedRead::new(read, 2);
            let began = tokio::time::Instant::now();
            let decision = async {
                let found = hook.has_messages(&place, read.get()).await;
                pass(answer).await.ok();
                found
            };
            assert_eq!(read.during(decision).await, None);
            let started = StartedConversations::new(Duration::from_secs(3));
            assert_eq!(started.has_messages(&place, read.get()).await, Some(true));
            assert_eq!(began.elapsed(), Duration::from_millis(end), "{answer}");
        }
    }

    #[tokio::test]
    async fn what_one_hook_has_read_is_not_read_again_for_the_next() {
        let place = ConversationId::parse("d:ann:bob").unwrap();
        for found in [None, Some(false), Some(true)] {
            let reads = Cell::new(0);
            let read = async {
                reads.set(reads.get() + 1);
                found
            };
            let read = StartedRead::new(read, 2);
            for _ in 0..2 {
                let started = StartedConversations::new(Duration::from_secs(1));
                assert_eq!(started.has_messages(&place, read.get()).await, found);
            }
            assert_eq!(reads.get(), 1, "{found:?}");
        }
    }
}
