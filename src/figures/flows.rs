//! Counts of the clients that moved: from another node to this one, from nowhere to this node, and from this node to
//! nowhere.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use tidegate_protocol::id::NodeId;

use crate::clock::wall_ms;

/// Length of a row, in ms.
pub const FLOWS_EVERY_MS: u64 = 1_000;

/// Time for which rows are kept, in ms.
pub const FLOWS_KEEP_MS: u64 = 900_000;

/// Rows that are kept.
pub const FLOWS_ROWS_MAX: usize = (FLOWS_KEEP_MS / FLOWS_EVERY_MS) as usize;

/// Pairs of nodes that are counted by name in each second.
const PAIRS_MAX: usize = 64;

/// Flows of a row at most: the named pairs, and those whose source is [`OTHER`] or nowhere.
pub const FLOWS_PER_ROW_MAX: usize = PAIRS_MAX + 4;

/// How far ahead of the clock a row may be, in ms.
const AHEAD_MAX_MS: u64 = 5_000;

/// Source under which further pairs are summed.
const OTHER: &str = "other";

/// Number of clients that moved between two nodes in a second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Node that the clients came from; `None` if they are new.
    pub from: Option<NodeId>,
    /// Node that the clients went to; `None` if they left.
    pub to: Option<NodeId>,
    /// Number of clients.
    pub count: u64,
}

/// Flows of one second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowsRow {
    /// Start of the second, in ms since 1970 by the node's clock.
    pub at_ms: u64,
    /// Flows; each pair of nodes occurs once.
    pub flows: Vec<Flow>,
}

impl FlowsRow {
    /// Returns the size of the row in units of 16 bytes.
    pub(super) fn fields(&self) -> usize {
        let text = |node: &Option<NodeId>| node.as_ref().map_or(0, |node| node.as_str().len());
        self.flows.iter().map(|flow| 1 + (text(&flow.from) + text(&flow.to)).div_ceil(16)).sum()
    }

    /// Adds to the flow between two nodes.
    fn add(&mut self, from: Option<&NodeId>, to: Option<&NodeId>, count: u64) {
        let is_pair = |flow: &&mut Flow| flow.from.as_ref() == from && flow.to.as_ref() == to;
        match self.flows.iter_mut().find(is_pair) {
            Some(flow) => flow.count = flow.count.saturating_add(count),
            None => self.flows.push(Flow { from: from.cloned(), to: to.cloned(), count }),
        }
    }

    /// Returns whether the pair is counted by name.
    fn has_room_for(&self, from: &NodeId, to: Option<&NodeId>) -> bool {
        let is_pair = |flow: &Flow| flow.from.as_ref() == Some(from) && flow.to.as_ref() == to;
        self.flows.len() < PAIRS_MAX || self.flows.iter().any(is_pair)
    }
}

/// Flows of the last 15 minutes; seconds in which no client moved have no row.
///
/// Logins take the lock, so a reader holds it only to share the rows, and filters and copies them afterwards.
#[derive(Debug, Default)]
pub struct Flows(Mutex<SharedRows>);

/// Rows in the order of their seconds. A clone shares them.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedRows {
    /// Rows that no longer change. Copied, as pointers, by the next second after a clone.
    past: Arc<VecDeque<Arc<FlowsRow>>>,
    /// Row that is counted in. Copied by the next count after a clone.
    newest: Option<Arc<FlowsRow>>,
}

impl SharedRows {
    /// Returns all rows, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &FlowsRow> {
        self.past.iter().chain(&self.newest).map(AsRef::as_ref)
    }

    /// Removes the rows of a clock that was far ahead.
    fn remove_after(&mut self, second: u64) {
        let past = Arc::make_mut(&mut self.past);
        past.extend(self.newest.take());
        past.retain(|row| row.at_ms <= second);
        self.newest = past.pop_back();
    }

    /// Begins the row of a second, and removes those that are too many or too old.
    fn begin(&mut self, second: u64) {
        let past = Arc::make_mut(&mut self.past);
        past.extend(self.newest.replace(Arc::new(FlowsRow { at_ms: second, flows: Vec::new() })));
        while past.len() >= FLOWS_ROWS_MAX
            || past.front().is_some_and(|row| row.at_ms + FLOWS_KEEP_MS <= second)
        {
            past.pop_front();
        }
    }
}

impl Flows {
    /// Counts a client that logged in to the node `to`. A client that was connected to the same node before has not
    /// moved.
    pub fn came(&self, from: Option<&NodeId>, to: &NodeId) {
        if from != Some(to) {
            self.count(wall_ms, from, Some(to));
        }
    }

    /// Counts a client that left the node `from`, and has no newer connection.
    pub fn left(&self, from: &NodeId) {
        self.count(wall_ms, Some(from), None);
    }

    /// Counts a client. The clock is read under the lock, so that no count enters a second that a reader has seen as
    /// complete.
    pub(super) fn count(&self, clock: impl Fn() -> u64, from: Option<&NodeId>, to: Option<&NodeId>) {
        let mut rows = self.0.lock();
        let second = clock() / FLOWS_EVERY_MS * FLOWS_EVERY_MS;
        // Seconds far ahead are those of a clock that was wrong.
        if rows.newest.as_ref().is_some_and(|row| row.at_ms > second + AHEAD_MAX_MS) {
            rows.remove_after(second);
        }
        // After the clock was set back a little, the newest row gets what comes next.
        if rows.newest.as_ref().is_none_or(|row| row.at_ms < second) {
            rows.begin(second);
        }
        let Some(row) = rows.newest.as_mut().map(Arc::make_mut) else { return };
        let other = NodeId::new(OTHER).ok();
        let from = match from {
            Some(from) if !row.has_room_for(from, to) => other.as_ref(),
            from => from,
        };
        row.add(from, to, 1);
    }

    /// Returns the time, and the complete rows of seconds after `after_ms`; none without it.
    pub(super) fn complete(&self, after_ms: Option<u64>) -> (u64, Vec<FlowsRow>) {
        self.complete_at(wall_ms, after_ms)
    }

    pub(super) fn complete_at(&self, clock: impl Fn() -> u64, after_ms: Option<u64>) -> (u64, Vec<FlowsRow>) {
        let (now_ms, rows) = self.shared_at(clock);
        let Some(after_ms) = after_ms else { return (now_ms, Vec::new()) };
        let kept = |row: &&FlowsRow| row.at_ms > after_ms && row.at_ms + FLOWS_KEEP_MS > now_ms;
        let is_complete = |row: &&FlowsRow| row.at_ms + FLOWS_EVERY_MS <= now_ms;
        (now_ms, rows.iter().filter(kept).filter(is_complete).cloned().collect())
    }

    /// Returns the time and the rows at that time.
    pub(super) fn shared_at(&self, clock: impl Fn() -> u64) -> (u64, SharedRows) {
        let rows = self.0.lock();
        (clock(), rows.clone())
    }
}
