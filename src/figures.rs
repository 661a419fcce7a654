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

impl FiguresPage {
    /// Returns the approximate size of all rows.
    pub fn bytes(&self) -> usize {
        let stats = self.stats.iter().map(|row| row_bytes(row.values.len()));
        let codes = self.codes.iter().map(|row| row_bytes(row.counts.len()));
        stats.chain(codes).chain(self.flows.iter().map(|row| row_bytes(row.fields()))).sum()
    }
}

/// Returns the approximate size of a row.
const fn row_bytes(fields: usize) -> usize {
    16 * (1 + fields)
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

    /// Returns all rows of values and of codes, shared with this node.
    pub fn recent(&self) -> (RowRing<StatsRow>, RowRing<CodesRow>) {
        (self.stats.lock().clone(), self.codes.lock().clone())
    }

    /// Returns the queried figures; the newest of them, if they exceed the size of a page.
    pub fn page(&self, query: FiguresQuery) -> FiguresPage {
        let mut left = PAGE_BYTES_MAX;
        let (stats, codes) = self.recent();
        let stats_rows =
            query.stats_from.map(|from| newest(stats.from(from), &mut left, |row| row.values.len()));
        let codes_rows =
            query.codes_from.map(|from| newest(codes.from(from), &mut left, |row| row.counts.len()));
        let (now_ms, flows) = self.flows.complete(query.flows_after_ms);
        let flows = newest(flows.iter(), &mut left, FlowsRow::fields);
        FiguresPage {
            now_ms,
            stats_next: stats_rows.as_ref().map_or(0, |_| stats.next()),
            stats: stats_rows.unwrap_or_default(),
            codes_next: codes_rows.as_ref().map_or(0, |_| codes.next()),
            codes: codes_rows.unwrap_or_default(),
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
        let bytes = row_bytes(fields(row));
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
