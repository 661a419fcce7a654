//! Search by time: finds boundaries between old and young entries of several conversations, with few store calls.
//!
//! Each call reads the times of rows at several points of each range: five calls for a range of a million rows alone,
//! eight among 127 others.

use tidegate_protocol::id::ConversationId;

use super::refusal::store_unavailable;
use crate::{
    mail::Refusal,
    store::{ConversationSeq, Store},
};

/// Most rows whose times are read in one call.
const PROBES_MAX: usize = 1_024;

/// Most points of one range in one call.
const RANGE_PROBES_MAX: usize = 63;

/// Search for the first entry of a conversation that is not older than a time.
#[derive(Debug)]
pub(crate) struct TimeSearch {
    /// Conversation that is searched.
    pub(crate) conversation: ConversationId,
    /// First seq that may be the result: all before it are older. After the search, the result.
    pub(crate) low: u64,
    /// Seq after the last one that is searched; the result if all before it are older.
    pub(crate) high: u64,
    /// Time in ms since 1970; earlier entries are older.
    pub(crate) time: u64,
}

impl TimeSearch {
    /// Returns `most` points of the range, or all, evenly spaced and ascending.
    fn points(&self, most: usize) -> Vec<u64> {
        let left = self.high - self.low;
        let count = left.min(most as u64);
        let offset = |nth| u128::from(left) * u128::from(2 * nth + 1) / u128::from(2 * count);
        // Each offset is below `left`.
        (0..count).filter_map(|nth| Some(self.low + u64::try_from(offset(nth)).ok()?)).collect()
    }

    /// Narrows the range by the times at these points, one at least.
    fn narrow(&mut self, points: &[u64], times: &[Option<u64>]) {
        // Rows that retention removed meanwhile count as older than any other.
        let is_older = |time: &Option<u64>| time.is_none_or(|time| time < self.time);
        let first_young = times.iter().rposition(is_older).map_or(0, |nth| nth + 1);
        if let Some(young) = points.get(first_young) {
            self.high = *young;
        }
        if let Some(older) = first_young.checked_sub(1).and_then(|nth| points.get(nth)) {
            self.low = older + 1;
        }
    }
}

/// Completes the searches. Where a clock went back, a search may end on either side of that point.
///
/// # Errors
/// `STORE_UNAVAILABLE` if the store can't be read.
pub(crate) async fn search(store: &dyn Store, searches: &mut [TimeSearch]) -> Result<(), Refusal> {
    let mut open: Vec<&mut TimeSearch> = searches.iter_mut().filter(|it| it.low < it.high).collect();
    // Usually nothing is older, so the first entries decide.
    let mut points: Vec<Vec<u64>> = open.iter().map(|it| vec![it.low]).collect();
    while !open.is_empty() {
        let probe =
            |conversation: &ConversationId, seq| ConversationSeq { conversation: conversation.clone(), seq };
        let of_each = open.iter().zip(&points);
        let probes: Vec<ConversationSeq> =
            of_each.flat_map(|(it, points)| points.iter().map(|seq| probe(&it.conversation, *seq))).collect();
        let times = store.times(&probes).await.map_err(store_unavailable)?;
        let mut rest = &times[..];
        for (it, points) in open.iter_mut().zip(&points) {
            let (own, others) = rest.split_at(points.len().min(rest.len()));
            it.narrow(points, own);
            rest = others;
        }
        open.retain(|it| it.low < it.high);
        let most = (PROBES_MAX / open.len().max(1)).clamp(1, RANGE_PROBES_MAX);
        points = open.iter().map(|it| it.points(most)).collect();
    }
    Ok(())
}
