//! Joins that wait for the declaration of their rooms: gathered into one call to the routes at a time.
//!
//! Each join takes a ticket, and waits for its turn to call. The join that has the turn declares the rooms of all that
//! wait, its own included, so that the next ones find their rooms declared.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use tidegate_protocol::id::ConversationId;
use tokio::sync::{Mutex as AsyncMutex, MutexGuard as AsyncMutexGuard, OwnedSemaphorePermit, Semaphore};

/// Maximum number of joins of a node that wait for their declaration: 4 MiB with their tasks.
pub(super) const WAITING_MAX: usize = 8_192;

/// Joins of one node that wait for their declaration.
pub(super) struct JoinQueue {
    places: Arc<Semaphore>,
    waiting: Mutex<Waiting>,
    /// Number of joins whose rooms are declared, or whose attempt has failed; locked during a call.
    done: AsyncMutex<u64>,
}

#[derive(Default)]
struct Waiting {
    rooms: VecDeque<ConversationId>,
    /// Number of joins so far.
    tickets: u64,
}

impl Default for JoinQueue {
    fn default() -> Self {
        let places = Arc::new(Semaphore::new(WAITING_MAX));
        Self { places, waiting: Mutex::default(), done: AsyncMutex::new(0) }
    }
}

impl JoinQueue {
    /// Reserves a place until the permit is dropped; `None` if there is none left.
    pub(super) fn reserve(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.places).try_acquire_owned().ok()
    }

    /// Returns the number of joins that wait, those of the turn included.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.waiting.lock().rooms.len()
    }

    /// Adds a join and waits for its turn; returns `None` if another turn has declared its room meanwhile. Otherwise
    /// the caller declares the rooms of [`Turn::rooms`] until [`Turn::finish`] returns true. A caller that is dropped
    /// in between leaves them to the next turn.
    pub(super) async fn turn(&self, room: &ConversationId) -> Option<Turn<'_>> {
        let ticket = {
            let mut waiting = self.waiting.lock();
            waiting.rooms.push_back(room.clone());
            waiting.tickets += 1;
            waiting.tickets
        };
        let done = self.done.lock().await;
        (*done < ticket).then_some(Turn { queue: self, done, ticket })
    }
}

/// Turn of a join to declare the rooms of all that wait.
pub(super) struct Turn<'a> {
    queue: &'a JoinQueue,
    done: AsyncMutexGuard<'a, u64>,
    ticket: u64,
}

impl Turn<'_> {
    /// Returns the rooms of at most `max` joins that have waited longest, in their order.
    pub(super) fn rooms(&self, max: usize) -> Vec<ConversationId> {
        self.queue.waiting.lock().rooms.iter().take(max).cloned().collect()
    }

    /// Ends the `count` joins that have waited longest; returns whether that of the caller is among all that have ended.
    pub(super) fn finish(&mut self, count: usize) -> bool {
        self.queue.waiting.lock().rooms.drain(..count);
        *self.done += count as u64;
        *self.done >= self.ticket
    }
}
