//! Notices of one endpoint on a node: drives the machine with the feed, the store and the rounds.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tidegate_protocol::{
    Time,
    machine::waiting::{Waiting, WaitingLook, WaitingPage, WaitingRound, WaitingSave, WaitingSettings},
};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{
    WaitingNotices, cursor,
    due::DueTimes,
    recipients::Recipients,
    round::{DecidedRound, RoundTask},
};
use crate::{
    clock::{Now, wall_ms},
    cluster::{OwnedFeed, OwnedFeeds},
    log_limit::log_limited,
    store::{CursorOutcome, FeedCursor, FeedLimits, FeedPage, FeedRead, Fence, StoreError},
    supervised,
    webhooks::{WaitingPlan, WebhookPermits, WebhookPlan, number_before},
};

/// Limits of one read of the feed.
const READ: FeedLimits = FeedLimits { entries: 256, bytes: 64 * 1024 };

/// Most reads of feeds until outcomes and changes are looked at.
const READS_MAX: usize = 8;

/// Delay until a store is asked again that failed.
const STORE_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Longest time from an archive to the look at its entries, from which their delay counts at the latest.
const LOOK_DELAY_MAX: Duration = Duration::from_secs(1);

/// Longest wait without an input.
const IDLE_MAX: Duration = Duration::from_secs(3_600);

/// Notices of one endpoint on a node.
pub(super) struct Notifier {
    parts: Arc<WaitingNotices>,
    permits: Arc<WebhookPermits>,
    plan: Arc<WebhookPlan>,
    machine: Waiting,
    began: Instant,
    due: DueTimes,
    /// Feeds that the machine follows.
    feeds: OwnedFeeds,
    /// Fences under which a partition has ended: only a new owner begins again.
    ended: BTreeMap<u32, Fence>,
    /// The round that is being decided.
    rounds: JoinSet<DecidedRound>,
    /// Time of the next try to begin partitions, after a failure.
    retry_at: Option<Instant>,
    /// Newest order to send again that was carried out.
    resumed: u64,
}

impl Notifier {
    pub(super) fn new(
        parts: Arc<WaitingNotices>,
        plan: Arc<WebhookPlan>,
        permits: Arc<WebhookPermits>,
    ) -> Self {
        let mut it = Self {
            parts,
            permits,
            machine: Waiting::new(settings(&plan)),
            plan: Arc::clone(&plan),
            began: Instant::now(),
            due: DueTimes::default(),
            feeds: OwnedFeeds::new(),
            ended: BTreeMap::new(),
            rounds: JoinSet::new(),
            retry_at: None,
            resumed: plan.waiting.as_ref().map_or(0, |waiting| waiting.resumed),
        };
        it.adopt(plan);
        it
    }

    /// Sends notices of the feeds that the node owns, by the newest plan, until the sender of either is dropped.
    pub(super) async fn run(
        mut self,
        mut owned: watch::Receiver<OwnedFeeds>,
        mut plans: watch::Receiver<Arc<WebhookPlan>>,
    ) {
        loop {
            while let Some(done) = self.rounds.try_join_next() {
                self.note(done.ok());
            }
            if owned.has_changed().is_err() || plans.has_changed().is_err() {
                return;
            }
            let plan = Arc::clone(&plans.borrow_and_update());
            if !Arc::ptr_eq(&plan, &self.plan) {
                self.adopt(plan);
            }
            let feeds = owned.borrow_and_update().clone();
            let has_more = match self.plan.waiting.clone() {
                Some(waiting) => {
                    self.follow(feeds, &waiting).await;
                    self.pump(&waiting).await
                }
                None => self.end_all(),
            };
            let wake_at = if has_more { Instant::now() } else { self.wake_at() };
            tokio::select! {
                biased;
                Some(done) = self.rounds.join_next() => self.note(done.ok()),
                _ = owned.changed() => {}
                _ = plans.changed() => {}
                () = sleep_until(wake_at) => {}
            }
        }
    }

    fn now(&self) -> Time {
        Time::ZERO + self.began.elapsed()
    }

    fn wake_at(&self) -> Instant {
        let idle = Instant::now() + IDLE_MAX;
        let due = self.machine.poll_timeout(self.now());
        let due = due.map(|at| self.began + Duration::from_millis(at.as_millis()));
        due.into_iter().chain(self.retry_at).fold(idle, Instant::min)
    }

    fn adopt(&mut self, plan: Arc<WebhookPlan>) {
        self.machine.handle_settings(settings(&plan));
        self.machine.handle_paused(plan.is_paused);
        let consumer = |plan: &WebhookPlan| plan.waiting.as_ref().map(|waiting| waiting.consumer.clone());
        if consumer(&plan) != consumer(&self.plan) {
            // Notices that ended and began again have cursors of their own.
            self.end_all();
        }
        if let Some(waiting) = &plan.waiting {
            // From now on; it costs a connection that acks a few words, so it does not end before the node does.
            self.parts.cluster.notes_acks.store(true, Ordering::Relaxed);
            if waiting.resumed > self.resumed {
                self.resumed = waiting.resumed;
                self.machine.handle_resumed();
            }
        }
        self.plan = plan;
    }

