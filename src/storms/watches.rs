//! Watches of groups in bounded memory: the quietest of a few are forgotten if they exceed it.
//!
//! A watch begins unknown while the owner is new, and lacks messages if its group was forgotten. What it lacks is read
//! from the archive: at once in the first case, and when it reaches half of the threshold in the second, so that a flood
//! of quiet groups causes no flood of reads.

use std::collections::{BTreeSet, HashMap, VecDeque};

use tidegate_protocol::{
    Time,
    id::ConversationId,
    machine::storm::{
        PastMessage, StormEvent, StormInForce, StormMessage, StormPhase, StormRule, StormWatch,
    },
};

use super::{ActiveStorm, StormDetails, StormParts, StormRules, StormView};
use crate::budget::CacheShare;

/// Watches that are compared to find the one to forget.
const SAMPLES: u64 = 16;

/// Most groups that wait for their past. Further ones are read when they reach half of the threshold.
const UNREAD_MAX: usize = 4_096;

/// Watches checked for idleness at a tick: a part of all, and some more.
const SWEEP_SHARE: usize = 64;
const SWEEP_MIN: usize = 64;

/// Seq above all others, for a group of which all messages are in the past.
const SEQ_END: u64 = i64::MAX as u64;

/// Approximate bytes of a group's id.
const ID_BYTES: usize = 80;

/// Approximate bytes of a watch without its heap. Both collections grow by doubling.
const WATCH_BYTES: usize =
    2 * size_of::<WatchedGroup>() + 2 * size_of::<(ConversationId, usize)>() + ID_BYTES;

/// Watches of the groups of one owner.
pub(super) struct GroupWatches {
    /// Whether another owner may have counted messages before.
    has_past: bool,
    groups: Vec<WatchedGroup>,
    /// Indexes into `groups`.
    index: HashMap<ConversationId, usize>,
    /// Groups with a storm.
    storms: BTreeSet<ConversationId>,
    unread: VecDeque<ConversationId>,
    bytes: usize,
    /// Limit in force until the next [`Self::fit`].
    bytes_max: usize,
    share: CacheShare,
    /// Time at which a watch was forgotten last.
    forgot_at: Option<Time>,
    /// Index of the next watch that is checked for idleness.
    sweep_at: usize,
    /// State of the generator that chooses the samples.
    random: u64,
    change: StormChange,
}

/// What changed since it was last taken.
#[derive(Default)]
pub(super) struct StormChange {
    pub(super) events: Vec<(ConversationId, StormEvent)>,
    /// Watches that were forgotten.
    pub(super) forgotten: u64,
}

/// Past of a group, as it was read.
#[derive(Clone, Copy, Debug)]
pub struct GroupPast<'a> {
    /// Seq before which it ends.
    pub end: u64,
    /// Messages in the order of seqs; none if they could not be read.
    pub messages: &'a [PastMessage],
    /// Clock of the store at the read.
    pub store_now_ms: u64,
}

struct WatchedGroup {
    group: ConversationId,
    watch: StormWatch,
    /// Time from which messages are counted.
    since: Time,
    /// Whether earlier messages may be missing.
    is_partial: bool,
    /// Seq before which the past is being read; `None` if it is not.
    read_to: Option<u64>,
    /// Bytes of the watch on the heap.
    heap_bytes: usize,
    /// Messages, halved with each window.
    busy: u32,
    busy_at: Time,
}

impl WatchedGroup {
    /// Returns the messages, halved with each window until now.
    fn busy(&self, rule: &StormRule, now: Time) -> u32 {
        let windows = now.since(self.busy_at).as_millis() / rule.window().as_millis().max(1);
        self.busy.checked_shr(u32::try_from(windows).unwrap_or(u32::MAX)).unwrap_or(0)
    }

    fn note_message(&mut self, rule: &StormRule, now: Time) {
        if now.since(self.busy_at) >= rule.window() {
            (self.busy, self.busy_at) = (self.busy(rule, now), now);
        }
        self.busy = self.busy.saturating_add(1);
    }
}

impl GroupWatches {
    pub(super) fn new(share: CacheShare) -> Self {
        Self {
            has_past: true,
            groups: Vec::new(),
            index: HashMap::new(),
            storms: BTreeSet::new(),
            unread: VecDeque::new(),
            bytes: 0,
            bytes_max: share.bytes_max(),
            share,
            forgot_at: None,
            sweep_at: 0,
            random: 1,
            change: StormChange::default(),
        }
    }

    /// Lets counting begin with the first message: no other owner has counted any before.
    pub(super) fn forget_past(&mut self) {
        self.has_past = false;
    }

    pub(super) fn storms_count(&self) -> usize {
        self.storms.len()
    }

