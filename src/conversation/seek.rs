//! Seek: finds the first seq whose time is not before a given time.
//!
//! Seqs decide the order, times are for display. Shards stamp messages before the log orders them, so times may
//! decrease slightly from one seq to the next. A search that relies on sorted times would skip messages (flaw S17).

use tidegate_protocol::id::ConversationId;

use super::{refusal::store_unavailable, unread::View};
use crate::{
    mail::Refusal,
    store::{Direction, PageQuery, Store, StoredRow},
};

/// Largest expected decrease of time from a lower seq to a higher one; usually
/// milliseconds, unless a clock is set back.
const TIME_SLACK_MS: u64 = 2_000;

/// Rows read per step of the scan.
const SCAN_PAGE_ROWS: usize = 256;

/// Approximate limit on the bytes of these rows.
const SCAN_PAGE_BYTES: usize = 1 << 20;

/// Most steps of the scan; after them the result may be too low, which skips nothing.
const SCAN_PAGES_MAX: usize = 64;

/// Returns the first seq that the user may see with a time of `time` (ms since 1970) or later;
/// above [`View::max`] if there is none.
///
/// # Errors
/// `STORE_UNAVAILABLE` if the store can't be read.
pub(crate) async fn since(
    store: &dyn Store,
    conversation: &ConversationId,
    view: &View,
    time: u64,
) -> Result<u64, Refusal> {
    let read = async |after: u64, limit: usize| -> Result<Vec<StoredRow>, Refusal> {
        let query =
            PageQuery { cursor: after, direction: Direction::Forward, limit, max_bytes: SCAN_PAGE_BYTES };
        Ok(store.page(conversation, query).await.map_err(store_unavailable)?.rows)
    };
    // The binary search uses an earlier time, so that entries out of order within the slack do not matter: all before
    // its result are older than `time`.
    let early = time.saturating_sub(TIME_SLACK_MS);
    let (mut low, mut high) = (view.min(), view.max().saturating_add(1));
    while low < high {
        let middle = low + (high - low) / 2;
        match read(middle - 1, 1).await?.first() {
            Some(found) if found.row.time < early => low = found.row.seq + 1,
            _ => high = middle,
        }
    }
    for _ in 0..SCAN_PAGES_MAX {
        let rows = read(low - 1, SCAN_PAGE_ROWS).await?;
        if let Some(found) = rows.iter().find(|found| found.row.time >= time) {
            return Ok(found.row.seq);
        }
        match rows.last() {
            Some(last) if last.row.seq < view.max() => low = last.row.seq + 1,
            _ => return Ok(view.max().saturating_add(1)),
        }
    }
    Ok(low)
}
