//! Seek: the first seq whose time is not before a given one.
//!
//! Seqs decide the order, times are for people: shards stamp their messages before the log puts them in order, so times
//! may fall a little from one seq to the next. A search that took them for sorted would skip messages (flaw S17).

use tidegate_protocol::id::ConversationId;

use super::{
    history::{Refusal, away},
    unread::View,
};
use crate::store::{Direction, PageQuery, Store, StoredRow};

/// How far a time may lie before that of a lower seq, in ms; it is some milliseconds unless a clock is set back.
const SLACK_MS: u64 = 2_000;

/// Rows looked at in a turn, about the most bytes of them, and the most turns: a page that begins early skips nothing.
const STEP: usize = 256;
const STEP_BYTES: usize = 1 << 20;
const TURNS_MAX: usize = 64;

/// The first seq that the user may see and whose time is not before `time`, ms since 1970; above [`View::max`] when
/// there is none.
///
/// # Errors
/// When the store can't be read.
pub(crate) async fn since(
    store: &dyn Store,
    conversation: &ConversationId,
    view: &View,
    time: u64,
) -> Result<u64, Refusal> {
    let read = async |after: u64, limit: usize| -> Result<Vec<StoredRow>, Refusal> {
        let query = PageQuery { cursor: after, direction: Direction::Forward, limit, max_bytes: STEP_BYTES };
        Ok(store.page(conversation, query).await.map_err(away)?.rows)
    };
    // All before the place that this finds are older than `time`, whatever is disordered within the slack.
    let early = time.saturating_sub(SLACK_MS);
    let (mut low, mut high) = (view.min(), view.max().saturating_add(1));
    while low < high {
        let middle = low + (high - low) / 2;
        match read(middle - 1, 1).await?.first() {
            Some(found) if found.row.time < early => low = found.row.seq + 1,
            _ => high = middle,
        }
    }
    for _ in 0..TURNS_MAX {
        let rows = read(low - 1, STEP).await?;
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