    pub(super) fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    pub(super) fn take_change(&mut self) -> StormChange {
        std::mem::take(&mut self.change)
    }

    pub(super) fn handle_message(&mut self, rule: &StormRule, group: &ConversationId, message: StormMessage) {
        let now = message.decided_at;
        let at = self.index.get(group).copied().unwrap_or_else(|| self.insert(rule, group, now));
        let Some(watched) = self.groups.get_mut(at) else { return };
        watched.note_message(rule, now);
        // A storm keeps its id, whatever was before it.
        watched.is_partial &= watched.watch.report().is_none();
        if watched.is_partial && watched.watch.known(rule, now) >= rule.threshold() / 2 {
            let has_all = now.since(watched.since) >= rule.window() * 2;
            if has_all || self.unread.len() < UNREAD_MAX {
                watched.is_partial = false;
            }
            if !has_all && !watched.is_partial {
                watched.watch = StormWatch::unknown();
                self.unread.push_back(group.clone());
            }
        }
        let event = watched.watch.handle_message(rule, message);
        self.note(at, event);
        if self.bytes > self.bytes_max {
            self.evict(rule, now);
        }
    }

    pub(super) fn handle_tick(&mut self, rules: &StormRules, now: Time, wall_ms: u64) {
        for group in self.storms.clone() {
            let Some(at) = self.index.get(&group).copied() else { continue };
            let rule = rules.of(&group);
            let event = self.groups.get_mut(at).and_then(|it| it.watch.handle_tick(&rule, now, wall_ms));
            self.note(at, event);
        }
        for _ in 0..self.groups.len() / SWEEP_SHARE + SWEEP_MIN {
            if self.sweep_at >= self.groups.len() {
                self.sweep_at = 0;
            }
            match self.groups.get(self.sweep_at) {
                Some(watched) if watched.watch.is_idle(&rules.of(&watched.group), now) => {
                    self.remove(self.sweep_at)
                }
                Some(_) => self.sweep_at += 1,
                None => break,
            }
        }
        if self.groups.len() < self.groups.capacity() / 4 {
            self.groups.shrink_to(self.groups.len() * 2);
            self.index.shrink_to(self.groups.len() * 2);
        }
    }

    /// Returns at most `max` groups that wait for their past, each with the first seq that it holds.
    pub(super) fn take_unread(&mut self, max: usize) -> Vec<(ConversationId, u64)> {
        let mut taken = Vec::new();
        while taken.len() < max {
            let Some(group) = self.unread.pop_front() else { break };
            let watched = self.index.get(&group).and_then(|at| self.groups.get_mut(*at));
            // A forgotten group may be gone, or be read already; one without messages has a storm in force.
            let is_unread =
                |it: &&mut WatchedGroup| it.watch.phase() == StormPhase::Unknown && it.read_to.is_none();
            if let Some(watched) = watched.filter(is_unread) {
                let seq = watched.watch.first_held().unwrap_or(SEQ_END);
                watched.read_to = Some(seq);
                taken.push((group, seq));
            }
        }
        taken
    }

    /// Restores a watch by its past, which was read up to `end`. Has no effect if the group was forgotten meanwhile and is
    /// watched again: the past lacks the messages in between then, and is read again.
    pub(super) fn restore(
        &mut self,
        rule: &StormRule,
        group: &ConversationId,
        past: GroupPast<'_>,
        in_force: Option<StormInForce>,
        now: Time,
    ) {
        let Some(at) = self.index.get(group).copied() else { return };
        let Some(watched) = self.groups.get_mut(at) else { return };
        if watched.read_to != Some(past.end) {
            return;
        }
        watched.read_to = None;
        let event = watched.watch.restore(rule, past.messages, in_force, past.store_now_ms, now);
        // A storm that continues has no event.
        let is_continued = event.is_none() && watched.watch.report().is_some();
        self.note(at, event);
        if is_continued {
            self.storms.insert(group.clone());
        }
    }

    /// Lets a group without a known storm wait for its past, after which a storm in force continues.
    pub(super) fn adopt(&mut self, rule: &StormRule, group: &ConversationId, now: Time) {
        let at = self.index.get(group).copied().unwrap_or_else(|| self.insert(rule, group, now));
        let Some(watched) = self.groups.get_mut(at) else { return };
        if watched.watch.report().is_none() && watched.watch.phase() != StormPhase::Unknown {
            watched.is_partial = false;
            watched.watch = StormWatch::unknown();
            self.unread.push_back(group.clone());
        }
    }

    pub(super) fn active(&self) -> Vec<ActiveStorm> {
        let active = |group: &ConversationId| {
            let watch = &self.groups.get(*self.index.get(group)?)?.watch;
            let (storm, count) = (watch.in_force()?, watch.report()?.count);
            Some(ActiveStorm { group: group.clone(), storm, count })
        };
        self.storms.iter().filter_map(active).collect()
    }

