//! Deliverer of one endpoint on a node: drives the delivery machine with the feed, the store and a receiver.

mod partitions;
mod report;
mod request;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tidegate_protocol::{
    Time,
    machine::webhook::{
        WebhookBatch, WebhookDelivery, WebhookEvent, WebhookItem, WebhookOutcome, WebhookPage, WebhookRead,
        WebhookSave, WebhookState,
    },
};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep_until},
};

pub(crate) use self::request::body;
use self::request::{Delivered, deliver};
use super::{
    event::{EventEncoder, event_kind},
    permits::WebhookPermits,
    plan::WebhookPlan,
    read_times::ReadTimes,
};
use crate::{
    clock::wall_ms,
    cluster::{OwnedFeed, OwnedFeeds},
    log_limit::log_limited,
    store::{
        ConsumerName, CursorOutcome, FeedCursor, FeedEntry, FeedLimits, FeedPosition, FeedRead, Fence, Store,
        StoreError,
    },
    supervised,
};

/// Limits of one read of the feed.
const READ: FeedLimits = FeedLimits { entries: 512, bytes: 128 * 1024 };

/// Most reads of feeds until outcomes and changes are looked at.
const READS_MAX: usize = 8;

/// Delay until a store is asked again that failed.
const STORE_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Longest wait without an input.
const IDLE_MAX: Duration = Duration::from_secs(3_600);

/// State of an endpoint on a node, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookStatus {
    /// State of the endpoint on this node.
    pub state: WebhookState,
    /// Entries of the feed behind which it is.
    pub behind: u64,
    /// Conversations that are delivered apart, because their next event keeps failing.
    pub parked: usize,
    /// Events that are no longer sent.
    pub aside: usize,
    /// Partitions that are not delivered, because their cursor is damaged or of a newer version.
    pub unreadable: usize,
    /// Receive time of the oldest event that was read and not taken, in ms since 1970; `None` without one.
    pub oldest_ms: Option<u64>,
    /// Reason of the last failure since the last success.
    pub last_error: Option<String>,
}

impl WebhookStatus {
    /// Returns whether nothing succeeds on this node, or a partition can't be delivered.
    pub fn is_failing(&self) -> bool {
        self.state == WebhookState::Failing || self.unreadable > 0
    }

    /// Returns the name of the state.
    pub const fn state_name(&self) -> &'static str {
        match self.state {
            WebhookState::Active => "active",
            WebhookState::Failing => "failing",
            WebhookState::Paused => "paused",
            WebhookState::Disabled => "disabled",
        }
    }
}

/// Result of a task of the deliverer.
enum Done {
    /// A request has ended.
    Delivered(Delivered),
    /// The newest numbers were read for these partitions.
    Newest(BTreeSet<u32>, Result<Arc<Vec<FeedPosition>>, StoreError>),
}

/// Deliverer of one endpoint on a node.
pub struct WebhookDeliverer {
    consumer: ConsumerName,
    plan: Arc<WebhookPlan>,
    encoder: Arc<EventEncoder>,
    store: Arc<dyn Store>,
    /// Shared by all endpoints of the node.
    permits: Arc<WebhookPermits>,
    machine: WebhookDelivery,
    began: Instant,
    /// Feeds that the machine delivers.
    feeds: OwnedFeeds,
    /// Fences under which the delivery ended, by partition: only a new owner begins again.
    ended: BTreeMap<u32, Fence>,
    /// Partitions of these whose cursor can't be read.
    unreadable: BTreeSet<u32>,
    /// Receive times of what was read of these feeds.
    read_times: BTreeMap<u32, ReadTimes>,
    /// Partitions whose newest number has to be read, and the mark since which.
    archived: BTreeSet<u32>,
    archived_mark: u64,
    is_asking_newest: bool,
    /// Requests, at most those that the machine has in flight, and one read of the newest numbers.
    tasks: JoinSet<Done>,
    /// Time of the next try to begin partitions and give orders, and to read the newest numbers, after a failure.
    retry_at: Option<Instant>,
    newest_retry_at: Option<Instant>,
    last_error: Option<String>,
    status: watch::Sender<WebhookStatus>,
}

