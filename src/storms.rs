//! Storms of groups on this node: each owner of a partition counts the messages that it accepts, in a [`StormTable`], and
//! the [`StormBoard`] lists the tables for queries. The rule of counting is in [`tidegate_protocol::machine::storm`].
//!
//! [`StormEntries`] has the storms in force on all nodes, whose slow mode [`SlowModes`] enforces here.
//!
//! Nothing here is awaited by the owner. A table is locked for as long as a batch is counted, or a query reads it.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tidegate_protocol::{
    id::ConversationId,
    machine::storm::{StormAction, StormPhase, StormRule},
};

use crate::{budget::CacheBudget, events::Events, live::Live, metrics::Metrics};

mod in_force;
mod mirror;
mod rooms;
mod rules;
mod slow;
mod table;
#[cfg(test)]
mod tests;
mod watches;

pub use in_force::{ActiveStorm, StormEntries, StormEntry};
pub use mirror::MirrorQueue;
pub use rooms::RoomStorms;
pub use rules::{GroupStormRule, STORM_THRESHOLD, STORM_WINDOW_MS, StormRules};
pub use slow::{SlowAdmission, SlowMessage, SlowModes};
pub use table::StormTable;
pub use watches::GroupPast;

/// Most storms of a page.
pub const STORMS_PER_PAGE_MAX: usize = 1_000;

/// Rule in force unless it is configured.
const WINDOW_DEFAULT: Duration = Duration::from_secs(60);
const THRESHOLD_DEFAULT: u32 = 100;
const BYTES_DEFAULT: u64 = 64 << 20;

/// Threshold of live rooms unless it is configured: half of what the default rate admits in the default window.
const ROOM_THRESHOLD_DEFAULT: u32 = 6_000;

/// Query for the storms of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StormsQuery {
    /// Group whose watch is wanted, whether there is a storm or not; `None` for all storms.
    pub group: Option<ConversationId>,
}

/// Storms of a node, those with the most messages first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StormsPage {
    /// At most [`STORMS_PER_PAGE_MAX`] storms, or the watch of the group that the query names.
    pub storms: Vec<StormView>,
    /// Number of all storms that count.
    pub total: u64,
}

/// Watch of a group, as a query shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StormView {
    /// Group.
    pub conversation: ConversationId,
    /// Phase of the watch.
    pub phase: StormPhase,
    /// Messages in the window; a lower bound while the phase is unknown.
    pub count: u32,
    /// Largest number of messages that is no storm.
    pub threshold: u32,
    /// Length of the window, in ms.
    pub window_ms: u64,
    /// Storm, if there is one.
    pub storm: Option<StormDetails>,
}

/// Storm of a [`StormView`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StormDetails {
    /// Position of the message that started the storm.
    pub seq: u64,
    /// Receive time of that message, in ms.
    pub since_ms: u64,
    /// Largest count so far.
    pub peak: u32,
    /// Messages by second, for a query that names the group.
    pub profile: Option<StormParts>,
}

/// Messages of a storm by parts of equal length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StormParts {
    /// Start of the first part, in ms of the wall clock.
    pub start_ms: u64,
    /// Length of a part, in ms.
    pub part_ms: u64,
    /// Messages of each part.
    pub counts: Vec<u32>,
}

/// Tables of a node's owners, with the rules and the memory that they share, and the storms in force on all nodes.
pub struct StormBoard {
    rules: Arc<Live<StormRules>>,
    /// Threshold of live rooms, in the window of the rules; 0 if they are not counted.
    room_threshold: Arc<AtomicU32>,
    /// Locked while the rules change.
    changing: Mutex<()>,
    entries: Arc<StormEntries>,
    budget: Arc<CacheBudget>,
    /// Queue of the mirror of the windows; `None` unless it is configured.
    mirror: Option<Arc<MirrorQueue>>,
    tables: Mutex<HashMap<u32, Weak<StormTable>>>,
    rooms: Mutex<Weak<RoomStorms>>,
}

/// Board with the default rule.
impl Default for StormBoard {
    fn default() -> Self {
        Self::new(StormRule::new(THRESHOLD_DEFAULT, WINDOW_DEFAULT), BYTES_DEFAULT)
    }
}

impl StormBoard {
    /// Creates a board without tables, whose watches use at most `bytes_max` together.
    pub fn new(rule: StormRule, bytes_max: u64) -> Self {
        let budget = Arc::new(CacheBudget::new(bytes_max, bytes_max));
        let rules = Arc::new(Live::new(StormRules::new(rule, None)));
        let (changing, entries) = (Mutex::default(), Arc::default());
        let (tables, rooms) = (Mutex::default(), Mutex::default());
        let room_threshold = Arc::new(AtomicU32::new(ROOM_THRESHOLD_DEFAULT));
        Self { rules, room_threshold, changing, entries, budget, mirror: None, tables, rooms }
    }