    /// Adjusts the limit to what other owners use, and keeps to it.
    pub(super) fn fit(&mut self, rule: &StormRule, now: Time) {
        self.share.set_bytes(self.bytes);
        self.bytes_max = self.share.bytes_max();
        self.evict(rule, now);
        self.share.set_bytes(self.bytes);
    }

    pub(super) fn storms(&self, rules: &StormRules) -> Vec<StormView> {
        let storm = |group: &ConversationId| {
            let watched = self.groups.get(*self.index.get(group)?)?;
            let count = watched.watch.report()?.count;
            Some(view(watched, &rules.of(group), count))
        };
        self.storms.iter().filter_map(storm).collect()
    }

    pub(super) fn view(&mut self, rule: &StormRule, group: &ConversationId, now: Time) -> Option<StormView> {
        let watched = self.groups.get_mut(*self.index.get(group)?)?;
        let count = watched.watch.known(rule, now);
        let mut view = view(watched, rule, count);
        if let (Some(storm), Some(profile)) = (&mut view.storm, watched.watch.profile()) {
            storm.profile = Some(StormParts {
                start_ms: profile.start_ms(),
                part_ms: profile.part_ms(),
                counts: profile.counts().to_vec(),
            });
        }
        Some(view)
    }

    fn insert(&mut self, rule: &StormRule, group: &ConversationId, now: Time) -> usize {
        let span = rule.window() * 2;
        // Until then there may be messages that an earlier owner accepted.
        let is_new = self.has_past && now < Time::ZERO + span;
        let is_unknown = is_new && self.unread.len() < UNREAD_MAX;
        let watch = if is_unknown { StormWatch::unknown() } else { StormWatch::default() };
        if is_unknown {
            self.unread.push_back(group.clone());
        }
        let may_be_forgotten = self.has_past && self.forgot_at.is_some_and(|at| now.since(at) < span);
        let at = self.groups.len();
        self.groups.push(WatchedGroup {
            group: group.clone(),
            watch,
            since: now,
            is_partial: !is_unknown && (is_new || may_be_forgotten),
            read_to: None,
            heap_bytes: 0,
            busy: 0,
            busy_at: now,
        });
        self.index.insert(group.clone(), at);
        self.bytes += WATCH_BYTES;
        at
    }

    /// Updates what depends on a watch that has changed.
    fn note(&mut self, at: usize, event: Option<StormEvent>) {
        let Some(watched) = self.groups.get_mut(at) else { return };
        let bytes = watched.watch.heap_bytes();
        self.bytes = (self.bytes + bytes).saturating_sub(std::mem::replace(&mut watched.heap_bytes, bytes));
        let Some(event) = event else { return };
        match event {
            StormEvent::Started(_) => self.storms.insert(watched.group.clone()),
            StormEvent::Ended(..) => self.storms.remove(&watched.group),
        };
        self.change.events.push((watched.group.clone(), event));
    }

    /// Forgets the quietest of some watches until the others fit; storms only if all of them are.
    fn evict(&mut self, rule: &StormRule, now: Time) {
        while self.bytes > self.bytes_max && !self.groups.is_empty() {
            let samples: Vec<usize> = (0..SAMPLES).map(|_| self.sample()).collect();
            let rank =
                |at: &usize| self.groups.get(*at).map(|it| (it.watch.report().is_some(), it.busy(rule, now)));
            let Some(quietest) = samples.into_iter().min_by_key(rank) else { return };
            self.remove(quietest);
            self.forgot_at = Some(now);
            self.change.forgotten += 1;
        }
    }

    fn sample(&mut self) -> usize {
        // Knuth's MMIX generator; its high bits are the better ones.
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % self.groups.len().max(1)
    }

    fn remove(&mut self, at: usize) {
        if at >= self.groups.len() {
            return;
        }
        let removed = self.groups.swap_remove(at);
        self.bytes = self.bytes.saturating_sub(WATCH_BYTES + removed.heap_bytes);
        self.index.remove(&removed.group);
        self.storms.remove(&removed.group);
        if let Some(moved) = self.groups.get(at) {
            self.index.insert(moved.group.clone(), at);
        }
    }
}

fn view(watched: &WatchedGroup, rule: &StormRule, count: u32) -> StormView {
    let storm = watched.watch.report().map(|report| StormDetails {
        seq: report.seq,
        since_ms: report.since_ms,
        peak: report.peak.max(count),
        profile: None,
    });
    StormView {
        conversation: watched.group.clone(),
        phase: watched.watch.phase(),
        count,
        threshold: rule.threshold(),
        window_ms: u64::try_from(rule.window().as_millis()).unwrap_or(u64::MAX),
        storm,
    }
}
