//! Mirror of the windows of groups, which other systems read from Redis. The tables of the owners queue their messages,
//! and one task of the node writes them.
//!
//! Counting never waits for it. Messages above a bound, and those of a failed write, are left out and counted.

use std::{
    collections::{HashMap, VecDeque},
    mem,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tidegate_protocol::id::ConversationId;
use tokio::time::{MissedTickBehavior, interval};

use super::StormRules;
use crate::{
    live::Live,
    log_limit::log_limited,
    metrics::Metrics,
    scratch::{MIRROR_MEMBERS_MAX, Scratch, WindowEntry, WindowUpdate},
};

/// Time between two writes.
const WRITE_INTERVAL: Duration = Duration::from_millis(250);

/// Most groups of one write, so 2,000 a second.
const GROUPS_MAX: usize = 500;

/// Most entries of one write.
const ENTRIES_MAX: usize = 8_192;

/// Most entries of a group that stand for the messages of a second.
const SECONDS_MAX: usize = 60;

/// Most entries of one call, unless a single group has more, so that a call is short for the server.
const ENTRIES_PER_CALL_MAX: usize = 2_048;
const GROUPS_PER_CALL_MAX: usize = 64;

/// Failed calls after which a write ends.
const FAILURES_MAX: usize = 3;

/// Queue of accepted messages for the mirror.
pub struct MirrorQueue {
    waiting: Mutex<WaitingWindows>,
    rules: Arc<Live<StormRules>>,
    metrics: Metrics,
}

#[derive(Default)]
struct WaitingWindows {
    groups: HashMap<ConversationId, WaitingWindow>,
    /// Number of entries of all groups.
    entries: usize,
}

/// Waiting messages of a group: the newest ones, and sums by the second of those before them.
#[derive(Default)]
struct WaitingWindow {
    seconds: Vec<WindowEntry>,
    newest: VecDeque<WindowEntry>,
}

impl MirrorQueue {
    pub(super) fn new(rules: &Arc<Live<StormRules>>, metrics: Metrics) -> Self {
        Self { waiting: Mutex::default(), rules: Arc::clone(rules), metrics }
    }

    /// Queues an accepted message of a group, unless a bound is reached.
    pub(super) fn push(&self, group: &ConversationId, seq: u64, received_ms: u64) {
        let entry = WindowEntry { seq, messages: 1, received_ms };
        if !self.waiting.lock().push(group, entry) {
            self.metrics.storm_mirror_skipped.increment(1);
        }
    }

    /// Writes what is queued, again and again.
    pub async fn run(self: Arc<Self>, scratch: Arc<dyn Scratch>) {
        let mut tick = interval(WRITE_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.write(&*scratch).await;
        }
    }

    /// Writes what is queued. A failure leaves out all that is not written yet.
    pub(super) async fn write(&self, scratch: &dyn Scratch) {
        let window = self.rules.get().default.window();
        let updates = mem::take(&mut *self.waiting.lock()).into_updates();
        let (mut left, mut failures) = (updates.as_slice(), 0);
        while !left.is_empty() {
            let (part, rest) = left.split_at(calls_of(left));
            if let Err(error) = scratch.mirror_windows(window, part).await {
                // One may be about a single key, such as one that another system uses; with more, Redis is away.
                failures += 1;
                let is_away = failures == FAILURES_MAX;
                let failed = if is_away { left } else { part };
                let entries = failed.iter().flat_map(|update| &update.entries);
                let messages = entries.map(|entry| u64::from(entry.messages)).sum();
                self.metrics.storm_mirror_skipped.increment(messages);
                log_limited!(warn, %error, messages, "messages not mirrored; readers of the windows in Redis miss them");
                if is_away {
                    return;
                }
            }
            left = rest;
        }
    }
}

impl WaitingWindows {
    /// Returns false if there is no space.
    fn push(&mut self, group: &ConversationId, entry: WindowEntry) -> bool {
        if let Some(window) = self.groups.get_mut(group) {
            let has_space = self.entries < ENTRIES_MAX;
            let Some(added) = window.push(entry, has_space) else { return false };
            self.entries += added;
            return true;
        }
        if self.groups.len() >= GROUPS_MAX || self.entries >= ENTRIES_MAX {
            return false;
        }
        let window = WaitingWindow { seconds: Vec::new(), newest: VecDeque::from([entry]) };
        self.groups.insert(group.clone(), window);
        self.entries += 1;
        true
    }

    fn into_updates(self) -> Vec<WindowUpdate> {
        let update = |(group, window): (ConversationId, WaitingWindow)| {
            let entries = window.seconds.into_iter().chain(window.newest).collect();
            WindowUpdate { group, entries }
        };
        self.groups.into_iter().map(update).collect()
    }
}

impl WaitingWindow {
    /// Adds a message, and returns the number of entries that this takes; `None` if there is no space.
    fn push(&mut self, entry: WindowEntry, has_space: bool) -> Option<usize> {
        if self.newest.len() < MIRROR_MEMBERS_MAX {
            has_space.then(|| self.newest.push_back(entry))?;
            return Some(1);
        }
        let oldest = *self.newest.front()?;
        let is_same = |sum: &&mut WindowEntry| sum.received_ms / 1_000 == oldest.received_ms / 1_000;
        let added = if let Some(sum) = self.seconds.last_mut().filter(is_same) {
            *sum = WindowEntry { messages: sum.messages.saturating_add(1), ..oldest };
            0
        } else if self.seconds.len() < SECONDS_MAX && has_space {
            self.seconds.push(oldest);
            1
        } else {
            return None;
        };
        self.newest.pop_front();
        self.newest.push_back(entry);
        Some(added)
    }
}

/// Returns how many of the updates one call takes, at least one.
fn calls_of(updates: &[WindowUpdate]) -> usize {
    let mut entries = 0;
    let fits = |update: &&WindowUpdate| {
        entries += update.entries.len();
        entries <= ENTRIES_PER_CALL_MAX
    };
    updates.iter().take(GROUPS_PER_CALL_MAX).take_while(fits).count().max(1)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tokio::time::{Instant, timeout};

    use tidegate_protocol::machine::storm::StormRule;

    use super::*;
    use crate::{
        events::Events,
        fault::{Fault, FaultPlan, Faulty},
        metrics,
        scratch::MemoryScratch,
        storms::StormBoard,
    };

    const NOW_MS: u64 = 1_800_000_000_000;

    fn group(n: usize) -> ConversationId {
        ConversationId::parse(&format!("g:x{n}")).unwrap()
    }

    fn queue() -> Arc<MirrorQueue> {
        let rule = StormRule::new(100, Duration::from_secs(60));
        Arc::new(MirrorQueue::new(&Arc::new(Live::new(StormRules::new(rule, None))), metrics::install().0))
    }

    fn memory() -> Arc<dyn Scratch> {
        Arc::new(MemoryScratch::new(1 << 20, || NOW_MS))
    }

    async fn count(scratch: &dyn Scratch, n: usize) -> u64 {
        let update = WindowUpdate { group: group(n), entries: Vec::new() };
        scratch.mirror_windows(Duration::from_secs(60), &[update]).await.unwrap()[0]
    }

    #[tokio::test]
    async fn messages_that_an_owner_counts_are_mirrored() {
        let (metrics, scratch) = (metrics::install().0, memory());
        let rule = StormRule::new(100, Duration::from_secs(60));
        let board = StormBoard::new(rule, 1 << 20).with_mirror(metrics.clone());
        let table = board.open(0, &Arc::new(Events::new("", 1, 0)), &metrics);
        let group = group(1);
        table.count((1..=120).map(|seq| (&group, seq, NOW_MS)));
        board.mirror().unwrap().write(&*scratch).await;
        assert_eq!(count(&*scratch, 1).await, 120);
    }

    #[tokio::test(start_paused = true)]
    async fn messages_are_mirrored_four_times_a_second() {
        let (queue, scratch) = (queue(), memory());
        let mut running = pin!(Arc::clone(&queue).run(Arc::clone(&scratch)));
        timeout(WRITE_INTERVAL / 2, running.as_mut()).await.unwrap_err();
        (1..=120).for_each(|seq| queue.push(&group(1), seq, NOW_MS));
        assert_eq!(count(&*scratch, 1).await, 0);
        timeout(WRITE_INTERVAL, running.as_mut()).await.unwrap_err();
        assert_eq!(count(&*scratch, 1).await, 120);
    }

    #[tokio::test]
    async fn ten_thousand_messages_of_one_ms_wait_as_one_thousand_entries_and_a_sum() {
        let (queue, scratch) = (queue(), memory());
        (1..=10_000).for_each(|seq| queue.push(&group(1), seq, NOW_MS));
        assert_eq!(queue.waiting.lock().entries, MIRROR_MEMBERS_MAX + 1);
        queue.write(&*scratch).await;
        assert_eq!(count(&*scratch, 1).await, 10_000);
    }

    #[tokio::test]
    async fn groups_and_entries_are_bounded() {
        let queue = queue();
        // Each second before the newest messages needs an entry of its own.
        (1..=5_000).for_each(|seq| queue.push(&group(0), seq, NOW_MS + seq * 1_000));
        assert_eq!(queue.waiting.lock().entries, MIRROR_MEMBERS_MAX + SECONDS_MAX);
        (1..GROUPS_MAX * 2).for_each(|n| queue.push(&group(n), 1, NOW_MS));
        assert_eq!(queue.waiting.lock().groups.len(), GROUPS_MAX);
        (0..100_000).for_each(|n| queue.push(&group(n % GROUPS_MAX), n as u64, NOW_MS));
        let waiting = mem::take(&mut *queue.waiting.lock());
        let updates = waiting.into_updates();
        let entries: Vec<usize> = updates.iter().map(|update| update.entries.len()).collect();
        assert_eq!(entries.iter().sum::<usize>(), ENTRIES_MAX);
        assert!(entries.iter().all(|of_group| *of_group <= MIRROR_MEMBERS_MAX + SECONDS_MAX));
        assert!(calls_of(&updates) <= GROUPS_PER_CALL_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn failed_write_is_left_out_and_delays_no_message() {
        let (queue, plan) = (queue(), FaultPlan::none());
        let scratch = Faulty::new(memory(), Arc::clone(&plan));
        queue.push(&group(1), 1, NOW_MS);
        plan.plan("mirror_windows", Fault::Fail);
        let began = Instant::now();
        queue.write(&scratch).await;
        queue.push(&group(1), 2, NOW_MS);
        queue.write(&scratch).await;
        assert_eq!((count(&scratch, 1).await, began.elapsed()), (1, Duration::ZERO));
    }
}
