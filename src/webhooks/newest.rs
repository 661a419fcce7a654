//! Newest numbers of the feeds, read once for all endpoints of a node.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Mutex,
    time::{Instant, sleep_until},
};

use crate::store::{FeedPosition, Store, StoreError};

/// Shortest time between two reads.
pub(super) const NEWEST_INTERVAL: Duration = Duration::from_millis(20);

/// Positions of the feeds: of callers that want them at the same time, one reads for all.
#[derive(Default)]
pub(super) struct NewestNumbers {
    /// Reads that have begun.
    begun: AtomicU64,
    last: Mutex<Option<NewestRead>>,
}

struct NewestRead {
    number: u64,
    began: Instant,
    positions: Arc<Vec<FeedPosition>>,
}

impl NewestNumbers {
    /// Returns a mark of this moment, for [`Self::after`].
    pub(super) fn mark(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// Returns the positions as a read found them that began after the mark. Reads begin at least [`NEWEST_INTERVAL`] apart.
    pub(super) async fn after(
        &self,
        mark: u64,
        store: &dyn Store,
    ) -> Result<Arc<Vec<FeedPosition>>, StoreError> {
        let mut last = self.last.lock().await;
        if let Some(read) = &*last {
            if read.number > mark {
                return Ok(Arc::clone(&read.positions));
            }
            sleep_until(read.began + NEWEST_INTERVAL).await;
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let began = Instant::now();
        let positions = Arc::new(store.feed_positions().await?);
        *last = Some(NewestRead { number, began, positions: Arc::clone(&positions) });
        Ok(positions)
    }
}
