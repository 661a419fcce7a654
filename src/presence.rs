//! Presence of conversations for the clients that watch them: who of a group, or of the two of a direct conversation, is online.
//!
//! [`tidegate_protocol::machine::presence`] decides what to read and what to report. One task of the node carries out its
//! rounds: it reads members and settings from the store, looks up users in the routes, as the admin API does, and posts the
//! reports to the shards. What can't be read stays as it was; while the routes can't be read, or lack routes that a node
//! re-asserts after a loss, nothing is reported. Reads and lookups of a round have a deadline each.
//!
//! A report that finds a mailbox or a socket full is dropped, and the next one of that watch is complete. Where shards have no room
//! for all reports of a round, those of watchers that have waited longest come first.

mod lookup;
mod round;

use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_protocol::{
    Time,
    id::{ConversationId, UserId},
    machine::presence::{ConversationPresence, PresenceLimits, WatchRefusal, WatchSubject},
};
use tokio::{
    sync::Notify,
    time::{self, Instant},
};

pub use self::lookup::{DeviceLookup, connected_devices};
use self::round::RoundParts;
use crate::{
    clock::time_since,
    cluster::Cluster,
    mail::{ConnKey, ShardHandles},
    metrics::Metrics,
};

/// Watches of the connections of a node, shared by its shards and the task that reports to them.
pub struct PresenceWatches {
    machine: Mutex<ConversationPresence<ConnKey>>,
    limits: PresenceLimits,
    /// Time base of the machine.
    began: Instant,
    /// Wakes the task when there is a first watch.
    has_watches: Notify,
    metrics: Metrics,
}

impl PresenceWatches {
    /// Creates the watches of a node without any.
    pub fn new(limits: PresenceLimits, metrics: Metrics) -> Self {
        let (machine, began) = (Mutex::new(ConversationPresence::new(limits)), Instant::now());
        Self { machine, limits, began, has_watches: Notify::new(), metrics }
    }

    /// Returns the reason why no user may watch the conversation on this node; `None` if its members may.
    pub fn refusal_of(&self, conversation: &ConversationId) -> Option<WatchRefusal> {
        self.limits.refusal_of(conversation)
    }

    /// Begins a watch of `user`, who is one of the `members` members of the conversation; one that exists gets a complete
    /// report again.
    ///
    /// # Errors
    /// The conversation has too many members, the node has no such watches, or the connection, its user or the node has too
    /// many.
    pub fn watch(
        &self,
        watcher: ConnKey,
        user: &UserId,
        conversation: ConversationId,
        members: usize,
    ) -> Result<(), WatchRefusal> {
        let subject = WatchSubject::new(conversation, user);
        let mut machine = self.machine.lock();
        machine.watch(watcher, user, subject, members)?;
        self.count(&machine);
        self.has_watches.notify_one();
        Ok(())
    }

    /// Returns whether a connection watches a conversation.
    pub fn has_watch(&self, watcher: ConnKey, conversation: &ConversationId) -> bool {
        self.machine.lock().has_watch(watcher, conversation)
    }

    /// Ends a watch, if there is one.
    pub fn unwatch(&self, watcher: ConnKey, conversation: &ConversationId) {
        let mut machine = self.machine.lock();
        machine.unwatch(watcher, conversation);
        self.count(&machine);
    }

    /// Ends all watches of a connection that is closed.
    pub fn forget(&self, watcher: ConnKey) {
        let mut machine = self.machine.lock();
        machine.forget(watcher);
        self.count(&machine);
    }

    /// Notes that a report did not reach its watcher; `is_last` says that it was the last one of its watch.
    pub fn note_dropped(&self, watcher: ConnKey, conversation: &ConversationId, is_last: bool) {
        self.metrics.presence_dropped.increment(1);
        if is_last {
            self.repeat_last(watcher, conversation);
        } else {
            self.machine.lock().handle_dropped(watcher, conversation);
        }
    }

    /// Notes that a shard had no room for a report to these watchers: it does not count against them.
    pub fn note_no_room(&self, watchers: &[ConnKey], conversation: &ConversationId, is_last: bool) {
        self.metrics.presence_dropped.increment(watchers.len() as u64);
        let mut machine = self.machine.lock();
        for watcher in watchers {
            if is_last {
                machine.handle_last_dropped(*watcher, conversation);
            } else {
                machine.handle_no_room(*watcher, conversation);
            }
        }
        if is_last {
            // The task waits if nothing else is watched.
            self.has_watches.notify_one();
        }
    }

    fn repeat_last(&self, watcher: ConnKey, conversation: &ConversationId) {
        self.machine.lock().handle_last_dropped(watcher, conversation);
        // The task waits if nothing else is watched.
        self.has_watches.notify_one();
    }

    /// Reports to the watchers until the node stops.
    pub async fn run(self: Arc<Self>, cluster: Arc<Cluster>, shards: ShardHandles) {
        let parts = RoundParts { watches: &self, cluster: &cluster, shards: &shards };
        loop {
            let due = self.machine.lock().poll_timeout();
            match due {
                None => self.has_watches.notified().await,
                Some(due) => {
                    time::sleep_until(self.began + due.since(Time::ZERO)).await;
                    parts.run().await;
                }
            }
        }
    }

    fn now(&self) -> Time {
        time_since(self.began.into_std())
    }

    fn count(&self, machine: &ConversationPresence<ConnKey>) {
        self.metrics.presence_watches.set(machine.watches() as f64);
        self.metrics.presence_users.set(machine.users() as f64);
    }
}

#[cfg(test)]
mod tests;
