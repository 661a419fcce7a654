//! Storms of live rooms, which are counted where their messages are numbered.
//!
//! The nodes of a cluster share the window of a room in Redis, where one script numbers and counts. It decides when a
//! storm begins and ends, so each is reported by one node, and again only if that node did not acknowledge it. Messages
//! that a node numbers by itself, on a single node or while Redis is away, are counted by that node alone; away from
//! Redis, its share of the threshold is a storm.

use std::{
    collections::{BTreeMap, HashMap},
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures_util::stream::{self, StreamExt as _};
use parking_lot::Mutex;
use tidegate_protocol::{
    id::ConversationId,
    machine::storm::{StormEvent, StormPhase, StormProfile, StormReport, StormRule},
};
use tokio::time::{self, Instant, MissedTickBehavior};

use super::{StormBoard, StormDetails, StormRules, StormTable, StormView};
use crate::{
    events::Events,
    live::Live,
    metrics::Metrics,
    scratch::{Numbers, SharedStorm, SharedWindow, WindowChange},
};

/// Interval between looks for the end of storms.
const TICK: Duration = Duration::from_secs(1);

/// Most rooms whose shared storms a node follows; further ones end when a message of the room finds the end.
const ROOMS_FOLLOWED_MAX: usize = 1_000;

/// Most windows that a tick asks for at once.
const ASKS_MAX: usize = 64;

/// Time without the shared windows before this node counts by itself: a lost reply is no outage.
const AWAY_MIN: Duration = Duration::from_secs(3);

/// Storms of the rooms whose messages this node numbers.
pub struct RoomStorms {
    rules: Arc<Live<StormRules>>,
    /// Threshold of rooms; 0 if they are not counted.
    threshold: Arc<AtomicU32>,
    /// Rule of what this node counts by itself.
    own_rules: Arc<Live<StormRules>>,
    own: StormTable,
    shared: Mutex<SharedStorms>,
    wall_ms: fn() -> u64,
}

/// Storms that the shared windows have.
#[derive(Default)]
struct SharedStorms {
    /// Views of the storms, as of the last call.
    followed: BTreeMap<ConversationId, StormView>,
    /// First numbers of the storms whose start or end this node has reported. The gauge counts them.
    reported: HashMap<ConversationId, u64>,
    /// Whether there were shared windows at some time.
    is_used: bool,
    /// Time since which there are none.
    away_since: Option<Instant>,
}

impl RoomStorms {
    pub(super) fn new(
        board: &StormBoard,
        events: &Arc<Events>,
        metrics: &Metrics,
        wall_ms: fn() -> u64,
    ) -> Self {
        let (rules, threshold) = (Arc::clone(&board.rules), Arc::clone(&board.room_threshold));
        let own_rules = Arc::new(Live::new(StormRules::new(rules.get().default, None)));
        let own = StormTable::new(
            Arc::clone(&own_rules),
            Arc::clone(&board.entries),
            &board.budget,
            Arc::clone(events),
            metrics.clone(),
        );
        let rooms =
            Self { rules, threshold, own_rules, own: own.without_past(), shared: Mutex::default(), wall_ms };
        rooms.share(1);
        rooms
    }

    /// Returns the rule of rooms; `None` if they are not counted.
    pub fn rule(&self) -> Option<StormRule> {
        let threshold = self.threshold.load(Ordering::Relaxed);
        (threshold > 0).then(|| StormRule::new(threshold, self.rules.get().default.window()))
    }

    /// Returns the first number of the storm of a room whose last change this node has reported, or 0.
    pub fn known(&self, room: &ConversationId) -> u64 {
        self.shared.lock().reported.get(room).copied().unwrap_or(0)
    }

    /// Notes numbered messages of a room: what the shared window says of it, or, if there is none, that this node counts
    /// them.
    pub fn note(&self, room: &ConversationId, numbers: &RangeInclusive<u64>, window: Option<&SharedWindow>) {
        let Some(rule) = self.rule() else { return };
        let Some(window) = window else {
            if self.counts_itself(room) {
                let now_ms = (self.wall_ms)();
                self.own.count(numbers.clone().map(|number| (room, number, now_ms)));
            }
            return;
        };
        self.note_shared(&rule, room, window);
    }

    /// Returns whether this node counts a room by itself: there are no shared windows, or not for some time.
    fn counts_itself(&self, room: &ConversationId) -> bool {
        let mut shared = self.shared.lock();
        let since = *shared.away_since.get_or_insert_with(Instant::now);
        !shared.is_used || (since.elapsed() >= AWAY_MIN && !shared.followed.contains_key(room))
    }

    fn note_shared(&self, rule: &StormRule, room: &ConversationId, window: &SharedWindow) {
        let mut shared = self.shared.lock();
        (shared.is_used, shared.away_since) = (true, None);
        let before = shared.reported.len();
        match &window.storm {
            Some(storm) => {
                let is_other = shared.reported.get(room).is_some_and(|seq| *seq != storm.seq);
                if is_other {
                    shared.reported.remove(room);
                }
                let is_followed = shared.followed.contains_key(room);
                if is_followed || shared.followed.len() < ROOMS_FOLLOWED_MAX {
                    shared.followed.insert(room.clone(), view_of(room, rule, window.count, storm));
                    // The next call acknowledges it, and the one after the end finds no storm.
                    if window.change.is_some() {
                        shared.reported.insert(room.clone(), storm.seq);
                    }
                }
            }
            None => {
                shared.followed.remove(room);
                shared.reported.remove(room);
            }
        }
        let after = shared.reported.len();
        drop(shared);
        self.own.change_gauge(after as f64 - before as f64);
        let Some((storm, change)) = window.storm.as_ref().zip(window.change) else { return };
        let report =
            StormReport { seq: storm.seq, since_ms: storm.since_ms, count: window.count, peak: storm.peak };
        let event = match change {
            WindowChange::Started => StormEvent::Started(report),
            WindowChange::Ended => StormEvent::Ended(report, StormProfile::empty(storm.since_ms)),
        };
        self.own.report(*rule, room.clone(), event);
    }

    /// Returns the storms that this node knows of, without their profiles.
    pub(super) fn storms(&self) -> Vec<StormView> {
        let mut storms = self.own.storms();
        storms.extend(self.shared.lock().followed.values().cloned());
        storms
    }

    /// Returns the watch of a room; `None` if this node knows of none.
    pub(super) fn view(&self, room: &ConversationId) -> Option<StormView> {
        let followed = self.shared.lock().followed.get(room).cloned();
        followed.or_else(|| self.own.view(room))
    }

    /// Finds the ends of storms until the node stops. `nodes` returns the number of nodes that share the threshold.
    pub async fn run(self: Arc<Self>, numbers: Arc<dyn Numbers>, nodes: impl Fn() -> usize + Send) {
        let mut ticks = time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.tick_own(nodes());
            // What a slow server leaves over is asked again by the next tick.
            time::timeout(TICK, self.tick_shared(&*numbers)).await.ok();
        }
    }

    /// Finds the ends of the storms that this node counts by itself.
    pub(super) fn tick_own(&self, nodes: usize) {
        self.share(nodes);
        self.own.tick((self.wall_ms)());
    }

    /// Sets the share of the threshold that is a storm of what one of these nodes counts.
    fn share(&self, nodes: usize) {
        let Some(rule) = self.rule() else { return };
        let share = rule.threshold() / u32::try_from(nodes).unwrap_or(u32::MAX).max(1);
        let own = StormRule::new(share.max(1), rule.window());
        if self.own_rules.get().default != own {
            self.own_rules.change(|rules| rules.default = own);
        }
    }

    /// Asks for the windows of the storms that this node follows.
    pub(super) async fn tick_shared(&self, numbers: &dyn Numbers) {
        let followed: Vec<ConversationId> = self.shared.lock().followed.keys().cloned().collect();
        let Some(rule) = self.rule() else {
            return followed.iter().for_each(|room| self.forget(room));
        };
        let ask = |room: ConversationId| async move {
            match numbers.window(room.as_str(), rule, self.known(&room)).await {
                Ok(Some(window)) => self.note_shared(&rule, &room, &window),
                Ok(None) => self.forget(&room),
                // The storm goes on until the server answers.
                Err(_) => {}
            }
        };
        stream::iter(followed).for_each_concurrent(ASKS_MAX, ask).await;
    }

    /// Forgets a storm whose window is gone.
    fn forget(&self, room: &ConversationId) {
        let mut shared = self.shared.lock();
        shared.followed.remove(room);
        let was_reported = shared.reported.remove(room).is_some();
        drop(shared);
        if was_reported {
            self.own.change_gauge(-1.0);
        }
    }
}

fn view_of(room: &ConversationId, rule: &StormRule, count: u32, storm: &SharedStorm) -> StormView {
    StormView {
        conversation: room.clone(),
        phase: if storm.is_cooling { StormPhase::Cooling } else { StormPhase::Storm },
        count,
        threshold: rule.threshold(),
        window_ms: u64::try_from(rule.window().as_millis()).unwrap_or(u64::MAX),
        storm: Some(StormDetails {
            seq: storm.seq,
            since_ms: storm.since_ms,
            peak: storm.peak,
            profile: None,
        }),
    }
}

/// The gauge no longer counts the storms of a node that stops.
impl Drop for RoomStorms {
    fn drop(&mut self) {
        let counted = self.shared.get_mut().reported.len();
        self.own.change_gauge(-(counted as f64));
    }
}