    /// Queues the counted messages for the mirror of the windows, which a task must write.
    #[must_use]
    pub fn with_mirror(self, metrics: Metrics) -> Self {
        Self { mirror: Some(Arc::new(MirrorQueue::new(&self.rules, metrics))), ..self }
    }

    /// Returns the queue of the mirror; `None` unless there is one.
    pub fn mirror(&self) -> Option<&Arc<MirrorQueue>> {
        self.mirror.as_ref()
    }

    /// Replaces the rule and the action of groups without ones of their own. A longer window counts from now on what it
    /// adds. A storm keeps the action with which it began.
    pub fn set_rule(&self, rule: StormRule, action: Option<StormAction>) {
        let _changing = self.changing.lock();
        self.rules.change(|rules| (rules.default, rules.action) = (rule, action));
    }

    /// Replaces the threshold of live rooms; with 0 they are not counted.
    pub fn set_room_threshold(&self, threshold: u32) {
        self.room_threshold.store(threshold, Ordering::Relaxed);
    }

    /// Changes the rules of single groups: `None` removes one.
    pub fn set_group_rules(&self, changes: Vec<(ConversationId, Option<GroupStormRule>)>) {
        let _changing = self.changing.lock();
        self.rules.change(|rules| {
            for (group, rule) in changes {
                match rule {
                    Some(rule) => drop(rules.groups.insert(group, rule)),
                    None => drop(rules.groups.remove(&group)),
                }
            }
        });
    }

    /// Removes the rules of all groups that are not among these, of which no other has one.
    pub fn retain_group_rules(&self, has_rule: impl Fn(&ConversationId) -> bool) {
        let _changing = self.changing.lock();
        if self.rules.get().groups.keys().any(|group| !has_rule(group)) {
            self.rules.change(|rules| rules.groups.retain(|group, _| has_rule(group)));
        }
    }

    /// Returns the rules in force.
    pub fn rules(&self) -> Arc<StormRules> {
        self.rules.get()
    }

    /// Returns the storms in force on all nodes, as far as this node has read them.
    pub fn entries(&self) -> &Arc<StormEntries> {
        &self.entries
    }

    /// Returns the memory of all watches.
    pub fn bytes(&self) -> usize {
        self.budget.used()
    }

    /// Creates the table of an owner, which is listed until it is dropped.
    pub fn open(&self, partition: u32, events: &Arc<Events>, metrics: &Metrics) -> Arc<StormTable> {
        let (rules, entries) = (Arc::clone(&self.rules), Arc::clone(&self.entries));
        let table = StormTable::new(rules, entries, &self.budget, Arc::clone(events), metrics.clone());
        let table = table.mirrored(self.mirror.clone());
        let table = Arc::new(table);
        let mut tables = self.tables.lock();
        tables.retain(|_, table| table.strong_count() > 0);
        tables.insert(partition, Arc::downgrade(&table));
        table
    }

    /// Creates the storms of rooms, which are listed until they are dropped.
    pub fn open_rooms(
        &self,
        events: &Arc<Events>,
        metrics: &Metrics,
        wall_ms: fn() -> u64,
    ) -> Arc<RoomStorms> {
        let rooms = Arc::new(RoomStorms::new(self, events, metrics, wall_ms));
        *self.rooms.lock() = Arc::downgrade(&rooms);
        rooms
    }

    /// Returns the view of a group that no owner watches, because there was no message for two windows.
    pub fn unwatched(&self, conversation: ConversationId) -> StormView {
        let rule = self.rules.get().of(&conversation);
        let window_ms = u64::try_from(rule.window().as_millis()).unwrap_or(u64::MAX);
        let (phase, threshold) = (StormPhase::Quiet, rule.threshold());
        StormView { conversation, phase, count: 0, threshold, window_ms, storm: None }
    }

    /// Returns the queried storms.
    pub fn page(&self, query: &StormsQuery) -> StormsPage {
        let tables: Vec<Arc<StormTable>> = self.tables.lock().values().filter_map(Weak::upgrade).collect();
        let rooms = self.rooms.lock().upgrade();
        if let Some(group) = &query.group {
            let mut storms: Vec<_> = tables.iter().filter_map(|table| table.view(group)).collect();
            storms.extend(rooms.and_then(|rooms| rooms.view(group)));
            return StormsPage { total: storms.len() as u64, storms };
        }
        let mut storms: Vec<StormView> = tables.iter().flat_map(|table| table.storms()).collect();
        storms.extend(rooms.into_iter().flat_map(|rooms| rooms.storms()));
        let total = storms.len() as u64;
        sort(&mut storms);
        StormsPage { storms, total }
    }
}

/// Sorts storms by their counts, and keeps those of a page. Of a storm that several nodes know, the largest count is kept.
pub fn sort(storms: &mut Vec<StormView>) {
    storms.sort_by(|a, b| a.conversation.cmp(&b.conversation).then_with(|| b.count.cmp(&a.count)));
    storms.dedup_by(|next, first| next.conversation == first.conversation);
    storms.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.conversation.cmp(&b.conversation)));
    storms.truncate(STORMS_PER_PAGE_MAX);
}
