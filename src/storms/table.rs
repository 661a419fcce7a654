//! Watches of one owner, with what they report: events, metrics and log lines.

use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_protocol::{
    Time,
    id::ConversationId,
    machine::storm::{StormEvent, StormId, StormMessage, StormRule},
};
use tokio::{sync::Notify, time::Instant};

use super::{
    ActiveStorm, MirrorQueue, StormEntries, StormRules, StormView,
    watches::{GroupPast, GroupWatches, StormChange},
};
use crate::{
    budget::{CacheBudget, CacheShare},
    events::{Events, StormNotice},
    live::Live,
    log_limit::log_limited,
    metrics::Metrics,
};

/// Watches of the groups of one partition, for as long as the partition has this owner.
pub struct StormTable {
    watches: Mutex<GroupWatches>,
    rules: Arc<Live<StormRules>>,
    entries: Arc<StormEntries>,
    /// Start of the owner's clock.
    began: Instant,
    /// Notified when a watch waits for its past.
    unread: Notify,
    /// Notified when a storm has started or ended.
    changed: Notify,
    events: Arc<Events>,
    metrics: Metrics,
    mirror: Option<Arc<MirrorQueue>>,
}

impl StormTable {
    pub(super) fn new(
        rules: Arc<Live<StormRules>>,
        entries: Arc<StormEntries>,
        budget: &Arc<CacheBudget>,
        events: Arc<Events>,
        metrics: Metrics,
    ) -> Self {
        let watches = Mutex::new(GroupWatches::new(CacheShare::new(budget)));
        let (began, unread, changed) = (Instant::now(), Notify::new(), Notify::new());
        Self { watches, rules, entries, began, unread, changed, events, metrics, mirror: None }
    }

    /// Queues the counted messages for a mirror, if there is one.
    pub(super) fn mirrored(mut self, mirror: Option<Arc<MirrorQueue>>) -> Self {
        self.mirror = mirror;
        self
    }

    /// Lets counting begin with the first message, because nobody else counts these conversations.
    pub(super) fn without_past(self) -> Self {
        self.watches.lock().forget_past();
        self
    }

    /// Counts accepted messages of groups: group, seq and receive time of each, in the order of the log.
    pub fn count<'a>(&self, messages: impl Iterator<Item = (&'a ConversationId, u64, u64)>) {
        let mut messages = messages.peekable();
        if messages.peek().is_none() {
            return;
        }
        self.change(|watches, rules, decided_at| {
            for (group, seq, received_ms) in messages {
                watches.handle_message(
                    &rules.of(group),
                    group,
                    StormMessage { seq, received_ms, decided_at },
                );
                if let Some(mirror) = &self.mirror {
                    mirror.push(group, seq, received_ms);
                }
            }
        });
    }

    /// Finds the ends of storms, and drops the watches of quiet groups. To be called each second, with the wall clock.
    pub fn tick(&self, wall_ms: u64) {
        self.change(|watches, rules, now| watches.handle_tick(rules, now, wall_ms));
    }

    /// Waits until groups need their past, and returns at most `max` of them, each with the seq before which it ends.
    /// Each must be passed to [`Self::restore`].
    pub async fn next_unread(&self, max: usize) -> Vec<(ConversationId, u64)> {
        loop {
            let groups = self.watches.lock().take_unread(max);
            if !groups.is_empty() {
                return groups;
            }
            self.unread.notified().await;
        }
    }

    /// Ends the unknown phase of a group's watch with its past. A storm that the entries have in force continues. Has no
    /// effect on a watch for which another past was requested, such as one that was forgotten in the meantime.
    pub fn restore(&self, group: &ConversationId, past: GroupPast<'_>) {
        let in_force = self.entries.get(group).map(|entry| entry.storm);
        self.change(|watches, rules, now| {
            watches.restore(&rules.of(group), group, past, in_force, now);
        });
    }

    /// Continues a storm that the entries have in force in a group, and that this owner does not know; its past is
    /// read first.
    pub fn adopt(&self, group: &ConversationId) {
        self.change(|watches, rules, now| watches.adopt(&rules.of(group), group, now));
    }

    /// Returns the rules in force.
    pub fn rules(&self) -> Arc<StormRules> {
        self.rules.get()
    }

    /// Returns the storms in force on all nodes, as far as this node has read them.
    pub fn entries(&self) -> &StormEntries {
        &self.entries
    }

    /// Waits until a storm has started or ended since the last call.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns the storms, without their profiles.
    pub fn storms(&self) -> Vec<StormView> {
        let rules = self.rules.get();
        self.watches.lock().storms(&rules)
    }

    /// Returns the storms, as a next owner would need them.
    pub fn active(&self) -> Vec<ActiveStorm> {
        self.watches.lock().active()
    }

    /// Returns the watch of a group; `None` if the group has none, because it was quiet for two windows.
    pub fn view(&self, group: &ConversationId) -> Option<StormView> {
        let (rule, now) = (self.rules.get().of(group), self.now());
        self.watches.lock().view(&rule, group, now)
    }

    fn now(&self) -> Time {
        Time::from_millis(u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Changes the watches, and reports the changes when they are unlocked again.
    fn change(&self, change: impl FnOnce(&mut GroupWatches, &StormRules, Time)) {
        let (rules, now) = (self.rules.get(), self.now());
        let mut watches = self.watches.lock();
        let before = watches.storms_count();
        change(&mut watches, &rules, now);
        watches.fit(&rules.default, now);
        let (after, has_unread) = (watches.storms_count(), watches.has_unread());
        let StormChange { events, forgotten } = watches.take_change();
        drop(watches);
        if has_unread {
            self.unread.notify_one();
        }
        if after != before {
            self.metrics.storms.increment(after as f64 - before as f64);
        }
        self.metrics.storm_watches_forgotten.increment(forgotten);
        if !events.is_empty() {
            self.changed.notify_one();
        }
        for (group, event) in events {
            self.report(rules.of(&group), group, event);
        }
    }

    /// Changes the number of storms by those that are counted elsewhere.
    pub(super) fn change_gauge(&self, by: f64) {
        if by != 0.0 {
            self.metrics.storms.increment(by);
        }
    }

    /// Reports the start or the end of a storm by event, metrics and log.
    pub(super) fn report(&self, rule: StormRule, conversation: ConversationId, event: StormEvent) {
        let (report, profile) = match event {
            StormEvent::Started(report) => (report, None),
            StormEvent::Ended(report, profile) => (report, Some(profile)),
        };
        let id = StormId { conversation, seq: report.seq };
        let (count, peak, threshold) = (report.count, report.peak, rule.threshold());
        let (window, since_ms) = (rule.window(), report.since_ms);
        if profile.is_none() {
            self.metrics.storms_total.increment(1);
            log_limited!(warn, %id, count, threshold, ?window, since_ms, "message storm started");
        } else {
            log_limited!(warn, %id, count, peak, threshold, ?window, since_ms, "message storm is over");
        }
        self.events.storm(StormNotice { id, rule, report, profile });
    }
}

/// The storms are those of the next owner from now on.
impl Drop for StormTable {
    fn drop(&mut self) {
        self.metrics.storms.decrement(self.watches.get_mut().storms_count() as f64);
    }
}