impl WebhookDeliverer {
    /// Creates a deliverer and what shows its status. The seed chooses the jitter of retries; all deliverers of the node
    /// share the permits.
    pub fn new(
        plan: Arc<WebhookPlan>,
        seed: u64,
        store: Arc<dyn Store>,
        permits: Arc<WebhookPermits>,
    ) -> (Self, watch::Receiver<WebhookStatus>) {
        let (state, last_error) = (WebhookState::Active, None);
        let (status, shown) = watch::channel(WebhookStatus {
            state,
            behind: 0,
            parked: 0,
            aside: 0,
            unreadable: 0,
            oldest_ms: None,
            last_error,
        });
        let it = Self {
            consumer: plan.consumer.clone(),
            encoder: Arc::new(EventEncoder::new(&plan)),
            machine: WebhookDelivery::new(plan.delivery, seed, wall_ms()),
            plan,
            store,
            permits,
            began: Instant::now(),
            feeds: OwnedFeeds::new(),
            ended: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            read_times: BTreeMap::new(),
            archived: BTreeSet::new(),
            archived_mark: 0,
            is_asking_newest: false,
            tasks: JoinSet::new(),
            retry_at: None,
            newest_retry_at: None,
            last_error: None,
            status,
        };
        (it, shown)
    }

    /// Delivers the feeds that the node owns, by the newest plan, until the sender of either is dropped.
    pub async fn run(
        mut self,
        mut owned: watch::Receiver<OwnedFeeds>,
        mut plans: watch::Receiver<Arc<WebhookPlan>>,
    ) {
        self.machine.handle_paused(self.plan.is_paused);
        loop {
            // Taken at each turn, so that a stream of changes delays no outcome, and no stream of outcomes a change.
            while let Some(done) = self.tasks.try_join_next() {
                self.note(done.ok());
            }
            if owned.has_changed().is_err() || plans.has_changed().is_err() {
                return;
            }
            let plan = Arc::clone(&plans.borrow_and_update());
            self.adopt(plan);
            let feeds = owned.borrow_and_update().clone();
            self.follow(feeds).await;
            let has_more = self.pump().await;
            self.show();
            let wake_at = if has_more { Instant::now() } else { self.wake_at() };
            tokio::select! {
                biased;
                Some(done) = self.tasks.join_next() => self.note(done.ok()),
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
        due.into_iter().chain(self.retry_at).chain(self.newest_retry_at).fold(idle, Instant::min)
    }

    /// Applies a plan, if it is another one.
    fn adopt(&mut self, plan: Arc<WebhookPlan>) {
        if Arc::ptr_eq(&plan, &self.plan) {
            return;
        }
        self.encoder = Arc::new(EventEncoder::new(&plan));
        self.machine.handle_settings(plan.delivery, self.now());
        self.machine.handle_paused(plan.is_paused);
        self.plan = plan;
    }

    /// Does all that the machine asks for now. Returns whether a feed is still to be read.
    async fn pump(&mut self) -> bool {
        let mut reads = 0;
        loop {
            while reads < READS_MAX
                && let Some(read) = self.machine.poll_read(self.now())
            {
                reads += 1;
                self.read(read).await;
            }
            while let Some(batch) = self.machine.poll_send(self.now()) {
                self.send(batch);
            }
            let Some(save) = self.machine.poll_save(self.now()) else { break };
            self.save(save).await;
            self.report();
        }
        self.report();
        reads == READS_MAX
    }

    async fn read(&mut self, read: WebhookRead) {
        let WebhookRead { partition, after } = read;
        let result = self.store.read_feed(partition, after, READ).await;
        let now = self.now();
        match result {
            Ok(FeedRead::Page(page)) => {
                let entries = page.entries.iter().map(|it| (it.number, it.time));
                self.read_times.entry(partition).or_default().note(entries, page.newest);
                let end = page.entries.last().map_or(after, |last| last.number);
                let items = page.entries.into_iter().map(|entry| self.item(entry)).collect();
                let page = WebhookPage { after, end, newest: page.newest, items };
                self.machine.handle_page(partition, &page, now);
            }
            Ok(FeedRead::Missing(numbers)) => {
                let is_reported = self.plan.receiver.report_gap(partition, &numbers).await;
                let now = self.now();
                match is_reported {
                    true => self.machine.handle_gap(partition, &numbers, now),
                    false => self.machine.handle_read_failed(partition, now),
                }
            }
            Ok(FeedRead::Ahead(newest)) => self.machine.handle_ahead(partition, newest, now),
            Err(error) => {
                log_limited!(warn, %error, partition, "feed not read for a webhook; retrying");
                self.machine.handle_read_failed(partition, now);
            }
        }
    }

    fn item(&self, entry: FeedEntry) -> WebhookItem {
        let FeedEntry { number, conversation, seq, kind, .. } = entry;
        let event = WebhookEvent { conversation, seq, kind: event_kind(kind) };
        let is_wanted = self.plan.filter.may_want(&event.conversation, kind);
        WebhookItem { number, event, is_wanted }
    }

    fn send(&mut self, batch: WebhookBatch) {
        let (store, permits) = (Arc::clone(&self.store), Arc::clone(&self.permits));
        let (plan, encoder) = (Arc::clone(&self.plan), Arc::clone(&self.encoder));
        supervised::spawn_in(&mut self.tasks, "a request of a webhook", async move {
            let _permit = permits.acquire(&plan.consumer, plan.delivery.parallel).await;
            Done::Delivered(deliver(&*store, &plan, &encoder, batch).await)
        });
    }

    fn note(&mut self, done: Option<Done>) {
        let now = self.now();
        match done {
            Some(Done::Delivered(Delivered { ticket, count, reply })) => {
                match (reply.outcome, reply.error) {
                    (WebhookOutcome::Taken, _) => self.last_error = None,
                    (_, Some(error)) => self.last_error = Some(error),
                    (_, None) => {}
                }
                self.machine.handle_shortened(ticket, count);
                self.machine.handle_outcome(ticket, reply.outcome, now);
            }
            Some(Done::Newest(partitions, result)) => self.note_newest(partitions, result),
            // Only a task that panics has no result, and that ends the process.
            None => {}
        }
    }

    async fn save(&mut self, save: WebhookSave) {
        let WebhookSave { partition, bytes, is_durable, .. } = save;
        let Some(fence) = self.feeds.get(&partition).map(|feed| feed.fence) else { return };
        match self.save_bytes(partition, fence, bytes, is_durable).await {
            Ok(()) => self.machine.handle_save(partition, true, self.now()),
            Err(StoreError::Fenced) => self.end(partition),
            Err(error) => {
                log_limited!(warn, %error, partition, "cursor of a webhook not saved; nothing is sent meanwhile");
                self.machine.handle_save(partition, false, self.now());
            }
        }
    }

    async fn save_bytes(
        &self,
        partition: u32,
        fence: Fence,
        bytes: Vec<u8>,
        is_durable: bool,
    ) -> Result<(), StoreError> {
        let cursor = FeedCursor::new(self.consumer.clone(), partition, bytes.into());
        let cursor = cursor.map_err(|error| StoreError::Damaged(error.to_string()))?;
        let saved = match is_durable {
            true => self.store.save_cursor_durably(fence, &cursor).await?,
            false => self.store.save_cursor(fence, &cursor).await?,
        };
        match saved {
            CursorOutcome::Saved => Ok(()),
            CursorOutcome::Full => Err(StoreError::Unavailable("too many consumers of the feed".into())),
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
