//! Seek: finds the first seq whose time is not before a given time.
//!
//! Seqs decide the order, times are for display. Shards stamp messages before the log orders them, so times may
//! decrease slightly from one seq to the next. A search that relies on sorted times would skip messages (flaw S17).

use tidegate_protocol::id::ConversationId;

use super::{
    refusal::store_unavailable,
    time_search::{TimeSearch, search},
    unread::View,
};
use crate::{
    mail::Refusal,
    store::{ConversationSeq, Store},
};

/// Largest expected decrease of time from a lower seq to a higher one; usually
/// milliseconds, unless a clock is set back.
const TIME_SLACK_MS: u64 = 2_000;

/// Rows whose times are read per step of the scan.
const SCAN_ROWS: u64 = 1_024;

/// Most steps of the scan; after them the result may be too low, which skips nothing.
const SCAN_STEPS_MAX: usize = 4;

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
    // The search uses an earlier time, so that entries out of order within the slack do not matter: all before its
    // result are older than `time`.
    let early = time.saturating_sub(TIME_SLACK_MS);
    let (low, end) = (view.min(), view.max().saturating_add(1));
    let mut searches = [TimeSearch { conversation: conversation.clone(), low, high: end, time: early }];
    search(store, &mut searches).await?;
    let [TimeSearch { mut low, .. }] = searches;
    for _ in 0..SCAN_STEPS_MAX {
        if low >= end {
            return Ok(end);
        }
        let step = low..end.min(low.saturating_add(SCAN_ROWS));
        let next = step.end;
        let row = |seq| ConversationSeq { conversation: conversation.clone(), seq };
        let rows: Vec<ConversationSeq> = step.map(row).collect();
        let times = store.times(&rows).await.map_err(store_unavailable)?;
        let is_found = |found: &Option<u64>| found.is_some_and(|it| it >= time);
        if let Some(found) = times.iter().position(is_found).and_then(|nth| rows.get(nth)) {
            return Ok(found.seq);
        }
        low = next;
    }
    Ok(low)
}
