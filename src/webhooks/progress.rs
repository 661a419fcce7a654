//! Progress of an endpoint over all partitions, as the store has it: any node can tell.

use tidegate_protocol::machine::webhook::{ParkedConversation, WebhookAside, WebhookCursor};

use super::{
    endpoint::{StartForm, StoredEndpoint},
    plan::WebhookStart,
    start::number_before,
};
use crate::store::{FeedLimits, FeedPosition, FeedRead, Store, StoreError};

/// Most partitions whose next event is read for the lag.
const LAGS_MAX: usize = 16;

/// Limits of the read of one entry.
const ONE: FeedLimits = FeedLimits { entries: 1, bytes: 4_096 };

/// Progress of an endpoint in the feed.
#[derive(Clone, Debug, Default)]
pub struct EndpointProgress {
    /// Entries of the feed behind which it is, of all types and conversations.
    pub behind: u64,
    /// Conversations that are sent apart.
    pub parked: Vec<ParkedConversation>,
    /// Events that were set aside, each with the last order that was carried out in its partition.
    pub aside: Vec<(WebhookAside, u64)>,
    /// Whether the receiver has refused all events, with status 410.
    pub is_disabled: bool,
    /// Order up to which all owners have carried them out.
    pub orders_done: u64,
    /// Partitions that it has not finished, each with the number after which it goes on.
    open: Vec<(u32, u64)>,
}

impl EndpointProgress {
    /// Reads the progress of an endpoint.
    ///
    /// # Errors
    /// The store can't be read.
    pub async fn read(store: &dyn Store, id: &str, stored: &StoredEndpoint) -> Result<Self, StoreError> {
        let Some(consumer) = stored.consumer(id) else { return Ok(Self::default()) };
        let positions = store.feed_positions().await?;
        let mut it = Self { orders_done: u64::MAX, ..Self::default() };
        let mut cursors = Vec::new();
        for cursor in store.cursors(&consumer).await? {
            // What a newer node has written shows only there.
            let Ok(decoded) = WebhookCursor::decode(cursor.bytes()) else { continue };
            cursors.push((cursor.partition(), decoded));
        }
        for position in &positions {
            let found = cursors.iter().find(|(partition, _)| *partition == position.partition);
            let done = match found {
                Some((_, cursor)) => cursor.lowest(),
                None => start(stored, position),
            };
            it.orders_done = it.orders_done.min(found.map_or(0, |(_, cursor)| cursor.last_order));
            if done < position.newest {
                it.behind += position.newest - done;
                it.open.push((position.partition, done));
            }
        }
        if positions.is_empty() {
            it.orders_done = 0;
        }
        for (_, cursor) in cursors {
            it.is_disabled |= cursor.is_disabled;
            it.parked.extend(cursor.parked);
            let last = cursor.last_order;
            it.aside.extend(cursor.aside.into_iter().map(|aside| (aside, last)));
        }
        Ok(it)
    }

    /// Returns how many entries of the feed that it has not passed a replay from there would leave out.
    ///
    /// # Errors
    /// The store can't be read.
    pub async fn left_out(&self, store: &dyn Store, start: &WebhookStart) -> Result<u64, StoreError> {
        let mut left_out = 0;
        for (partition, done) in &self.open {
            left_out += number_before(store, *partition, start).await?.saturating_sub(*done);
        }
        Ok(left_out)
    }

    /// Returns the receive time of the oldest event that it has not passed, in ms since 1970; `None` if it has passed all.
    ///
    /// # Errors
    /// The store can't be read.
    pub async fn oldest_ms(&self, store: &dyn Store) -> Result<Option<u64>, StoreError> {
        let mut oldest = None;
        for (partition, after) in self.open.iter().take(LAGS_MAX) {
            let mut after = *after;
            if let FeedRead::Missing(numbers) = store.read_feed(*partition, after, ONE).await? {
                after = *numbers.end();
            }
            if let FeedRead::Page(page) = store.read_feed(*partition, after, ONE).await? {
                oldest = page.entries.first().map(|entry| entry.time).into_iter().chain(oldest).min();
            }
        }
        Ok(oldest)
    }
}

/// Returns the number behind which an endpoint starts in a partition that it has no cursor of. Of a start by time, it is that
/// of the whole feed.
fn start(stored: &StoredEndpoint, position: &FeedPosition) -> u64 {
    match stored.form.from {
        StartForm::Now if !stored.starts.is_empty() => {
            stored.starts.get(&position.partition).copied().unwrap_or(0)
        }
        StartForm::Now | StartForm::Oldest | StartForm::At(_) => position.oldest.saturating_sub(1),
    }
}