    /// Ends all partitions: the endpoint wants no notices.
    fn end_all(&mut self) -> bool {
        for partition in std::mem::take(&mut self.feeds).into_keys() {
            self.machine.handle_lost(partition);
            self.due.forget(partition);
        }
        self.ended.clear();
        self.retry_at = None;
        false
    }

    /// Begins and ends partitions as the node does.
    async fn follow(&mut self, feeds: OwnedFeeds, waiting: &WaitingPlan) {
        let is_kept = |partition: &u32, known: &OwnedFeed| {
            feeds.get(partition).is_some_and(|feed| feed.fence == known.fence)
        };
        let gone = self.feeds.iter().filter(|(partition, known)| !is_kept(partition, known));
        for partition in gone.map(|(partition, _)| *partition).collect::<Vec<_>>() {
            self.end(partition, None);
        }
        self.ended.retain(|partition, fence| feeds.get(partition).is_some_and(|feed| feed.fence == *fence));
        let (now, delay) = (self.now(), Duration::from_millis(waiting.form.delay_ms));
        let mut begun = BTreeMap::new();
        for (partition, feed) in feeds {
            let Some(known) = self.feeds.get_mut(&partition) else {
                if !feed.is_leaving && !self.ended.contains_key(&partition) {
                    begun.insert(partition, feed);
                }
                continue;
            };
            if known.archives != feed.archives {
                self.machine.handle_archived(partition, now + delay.min(LOOK_DELAY_MAX));
            }
            if feed.is_leaving {
                self.machine.handle_release(partition, now);
            }
            *known = feed;
        }
        if self.retry_at.is_none_or(|at| at <= Instant::now()) {
            // Also if nothing is left to begin: a time in the past would wake the task without end.
            self.retry_at = None;
            self.begin(begun, waiting).await;
        }
    }

    fn retry(&mut self, partition: Option<u32>, error: &StoreError) {
        log_limited!(warn, %error, partition, "store not read for notices that messages wait; retrying");
        self.retry_at = Some(Instant::now() + STORE_RETRY_INTERVAL);
    }

    /// Begins partitions. One that can't begin keeps no other from it.
    async fn begin(&mut self, begun: OwnedFeeds, waiting: &WaitingPlan) {
        if begun.is_empty() {
            return;
        }
        let cursors = match self.parts.store.cursors(&waiting.consumer).await {
            Ok(cursors) => cursors,
            Err(error) => return self.retry(None, &error),
        };
        for (partition, feed) in begun {
            let saved = cursors.iter().find(|it| it.partition() == partition);
            match self.first_number(partition, feed, saved, waiting).await {
                Ok(Some(number)) => {
                    self.machine.handle_owned(partition, number, self.now());
                    self.feeds.insert(partition, feed);
                }
                // Another owner has it, or the cursor can't be read.
                Ok(None) | Err(StoreError::Fenced) => drop(self.ended.insert(partition, feed.fence)),
                Err(error) => self.retry(Some(partition), &error),
            }
        }
    }

    /// Returns the feed number behind which a partition begins; `None` if its cursor can't be read.
    async fn first_number(
        &self,
        partition: u32,
        feed: OwnedFeed,
        saved: Option<&FeedCursor>,
        waiting: &WaitingPlan,
    ) -> Result<Option<u64>, StoreError> {
        if let Some(saved) = saved {
            let number = cursor::decode(saved.bytes());
            if number.is_none() {
                let webhook = waiting.consumer.as_str();
                tracing::error!(
                    webhook,
                    partition,
                    "cursor of notices can't be read; the partition has none"
                );
            }
            return Ok(number);
        }
        let number = number_before(&*self.parts.store, partition, &waiting.start).await?;
        // Durable before anything is decided: a crash must not move the start.
        self.save_number(partition, feed.fence, number, true).await?;
        Ok(Some(number))
    }

    /// Ends a partition; with its fence, until there is a new owner.
    fn end(&mut self, partition: u32, fence: Option<Fence>) {
        self.feeds.remove(&partition);
        self.machine.handle_lost(partition);
        self.due.forget(partition);
        if let Some(fence) = fence {
            self.ended.insert(partition, fence);
        }
    }

    /// Does all that the machine asks for now. Returns whether a feed is still to be read.
    async fn pump(&mut self, waiting: &WaitingPlan) -> bool {
        for _ in 0..READS_MAX {
            while let Some(save) = self.machine.poll_save(self.now()) {
                self.save(save).await;
            }
            if let Some(round) = self.machine.poll_round(self.now()) {
                self.decide(round, waiting);
            }
            let Some((partition, after)) = self.machine.poll_read(self.now()) else { return false };
            if let Err(error) = self.read(partition, after, waiting).await {
                log_limited!(warn, %error, partition, "feed not read for notices that messages wait; retrying");
                self.machine.handle_read_failed(partition, self.now());
            }
        }
        true
    }

