//! Figures of a node that its console shows: a row of values each second, counts of the codes given to clients, and
//! counts of the clients that moved between nodes. They are kept for 15 minutes, and peers read them over the link.

use parking_lot::Mutex;

mod codes;
mod flows;
mod rows;

pub use self::{
    codes::{CODES_EVERY_MS, CODES_ROWS_MAX, CodeCounts, CodePeriods, CodesRow},
    flows::{FLOWS_EVERY_MS, FLOWS_KEEP_MS, FLOWS_PER_ROW_MAX, FLOWS_ROWS_MAX, Flow, Flows, FlowsRow},
    rows::RowRing,
};

/// Rows of values that are kept: 15 minutes.
pub const STATS_ROWS_MAX: usize = 900;

/// Approximate limit on the bytes of a page. A page that exceeds it lacks its oldest rows.
const PAGE_BYTES_MAX: usize = 1 << 20;

/// Values of one second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatsRow {
    /// End of the second, in ms since 1970 by the node's clock.
    pub at_ms: u64,
    /// Values, in the order of their names.
    pub values: Vec<u64>,
}

/// Query for the figures of a node; kinds without a position are omitted from the page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FiguresQuery {
    /// Number of the first wanted row of values.
    pub stats_from: Option<u64>,
    /// Number of the first wanted row of codes.
    pub codes_from: Option<u64>,
    /// Time after which rows of flows are wanted, in ms since 1970.
    pub flows_after_ms: Option<u64>,
}

/// Figures of a node; rows are ordered by time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FiguresPage {
    /// Time of the page by the node's clock, in ms since 1970. Seconds that ended before it are complete.
    pub now_ms: u64,
    /// Rows of values.
    pub stats: Vec<StatsRow>,
    /// Number of the next row of values.
    pub stats_next: u64,
    /// Rows of codes.
    pub codes: Vec<CodesRow>,
    /// Number of the next row of codes.
    pub codes_next: u64,
    /// Rows of flows.
    pub flows: Vec<FlowsRow>,
}

/// Figures that a node keeps.
pub struct Figures {
    stats: Mutex<RowRing<StatsRow>>,
    codes: Mutex<RowRing<CodesRow>>,
    /// Clients that moved to this node, or left it.
    pub flows: Flows,
}

impl Default for Figures {
    fn default() -> Self {
        Self {
            stats: Mutex::new(RowRing::new(STATS_ROWS_MAX)),
            codes: Mutex::new(RowRing::new(CODES_ROWS_MAX)),
            flows: Flows::default(),
        }
    }
}

impl Figures {
    /// Adds the row of values of a second.
    pub fn push_stats(&self, row: StatsRow) {
        self.stats.lock().push(row);
    }

    /// Adds the row of codes of a period.
    pub fn push_codes(&self, row: CodesRow) {
        self.codes.lock().push(row);
    }

    /// Returns the queried figures; the newest of them, if they exceed the size of a page.
    pub fn page(&self, query: FiguresQuery) -> FiguresPage {
        let mut left = PAGE_BYTES_MAX;
        let (mut stats, mut codes) = ((Vec::new(), 0), (Vec::new(), 0));
        if let Some(from) = query.stats_from {
            let ring = self.stats.lock();
            stats = (newest(ring.from(from), &mut left, |row| row.values.len()), ring.next());
        }
        if let Some(from) = query.codes_from {
            let ring = self.codes.lock();
            codes = (newest(ring.from(from), &mut left, |row| row.counts.len()), ring.next());
        }
        let (now_ms, flows) = self.flows.complete(query.flows_after_ms);
        let flows = newest(flows.iter(), &mut left, FlowsRow::fields);
        FiguresPage {
            now_ms,
            stats: stats.0,
            stats_next: stats.1,
            codes: codes.0,
            codes_next: codes.1,
            flows,
        }
    }
}

/// Returns the newest rows that fit into the bytes that are `left`, oldest first. A row's size is estimated by the
/// number of its `fields`.
fn newest<'a, T: Clone + 'a>(
    rows: impl DoubleEndedIterator<Item = &'a T>,
    left: &mut usize,
    fields: impl Fn(&T) -> usize,
) -> Vec<T> {
    let fits = |row: &&T| {
        let bytes = 16 * (1 + fields(row));
        let fits = bytes <= *left;
        *left = if fits { *left - bytes } else { 0 };
        fits
    };
    let mut rows: Vec<T> = rows.rev().take_while(fits).cloned().collect();
    rows.reverse();
    rows
}

#[cfg(test)]
mod tests;
