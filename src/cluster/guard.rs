//! Entries of the guard as this node knows them: followed once for all kinds, and given to the handlers of each kind.
//!
//! A node that changes an entry reads the change back at once and notifies the others, which then read. A notification
//! that is lost costs at most [`super::FOLLOW_INTERVAL`] and the time of a read: all nodes also follow the store.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::future::join_all;
use parking_lot::{Mutex, RwLock};
use tokio::time::{self, Instant};

use super::{
    Cluster,
    follower::{Followed, FollowedPage, Follower, GUARD_STALE_AFTER, guard_page},
};
use crate::{
    clock::wall_ms,
    link::BestEffortMessage,
    log_limit::log_limited,
    metrics::Metrics,
    store::{GuardBatch, GuardKey, GuardKind, GuardOutcome, GuardRow, StoreError},
};

/// Time for the entries to be read before the node accepts clients.
pub const GUARD_LOAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause after a failed read before the node accepts clients.
const LOAD_RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Step back of the store's clock after which all entries are read again.
const CLOCK_STEP_MS: u64 = 1_000;

/// Longest time for which a change waits until it is in force on this node and until the others have confirmed it.
const APPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// Part of the node that entries of some kinds concern.
///
/// All calls come one after the other. They may repeat what was applied before, and the caller may drop a call that waits:
/// the same rows follow again then. A handler must not change entries within a call, which would wait for its own end.
#[async_trait]
pub trait GuardHandler: Send + Sync {
    /// Returns whether the handler gets the entries of the kind.
    fn handles(&self, kind: GuardKind) -> bool;

    /// Notes that all entries follow again, and that those which do not until [`Self::caught_up`] no longer exist. Also
    /// called before the first ones.
    async fn restarted(&self) {}

    /// Applies changed entries, in the order of their versions; one without a value was removed. `now_ms` is the store's
    /// clock.
    async fn changed(&self, rows: &[GuardRow], now_ms: u64);

    /// Notes that all changes up to now were applied.
    async fn caught_up(&self, _now_ms: u64) {}

    /// Notes the store's clock each second, for entries that end; without the store, this node's clock goes on from the
    /// last time that the store showed. Not called before the first read.
    async fn time_passed(&self, _now_ms: u64) {}
}

/// Follower of the guard's entries, with the handlers of all kinds.
pub struct GuardEntries {
    follower: Follower,
    handlers: RwLock<Vec<Arc<dyn GuardHandler>>>,
    /// Store's clock as last read, and when.
    read_at: Mutex<Option<(u64, Instant)>>,
}

/// Outcome of a change of entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardChange {
    /// Answer of the store.
    pub outcome: GuardOutcome,
    /// Whether the change is in force on this node; otherwise it is once the store can be read.
    pub is_in_force: bool,
    /// Nodes that did not confirm; they find the change in the store.
    pub pending: Vec<String>,
}

impl Default for GuardEntries {
    fn default() -> Self {
        Self {
            follower: Follower::new(Some(GUARD_STALE_AFTER)),
            handlers: RwLock::default(),
            read_at: Mutex::default(),
        }
    }
}

impl GuardEntries {
    /// Adds a handler. It gets all entries with the next read.
    pub fn add_handler(&self, handler: Arc<dyn GuardHandler>) {
        self.handlers.write().push(handler);
        self.follower.read_all_again();
    }

    /// Requests a read now.
    pub fn ring(&self) {
        self.follower.ring();
    }

    /// Returns the store's clock, in ms since 1970: as last read, and the time since then. Before the first read, it is the
    /// clock of this node.
    pub fn now_ms(&self) -> u64 {
        self.store_ms().unwrap_or_else(wall_ms)
    }

    fn store_ms(&self) -> Option<u64> {
        let (store_ms, at) = (*self.read_at.lock())?;
        Some(store_ms.saturating_add(u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX)))
    }

    fn handlers(&self) -> Vec<Arc<dyn GuardHandler>> {
        self.handlers.read().clone()
    }
}

/// Entries in the store, which are given to the handlers of a node.
struct StoredEntries<'a>(&'a Cluster);

