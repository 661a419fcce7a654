//! Follower of a versioned collection in the store: reads what has changed since the last read, in pages.
//!
//! It reads each [`FOLLOW_INTERVAL`], and at once when rung. A page is given on before the next one is read, so memory
//! is bounded by a page. A store that fell back to an older state shows a lower version than before, and all is read
//! again. A fall-back stays unnoticed if as many changes as were lost follow it before the next read.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use tokio::{
    sync::{Mutex, Notify},
    time::{Instant, timeout},
};

use crate::{
    log_limit::log_limited,
    store::{GUARD_PAGE_MAX, GuardRow, Store, StoreError},
};

/// Interval at which the store is read although nobody rings.
pub const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);

/// Age of the last complete read of the guard's entries after which all are read again: an entry whose end was brought
/// forward may have ended since, and has no row any more. Far below [`crate::store::TOMBSTONE_MS`], for which rows tell of
/// removed entries.
pub const GUARD_STALE_AFTER: Duration = Duration::from_secs(10);

/// Rows above a version, by rising version.
#[derive(Debug)]
pub struct FollowedPage<T> {
    /// Newest version in the snapshot of the page.
    pub newest: u64,
    /// Version up to which the page has all rows.
    pub read_to: u64,
    /// Store's clock, in ms since 1970; `None` if the collection has none.
    pub now_ms: Option<u64>,
    /// Rows.
    pub rows: Vec<T>,
}

/// Collection to follow, and what follows from its rows.
#[async_trait]
pub trait Followed: Send + Sync {
    /// Row of the collection.
    type Row: Send;

    /// Reads a page of rows with a version above `after`.
    async fn read(&self, after: u64) -> Result<FollowedPage<Self::Row>, StoreError>;

    /// Notes that all rows follow again, and that those which do not until [`Self::caught_up`] no longer exist. Also
    /// called before the first page.
    async fn restarted(&self) {}

    /// Applies the rows of a page, in their order.
    async fn changed(&self, rows: Vec<Self::Row>, now_ms: Option<u64>);

    /// Notes that all rows of the store's newest version were applied.
    async fn caught_up(&self, _now_ms: Option<u64>) {}
}

/// Place of a reader in a collection.
pub struct Follower {
    progress: Mutex<Progress>,
    bell: Notify,
    stale_after: Option<Duration>,
    /// Whether the next read begins from the start.
    reads_all: AtomicBool,
}

#[derive(Default)]
struct Progress {
    read_to: u64,
    /// Newest version that the store has shown.
    newest: u64,
    /// Begin of the last complete read, or of the present one if it began from the start; `None` before the first read.
    fresh_at: Option<Instant>,
}

impl Follower {
    /// Creates a follower that has read nothing. It reads all again after `stale_after` without a complete read.
    pub fn new(stale_after: Option<Duration>) -> Self {
        Self {
            progress: Mutex::default(),
            bell: Notify::new(),
            stale_after,
            reads_all: AtomicBool::new(false),
        }
    }

    /// Requests a read now.
    pub fn ring(&self) {
        self.bell.notify_one();
    }

    /// Makes the next read begin from the start.
    pub fn read_all_again(&self) {
        self.reads_all.store(true, Ordering::Release);
    }

    /// Waits until a read is due.
    pub async fn due(&self) {
        timeout(FOLLOW_INTERVAL, self.bell.notified()).await.ok();
    }

    /// Reads all that has changed since the last call.
    ///
    /// # Errors
    /// The store was not read to its end; the next call goes on from the last page.
    pub async fn catch_up<F: Followed + ?Sized>(&self, followed: &F) -> Result<(), StoreError> {
        self.read(&mut *self.progress.lock().await, followed).await
    }

    async fn read<F: Followed + ?Sized>(
        &self,
        progress: &mut Progress,
        followed: &F,
    ) -> Result<(), StoreError> {
        let is_fresh = |at: Instant| self.stale_after.is_none_or(|limit| at.elapsed() <= limit);
        if self.reads_all.swap(false, Ordering::AcqRel) {
            progress.fresh_at = None;
        }
        if !progress.fresh_at.is_some_and(is_fresh) {
            restart(progress, followed).await;
        }
        loop {
            let read_at = Instant::now();
            let page = followed.read(progress.read_to).await?;
            if page.newest < progress.newest {
                restart(progress, followed).await;
                continue;
            }
            progress.newest = page.newest;
            if !page.rows.is_empty() {
                followed.changed(page.rows, page.now_ms).await;
            }
            let is_last = page.read_to >= page.newest;
            if !is_last && page.read_to <= progress.read_to {
                return Err(StoreError::Damaged("a page ends where it began".to_owned()));
            }
            progress.read_to = page.read_to.min(page.newest);
            if is_last {
                progress.fresh_at = Some(read_at);
                followed.caught_up(page.now_ms).await;
                return Ok(());
            }
        }
    }

    /// Reads whenever a read is due; runs until it is dropped. Errors are logged, and the next read goes on.
    pub async fn follow<F: Followed + ?Sized>(&self, name: &str, followed: &F) {
        loop {
            if let Err(error) = self.catch_up(followed).await {
                log_limited!(warn, collection = name, %error, "changes not read; the known ones stay in force");
            }
            self.due().await;
        }
    }
}

async fn restart<F: Followed + ?Sized>(progress: &mut Progress, followed: &F) {
    // In this order: a caller that gives up in between begins again.
    let fresh_at = Some(Instant::now());
    followed.restarted().await;
    *progress = Progress { fresh_at, ..Progress::default() };
}

/// Reads a page of the guard's entries, for [`Followed::read`].
///
/// # Errors
/// The store can't be read.
pub async fn guard_page(store: &dyn Store, after: u64) -> Result<FollowedPage<GuardRow>, StoreError> {
    let page = store.guard_since(after, GUARD_PAGE_MAX).await?;
    let (newest, read_to, now_ms) = (page.newest, page.read_to, Some(page.now_ms));
    Ok(FollowedPage { newest, read_to, now_ms, rows: page.rows })
}

#[cfg(test)]
mod tests;