    fn decide(&mut self, round: WaitingRound, waiting: &WaitingPlan) {
        let task = RoundTask {
            parts: Arc::clone(&self.parts),
            plan: Arc::clone(&self.plan),
            waiting: waiting.clone(),
            permits: Arc::clone(&self.permits),
        };
        supervised::spawn_in(&mut self.rounds, "a round of notices", task.run(round));
    }

    fn note(&mut self, done: Option<DecidedRound>) {
        // Only a task that panics has no result, and that ends the process.
        let Some(DecidedRound { ticket, outcomes, error }) = done else { return };
        let was_failing = self.machine.is_failing();
        let dropped = self.machine.handle_round(ticket, &outcomes, self.now());
        let webhook = self.plan.consumer.as_str();
        if dropped > 0 {
            log_limited!(
                error,
                webhook,
                dropped,
                "notices dropped that the endpoint has not taken for too long"
            );
        }
        if self.machine.is_failing() && !was_failing {
            let error = error.unwrap_or_default();
            log_limited!(warn, webhook, error, "endpoint takes no notices that messages wait; it is probed");
        }
    }

    /// Reads the entries of a feed that are due, and finds the recipients of their messages.
    async fn read(&mut self, partition: u32, after: u64, waiting: &WaitingPlan) -> Result<(), StoreError> {
        let page = match self.parts.store.read_feed(partition, after, READ).await? {
            FeedRead::Page(page) => page,
            FeedRead::Missing(numbers) => {
                let (first, last) = (*numbers.start(), *numbers.end());
                let webhook = self.plan.consumer.as_str();
                log_limited!(
                    error,
                    webhook,
                    partition,
                    first,
                    last,
                    "the feed no longer has messages for notices"
                );
                self.machine.handle_moved(partition, last, self.now());
                return Ok(());
            }
            FeedRead::Ahead(newest) => {
                self.machine.handle_moved(partition, newest, self.now());
                return Ok(());
            }
        };
        let FeedPage { mut entries, newest, .. } = page;
        let now = Now { at: self.now(), wall_ms: wall_ms() };
        let delay = Duration::from_millis(waiting.form.delay_ms);
        self.due.see(partition, after, newest, delay, now.at);
        let mut next = None;
        if let Some(at) = entries.iter().position(|entry| {
            let due = self.due.of(partition, entry, delay, now);
            next = (due > now.at).then_some(WaitingLook::At(due));
            next.is_some()
        }) {
            entries.truncate(at);
        }
        let recipients = Recipients {
            store: &*self.parts.store,
            filter: &self.plan.filter,
            small_group_max: self.parts.small_group_max,
        };
        let (mut end, mut messages) = (after, Vec::new());
        if let Some(last) = entries.last().map(|entry| entry.number) {
            let lacks = || StoreError::Unavailable("it lacks entries of the feed; it fell back".to_owned());
            let addressed = recipients.of(&entries).await?.ok_or_else(lacks)?;
            (end, messages) = (addressed.end, addressed.messages);
            if end < last {
                next = Some(WaitingLook::Now);
            }
        }
        let rest = if end < newest { WaitingLook::Now } else { WaitingLook::Archived };
        let page = WaitingPage { after, end, messages, next: next.unwrap_or(rest) };
        self.machine.handle_page(partition, page, self.now());
        Ok(())
    }

    async fn save(&mut self, save: WaitingSave) {
        let WaitingSave { partition, number } = save;
        let Some(fence) = self.feeds.get(&partition).map(|feed| feed.fence) else {
            return self.end(partition, None);
        };
        match self.save_number(partition, fence, number, false).await {
            Ok(()) => self.machine.handle_save(save, true, self.now()),
            Err(StoreError::Fenced) => self.end(partition, Some(fence)),
            Err(error) => {
                log_limited!(warn, %error, partition, "cursor of notices not saved; none is sent meanwhile");
                self.machine.handle_save(save, false, self.now());
            }
        }
    }

    async fn save_number(
        &self,
        partition: u32,
        fence: Fence,
        number: u64,
        is_durable: bool,
    ) -> Result<(), StoreError> {
        let Some(waiting) = &self.plan.waiting else { return Ok(()) };
        let cursor = FeedCursor::new(waiting.consumer.clone(), partition, cursor::encode(number).into());
        let cursor = cursor.map_err(|error| StoreError::Damaged(error.to_string()))?;
        let saved = match is_durable {
            true => self.parts.store.save_cursor_durably(fence, &cursor).await?,
            false => self.parts.store.save_cursor(fence, &cursor).await?,
        };
        match saved {
            CursorOutcome::Saved => Ok(()),
            CursorOutcome::Full => Err(StoreError::Unavailable("too many consumers of the feed".into())),
        }
    }
}

fn settings(plan: &WebhookPlan) -> WaitingSettings {
    let repeat = plan.waiting.as_ref().map_or(0, |waiting| waiting.form.repeat_ms);
    WaitingSettings {
        repeat: Duration::from_millis(repeat),
        failing_max: plan.delivery.aside_after,
        alone_max: plan.delivery.parallel,
    }
}