#[async_trait]
impl Followed for StoredEntries<'_> {
    type Row = GuardRow;

    async fn read(&self, after: u64) -> Result<FollowedPage<GuardRow>, StoreError> {
        // Before the call, so that its time does not look like a step of the clock.
        let before_ms = self.0.guard.store_ms();
        let page = guard_page(&*self.0.ports.store, after).await?;
        if let Some(now_ms) = page.now_ms {
            // What was taken for ended may not have.
            if before_ms.is_some_and(|before_ms| now_ms.saturating_add(CLOCK_STEP_MS) < before_ms) {
                self.0.guard.follower.read_all_again();
            }
            *self.0.guard.read_at.lock() = Some((now_ms, Instant::now()));
        }
        Ok(page)
    }

    async fn restarted(&self) {
        for handler in self.0.guard.handlers() {
            handler.restarted().await;
        }
    }

    async fn changed(&self, rows: Vec<GuardRow>, _: Option<u64>) {
        let now_ms = self.0.guard.now_ms();
        for handler in self.0.guard.handlers() {
            let handled = rows.iter().filter(|row| handler.handles(row.key.kind()));
            let handled: Vec<GuardRow> = handled.cloned().collect();
            if !handled.is_empty() {
                handler.changed(&handled, now_ms).await;
            }
        }
    }

    async fn caught_up(&self, _: Option<u64>) {
        let now_ms = self.0.guard.now_ms();
        for handler in self.0.guard.handlers() {
            handler.caught_up(now_ms).await;
        }
    }
}

impl Cluster {
    /// Reads all entries of the guard before the node accepts clients. Returns false if the store did not show all of them
    /// within [`GUARD_LOAD_TIMEOUT`]: the node then starts with those that it has read, and the others follow.
    pub async fn load_guard(&self) -> bool {
        let load = async {
            while let Err(error) = self.guard.follower.catch_up(&StoredEntries(self)).await {
                log_limited!(warn, %error, "entries of the guard not read yet; the node waits for a while");
                time::sleep(LOAD_RETRY_INTERVAL).await;
            }
        };
        let is_loaded = time::timeout(GUARD_LOAD_TIMEOUT, load).await.is_ok();
        if !is_loaded {
            tracing::error!("entries of the guard not read; the node starts without those that are missing");
        }
        is_loaded
    }

    /// Reads the entries of the guard that this node does not know yet, so that they are as new as the call.
    ///
    /// # Errors
    /// The store was not read to its end.
    pub async fn read_guard(&self) -> Result<(), StoreError> {
        self.guard.follower.catch_up(&StoredEntries(self)).await
    }

    /// Stores entries, puts them in force on this node and notifies the others.
    ///
    /// # Errors
    /// Nothing changed, unless the store's answer was lost.
    pub async fn put_guard(&self, batch: &GuardBatch) -> Result<GuardChange, StoreError> {
        Ok(self.publish_guard(self.ports.store.put_guard(batch).await?).await)
    }

    /// Removes an entry, if it has the `expected` version or that is `None`; puts that in force on this node and notifies
    /// the others.
    ///
    /// # Errors
    /// Nothing changed, unless the store's answer was lost.
    pub async fn remove_guard(
        &self,
        key: &GuardKey,
        expected: Option<u64>,
    ) -> Result<GuardChange, StoreError> {
        Ok(self.publish_guard(self.ports.store.remove_guard(key, expected).await?).await)
    }

    async fn publish_guard(&self, outcome: GuardOutcome) -> GuardChange {
        let GuardOutcome::Stored(_) = outcome else {
            return GuardChange { outcome, is_in_force: true, pending: Vec::new() };
        };
        let here = async {
            let entries = StoredEntries(self);
            // A store that fell back shows a lower version than was read, so the version does not tell.
            let read = self.guard.follower.catch_up(&entries);
            let is_in_force = matches!(time::timeout(APPLY_TIMEOUT, read).await, Ok(Ok(())));
            if !is_in_force {
                self.guard.ring();
            }
            is_in_force
        };
        let others = self.peers.others();
        let notify = join_all(others.iter().map(async |row| {
            let sent =
                self.ports.link.send_best_effort(&row.info.boot, vec![BestEffortMessage::GuardChanged]);
            let is_sent = matches!(time::timeout(APPLY_TIMEOUT, sent).await, Ok(Ok(())));
            (!is_sent).then(|| row.info.boot.node.to_string())
        }));
        let (is_in_force, pending) = tokio::join!(here, notify);
        GuardChange { outcome, is_in_force, pending: pending.into_iter().flatten().collect() }
    }
}

/// Follows the entries of the guard until the node stops.
pub(crate) async fn follow_guard(cluster: Arc<Cluster>, metrics: Metrics) {
    loop {
        if let Err(error) = cluster.guard.follower.catch_up(&StoredEntries(&cluster)).await {
            metrics.guard_read_errors.increment(1);
            log_limited!(warn, %error, "entries of the guard not read; the known ones stay in force");
        }
        if let Some(now_ms) = cluster.guard.store_ms() {
            for handler in cluster.guard.handlers() {
                handler.time_passed(now_ms).await;
            }
        }
        cluster.guard.follower.due().await;
    }
}

#[cfg(test)]
mod tests;
