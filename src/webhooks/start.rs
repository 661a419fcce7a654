//! Where a delivery starts in the feed of a partition.

use super::plan::WebhookStart;
use crate::store::{FeedEntry, FeedLimits, FeedRead, Store, StoreError};

/// Limits of a read that wants one entry.
const ONE: FeedLimits = FeedLimits { entries: 1, bytes: 0 };

/// Returns the feed number behind which a delivery begins.
pub(crate) async fn number_before(
    store: &dyn Store,
    partition: u32,
    start: &WebhookStart,
) -> Result<u64, StoreError> {
    if *start == WebhookStart::Now {
        return store.feed_position(partition).await;
    }
    if let WebhookStart::After(numbers) = start {
        return Ok(numbers.get(&partition).copied().unwrap_or(0));
    }
    let positions = store.feed_positions().await?;
    let Some(position) = positions.into_iter().find(|it| it.partition == partition) else { return Ok(0) };
    let oldest = position.oldest.saturating_sub(1);
    match start {
        WebhookStart::At(time) => search(store, partition, oldest..position.newest, *time).await,
        _ => Ok(oldest),
    }
}

/// Returns the last number of the range before an entry of the time, or the end of the range. Reads about as many entries as
/// the range has binary digits.
async fn search(
    store: &dyn Store,
    partition: u32,
    range: std::ops::Range<u64>,
    time: u64,
) -> Result<u64, StoreError> {
    // All up to `low` are older, and all above `high` are not.
    let (mut low, mut high) = (range.start, range.end);
    while low < high {
        let middle = low + (high - low) / 2;
        match next_entry(store, partition, middle).await? {
            Some(entry) if entry.time < time && entry.number > low => low = entry.number,
            _ => high = middle,
        }
    }
    Ok(low)
}

/// Returns the first entry after the number that the feed has.
async fn next_entry(
    store: &dyn Store,
    partition: u32,
    mut after: u64,
) -> Result<Option<FeedEntry>, StoreError> {
    loop {
        match store.read_feed(partition, after, ONE).await? {
            FeedRead::Page(page) => return Ok(page.entries.into_iter().next()),
            FeedRead::Missing(numbers) => after = *numbers.end(),
            FeedRead::Ahead(_) => return Ok(None),
        }
    }
}
