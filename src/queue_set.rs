//! Queue sets: one bounded queue per peer, each emptied by a task of its own, so that a slow peer delays no other.
//!
//! Each queue is bounded in items and in bytes, and adding never waits: what does not fit goes back to the caller. The
//! owner of a set decides the rest: what a full queue costs, how items are batched, and whether a call is repeated.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::mpsc::{self, error::TrySendError},
    time,
};

use crate::routes::NodeBoot;

/// Time without traffic after which a queue ends; the next item opens it again.
pub(crate) const QUEUE_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// One bounded queue of `T` per peer. A queue has a state `S` that is shared with its task.
pub(crate) struct QueueSet<T, S = ()> {
    /// Most items of one queue.
    items_max: usize,
    ended: EndedQueues,
    queues: Mutex<HashMap<NodeBoot, QueueSender<T, S>>>,
}

/// Treatment of the state of an ended queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndedQueues {
    /// Dropped when any queue is opened.
    Drop,
    /// Kept for the next queue to the peer, until [`QueueSet::forget_ended`].
    KeepState,
}

/// Item that a queue did not accept.
#[derive(Debug)]
pub(crate) enum Rejected<T> {
    /// Rejected because it does not fit.
    Full(T),
    /// Rejected because the queue ended at that moment, twice.
    Closed(T),
}

/// Next step of a queue's task.
#[derive(Debug)]
pub(crate) enum Next<T> {
    /// Item to be sent.
    Item(T),
    /// No item within the retry interval.
    Retry,
}

struct QueueSender<T, S> {
    items: mpsc::Sender<T>,
    queued_bytes: Arc<AtomicUsize>,
    state: Arc<S>,
}

/// Receiving end of a queue, for its task.
pub(crate) struct Queue<T, S = ()> {
    /// Peer of the queue.
    pub(crate) to: NodeBoot,
    /// State of the queue.
    pub(crate) state: Arc<S>,
    items: mpsc::Receiver<T>,
    queued_bytes: Arc<AtomicUsize>,
}

impl<T> Rejected<T> {
    /// Returns the item.
    pub(crate) fn into_inner(self) -> T {
        match self {
            Self::Full(item) | Self::Closed(item) => item,
        }
    }
}

impl<T, S: Default> QueueSet<T, S> {
    /// Creates the set without queues: each starts with its first item.
    pub(crate) fn new(items_max: usize, ended: EndedQueues) -> Self {
        Self { items_max, ended, queues: Mutex::default() }
    }

    /// Adds an item of `bytes` to the queue of a peer, unless more than `bytes_max` would wait there. An item above the
    /// limit fits an empty queue. `start` spawns the task of a new queue; it runs under the lock of the set.
    ///
    /// # Errors
    /// Returns the item if the queue does not accept it.
    pub(crate) fn send(
        &self,
        to: &NodeBoot,
        mut item: T,
        bytes: usize,
        bytes_max: usize,
        start: impl Fn(Queue<T, S>),
    ) -> Result<(), Rejected<T>> {
        let mut queues = self.lock();
        // The queue may just have ended for lack of traffic: the second attempt opens another.
        for _ in 0..2 {
            let queue = self.open(&mut queues, to, &start);
            let before = queue.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
            let failed = match before == 0 || before + bytes <= bytes_max {
                true => queue.items.try_send(item),
                false => Err(TrySendError::Full(item)),
            };
            let Err(failed) = failed else { return Ok(()) };
            queue.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            match failed {
                TrySendError::Closed(back) => item = back,
                TrySendError::Full(back) => return Err(Rejected::Full(back)),
            }
        }
        Err(Rejected::Closed(item))
    }

    /// Returns the state of a peer's queue, which `start` opens if necessary.
    pub(crate) fn state(&self, to: &NodeBoot, start: impl Fn(Queue<T, S>)) -> Arc<S> {
        Arc::clone(&self.open(&mut self.lock(), to, &start).state)
    }

    /// Removes the ended queues of runs that are no longer live, with their states.
    pub(crate) fn forget_ended(&self, is_live: impl Fn(&NodeBoot) -> bool) {
        self.lock().retain(|run, queue| !queue.items.is_closed() || is_live(run));
    }

    /// Returns whether no item waits or is being sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().values().all(|queue| queue.queued_bytes.load(Ordering::Relaxed) == 0)
    }

    fn open<'a>(
        &self,
        queues: &'a mut HashMap<NodeBoot, QueueSender<T, S>>,
        to: &NodeBoot,
        start: &impl Fn(Queue<T, S>),
    ) -> &'a QueueSender<T, S> {
        let is_open = queues.get(to).is_some_and(|queue| !queue.items.is_closed());
        if !is_open && self.ended == EndedQueues::Drop {
            // Queues of ended runs are removed nowhere else.
            queues.retain(|_, queue| !queue.items.is_closed());
        }
        match queues.entry(to.clone()) {
            Entry::Occupied(queue) if is_open => queue.into_mut(),
            entry => {
                let state = match &entry {
                    Entry::Occupied(ended) => Arc::clone(&ended.get().state),
                    Entry::Vacant(_) => Arc::default(),
                };
                let (sender, items) = mpsc::channel(self.items_max);
                let queued_bytes = Arc::new(AtomicUsize::new(0));
                start(Queue {
                    to: to.clone(),
                    state: Arc::clone(&state),
                    items,
                    queued_bytes: Arc::clone(&queued_bytes),
                });
                entry.insert_entry(QueueSender { items: sender, queued_bytes, state }).into_mut()
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeBoot, QueueSender<T, S>>> {
        self.queues.lock()
    }
}

impl<T, S> Queue<T, S> {
    /// Waits for the next item, or for `retry_after` if the task has something to repeat. `None` once the queue has
    /// ended: the set is gone, or there was no traffic for [`QUEUE_IDLE_TIMEOUT`].
    pub(crate) async fn next(&mut self, retry_after: Option<Duration>) -> Option<Next<T>> {
        match time::timeout(retry_after.unwrap_or(QUEUE_IDLE_TIMEOUT), self.items.recv()).await {
            Ok(item) => item.map(Next::Item),
            Err(_) if retry_after.is_some() => Some(Next::Retry),
            Err(_) => {
                // Close first, then take what was queued in the meantime. Waits for a sender that is adding an item:
                // `try_recv` would miss that item, which the sender counts as accepted.
                self.items.close();
                self.items.recv().await.map(Next::Item)
            }
        }
    }

    /// Returns the next item if one waits.
    pub(crate) fn try_next(&mut self) -> Option<T> {
        self.items.try_recv().ok()
    }

    /// Releases the bytes of items that were sent or given up.
    pub(crate) fn release(&self, bytes: usize) {
        self.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
impl<T, S: Default> QueueSet<T, S> {
    /// Returns the bytes that wait for a peer.
    pub(crate) fn queued_bytes(&self, to: &NodeBoot) -> usize {
        self.lock().get(to).map_or(0, |queue| queue.queued_bytes.load(Ordering::SeqCst))
    }

    /// Returns whether the queue of a peer is open.
    pub(crate) fn is_open(&self, to: &NodeBoot) -> bool {
        self.lock().get(to).is_some_and(|queue| !queue.items.is_closed())
    }

    /// Returns the peers with a queue or a kept state, in order.
    pub(crate) fn peers(&self) -> Vec<NodeBoot> {
        let mut peers: Vec<NodeBoot> = self.lock().keys().cloned().collect();
        peers.sort();
        peers
    }
}

#[cfg(test)]
mod tests;
